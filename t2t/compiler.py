"""The backend "t2t" of torch.compile: every graph that dynamo captures becomes engines."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from t2t.conversion import convert
from t2t.errors import OptionError, T2TError
from t2t.module import TRTModule
from t2t.torch_internals import writes_counted

_log = logging.getLogger(__name__)

# What torch.compile says beside a backend's own options.
_PARTIAL: Mapping[str, Any] = {"partial": True}


def backend(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile a captured graph, as ``torch.compile(model, backend="t2t")`` asks for.

        compiled = torch.compile(model, backend="t2t", options={"fp16": True})
        with torch.no_grad():
            y = compiled(x)

    A graph is converted when it is called for the first time with inputs of some sizes and types,
    with ``partial=True``: what TensorRT cannot do stays in PyTorch. Parameters and buffers are
    constants; where one was changed, the graph is converted anew. Where a gradient is wanted, or
    nothing converts, the graph runs in PyTorch, which the logger "t2t" says.

    Args:
        gm: the graph.
        example_inputs: its inputs as dynamo saw them; those of calls are looked at instead.
        options: of `convert`.

    Raises:
        OptionError: `convert` has no such option.
    """
    del example_inputs
    return _Compiled(gm, {**_PARTIAL, **(options or {})})


class _Compiled:
    """A captured graph, and what it was converted to for each kind of inputs."""

    def __init__(self, gm: torch.fx.GraphModule, options: Mapping[str, Any]) -> None:
        self._graph, self._options = gm, options
        holders = [node for node in gm.graph.nodes if node.op == "placeholder"]
        # Dynamo hands parameters, buffers and other tensors of the module in as inputs.
        self._fixed = [_is_fixed(node) for node in holders]
        self._made: dict[Any, tuple[list[tuple[int, int]], TRTModule | None]] = {}

    def __call__(self, *args: Any) -> Any:
        tensors = [x for x in args if isinstance(x, torch.Tensor)]
        if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
            _log.warning("a graph runs in PyTorch: t2t computes no gradients; use torch.no_grad()")
            return self._graph(*args)
        pairs = list(zip(args, self._fixed, strict=True))
        inputs = [x for x, fixed in pairs if not fixed and isinstance(x, torch.Tensor)]
        key = tuple(_kind(x) for x, fixed in pairs if not fixed)
        versions = [(id(x), writes_counted(x)) for x, fixed in pairs if fixed]
        known = self._made.get(key)
        if known is None or known[0] != versions:
            known = self._made[key] = versions, self._converted(args, inputs)
        converted = known[1]
        return self._graph(*args) if converted is None else converted(*inputs)

    def _converted(self, args: Sequence[Any], inputs: Sequence[torch.Tensor]) -> TRTModule | None:
        place = {id(x): index for index, x in enumerate(inputs)}

        def graph(*given: torch.Tensor) -> Any:
            return self._graph(*(given[place[id(x)]] if id(x) in place else x for x in args))

        try:
            return convert(graph, list(inputs), **self._options)
        except OptionError:
            raise
        except T2TError as error:
            _log.warning("a graph runs in PyTorch: %s", error)
            return None


def _is_fixed(node: torch.fx.Node) -> bool:
    kind = node.meta.get("tensor_dict") or {}
    return "_dynamo_static_input_type" in kind or isinstance(
        node.meta.get("example_value"), torch.nn.Parameter
    )


def _kind(x: Any) -> Any:
    """Return what of an input the conversion depends on."""
    if isinstance(x, torch.Tensor):
        return tuple(x.shape), x.dtype, x.device
    return x
