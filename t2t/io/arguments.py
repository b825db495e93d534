"""The arguments of a call: the forms in which example inputs are given, and the parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from t2t.errors import ConversionError
from t2t.io.tree import VALUES, tree_leaves


def arguments(
    inputs: Any, kwargs: Mapping[str, Any] | None = None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Bring example inputs to the form in which a module is called.

    Args:
        inputs: a list or tuple holds positional arguments, a mapping keyword arguments; a tensor,
            or a dataclass that holds tensors, is the only argument.
        kwargs: more keyword arguments.

    Returns:
        Positional and keyword arguments.

    Raises:
        ConversionError: they are something else.
    """
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise ConversionError(
            f"kwargs holds keyword inputs, so it is a mapping, not a {_kind(kwargs)}; several "
            "positional inputs stand in one list: [x, y]"
        )
    keywords = dict(kwargs or {})
    args: tuple[Any, ...] = ()
    if isinstance(inputs, Mapping):
        twice = [key for key in inputs if key in keywords]
        if twice:
            raise ConversionError(f"{twice[0]!r} stands in inputs and in kwargs")
        keywords = {**inputs, **keywords}
    elif isinstance(inputs, list | tuple):
        args = tuple(inputs)
    elif any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(inputs)):
        args = (inputs,)
    else:
        raise ConversionError(
            "inputs are example inputs: a tensor, a list or tuple of positional arguments, or a "
            f"mapping of keyword arguments, not a {_kind(inputs)}"
        )
    names = [key for key in keywords if not isinstance(key, str)]
    if names:
        raise ConversionError(
            f"keyword inputs have names, not {names[0]!r}; a dict that is one positional argument "
            "stands in a list: [inputs]"
        )
    return args, keywords


def _kind(value: Any) -> str:
    cls = type(value)
    return cls.__name__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


@dataclass(frozen=True)
class Parameters:
    """What a module's forward can be called with.

    Attributes:
        positional: names of the parameters that can be given by position.
        keyword: names of those that can only be given by name.
        defaults: their default values, as far as these are None, bool, int, float or str.
    """

    positional: tuple[str, ...] = ()
    keyword: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, module: Callable[..., Any]) -> Parameters:
        """Read them from the signature; C functions such as torch.relu do not tell theirs."""
        signature = _signature(module)
        if signature is None:
            return cls()
        parameters = signature.parameters.values()
        by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        return cls(
            tuple(p.name for p in parameters if p.kind in by_place),
            tuple(p.name for p in parameters if p.kind == inspect.Parameter.KEYWORD_ONLY),
            {p.name: p.default for p in parameters if type(p.default) in VALUES},
        )

    @staticmethod
    def check(module: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Raise ConversionError unless the module can be called with these arguments."""
        signature = _signature(module)
        if signature is None:
            return
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            hint = ""
            if kwargs and not args:
                hint = "; a mapping means keyword arguments: one dict as argument is [inputs]"
            name = "forward" if isinstance(module, torch.nn.Module) else "the function"
            raise ConversionError(
                f"the inputs do not fit {name}{signature}: {error}{hint}"
            ) from error


def _signature(module: Callable[..., Any]) -> inspect.Signature | None:
    function = module.forward if isinstance(module, torch.nn.Module) else module
    try:
        return inspect.signature(function)
    except ValueError:
        return None
