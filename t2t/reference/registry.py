"""The layer kinds that the reference executor knows: how each is read and how it is run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from t2t.errors import RegistrationError, UnsupportedLayerError
from t2t.reference.layer import Ready

Kernel = Callable[..., Any]
"""A layer made ready: input tensors (None where one is unset) to a tensor or a tuple of them."""

Prepare = Callable[[Ready], Kernel]
Read = Callable[[Any], dict[str, Any]]


class Spec(NamedTuple):
    """How one kind of layer is read from TensorRT and made ready to run."""

    prepare: Prepare
    attributes: tuple[str, ...]
    weights: tuple[str, ...]
    host: frozenset[int]
    read: Read | None


_SPECS: dict[str, Spec] = {}


def layer(
    kind: str,
    *attributes: str,
    weights: tuple[str, ...] = (),
    host: tuple[int, ...] = (),
    read: Read | None = None,
) -> Callable[[Prepare], Prepare]:
    """Register the function that makes a kind of layer ready to run.

    Args:
        kind: the name in TensorRT's LayerType, "CONVOLUTION".
        attributes: names of the TensorRT layer's attributes to be read; those that this
            TensorRT does not have are left out, so newer ones are looked up with ``get``.
        weights: names of its attributes that are weights.
        host: positions of inputs whose values are needed on the host (shapes, axes).
        read: reads what cannot be read by an attribute's name.
    """
    if kind in _SPECS:
        raise RegistrationError(f"{kind} is registered already, by {_SPECS[kind].prepare}")

    def register(prepare: Prepare) -> Prepare:
        _SPECS[kind] = Spec(prepare, attributes, weights, frozenset(host), read)
        return prepare

    return register


def kinds() -> tuple[str, ...]:
    """Return the kinds that the reference executor knows, sorted."""
    return tuple(sorted(_SPECS))


def spec_of(kind: str, name: str, version: str) -> Spec:
    """Return the registered functions of a kind; UnsupportedLayerError names what is unknown."""
    if kind not in _SPECS:
        raise UnsupportedLayerError(
            f"layer {name!r} is of kind {kind}, which the reference executor does not know "
            f"(network made by {version}); known: {', '.join(kinds())}"
        )
    return _SPECS[kind]
