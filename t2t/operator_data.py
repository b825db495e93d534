"""PyTorch's operators and their arguments as plain data, as checkpoints and engines hold them.

An operator is its name ("aten::sort.stable"), and its arguments are numbers, strings, dtypes, sizes
and references to tensors. So what is read from a file holds no code, and only operators that are
registered in torch and have no side effects are run.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from t2t.errors import CheckpointError, ConversionError
from t2t.registry import find_plugin
from t2t.sizes.arithmetic import NUMBERS
from t2t.torch_internals import OpNamespace, OpOverload, OpOverloadPacket, pytree, schema_of

Data = Any
"""An argument as JSON has it; a mapping of one key stands for what JSON does not have."""

Run = Callable[[Mapping[int, torch.Tensor], torch.device], list[torch.Tensor]]
"""Runs an operator, on tensors by number and on a device."""

# They read or write files.
_FORBIDDEN = ("aten::from_file",)
# What these take strings for are options; for others they may be names of files or of groups.
_TAKE_STRINGS = ("aten", "prims", "t2t", "torch_nn", "torchvision")
_NAMED = ("dtype", "layout", "memory_format")
_PLAIN = (type(None), bool, int, float, str)


def find_operator(name: str) -> OpOverload:
    """Return the operator of a name, such as "aten::sort.stable" or "aten::relu".

    Raises:
        CheckpointError: there is none, or it does more than to compute tensors from its arguments.
    """
    found = re.fullmatch(r"(\w+)::(\w+)(?:\.(\w+))?", name)
    space = found and getattr(torch.ops, found[1], None)
    packet = getattr(space, found[2], None) if found and isinstance(space, OpNamespace) else None
    overload = (found and found[3]) or "default"
    if not isinstance(packet, OpOverloadPacket) or overload not in packet.overloads():  # type: ignore[no-untyped-call]
        raise CheckpointError(
            f"torch has no operator {name!r}: import the package that registers it, as torchvision"
        )
    operator: OpOverload = getattr(packet, overload)
    problem = problem_of(operator) or _problem_of_strings(operator)
    if problem:
        raise CheckpointError(f"{name} must not be run by a converted module: {problem}")
    return operator


def problem_of(operator: OpOverload) -> str:
    """Return why an operator does more than to compute tensors from its arguments, or ""."""
    schema = schema_of(operator)
    if schema.name in _FORBIDDEN or schema.is_mutable:
        return "it has side effects"
    kinds = [str(returned.type) for returned in schema.returns]
    if not kinds or any(kind not in ("Tensor", "List[Tensor]") for kind in kinds):
        return "it gives something else than tensors"
    return ""


def _problem_of_strings(operator: OpOverload) -> str:
    schema = schema_of(operator)
    strings = any("str" in str(argument.type) for argument in schema.arguments)
    if not strings or operator.namespace in _TAKE_STRINGS or find_plugin(operator) is not None:
        return ""
    return (
        "it takes a string, which may be the name of a file; where it does no harm, say "
        f"t2t.plugin({schema.name!r}) before"
    )


def tensors_read(data: Data) -> list[int]:
    """Return the numbers of the tensors that arguments refer to."""
    found: list[int] = []
    pending: list[Any] = [data]
    while pending:
        item = pending.pop()
        if isinstance(item, Mapping):
            found += [item["tensor"]] if "tensor" in item else []
            pending += [item["size"]] if "size" in item else []
        elif isinstance(item, list):
            pending += item
    return found


def data_of(
    x: Any, number: Callable[[torch.Tensor], int], size: Callable[[Any], Data] | None = None
) -> Data:
    """Return an argument as data.

    Args:
        x: the argument.
        number: gives the number of a tensor.
        size: gives what computes a symbolic number, as data.

    Raises:
        ConversionError: it is of a type that has no such form.
    """
    if isinstance(x, torch.Tensor):
        return {"tensor": number(x)}
    if isinstance(x, list | tuple):
        return [data_of(item, number, size) for item in x]
    if size is not None and isinstance(x, torch.SymInt | torch.SymFloat | torch.SymBool):
        return {"size": size(x)}
    if isinstance(x, float) and not math.isfinite(x):
        return {"float": str(x)}
    if isinstance(x, complex):
        return {"complex": [str(x.real), str(x.imag)]}
    if x is None or isinstance(x, bool | int | float | str):
        return x
    if isinstance(x, torch.device):
        return {"device": True}
    for kind in _NAMED:
        if isinstance(x, getattr(torch, kind)):
            return {kind: str(x).removeprefix("torch.")}
    raise ConversionError(f"an argument is a {type(x).__name__}")


@dataclass(frozen=True)
class _Slot:
    """An argument that is known at run time: tensor ``number``, or a device if that is None."""

    number: int | None


@dataclass(frozen=True)
class _Size:
    """A size that is computed of others.

    It is a number, a tensor's size, the number in a tensor (where ``dim`` is None), or
    [function, *arguments].
    """

    data: Data


def program(
    name: str,
    args: Sequence[Data],
    kwargs: Mapping[str, Data],
    function: Callable[..., Any] | None = None,
) -> Run:
    """Return what runs an operator.

    Args:
        name: the operator.
        args: its arguments, as data.
        kwargs: its keyword arguments.
        function: what is called in its place.

    Raises:
        CheckpointError: there is no such operator, it must not run, or an argument is none.
    """
    operator = find_operator(name)
    called = function or operator
    slots = [_argument(item) for item in args]
    computed = [(i, x) for i, x in enumerate(slots) if isinstance(x, _Slot | _Size | list)]
    named_slots = {str(key): _argument(item) for key, item in kwargs.items()}

    def run(values: Mapping[int, torch.Tensor], device: torch.device) -> list[torch.Tensor]:
        given = slots.copy()
        for place, item in computed:
            given[place] = _filled(item, values, device)
        if named_slots:
            named = {key: _filled(item, values, device) for key, item in named_slots.items()}
            result = called(*given, **named)
        else:
            result = called(*given)
        if isinstance(result, torch.Tensor):
            return [result]
        return [x for x in pytree.tree_leaves(result) if isinstance(x, torch.Tensor)]

    return run


def _filled(item: Any, values: Mapping[int, torch.Tensor], device: torch.device) -> Any:
    """Return an argument at run time."""
    if isinstance(item, _Slot):
        return device if item.number is None else values[item.number]
    if isinstance(item, list):
        return [_filled(part, values, device) for part in item]
    return size_of(item.data, values) if isinstance(item, _Size) else item


def size_of(data: Data, values: Mapping[int, torch.Tensor]) -> Any:
    """Return a size for these tensors by number."""
    if isinstance(data, Mapping):
        tensor, dim = values[data["tensor"]], data["dim"]
        if dim is None:
            return tensor.item()
        return (tensor.shape[dim] - data["offset"]) // data["factor"]
    if isinstance(data, list):
        return NUMBERS[data[0]](*(size_of(item, values) for item in data[1:]))
    return data


def _argument(data: Data) -> Any:
    """Read an argument.

    Raises:
        CheckpointError: this is none.
    """
    if type(data) in _PLAIN:
        return data
    if isinstance(data, list):
        return [_argument(item) for item in data]
    kind: str = ""
    value: Any = None
    if isinstance(data, Mapping) and len(data) == 1:
        [(kind, value)] = data.items()
    if kind == "tensor":
        return _Slot(int(value))
    if kind == "device":
        return _Slot(None)
    if kind == "size":
        check_size(value)
        return _Size(value)
    if kind == "float":
        return float(value)
    if kind == "complex":
        return complex(*map(float, value))
    constant = getattr(torch, value, None) if kind in _NAMED and isinstance(value, str) else None
    if not isinstance(constant, torch.dtype | torch.layout | torch.memory_format):
        raise CheckpointError(f"an operator has the argument {data!r}")
    return constant


def check_size(data: Data) -> None:
    """Raise CheckpointError unless this says how to compute a size."""
    if isinstance(data, Mapping):
        numbers = [data.get(name) for name in ("tensor", "factor", "offset")]
        plain = all(isinstance(x, int) for x in numbers) and data["factor"] > 0
        fits = plain and isinstance(data.get("dim", ""), int | None)
    elif isinstance(data, list):
        fits = len(data) > 1 and data[0] in NUMBERS
        for item in data[1:]:
            check_size(item)
    else:
        fits = isinstance(data, int | float)
    if not fits:
        raise CheckpointError(f"an operator has the size {data!r}")
