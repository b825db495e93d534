"""The operator ``t2t::run_engine``: a converted module in a program of torch.export.

Its arguments are all that it needs: the inputs, the entries of the module's checkpoint as tensors,
which the program keeps as constants, and the signature as text, from which come the sizes of the
results. So a program is saved and loaded by PyTorch alone, wherever t2t is imported. What is loaded
is checked as a checkpoint is, before anything of it is used.
"""

from __future__ import annotations

import ast
import json
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from t2t.errors import CheckpointError, ShapeError
from t2t.io import Signature
from t2t.module.checkpoint import Converted
from t2t.module.trt_module import TRTModule, callers

# Weak, and of the process: who holds a program holds its constants, and these hold the engine.
_loaded: WeakIdKeyDictionary = WeakIdKeyDictionary()


_SCHEMA = "(Tensor[] inputs, Tensor[] entries, str signature) -> Tensor[]"


@torch.library.custom_op("t2t::run_engine", mutates_args=(), schema=_SCHEMA)
def run_engine(inputs: Sequence[Tensor], entries: Sequence[Tensor], signature: str) -> list[Tensor]:
    """Run a converted module.

    Args:
        inputs: the network's inputs, in order.
        entries: what `Converted.to_tensors` has returned, on any device.
        signature: the signature as JSON; that in the entries has to be the same.

    Returns:
        The network's outputs, in order.

    Raises:
        CheckpointError: the entries are damaged, or those of another module.
        ShapeError: an input is not what the module was converted for.
        EngineError: the engine does not run here, and there is no program.
    """
    module = _module(entries)
    converted = module._filled()
    if converted.signature_text != signature:
        raise CheckpointError(
            "the engine is not that of the signature: the program was changed; export it again"
        )
    outputs = list(module._run(converted, inputs, converted.signature.check(inputs)))
    # In PyTorch they may be views of the inputs, or of each other, which an operator's are not.
    return [x.clone() for x in outputs] if module.last_run and module.last_run[1] else outputs


def _module(entries: Sequence[Tensor]) -> TRTModule:
    if not entries:
        raise CheckpointError("the program holds no engine: export the converted module again")
    first = entries[0]
    if first in callers:
        module: TRTModule | None = callers[first]()
        # Another checkpoint may have been loaded into it since.
        if module is not None and module._filled().to_tensors()[0] is first:
            return module
    if first not in _loaded:
        made = TRTModule()
        made._fill(Converted.from_tensors([x.cpu() for x in entries]))
        _loaded[first] = made
    return _loaded[first]  # type: ignore[no-any-return]


@run_engine.register_fake
def _shapes(inputs: Sequence[Tensor], entries: Sequence[Tensor], signature: str) -> list[Tensor]:
    """Return tensors of the sizes that the outputs have, which are expressions of the inputs'."""
    del entries
    wanted = Signature.from_data(json.loads(signature))
    sizes = _checked_sizes(wanted, inputs)
    device = inputs[0].device if inputs else torch.device("cpu")
    results = []
    for spec in wanted.outputs:
        names = spec.sizes or ("",) * len(spec.shape)
        shape: list[Any] = list(spec.shape)
        for dim in (dim for dim, size in enumerate(shape) if size == -1):
            known = _size(names[dim], sizes)
            shape[dim] = torch.library.get_ctx().new_dynamic_size() if known is None else known
        results.append(torch.empty(shape, dtype=spec.dtype, device=device))
    return results


def _checked_sizes(signature: Signature, inputs: Sequence[Tensor]) -> dict[str, Any]:
    """Return the dynamic sizes by name; what a call has to fulfil becomes a condition of export."""
    for spec, x in zip(signature.inputs, inputs, strict=True):
        if x.dtype != spec.dtype or x.ndim != len(spec.shape):
            raise ShapeError(f"input {spec.name!r} is {x.dtype} of {x.ndim} dimensions, not {spec}")
        for dim, (size, wanted) in enumerate(zip(x.shape, spec.shape, strict=True)):
            if wanted != -1:
                torch._check(size == wanted, spec.__str__)
            elif spec.min_shape is not None and spec.max_shape is not None:
                torch._check(size >= spec.min_shape[dim], spec.__str__)
                torch._check(size <= spec.max_shape[dim], spec.__str__)
    found = {}
    for dimension in signature.dimensions:
        first = dimension.places[0]
        root = first.root(inputs[first.input].shape[first.dim])
        if dimension.step > 1:
            torch._check((root - dimension.low) % dimension.step == 0)
        for place in dimension.places:
            torch._check(place.size(root) == inputs[place.input].shape[place.dim])
        found[dimension.name] = root
    return found


_BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_CALLS: Mapping[str, Callable[[Any, Any], Any]] = {"min": torch.sym_min, "max": torch.sym_max}


def _size(text: str, sizes: Mapping[str, Any]) -> Any:
    """Compute a size such as "21*h*w" of those that it names; None if that takes more than this."""

    def value(node: ast.expr) -> Any:
        name = ast.unparse(node)
        if name in sizes:
            return sizes[name]
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -value(node.operand)
        if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
            return _BINARY[type(node.op)](value(node.left), value(node.right))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) == 2:
            return _CALLS[node.func.id](*map(value, node.args))
        raise KeyError(name)

    try:
        return value(ast.parse(text, mode="eval").body)
    except (SyntaxError, KeyError):
        return None
