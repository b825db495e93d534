"""How exactly PyTorch computes float32, and when it does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

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


_T = TypeVar("_T")


class _Held(Generic[_T]):
    """A setting of PyTorch's that t2t needs otherwise at times: the user's is kept meanwhile.

    Args:
        read: returns it.
        write: sets it.
        needed: returns what t2t needs, from the user's.
    """

    def __init__(
        self, read: Callable[[], _T], write: Callable[[_T], None], needed: Callable[[_T], _T]
    ) -> None:
        self._read, self._write, self._needed = read, write, needed
        self._lock = threading.Lock()
        self._holders = 0
        self._wanted = read()

    def get(self) -> _T:
        """Return the user's setting."""
        with self._lock:
            return self._wanted if self._holders else self._read()

    def put(self, value: _T) -> None:
        """Write the user's setting, which holds as soon as nobody needs another."""
        with self._lock:
            self._wanted = value
            self._write(self._needed(value) if self._holders else value)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let all threads have what t2t needs inside the ``with`` block."""
        holds = False
        try:
            with self._lock:
                if not self._holders:
                    self._wanted = self._read()
                needed = self._needed(self._wanted)
                # Where that is the user's anyway, nothing is put back either.
                if needed != self._wanted:
                    self._holders += 1
                    holds = True
                    self._write(needed)
            yield
        finally:
            with self._lock:
                self._holders -= holds
                if holds and not self._holders:
                    self._write(self._wanted)


def _exact(values: _Values) -> _Values:
    return {name: _EXACT.get(name, "ieee") for name in values}


def _read() -> _Values:
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


def _write(values: _Values) -> None:
    # This one sets some of the others too, so it is first.
    if "matmul" in values and values["matmul"] != _read().get("matmul"):
        torch.set_float32_matmul_precision(values["matmul"])
    for name, value in values.items():
        if name == "cudnn.allow_tf32":
            torch.backends.cudnn.allow_tf32 = value
        elif name != "matmul":
            _write_operator(_owner(name), value)


def _write_operator(owner: Any, value: str) -> None:
    if owner.fp32_precision != value:
        # What is inherited from a wider setting is left so.
        owner.fp32_precision = "none"
        if owner.fp32_precision != value:
            owner.fp32_precision = value


def _owner(name: str) -> Any:
    backend, _, operator = name.partition(".")
    return getattr(getattr(torch.backends, backend), operator, None)


float32_precision = _Held(_read, _write, _exact)
"""How exactly float32 is computed; held without TF32 where results are compared.

PyTorch rounds the operands of float32 convolutions to TF32 on GPUs (10 bits of mantissa) unless
told otherwise, and of matrix products if told so.
"""

default_dtype = _Held(torch.get_default_dtype, torch.set_default_dtype, lambda _: torch.float32)
"""What numbers become; held at float32 while t2t computes tables of its own.

A model may be run under another (``torch.set_default_dtype(torch.bfloat16)``), which would round
them.
"""


@contextmanager
def without_autocast() -> Iterator[None]:
    """Let this thread compute in the types that are given, also inside of ``torch.autocast``.

    What t2t computes of its own has no part in a model's mixed precision, whose casts are recorded.
    """
    devices = [name for name in ("cpu", "cuda") if torch.is_autocast_enabled(name)]
    for name in devices:
        torch.set_autocast_enabled(name, False)
    try:
        yield
    finally:
        for name in devices:
            torch.set_autocast_enabled(name, True)
