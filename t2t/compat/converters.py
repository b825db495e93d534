"""torch2trt's converters: functions of a context, which hold the call and the raw network."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch

from t2t import backend
from t2t.errors import ConversionError, UnsupportedOperatorError
from t2t.io import map_tree, tree_leaves
from t2t.network import Network, NetworkTensor
from t2t.registry import converter

_F = TypeVar("_F", bound=Callable[..., Any])


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
