"""Which converter or formula takes which operator: the module-level tables of t2t.

A converter is registered under the names of what it converts: a torch function
("torch.nn.functional.pad"), a PyTorch operator ("aten::add", or one overload "aten::max.dim"),
any importable function ("mypackage.ops.swish") or a module's method ("mypackage.Block.forward").
A formula is registered under the names of operators only.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar, get_args

import torch

from t2t.errors import RegistrationError
from t2t.torch_internals import Argument, CompositeImplicit, OpOverload, overload_name, schema_of

Precision = Literal["follow", "compute", "small", "sensitive"]
"""How an operator behaves under ``fp16=True``: "compute" ones (matrix products, convolutions) run
in half precision, "sensitive" ones (softmax, norms, exp) in float32, and "follow" ones in what
torch promotes their operands to: half and float32 to float32. "small" are products that gain
nothing by half precision: they run in it, unless an operand is float32."""

_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Registered:
    """A function and the names that it is registered under."""

    function: Callable[..., Any]
    names: tuple[str, ...]

    @property
    def qualified_name(self) -> str:
        """Where the function stands: "t2t.converters.pooling.max_pool"."""
        return f"{self.function.__module__}.{self.function.__qualname__}"


@dataclass(frozen=True)
class Converter(Registered):
    """A function that adds the layers of an operator, and what the decorator was told of it."""

    precision: Precision | Callable[..., Precision]
    meta: Callable[..., Any] | None
    signature: inspect.Signature

    def precision_of(
        self, output: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Precision:
        """Return the precision of a call that gives ``output`` for these arguments."""
        if callable(self.precision):
            return self.precision(output, *args, **kwargs)
        return self.precision


@dataclass(frozen=True)
class Plugin(Converter):
    """A converter that leaves an operator to PyTorch inside the engine, and what runs there."""

    implementation: Callable[..., Any] | None

    @property
    def qualified_name(self) -> str:
        """Where the function stands that runs; where the operator does, what adds its layer."""
        found = self.implementation or self.function
        return f"{found.__module__}.{found.__qualname__}"


@dataclass(frozen=True)
class Formula(Registered):
    """A function that computes an operator by other functions of torch."""

    precision: Precision


_R = TypeVar("_R", bound=Registered)


class Table(Generic[_R]):
    """The converters, or the formulas, by name: t2t's own, and those of users.

    Args:
        kind: "converter" or "formula", for messages.
        home: the package of t2t's own.
    """

    def __init__(self, kind: str, home: str) -> None:
        self.own: dict[str, _R] = {}
        self.users: dict[str, _R] = {}
        self._kind = kind
        self._home = home

    def add(self, entry: _R, override: bool) -> None:
        """Register an entry under its names.

        Raises:
            RegistrationError: a name is taken, and ``override`` is False.
        """
        table = self.own if self.is_own(entry.function) else self.users
        for name in entry.names:
            if name in table and not override:
                raise RegistrationError(
                    f"{name} already has the {self._kind} {table[name].qualified_name}; "
                    "pass override=True to replace it"
                )
        table.update(dict.fromkeys(entry.names, entry))

    def is_own(self, function: Callable[..., Any]) -> bool:
        """Return whether a function is one of t2t itself."""
        return function.__module__.startswith(f"{self._home}.")


converters = Table[Converter]("converter", "t2t.converters")
formulas = Table[Formula]("formula", "t2t.formulas")
plugins: dict[str, Plugin] = {}
"""What users have registered by `t2t.plugin`, by name; all of it is theirs."""
complex_formulas = Table[Formula]("formula of complex numbers", "t2t.formulas")


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
            Where it returns ``NotImplemented``, the call is not converted here: a function is
            taken apart into operators, and an operator is left to its formula.
        override: replace an earlier converter that you registered under the same name. (t2t's own
            converters need no override: yours win.)

    Raises:
        RegistrationError: a name does not exist, or is taken already, or the function cannot take
            what a converter is called with.
    """
    _check_arguments("converter", "torch.nn.functional.relu", names, precision)

    def register(function: _F) -> _F:
        methods = tuple(_method_of(name) for name in names)
        signature = _checked_signature(function)
        converters.add(Converter(function, methods, precision, meta, signature), override)
        return function

    return register


