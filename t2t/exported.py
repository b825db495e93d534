"""Programs of torch.export: their module, their examples and their dynamic sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from t2t.errors import ConversionError
from t2t.torch_internals import pytree

aten = torch.ops.aten

_ASK = "say dynamic_shapes=[...] as for any module"


def unpacked(
    program: torch.export.ExportedProgram, inputs: Any, kwargs: Mapping[str, Any] | None
) -> tuple[torch.nn.Module, Any, Mapping[str, Any] | None]:
    """Return the module of an exported program, and the inputs that it was exported with.

    Args:
        program: the program.
        inputs: example inputs; None takes its own.
        kwargs: more keyword inputs.

    Raises:
        ConversionError: it was saved without examples.
    """
    if inputs is None:
        if program.example_inputs is None:
            raise ConversionError("the ExportedProgram has no example inputs: give some")
        inputs, own = program.example_inputs
        kwargs = {**own, **(kwargs or {})}
    module = program.module()
    _name_recurrent(module)
    return module, inputs, kwargs


_FUNCTIONS = {
    aten.lstm.input: torch.lstm,
    aten.gru.input: torch.gru,
    aten.rnn_tanh.input: torch.rnn_tanh,
    aten.rnn_relu.input: torch.rnn_relu,
}


def _name_recurrent(module: torch.fx.GraphModule) -> None:
    """Let recurrent layers be called by torch's functions: PyTorch unrolls their operators.

    Not in the bodies of branches and loops, which are modules that the program itself has.
    """
    found = [node for node in module.graph.nodes if node.target in _FUNCTIONS]
    for node in found:
        node.target = _FUNCTIONS[node.target]
    if found:
        module.recompile()


def dynamic_shapes_of(program: torch.export.ExportedProgram) -> Any:
    """Return the dynamic sizes of a program's inputs, as `convert` takes them.

    Raises:
        ConversionError: a size is not a number, a Dim or a multiple of one and a number.
    """
    user = set(program.graph_signature.user_inputs)
    holders = [n for n in program.graph.nodes if n.op == "placeholder" and n.name in user]
    dims: dict[Any, Any] = {}

    def sizes(node: torch.fx.Node) -> Any:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            return None
        shape = enumerate(value.shape)
        found = {d: _dim(size, program, dims) for d, size in shape if not isinstance(size, int)}
        return found or None

    call = pytree.tree_unflatten(list(map(sizes, holders)), program.call_spec.in_spec)
    args, keywords = call
    if all(x is None for x in pytree.tree_leaves([args, keywords])):
        return None
    return [*args, *keywords.values()]


def _dim(size: Any, program: torch.export.ExportedProgram, dims: dict[Any, Any]) -> Any:
    """Return a symbolic size as a Dim, or a multiple of one."""
    size = size.node.expr
    symbols = list(size.free_symbols)
    if len(symbols) != 1:
        raise ConversionError(f"the size {size} of the ExportedProgram is of several Dims; {_ASK}")
    [symbol] = symbols
    factor, rest = size.coeff(symbol), size.subs(symbol, 0)
    if size - (factor * symbol + rest) != 0:
        raise ConversionError(f"the size {size} of the ExportedProgram is not linear; {_ASK}")
    if symbol not in dims:
        bounds = program.range_constraints[symbol]
        high = None if bounds.upper > 1 << 30 else int(bounds.upper)
        dims[symbol] = torch.export.Dim(str(symbol), min=max(1, int(bounds.lower)), max=high)
    result = dims[symbol] if factor == 1 else int(factor) * dims[symbol]
    return result + int(rest) if rest else result
