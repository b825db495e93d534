"""Which converter takes which operator: the one module-level table of t2t.

A converter is registered under the names of what it converts: a torch function
("torch.nn.functional.conv2d"), a PyTorch operator ("aten::add", or one overload "aten::max.dim"),
any importable function ("mypackage.ops.swish") or a module's method ("mypackage.Block.forward").
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args

import torch

from t2t.errors import RegistrationError

__all__ = [
    "Converter",
    "Formula",
    "Precision",
    "converter",
    "find_formula",
    "find_operator",
    "formula",
    "function_converters",
    "resolve",
    "supported_operators",
    "unregister",
]

Precision = Literal["follow", "compute", "small", "sensitive"]
"""How an operator behaves under ``fp16=True``: "compute" ones (matrix products, convolutions) run
in half precision, "sensitive" ones (softmax, norms, exp) in float32, and "follow" ones in what
torch promotes their operands to: half and float32 to float32. "small" are products that gain
nothing by half precision: they run in it, unless an operand is float32."""

_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Converter:
    """A converter function and what the decorator was told of it."""

    function: Callable[..., Any]
    names: tuple[str, ...]
    precision: Precision | Callable[..., Precision]
    meta: Callable[..., Any] | None
    signature: inspect.Signature

    @property
    def qualified_name(self) -> str:
        """Where the function stands: "t2t.converters.pooling.max_pool"."""
        return f"{self.function.__module__}.{self.function.__qualname__}"

    def precision_of(
        self, output: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Precision:
        """Return the precision of a call that gives ``output`` for these arguments."""
        if callable(self.precision):
            return self.precision(output, *args, **kwargs)
        return self.precision


@dataclass(frozen=True)
class Formula:
    """What an operator computes, in terms of other functions of torch."""

    function: Callable[..., Any]
    names: tuple[str, ...]
    precision: Precision

    @property
    def qualified_name(self) -> str:
        """Where the function stands: "t2t.formulas.special.erfinv"."""
        return f"{self.function.__module__}.{self.function.__qualname__}"


_formulas: dict[str, Formula] = {}


def formula(*names: str, precision: Precision = "follow") -> Callable[[_F], _F]:
    """Register the decorated function as what one or more operators compute.

    It has the operator's own parameters and computes with torch. Where it returns
    ``NotImplemented``, PyTorch's own decomposition is used if there is one.

    Args:
        names: operators, as "aten::hypot" or one overload, "aten::split.Tensor".
        precision: how all that it calls behaves under ``fp16=True``; with "follow", as the parts
            themselves do.

    Raises:
        RegistrationError: a name does not exist, or is taken.
    """

    def register(function: _F) -> _F:
        entry = Formula(function, names, precision)
        for name in names:
            resolve(name)
            if name in _formulas:
                raise RegistrationError(f"{name} has a formula already")
        _formulas.update(dict.fromkeys(names, entry))
        return function

    return register


def find_formula(operator: torch._ops.OpOverload) -> Formula | None:
    """Return the formula of an operator: of this overload, else of all its overloads."""
    packet = operator._schema.name
    return _formulas.get(f"{packet}.{operator._overloadname}") or _formulas.get(packet)


# Name -> converter: t2t's own, and those of users, which win.
_own: dict[str, Converter] = {}
_users: dict[str, Converter] = {}


def converter(
    *names: str,
    precision: Precision | Callable[..., Precision] = "follow",
    meta: Callable[..., Any] | None = None,
    override: bool = False,
) -> Callable[[_F], _F]:
    """Register the decorated function as the converter of one or more operators.

    The function takes the network, then the operator's own parameters under torch's names, in
    torch's order and with torch's defaults; it returns a network tensor (a tuple for several).

    Args:
        names: what it converts, e.g. "torch.nn.functional.max_pool3d", "aten::add",
            "mypackage.Block.forward". Each name must exist. A module's class means its forward.
        precision: how the operator behaves under ``fp16=True``; see `Precision`. Where that
            depends on the call, a function of its fake output and the operator's own arguments.
        meta: computes the fake output from the operator's own arguments, for operators whose
            original is slow or fails on fake tensors. Without it the original runs on them.
            Where it gives ``NotImplemented``, a function is not converted as a whole: the operators
            that it calls are.
        override: replace an earlier converter that you registered under the same name. (t2t's own
            converters need no override: yours win.)

    Raises:
        RegistrationError: a name does not exist, or is taken already, or the function cannot take
            what a converter is called with.
    """
    if not names or not all(isinstance(name, str) for name in names):
        raise RegistrationError(
            'converter() takes the names of operators: @converter("torch.nn.functional.relu")'
        )
    if not callable(precision) and precision not in get_args(Precision):
        raise RegistrationError(
            f"precision={precision!r}: supported: {', '.join(map(repr, get_args(Precision)))}"
        )

    def register(function: _F) -> _F:
        table = _own if function.__module__.startswith("t2t.converters.") else _users
        methods = tuple(_method_of(name) for name in names)
        entry = Converter(function, methods, precision, meta, _checked_signature(function))
        for name in methods:
            if name in table and not override:
                raise RegistrationError(
                    f"{name} is already converted by {table[name].qualified_name}; "
                    "pass override=True to replace it"
                )
        table.update(dict.fromkeys(methods, entry))
        return function

    return register


def _method_of(name: str) -> str:
    """Return the name under which calls are seen: a module's class is called through its forward.

    Raises:
        RegistrationError: nothing has this name, or a class that is no module has it.
    """
    owner, attribute = resolve(name)
    found = getattr(owner, attribute)
    if not isinstance(found, type):
        return name
    if issubclass(found, torch.nn.Module):
        return f"{name}.forward"
    raise RegistrationError(f"{name} is a class: name the method that is to be converted")


def _checked_signature(function: Callable[..., Any]) -> inspect.Signature:
    signature = inspect.signature(function)
    kinds = [parameter.kind for parameter in signature.parameters.values()]
    if len(kinds) >= 2 or inspect.Parameter.VAR_POSITIONAL in kinds:
        return signature
    raise RegistrationError(
        f"{function.__qualname__}{signature}: a converter takes the network and then the "
        "operator's own parameters, and returns what it made: def relu(net, input). A converter of "
        "torch2trt takes a ctx instead: its ctx.method_args become parameters, ctx.network is net, "
        "and what it would put into ctx.method_return._trt is returned"
    )


def unregister(*names: str) -> None:
    """Forget the user's converters of these names; t2t's own take over again."""
    for name in map(_method_of, names):
        if name not in _users:
            raise RegistrationError(f"{name}: no converter of yours is registered under this name")
        del _users[name]


def supported_operators() -> dict[str, str]:
    """Return the name of every operator that has a converter or a formula, and where it stands."""
    merged: dict[str, Converter | Formula] = {**_formulas, **_own, **_users}
    return {name: merged[name].qualified_name for name in sorted(merged)}


def function_converters() -> dict[str, Converter]:
    """Give the converters of Python functions and methods, by dotted name."""
    return {name: entry for name, entry in {**_own, **_users}.items() if "::" not in name}


def find_operator(operator: torch._ops.OpOverload) -> Converter | None:
    """Find the converter of an operator: of this overload first, then of all its overloads."""
    packet = operator._schema.name
    overload = f"{packet}.{operator._overloadname}"
    for table in (_users, _own):
        found = table.get(overload) or table.get(packet)
        if found is not None:
            return found
    return None


def resolve(name: str) -> tuple[Any, str]:
    """Find the owner and the attribute of a dotted name, or the namespace of an operator.

    Raises:
        RegistrationError: nothing has this name.
    """
    owner: Any
    if "::" in name:
        namespace, _, operator = name.partition("::")
        path = operator.split(".")
        owner = getattr(torch.ops, namespace)
    else:
        owner, path = _import_prefix(name)
    try:
        for part in path[:-1]:
            owner = getattr(owner, part)
        getattr(owner, path[-1])
    except AttributeError as error:
        raise RegistrationError(f"no operator has the name {name!r}: {error}") from error
    return owner, path[-1]


def _import_prefix(name: str) -> tuple[Any, list[str]]:
    parts = name.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        module = ".".join(parts[:cut])
        if module in sys.modules:
            return sys.modules[module], parts[cut:]
        try:
            return importlib.import_module(module), parts[cut:]
        except ModuleNotFoundError as error:
            # Only "this prefix is no module" may be passed over, not a broken module's own import.
            if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                raise
    raise RegistrationError(
        f"no operator has the name {name!r}: give a full dotted name "
        "(torch.nn.functional.relu) or an operator's (aten::relu)"
    )
