"""`t2t.plugin`: which operators PyTorch computes inside an engine, and the layers of these."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from t2t import backend, registry
from t2t.errors import RegistrationError, UnsupportedArgumentError, UnsupportedOperatorError
from t2t.io import Place
from t2t.network import Network, NetworkTensor
from t2t.operator_data import data_of, problem_of
from t2t.plugins.call import Output, PluginCall
from t2t.plugins.classes import make_plugin, register_creator
from t2t.plugins.sizes import InputSizes
from t2t.sizes.terms import Symbol
from t2t.torch_internals import pytree

_F = TypeVar("_F", bound=Callable[..., Any])

_DTYPES = (
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.int32,
    torch.int64,
    torch.bool,
)


def plugin(name: str, *, override: bool = False) -> Callable[[_F], _F]:
    """Let PyTorch compute an operator inside the engine, as a plugin of TensorRT.

        t2t.plugin("aten::special_bessel_j0")        # PyTorch's own kernels

        @t2t.plugin("mylib::swish")                  # a function, which may start Triton's
        def swish(x, beta, *, out):
            swish_kernel[...](x, beta, out)

    The operator stays what defines shapes and types: its fake implementation
    (``torch.library.register_fake``) says these, and the reference executor runs it. A plugin gets
    contiguous tensors in the types that they have in the model, also under ``fp16=True``, and runs
    on TensorRT's stream. It goes before converters and formulas for the same operator; a Python
    function that has a converter ("torch.nn.functional.softmax") is not asked for its operators.

    TensorRT-RTX has no plugins. There the operator is refused, or stays in PyTorch between two
    engines, with ``convert(partial=True)``. An engine with plugins runs in Python only, where the
    operator is registered in torch before the engine is loaded, as is the function by this call.

    Args:
        name: an operator, "aten::special_bessel_j0" or "mylib::swish", or one overload.
        override: replace another function that you registered under the same name.

    Returns:
        A decorator for the function that is run in place of the operator. It takes the operator's
        arguments under their names and returns what the operator does; if it has the parameter
        ``out``, it gets there the tensor (several: a list of them) to write the result to, and
        nothing is copied.

    Raises:
        RegistrationError: the operator does not exist, has another function already, or can be no
            plugin: it is a view, writes to its argument, gives something else than tensors, draws
            random numbers, or is taken apart by PyTorch before a trace sees it; or the function
            does not take its arguments.
    """
    if not isinstance(name, str):
        raise RegistrationError('plugin() takes the name of an operator: @plugin("mylib::swish")')
    operators = registry.operators_of(name, "plugin")
    for operator in operators:
        problem = registry.without_formula(operator, "plugin") or problem_of(operator)
        if problem:
            raise RegistrationError(f"{operator}: {problem}")
    before = registry.plugins.get(name)
    if before is None or override:
        registry.plugins[name] = _entry(name, None)

    def register(function: _F) -> _F:
        entry = _entry(name, function)
        try:
            for operator in operators:
                registry.check_schema(function, operator, "plugin", without=("out",))
            _check_free(name, None if override else before, entry)
        except RegistrationError:
            # As if nothing had been registered.
            del registry.plugins[name]
            if before is not None:
                registry.plugins[name] = before
            raise
        registry.plugins[name] = entry
        return function

    return register


def _check_free(name: str, before: registry.Plugin | None, entry: registry.Plugin) -> None:
    """Raise RegistrationError where another function runs the operator already."""
    if before is None or before.implementation is None:
        return
    # A notebook's cell may run twice.
    if before.qualified_name != entry.qualified_name:
        raise RegistrationError(
            f"{name} is a plugin already, by {before.qualified_name}; pass override=True to "
            "replace it"
        )


def _entry(name: str, function: Callable[..., Any] | None) -> registry.Plugin:
    # In half precision an operator may give other types, or have no kernel.
    signature = inspect.signature(add_plugin)
    return registry.Plugin(add_plugin, (name,), "sensitive", None, signature, function)


def add_plugin(net: Network, *args: Any, **kwargs: Any) -> tuple[NetworkTensor, ...]:
    """Add the plugin layer of an operator's call: its own arguments to its results."""
    if not backend.has_layer("add_plugin_v3"):
        raise UnsupportedOperatorError(
            f"it is registered as a plugin, and {backend.name()} {backend.version()} has no "
            'plugins: convert with TensorRT proper (backend="tensorrt"), or pass partial=True, '
            "with which PyTorch runs it between engines"
        )
    call, inputs = described(net, args, kwargs)
    register_creator()
    net.plugins.add(call.operator)
    return tuple(net.add_plugin_v3(inputs, make_plugin(call)))


def described(
    net: Network, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[PluginCall, list[NetworkTensor]]:
    """Return the call that is being converted as data, and the inputs of its plugin.

    Raises:
        UnsupportedArgumentError: a tensor or a size is none that a plugin can have.
        ConversionError: an argument cannot be written as data.
    """
    inputs: list[NetworkTensor] = []
    numbers: dict[int, int] = {}

    def carrier(symbol: Symbol) -> Place:
        tensor, place = net.place_of(symbol)
        if net.dtype_of(tensor) not in _DTYPES:
            tensor = net.cast(tensor, torch.int32)
        inputs.append(tensor)
        return Place(len(inputs) - 1, place.dim, place.factor, place.offset)

    sizes = InputSizes(carrier)

    def number(x: torch.Tensor) -> int:
        if id(x) not in numbers:
            _check_dtype(x)
            numbers[id(x)] = len(inputs)
            inputs.append(net.cast(net.tensor(x), x.dtype))
            sizes.note(numbers[id(x)], x)
        return numbers[id(x)]

    # All tensors first, so that sizes are read from these where they can be.
    for x in pytree.tree_leaves((args, kwargs)):
        if isinstance(x, torch.Tensor):
            number(x)
    given = [data_of(x, number, sizes.number) for x in args]
    named = {key: data_of(x, number, sizes.number) for key, x in kwargs.items()}
    outputs = []
    for x in pytree.tree_leaves(net.output):
        if isinstance(x, torch.Tensor):
            _check_dtype(x)
            outputs.append(Output(x.dtype, [sizes.dimension(size) for size in x.shape]))
    types = [net.dtype_of(x) for x in inputs]
    return PluginCall(net.operator, given, named, types, outputs), inputs


def _check_dtype(x: torch.Tensor) -> None:
    if x.dtype not in _DTYPES:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in _DTYPES)
        raise UnsupportedArgumentError(
            f"a plugin takes and gives no tensors of {x.dtype}; supported: {known}"
        )