def formula(
    *names: str,
    precision: Precision = "follow",
    of_complex: bool = False,
    override: bool = False,
) -> Callable[[_F], _F]:
    """Register the decorated function as what one or more operators compute.

    The function takes the operator's own arguments, with torch's defaults, and computes its result
    by other functions of torch; what it calls is converted. Within it, the operator itself means
    what it would without the formula. Where it returns ``NotImplemented``, the call is converted as
    without it, too.

    For one operator these are tried in turn: your plugin, your converter, your formula, t2t's
    converter, t2t's formula, PyTorch's own decomposition.

    Args:
        names: operators, "aten::hypot" or "mylib::swish", or one overload, "aten::split.Tensor".
            A Python function needs none: what it calls is converted.
        precision: how all that it calls behaves under ``fp16=True``, see `Precision`; with
            "follow", as its parts themselves do.
        of_complex: it is the formula of calls that take or give complex numbers, and of no others.
            Such numbers are pairs in a network: ``torch.view_as_real`` and ``view_as_complex``
            lead to them and back.
        override: replace an earlier formula that you registered under the same name. (t2t's own
            need no override: yours win.)

    Raises:
        RegistrationError: a name does not exist, is no operator's, or is taken already; the
            function cannot take the operator's arguments, or has other defaults; or the operator
            can have no formula: it is a view, draws random numbers, writes to its argument, or is
            taken apart by PyTorch before a trace sees it.
    """
    _check_arguments("formula", "aten::hypot", names, precision)
    if callable(precision):
        raise RegistrationError("a formula has one precision for all calls, not a function")

    def register(function: _F) -> _F:
        for name in names:
            check_formula(function, name, views=formulas.is_own(function))
        table = complex_formulas if of_complex else formulas
        table.add(Formula(function, names, precision), override)
        return function

    return register


def _check_arguments(kind: str, example: str, names: Sequence[Any], precision: Any) -> None:
    if not names or not all(isinstance(name, str) for name in names):
        raise RegistrationError(f'{kind}() takes the names of operators: @{kind}("{example}")')
    if not callable(precision) and precision not in get_args(Precision):
        raise RegistrationError(
            f"precision={precision!r}: supported: {', '.join(map(repr, get_args(Precision)))}"
        )


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
    """Forget the user's plugins, converters and formulas of these names; t2t's own take over."""
    for name in map(_method_of, names):
        tables = [
            table
            for table in (plugins, converters.users, formulas.users, complex_formulas.users)
            if name in table
        ]
        if not tables:
            raise RegistrationError(
                f"{name}: no converter or formula of yours, and no plugin, is registered under "
                "this name"
            )
        for table in tables:
            del table[name]


def supported_operators() -> dict[str, str]:
    """Return the name of every operator that has a converter or a formula, and where it stands."""
    merged: dict[str, Registered] = {}
    for table in (complex_formulas.own, complex_formulas.users, *reversed(_tables())):
        merged.update(table)
    return {name: merged[name].qualified_name for name in sorted(merged)}


def function_converters() -> dict[str, Converter]:
    """Return the converters of Python functions and methods, by dotted name."""
    merged = {**converters.own, **converters.users}
    return {name: entry for name, entry in merged.items() if "::" not in name}


def find_operator(operator: OpOverload) -> Converter | None:
    """Return the converter of an operator: of this overload, else of all its overloads."""
    return next((way for way in ways(operator) if isinstance(way, Converter)), None)


def ways(operator: OpOverload) -> Iterator[Converter | Formula]:
    """Yield the converters and formulas of an operator, in the order in which they are tried."""
    yield from _found(operator, _tables())


def complex_ways(operator: OpOverload) -> Iterator[Formula]:
    """Yield the formulas of an operator for complex numbers, in the order in which to try them."""
    yield from _found(operator, (complex_formulas.users, complex_formulas.own))


def _found(operator: OpOverload, tables: Iterable[Mapping[str, _R]]) -> Iterator[_R]:
    packet = schema_of(operator).name
    overload = f"{packet}.{overload_name(operator)}"
    for table in tables:
        found = table.get(overload) or table.get(packet)
        if found is not None:
            yield found


def is_users(operator: OpOverload) -> bool:
    """Return whether a user has registered something for an operator, which wins."""
    return any(_found(operator, (plugins, converters.users, formulas.users)))


def find_plugin(operator: OpOverload) -> Plugin | None:
    """Return what a user has registered for an operator by `t2t.plugin`."""
    return next((way for way in ways(operator) if isinstance(way, Plugin)), None)


def _tables() -> tuple[Mapping[str, Converter | Formula], ...]:
    """Return all tables, the ones that win first."""
    return plugins, converters.users, formulas.users, converters.own, formulas.own


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


