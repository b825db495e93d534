"""The example inputs of a conversion, before the forward pass runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from t2t.converters.recurrent import PACKED
from t2t.dtypes import is_supported
from t2t.errors import ConversionError, StateError, UnsupportedArgumentError
from t2t.io import Parameters, arguments, flatten, leaf_paths, tree_leaves
from t2t.io.names import as_name, input_names_of
from t2t.network.tensors import MAX_RANK, RANK
from t2t.sizes.declared import Declared, declare
from t2t.tracing.kinds import unsupported_input
from t2t.tracing.state import keepable


@dataclass(frozen=True)
class Example:
    """The example inputs, and what is known of them before the forward pass runs.

    Attributes:
        args: the positional arguments.
        kwargs: the keyword arguments.
        parameters: the parameters of the module's forward pass.
        structure: the trees of both, whose leaves are numbered.
        names: names of the network's inputs; last those of what the module keeps between calls.
        declared: the dynamic sizes.
        state: what the module keeps between calls, by its path.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    parameters: Parameters
    structure: Any
    names: list[str]
    declared: Declared
    state: Mapping[str, torch.Tensor] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        module: Callable[..., Any],
        inputs: Any,
        kwargs: Mapping[str, Any] | None,
        input_names: Sequence[str] | None = None,
        **shapes: Any,
    ) -> Example:
        """Read the example inputs of a module, as `convert` takes them.

        Raises:
            ConversionError: they are not such as the module takes, or a network.
            ShapeError: the declared shapes do not fit.
        """
        if isinstance(module, torch.nn.Module):
            _check_initialized(module)
        args, keywords = arguments(inputs, kwargs)
        Parameters.check(module, args, keywords)
        parameters = Parameters.of(module)
        tensors, structure = _flat_call(args, keywords, parameters.positional)
        if not tensors:
            raise ConversionError("the example inputs hold no tensor")
        names = input_names_of(structure, parameters.positional, input_names)
        declared = declare(structure, names, parameters.positional, tensors, **shapes)
        return cls(args, keywords, parameters, structure, names, declared)

    def keeping(self, module: Any, error: StateError) -> Example:
        """Return the same with the tensors as further inputs that a trace found to be state.

        Raises:
            StateError: that given, where they are none that an engine can keep.
        """
        state = {**keepable(module, error.names), **self.state}
        if len(state) == len(self.state):
            raise error
        return replace(
            self,
            state=state,
            names=[*self.call_names, *(f"state_{as_name(path)}" for path in state)],
        )

    @property
    def call_names(self) -> list[str]:
        """Names of the inputs that a call gives."""
        return self.names[: len(self.names) - len(self.state)]


def _check_initialized(module: torch.nn.Module) -> None:
    for name, parameter in (*module.named_parameters(), *module.named_buffers()):
        if torch.nn.parameter.is_lazy(parameter):
            raise ConversionError(
                f"the parameter {name!r} has no size yet: run the module once before its conversion"
            )


def _flat_call(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], parameters: Sequence[str]
) -> tuple[list[torch.Tensor], Any]:
    """Take the arguments of a call apart, each under its parameter's name in errors."""
    names = [*parameters[: len(args)], *range(len(parameters), len(args))]
    call = {**dict(zip(names, args, strict=True)), **kwargs}
    for name, argument in call.items():
        leaves = tree_leaves(argument, (torch.Tensor, PackedSequence))
        if any(isinstance(x, PackedSequence) for x in leaves):
            raise UnsupportedArgumentError(f"inputs[{name!r}] is {PACKED}")
    tensors, structure = flatten(call, name="inputs")
    for path, leaf in leaf_paths(structure, "inputs").items():
        if leaf["kind"] == "tensor":
            _check_input(path, tensors[leaf["index"]])
    items = structure["items"]
    positional = {"kind": "tuple", "items": items[: len(args)]}
    keyword = {"kind": "dict", "keys": list(kwargs), "items": items[len(args) :]}
    return tensors, {"kind": "tuple", "items": [positional, keyword]}


def _check_input(path: str, tensor: torch.Tensor) -> None:
    kind = unsupported_input(tensor)
    if not kind and tensor.ndim > MAX_RANK:
        kind = RANK.format(rank=tensor.ndim)
    if not kind and not is_supported(tensor.dtype):
        hint = "; pass it as .float(), and convert the model with .float() too"
        kind = f"{tensor.dtype}, which TensorRT does not take".removeprefix("torch.")
        kind += hint if tensor.dtype == torch.float64 else ""
    if kind:
        raise UnsupportedArgumentError(f"{path} is {kind}")
