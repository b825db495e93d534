"""For those who come from torch2trt: its call, and its converters as they are.

    from t2t.compat import tensorrt_converter, torch2trt

    model_trt = torch2trt(model, [x], fp16_mode=True, max_batch_size=8)

A converter of torch2trt's reads ``ctx.method_args``, adds layers to ``ctx.network``, and puts what
it made into ``ctx.method_return._trt``. It runs here over the traced graph, and its results are
checked like those of any converter: shape and type must be what PyTorch gives.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch

from t2t import backend
from t2t.conversion import convert
from t2t.errors import ConversionError, OptionError, UnsupportedOperatorError
from t2t.io import map_tree, tree_leaves
from t2t.module import TRTModule
from t2t.network import Network, NetworkTensor
from t2t.registry import converter

__all__ = [
    "ConversionContext",
    "add_missing_trt_tensors",
    "broadcast_trt_tensors",
    "get_arg",
    "tensorrt_converter",
    "torch2trt",
    "trt_",
]

_F = TypeVar("_F", bound=Callable[..., Any])

# What says nothing to a strongly typed network, or is always so here.
_IGNORED = ("strict_type_constraints", "keep_network", "log_level", "avg_timing_iterations")
_OFF = ("int8_mode", "use_onnx", "device_types", "dla_core")


def torch2trt(
    module: torch.nn.Module,
    inputs: Any,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    *,
    fp16_mode: bool = False,
    max_workspace_size: int | None = None,
    max_batch_size: int | None = None,
    min_shapes: Any = None,
    opt_shapes: Any = None,
    max_shapes: Any = None,
    **options: Any,
) -> TRTModule:
    """Convert a module, with torch2trt's names of options.

    Args:
        module: the module, in eval mode.
        inputs: example inputs.
        input_names: names of the network's inputs.
        output_names: names of its outputs.
        fp16_mode: as ``fp16`` of `t2t.convert`: compute in half where it is safe to.
        max_workspace_size: as ``workspace``, in bytes.
        max_batch_size: the largest batch; batches from 1 on are taken. Without it and without
            shapes, the network takes the examples' sizes only, as torch2trt's does.
        min_shapes: smallest shapes of the inputs.
        opt_shapes: the shapes to optimize for.
        max_shapes: largest shapes.
        options: other options of torch2trt's or of `t2t.convert`. ``strict_type_constraints``,
            ``keep_network``, ``log_level`` and ``avg_timing_iterations`` change nothing here.

    Raises:
        OptionError: an option means something that t2t does not do; the text says what to do.
        ConversionError: as `t2t.convert`.
    """
    for name in _IGNORED:
        options.pop(name, None)
    for name, value in list(options.items()):
        # What torch2trt's own defaults ask for, is so.
        on_gpu = name == "default_device_type" and getattr(value, "name", value) == "GPU"
        if on_gpu or (name in _OFF and not value):
            del options[name]
    given = [x is not None for x in (min_shapes, max_shapes)]
    if max_batch_size is not None and any(given):
        raise OptionError("max_batch_size and min_shapes or max_shapes both say the batch's size")
    return convert(
        module,
        inputs,
        fp16=fp16_mode,
        workspace=max_workspace_size,
        max_batch_size=max_batch_size,
        input_names=input_names,
        output_names=output_names,
        min_shapes=min_shapes,
        opt_shapes=opt_shapes,
        max_shapes=max_shapes,
        **options,
    )


class ConversionContext:
    """What a converter of torch2trt's is called with.

    Attributes:
        network: TensorRT's INetworkDefinition; a layer that it refuses raises here.
        method_args: the arguments of the call. Tensors that depend on the inputs have the tensor of
            the network as ``_trt``; parameters and constants are real tensors without.
        method_kwargs: its keyword arguments.
        method_return: what the call returned: tensors of its shapes and dtypes, whose ``_trt`` the
            converter sets.
        method_str: the name that the converter is registered under.
    """

    def __init__(
        self, net: Network, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        def lifted(x: Any) -> Any:
            if not isinstance(x, torch.Tensor) or not net.is_traced(x):
                return x
            # An object of its own: no attribute is left on anybody's tensor.
            alias = x.detach()
            alias._trt = net.tensor(x)  # type: ignore[attr-defined]
            return alias

        self.network = _RawNetwork(net)
        self.method_str = name
        self.method_args, self.method_kwargs = map_tree(lifted, (args, dict(kwargs)))
        self.method_return = map_tree(
            lambda x: x.detach() if isinstance(x, torch.Tensor) else x, net.output
        )

    def results(self) -> list[NetworkTensor]:
        """Return the network tensors that the converter made.

        Raises:
            UnsupportedOperatorError: it left one out.
        """
        tensors = [x for x in tree_leaves(self.method_return) if isinstance(x, torch.Tensor)]
        if not all(hasattr(x, "_trt") for x in tensors):
            raise UnsupportedOperatorError(
                "its converter did not set ctx.method_return._trt (of each tensor that is returned)"
            )
        return [x._trt for x in tensors]  # type: ignore[attr-defined]


class _RawNetwork:
    """TensorRT's network, which keeps what it is given and raises where it refuses a layer."""

    def __init__(self, net: Network) -> None:
        self._net = net

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._net.raw, name)
        if not name.startswith("add_"):
            return found

        @functools.wraps(found)
        def add(*args: Any, **kwargs: Any) -> Any:
            backend.forget_errors()
            # TensorRT reads weights until the build ends.
            self._net.keep(args, kwargs)
            layer = found(*args, **kwargs)
            if layer is None:
                raise ConversionError(f"TensorRT refuses {name}: {backend.error_text()}")
            return layer

        return add


