"""Every exception of t2t, in one tree.

    T2TError
    ├── ConversionError                   a module cannot be turned into a network
    │   ├── UnsupportedOperatorError      an operator has no converter
    │   │   └── StateError                the module keeps state that an engine cannot keep
    │   ├── UnsupportedArgumentError      an operator is supported, but not with this argument
    │   ├── OptionError (also TypeError)  `convert` has no such option, or the value is unfit
    │   └── GuardError                    the trace holds only for a part of the declared shapes
    ├── RegistrationError                 a converter is registered under a wrong or taken name
    ├── BackendError (also ImportError)   TensorRT is not installed, or not usable as asked
    ├── BuildError                        TensorRT's builder refuses the network
    ├── EngineError                       an engine cannot be loaded or run here
    ├── UnsupportedLayerError             the reference executor does not know a layer
    ├── ShapeError                        a tensor has another shape, dtype or device than declared
    ├── CheckpointError                   a checkpoint is damaged, foreign or too new
    └── VerificationError                 outputs differ by more than the tolerance

ShapeWarning, a UserWarning, says what was decided about dynamic sizes.

Conversion errors say which operator, which argument, which module and which line of the user's
code, what is supported and what to do.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

__all__ = [
    "BackendError",
    "BuildError",
    "CheckpointError",
    "ConversionError",
    "EngineError",
    "GuardError",
    "OptionError",
    "RegistrationError",
    "ShapeError",
    "ShapeWarning",
    "StateError",
    "T2TError",
    "UnsupportedArgumentError",
    "UnsupportedLayerError",
    "UnsupportedOperatorError",
    "VerificationError",
    "add_note",
    "require",
]


def add_note(error: BaseException, text: str) -> None:
    """Add a line to what a traceback shows of an error of somebody else's."""
    if sys.version_info >= (3, 11):
        error.add_note(text)
    else:
        notes = [*getattr(error, "__notes__", ()), text]
        error.__dict__["__notes__"] = notes
        if len(error.args) == 1 and isinstance(error.args[0], str):
            # Before Python 3.11 no traceback shows notes.
            error.args = (f"{error.args[0]}\n{text}",)


class T2TError(Exception):
    """Base of every exception raised by t2t."""


class ConversionError(T2TError):
    """A module cannot be turned into a TensorRT network.

    Attributes:
        located: whether the text says already where in the model that is.
        by_mask: whether a trace could not go on because elements are chosen by a mask.
    """

    located = False
    by_mask = False


class UnsupportedOperatorError(ConversionError):
    """An operator whose result is used has no converter and no decomposition."""


class StateError(UnsupportedOperatorError):
    """Results depend on what the module keeps between calls, and an engine cannot keep it.

    Attributes:
        names: where the module keeps it.
        key: the `storage_key` of a tensor whose name is not known yet.
    """

    def __init__(self, text: str, names: Sequence[str] = (), key: int | None = None) -> None:
        super().__init__(text)
        self.names = tuple(names)
        self.key = key


class UnsupportedArgumentError(ConversionError):
    """An operator has a converter, but TensorRT cannot express this argument of it."""


class GuardError(ConversionError):
    """The forward pass took a decision that does not hold for every declared shape."""


class OptionError(ConversionError, TypeError):
    """`convert` has no option of this name, or the option does not take this value."""


class RegistrationError(T2TError):
    """A converter's name does not exist, or is taken already."""


class BackendError(T2TError, ImportError):
    """Neither TensorRT nor TensorRT-RTX is installed, or the one asked for cannot be used."""


class BuildError(T2TError):
    """TensorRT's builder did not make a plan of the network."""


class EngineError(T2TError):
    """A plan cannot be loaded or executed on this machine."""


class UnsupportedLayerError(T2TError):
    """The reference executor cannot read or run a layer."""


class ShapeError(T2TError, ValueError):
    """A tensor's shape, dtype or device is not what the network was built for."""


class ShapeWarning(UserWarning):
    """A conversion chose or changed the range of a dynamic size."""


class CheckpointError(T2TError):
    """A checkpoint is damaged, is not one of t2t's, or was written by a newer t2t."""


class VerificationError(T2TError, AssertionError):
    """The converted module's outputs differ from the original's by more than the tolerance."""


def require(name: str, value: Any, supported: Any, reason: str) -> None:
    """Raise UnsupportedArgumentError unless ``value`` equals ``supported``.

    Args:
        name: the argument's name in torch.
        value: what the user's model passes.
        supported: the only value that TensorRT can express.
        reason: why, in TensorRT's words: "IPoolingLayer has no dilation".
    """
    if value != supported:
        raise UnsupportedArgumentError(f"{name}={value!r}: {reason}; supported: {supported!r}")
