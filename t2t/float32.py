"""How exactly PyTorch computes float32, and when it does: settings that all threads share."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

_Values = Mapping[str, Any]

_EXACT = {"cudnn.allow_tf32": False, "matmul": "highest"}
# PyTorch has these from 2.9 on. Where they are set, reading the older ones raises.
_OPERATORS = (
    "cuda.matmul",
    "cudnn.conv",
    "cudnn.rnn",
    "mkldnn.matmul",
    "mkldnn.conv",
    "mkldnn.rnn",
)


class _Float32:
    """Reads and writes the setting, and holds it at exact while somebody needs that.

    PyTorch rounds the operands of float32 convolutions to TF32 on GPUs (10 bits of mantissa) unless
    told otherwise, and of matrix products if told so.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holders = 0
        self._wanted: _Values = {}

    def get(self) -> _Values:
        """Return the user's setting."""
        with self._lock:
            return self._wanted if self._holders else self._read()

    def put(self, values: _Values) -> None:
        """Write the user's setting, which holds as soon as nobody needs exact results."""
        with self._lock:
            self._wanted = values
            self._write(self._exact(values) if self._holders else values)

    @contextmanager
    def exact(self) -> Iterator[None]:
        """Let all threads compute float32 without TF32 inside the ``with`` block."""
        holds = False
        try:
            with self._lock:
                if not self._holders:
                    self._wanted = self._read()
                self._holders += 1
                holds = True
                self._write(self._exact(self._wanted))
            yield
        finally:
            with self._lock:
                self._holders -= holds
                if holds and not self._holders:
                    self._write(self._wanted)

    def _exact(self, values: _Values) -> _Values:
        return {name: _EXACT.get(name, "ieee") for name in values}

    def _read(self) -> _Values:
        operators = {name: _owner(name) for name in _OPERATORS}
        values = {
            name: owner.fp32_precision
            for name, owner in operators.items()
            if hasattr(owner, "fp32_precision")
        }
        if not values:
            values["cudnn.allow_tf32"] = torch.backends.cudnn.allow_tf32
        try:
            return {"matmul": torch.get_float32_matmul_precision(), **values}
        except RuntimeError:  # only the newer setting was made
            return values

    def _write(self, values: _Values) -> None:
        # This one sets some of the others too, so it is first.
        if "matmul" in values and values["matmul"] != self._read().get("matmul"):
            torch.set_float32_matmul_precision(values["matmul"])
        for name, value in values.items():
            if name == "cudnn.allow_tf32":
                torch.backends.cudnn.allow_tf32 = value
            elif name != "matmul":
                self._write_operator(_owner(name), value)

    @staticmethod
    def _write_operator(owner: Any, value: str) -> None:
        if owner.fp32_precision != value:
            # What is inherited from a wider setting is left so.
            owner.fp32_precision = "none"
            if owner.fp32_precision != value:
                owner.fp32_precision = value


def _owner(name: str) -> Any:
    backend, _, operator = name.partition(".")
    return getattr(getattr(torch.backends, backend), operator, None)


float32_precision = _Float32()
"""The setting of this process; one, as PyTorch has one."""


class _DefaultDtype:
    """Holds PyTorch's default dtype at float32 while t2t computes something of its own.

    A model may be run under another (``torch.set_default_dtype(torch.bfloat16)``), in which t2t's
    tables of positions and weights would be rounded.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holders = 0
        self._wanted = torch.float32

    @contextmanager
    def float32(self) -> Iterator[None]:
        """Let numbers become float32 inside the ``with`` block."""
        holds = False
        try:
            with self._lock:
                if not self._holders:
                    self._wanted = torch.get_default_dtype()
                # Nothing is held, and so nothing put back, where it is float32 anyway.
                if self._wanted != torch.float32:
                    self._holders += 1
                    holds = True
                    torch.set_default_dtype(torch.float32)
            yield
        finally:
            with self._lock:
                self._holders -= holds
                if holds and not self._holders:
                    torch.set_default_dtype(self._wanted)


default_dtype = _DefaultDtype()
"""The default dtype of this process."""