def tensorrt_converter(
    name: str, is_real: bool = True, enabled: bool = True, imports: Sequence[Any] = ()
) -> Callable[[_F], _F]:
    """Register a converter of torch2trt's, under the name of a function or method.

        @tensorrt_converter("torch.nn.ReLU.forward")
        def convert_relu(ctx):
            input = ctx.method_args[1]
            input_trt = add_missing_trt_tensors(ctx.network, [input])[0]
            layer = ctx.network.add_activation(input_trt, trt.ActivationType.RELU)
            ctx.method_return._trt = layer.get_output(0)

    (``trt`` is the package that t2t uses: ``from t2t.backend import trt``.)

    Args:
        name: what it converts.
        is_real: False registers nothing, as there.
        enabled: likewise.
        imports: not needed: the name's module is imported.
    """
    del imports

    def register(function: _F) -> _F:
        @functools.wraps(function)
        def convert_call(net: Network, *args: Any, **kwargs: Any) -> Any:
            ctx = ConversionContext(net, name, args, kwargs)
            function(ctx)
            return ctx.results()

        # inspect.signature follows it to the function of ctx.
        del convert_call.__wrapped__
        if is_real and enabled:
            converter(name, override=True)(convert_call)
        return function

    return register


def get_arg(ctx: ConversionContext, name: str, pos: int, default: Any) -> Any:
    """Return an argument of the call, by name or by place."""
    if name in ctx.method_kwargs:
        return ctx.method_kwargs[name]
    return ctx.method_args[pos] if len(ctx.method_args) > pos else default


def add_missing_trt_tensors(
    network: Any, tensors: Sequence[torch.Tensor | float]
) -> list[NetworkTensor]:
    """Return the network tensor of each; constant layers of parameters, constants and numbers.

    The constants of numbers have as many dimensions as the traced tensor beside them that has most,
    and its dtype.
    """
    traced = [x for x in tensors if hasattr(x, "_trt")]
    rank = max((x.ndim for x in traced), default=0)  # type: ignore[union-attr]
    dtype = traced[0].dtype if traced else torch.float32  # type: ignore[union-attr]
    return [_network_tensor(network, x, rank, dtype) for x in tensors]


def _network_tensor(network: Any, x: Any, rank: int, dtype: torch.dtype) -> NetworkTensor:
    if hasattr(x, "_trt"):
        return x._trt  # type: ignore[no-any-return]
    if not isinstance(x, torch.Tensor):
        x = torch.full((1,) * rank, x, dtype=dtype)
    net: Network = network._net
    return net.constant(x.detach(), x.dtype)


def broadcast_trt_tensors(
    network: Any, trt_tensors: Sequence[NetworkTensor], broadcast_ndim: int
) -> list[NetworkTensor]:
    """Return the tensors with dimensions of size 1 in front, up to a number of dimensions."""
    net: Network = network._net
    return [net.tensor(x, rank=broadcast_ndim) for x in trt_tensors]


def trt_(network: Any, *tensors: Any) -> Any:
    """Return the network tensors of tensors and numbers, broadcast to one number of dimensions."""
    made = add_missing_trt_tensors(network, tensors)
    made = broadcast_trt_tensors(network, made, max(len(x.shape) for x in made))
    return made[0] if len(made) == 1 else tuple(made)
