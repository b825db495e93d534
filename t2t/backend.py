"""The only door to TensorRT: `tensorrt` or `tensorrt_rtx`, chosen at the first use.

Everybody else writes ``from t2t.backend import trt`` and uses ``trt.ActivationType.RELU`` inside
functions: ``trt`` looks a name up in the backend in use, so importing t2t needs no TensorRT.
What the versions can do is asked by feature (`has_layer`), never by version number.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import Any

import torch

from t2t.errors import BackendError

BACKENDS = ("tensorrt", "tensorrt_rtx")
_INSTALL = (
    "install TensorRT-RTX (builds anywhere, runs on GeForce RTX and RTX PRO GPUs) with "
    "`pip install tensorrt-rtx-cu13`, or TensorRT (builds and runs on any NVIDIA GPU) with "
    "`pip install tensorrt`"
)

_chosen: ContextVar[str | None] = ContextVar("t2t_backend", default=None)


def is_installed(backend: str) -> bool:
    """Return whether the package of this name can be imported (without importing it)."""
    if backend in sys.modules:
        # None there is Python's way of saying that a module must not be imported.
        return sys.modules[backend] is not None
    return importlib.util.find_spec(backend) is not None


@functools.cache
def _default(wanted: str | None) -> tuple[str, str]:
    """Return the backend to use where none was chosen, and why it is that one."""
    if wanted:
        return _checked(wanted, "T2T_BACKEND"), f"T2T_BACKEND={wanted}"
    if is_installed("tensorrt") and torch.cuda.is_available():
        return "tensorrt", "it is installed, and there is a GPU"
    for backend in reversed(BACKENDS):
        if is_installed(backend):
            others = [other for other in BACKENDS if other != backend and is_installed(other)]
            return backend, "it needs no GPU" if others else "it is the only one installed"
    raise BackendError(f"neither TensorRT nor TensorRT-RTX is installed: {_INSTALL}")


def _checked(backend: str, source: str) -> str:
    if backend not in BACKENDS:
        raise BackendError(f"{source}={backend!r}: the backends are {', '.join(BACKENDS)}")
    if not is_installed(backend):
        raise BackendError(f"{source}={backend!r}: this package is not installed: {_INSTALL}")
    return backend


@functools.cache
def _module(backend: str) -> ModuleType:
    try:
        return importlib.import_module(backend)
    except ImportError as error:
        raise BackendError(f"{backend} is installed but does not load: {error}") from error


def name() -> str:
    """Name the backend in use: "tensorrt" or "tensorrt_rtx"."""
    return _chosen.get() or _default(os.environ.get("T2T_BACKEND"))[0]


def default() -> tuple[str, str]:
    """Return the backend that is used where none is asked for, and why it is that one.

    Raises:
        BackendError: there is none, or T2T_BACKEND names one that is not there.
    """
    return _default(os.environ.get("T2T_BACKEND"))


def version() -> str:
    """Version of the backend in use, as its package gives it."""
    return str(_module(name()).__version__)


@contextmanager
def use(backend: str | None) -> Iterator[None]:
    """Use another backend inside a ``with`` block, in this thread only; None changes nothing."""
    token = _chosen.set(_chosen.get() if backend is None else _checked(backend, "backend"))
    try:
        yield
    finally:
        _chosen.reset(token)


class _Backend:
    """Stands for the backend's module: ``trt.Weights`` is looked up when it is used."""

    def __getattr__(self, attribute: str) -> Any:
        return getattr(_module(name()), attribute)

    def __repr__(self) -> str:
        return "<the TensorRT module in use>"


trt: Any = _Backend()


def is_rtx() -> bool:
    """Return whether the backend is TensorRT-RTX (no plugins, kernels made when loaded)."""
    return name() == "tensorrt_rtx"


def has_layer(method: str) -> bool:
    """Return whether INetworkDefinition of this version has a method such as "add_attention"."""
    return hasattr(trt.INetworkDefinition, method)


def create_network(builder: Any) -> Any:
    """Make an empty strongly typed network; the flag is right for every version."""
    return builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))


# TensorRT keeps one logger a process and reports why a call failed only there. So there is one,
# which hands its messages to Python's logging, and keeps the last errors of each thread for our
# exceptions.
_log = logging.getLogger("t2t.tensorrt")
LEVELS = {
    "INTERNAL_ERROR": logging.CRITICAL,
    "ERROR": logging.ERROR,
    "WARNING": logging.WARNING,
    "INFO": logging.INFO,
    "VERBOSE": logging.DEBUG,
}
_heard = threading.local()
# What TensorRT-RTX logs as errors wherever there is no GPU.
_NOISE = ("catchCudaError", "cudaError", "CUDA initialization failure")


def _lines() -> deque[str]:
    if not hasattr(_heard, "lines"):
        _heard.lines = deque(maxlen=20)
    lines: deque[str] = _heard.lines
    return lines


@functools.cache
def _logger(backend: str) -> Any:
    module = _module(backend)

    class Logger(module.ILogger):  # type: ignore[name-defined, misc]
        def log(self, severity: Any, msg: str) -> None:
            level, text = LEVELS.get(severity.name, logging.INFO), msg.strip()
            expected = getattr(_heard, "muted", False) or any(noise in msg for noise in _NOISE)
            if expected:
                level = min(level, logging.DEBUG)
            elif level >= logging.ERROR:
                _lines().append(text)
            _log.log(level, text)

    return Logger()


@contextmanager
def muted() -> Iterator[None]:
    """Expect errors inside a ``with`` block, in this thread: neither kept, nor shown as such."""
    before, _heard.muted = getattr(_heard, "muted", False), True
    try:
        yield
    finally:
        _heard.muted = before


def logger() -> Any:
    """Return the process's logger of the backend in use."""
    return _logger(name())


def forget_errors() -> None:
    """Drop what TensorRT has logged in this thread so far."""
    _lines().clear()


def note_error(text: str) -> None:
    """Add what went wrong in a callback to what TensorRT logs, which does not say it."""
    _lines().append(text)
    _log.error(text)


def error_text() -> str:
    """Return what TensorRT logged in this thread since `forget_errors`, one line each."""
    return "\n".join(dict.fromkeys(_lines())) or "TensorRT gave no reason"