def check_formula(function: Callable[..., Any], name: str, views: bool) -> None:
    """Check that a function can be the formula of an operator.

    Args:
        function: the formula.
        name: the operator, or one of its overloads.
        views: whether the operator may be a view: the formula's result then is one, too.

    Raises:
        RegistrationError: it cannot; the text says why.
    """
    for operator in operators_of(name, "formula"):
        problem = "" if views else without_formula(operator, "formula")
        if problem:
            raise RegistrationError(f"{operator}: {problem}")
        check_schema(function, operator, "formula")


def operators_of(name: str, kind: str) -> list[OpOverload]:
    """Return the overloads of an operator that compute tensors of their own.

    Args:
        name: the operator, or one of its overloads.
        kind: what is registered for it: "formula" or "plugin".

    Raises:
        RegistrationError: there is no such operator, or it writes to its argument.
    """
    owner, attribute = resolve(name)
    if "::" not in name:
        raise RegistrationError(
            f"{name} is a Python function: what it calls is converted already; a {kind} is of an "
            f'operator: @{kind}("aten::hypot")'
        )
    found = getattr(owner, attribute)
    several = [found] if isinstance(found, OpOverload) else _overloads(found)
    if not several or any(schema_of(operator).is_mutable for operator in several):
        raise RegistrationError(
            f"{name} does not return a tensor of its own: name the operator that does, as "
            "aten::relu for aten::relu_"
        )
    return several


def _overloads(packet: Any) -> list[OpOverload]:
    """Return an operator's overloads that give tensors, as models can call them."""
    overloads = [getattr(packet, name) for name in packet.overloads() if not _is_apart(name)]
    return [
        operator
        for operator in overloads
        if not schema_of(operator).is_mutable
        and any("Tensor" in str(result.type) for result in schema_of(operator).returns)
    ]


def _is_apart(overload: str) -> bool:
    """Return whether an overload takes names of dimensions, or is TorchScript's alone."""
    # "dimname", "names_dim": the schema writes the type as that of other strings.
    return "dimname" in overload.lower() or "names" in overload or "hacked_twin" in overload


def without_formula(operator: OpOverload, kind: str) -> str:
    """Return why an operator can have no formula of a user's, or no plugin, if so."""
    if torch.Tag.nondeterministic_seeded in operator.tags:
        return "it draws random numbers; write a converter"
    if any(result.alias_info is not None for result in schema_of(operator).returns):
        return (
            f"its result is a view, and what is written to a {kind}'s result would be lost; "
            "write a converter"
        )
    if operator.has_kernel_for_dispatch_key(CompositeImplicit):
        return "PyTorch takes it apart before a trace sees it; name an operator that it consists of"
    return ""


def check_schema(
    function: Callable[..., Any], operator: OpOverload, kind: str, without: Sequence[str] = ()
) -> None:
    """Check parameters and defaults: the dispatcher leaves out what has its default.

    Args:
        function: what takes the operator's arguments.
        operator: the operator.
        kind: what the function is, for messages: "formula" or "plugin".
        without: parameters that are not the operator's.

    Raises:
        RegistrationError: they are not those of the operator's schema.
    """
    signature = inspect.signature(function)
    own = [p for name, p in signature.parameters.items() if name not in without]
    signature = signature.replace(parameters=own)
    arguments = schema_of(operator).arguments
    positional = [argument for argument in arguments if not argument.kwarg_only]
    named = [argument for argument in arguments if argument.kwarg_only]
    try:
        given = signature.bind(*positional, **{argument.name: argument for argument in named})
        signature.bind(
            *(argument for argument in positional if not argument.has_default_value()),
            **{a.name: a for a in named if not a.has_default_value()},
        )
    except TypeError as error:
        raise RegistrationError(
            f"{function.__qualname__}{signature} cannot be the {kind} of {schema_of(operator)}: "
            f"{error}"
        ) from None
    for name, argument in given.arguments.items():
        default = signature.parameters[name].default
        if default is inspect.Parameter.empty or not isinstance(argument, Argument):
            continue
        wanted = argument.default_value if argument.has_default_value() else default
        if not _equal(default, wanted):
            raise RegistrationError(
                f"{function.__qualname__}{signature}: {name} is {wanted!r} by default in "
                f"{schema_of(operator)}"
            )


def _equal(default: Any, wanted: Any) -> bool:
    # The schema has booleans and numbers of other types than one would write: 0 and False.
    if isinstance(default, tuple):
        default = list(default)
    return bool(default == wanted)
