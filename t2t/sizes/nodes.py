"""Size expressions as PyTorch's symbolic numbers: what a `torch.SymInt` of a trace holds.

PyTorch asks a node for arithmetic and an environment for decisions. Both are answered here. A
question that the bounds of its sizes do not answer is decided as for the example, and recorded: it
must be proved for all sizes afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from typing_extensions import override

from t2t.sizes import expressions as ex
from t2t.sizes.arithmetic import NUMBERS
from t2t.sizes.notation import text
from t2t.sizes.polynomials import symbol_value
from t2t.sizes.terms import Operation, Polynomial, Symbol, Value, bounds, kind_of
from t2t.torch_internals import ShapeEnv, SymNode, ValueRanges

Reason = Literal["decision", "number", "internal", "requirement"]
"""Why a condition was decided: the model branches on it, a size became a plain number, in the model
or inside PyTorch, or PyTorch requires it of the sizes."""


class SizeEnvironment(ShapeEnv):
    """Decides on sizes for one trace.

    Args:
        record: takes each condition that holds for the example, though its bounds do not say so,
            and why it was asked.

    Attributes:
        examples: the value of each symbol for the example inputs.
        assumed: the sizes that are 1 in the example, though PyTorch took them not to be.
        before_number: called before a dynamic size becomes a plain number for PyTorch or the model,
            as where one is an index.
        leave: takes what PyTorch requires of sizes, and returns whether it is left to the time when
            the model runs.
        message: what `torch._check` says where the condition that it is asked for does not hold.
        reals: the symbols that stand for real numbers, of which nothing is known.
    """

    def __init__(self, record: Callable[[Value, Reason], None]) -> None:
        super().__init__(allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False)
        self.examples: dict[Symbol, int] = {}
        self.assumed: dict[str, None] = {}
        self.before_number: Callable[[], None] = lambda: None
        self.leave: Callable[[Value], bool] = lambda condition: False  # noqa: ARG005
        self.message: Any = None
        self.reals: set[Symbol] = set()
        self._record = record
        self._nodes: dict[Value, SizeNode] = {}
        self._results: dict[tuple[Any, ...], SizeNode] = {}
        self._values: dict[Value, Any] = {}

    def size(self, x: Value) -> Any:
        """Return an expression as a torch.SymInt, and a number as it is."""
        return torch.SymInt(self.node(x)) if isinstance(x, Polynomial) else x

    def node(self, x: Value) -> SizeNode:
        """Return the node of an expression; equal expressions have one node."""
        if not isinstance(x, Polynomial | Operation):
            return SizeNode(self, x)
        if x not in self._nodes:
            self._nodes[x] = SizeNode(self, x)
        return self._nodes[x]

    def combined(self, function: Callable[..., Value], *nodes: SizeNode) -> SizeNode:
        """Return a function of nodes, which is computed once."""
        key = (function, *(node.key for node in nodes))
        found = self._results.get(key)
        if found is None:
            value = function(*(node.value for node in nodes))
            if kind_of(value) is int and self.reals and ex.symbols_of(value) & self.reals:
                self.decide(value, "number")  # raises: no size is known to be a rounded number
            found = self._results[key] = self.node(value)
        return found

    def real(self, size: Any) -> Any:
        """Return a real number of which nothing is known, under the name of a size."""
        [symbol] = ex.symbols_of(size.node.value)
        self.reals.add(symbol)
        return torch.SymFloat(self.node(ex.number(symbol)))

    def example(self, x: Value) -> Any:
        """Return the value for the example inputs."""
        return ex.evaluate(x, self.examples, NUMBERS, self._values)

    def decide(self, x: Value, reason: Reason, *, may_be_left: bool = True) -> Any:
        """Return the value for the example, and record that it is taken for all sizes."""
        if not isinstance(x, Polynomial | Operation):
            return x
        if reason == "requirement" and may_be_left and self.leave(x):
            return True
        value = self.example(x)
        condition = ex.equal(x, value)
        if kind_of(x) is bool:
            condition = x if value else ex.negation(x)
        if isinstance(condition, Operation):
            self._record(condition, reason)
        return value

    def assume(self, x: Value) -> bool | None:
        """Answer "no" where PyTorch's compiled code asks whether a size is 1, else return None.

        That code asks because of memory layouts and of broadcasting. What it does for other sizes
        is right for 1 too; PyTorch's compiler takes its unknown sizes likewise.
        """
        negated = isinstance(x, Operation) and x.name == "not"
        return negated if self._asks_for_one(x) else None

    def _asks_for_one(self, x: Value) -> bool:
        """Return whether a condition asks if a size is 1, and note where it is in the example."""
        asked = x.args[0] if isinstance(x, Operation) and x.name == "not" else x
        if not isinstance(asked, Operation) or asked.name != "zero" or not _is_one(asked.args[0]):
            return False
        if self.example(asked):
            self.assumed[text(asked)] = None
        return True

    def assume_from_two_on(self, x: Value) -> bool | None:
        """Return what holds for all sizes but 0 and 1; None where it is not the same for all.

        It is what `guard_size_oblivious` means: the code that asks so is right for 0 and 1 too.
        """
        symbols = [s for s in ex.symbols_of(x) if s.low < 2 <= s.high]
        # As what is more than 2: of polynomials with positive coefficients, bounds are exact.
        more = {s: symbol_value(Symbol(s.name, 0, s.high - 2, s.order)) for s in symbols}
        answer = ex.substitute(x, {s: ex.add(n, 2) for s, n in more.items()})
        if not isinstance(answer, bool):
            return None
        if answer != self.example(x):
            self.assumed[text(x if answer is False else ex.negation(x))] = None
        return answer

    # -- what PyTorch's own code asks --------------------------------------------------------------

    @override
    def evaluate_sym_node(
        self, sym_node: Any, size_oblivious: bool = False, fallback_value: bool | None = None
    ) -> Any:
        return self.decide(sym_node.value, "decision")

    @override
    def _maybe_evaluate_static(self, expr: Any, **options: Any) -> Any:  # type: ignore[override]
        if not isinstance(expr, Polynomial | Operation):
            return expr
        self._asks_for_one(expr)
        return None

    @override
    def bound_sympy(self, expr: Any, size_oblivious: bool = False) -> Any:
        return ValueRanges(*bounds(expr))

    @override
    def is_unbacked_symint(self, symbol: Any) -> bool:
        return False


class SizeNode(SymNode):
    """One symbolic number.

    Args:
        env: decides on it.
        value: the expression, or a plain number.
    """

    def __init__(self, env: SizeEnvironment, value: Value) -> None:
        is_constant = not isinstance(value, Polynomial | Operation)
        self.shape_env: Any = env
        self.value = value
        self.key: Any = (type(value), value) if is_constant else value
        self.pytype = kind_of(value)
        self.constant: Any = value if is_constant else None
        self.fx_node: Any = None

    @property
    def expr(self) -> Any:
        """The expression, where PyTorch's own nodes have one of sympy."""
        return self.value

    @property
    def hint(self) -> Any:
        """The value for the example."""
        return self.shape_env.example(self.value)

    _expr = expr
    _hint = hint

    @override
    def has_hint(self) -> bool:
        return True

    @override
    def maybe_as_int(self) -> int | None:
        return self.value if type(self.value) is int else None

    @override
    def maybe_as_float(self) -> float | None:
        return self.value if type(self.value) is float else None

    @override
    def maybe_as_bool(self) -> bool | None:
        return self.value if type(self.value) is bool else None

    @override
    def is_nested_int(self) -> bool:
        return False

    def _wrapped(self, num: Any) -> SizeNode:
        return SizeNode(self.shape_env, num)

    wrap_int = wrap_float = wrap_bool = _wrapped

    # Compiled code names a file where it asks, Python's does not.

    @override
    def guard_int(self, file: Any, line: int) -> int:
        if isinstance(self.value, Polynomial | Operation):
            self.shape_env.before_number()
        return int(self.shape_env.decide(self.value, "internal" if file else "number"))

    @override
    def guard_float(self, file: Any, line: int) -> float:
        return float(self.shape_env.decide(self.value, "number"))

    @override
    def guard_bool(self, file: Any, line: int) -> bool:
        answer = self.shape_env.assume(self.value) if file else None
        return bool(self.shape_env.decide(self.value, "decision") if answer is None else answer)

    @override
    def guard_size_oblivious(self, file: Any, line: int) -> bool:
        # Up to torch 2.8, its Python asks so, too; of strides it asks which is less.
        answer = self.shape_env.assume(self.value)
        if answer is None:
            answer = self.shape_env.assume_from_two_on(self.value)
        return bool(self.shape_env.decide(self.value, "decision") if answer is None else answer)

    @override
    def expect_true(self, file: Any, line: int) -> bool:
        return bool(self.shape_env.decide(self.value, "requirement"))

    @override
    def sym_sum(self, args: Any) -> Any:
        total: Value = 0
        for node in args:
            total = ex.add(total, node.value)
        return self.shape_env.node(total)

    @override
    def round(self, ndigits: int | None = None) -> Any:
        if ndigits is not None:
            raise NotImplementedError("round() of a size to digits")
        return self.shape_env.combined(ex.round_even, self)

    @override
    def str(self) -> Any:
        return text(self.value)

    __repr__ = str


def _is_one(x: Value) -> bool:
    """Return whether x == 0 asks if a size is 1."""
    return (
        isinstance(x, Polynomial)
        and x.constant == -1
        and min(coefficient for monomial, coefficient in x.terms.items() if monomial) > 0
    )


def _method(function: Callable[..., Value]) -> Callable[..., SizeNode]:
    def method(self: SizeNode, *others: SizeNode) -> Any:
        return self.shape_env.combined(function, self, *others)

    return method


def _named(name: str) -> Callable[[Value], Value]:
    return lambda a: ex.function(name, a)


def _bitwise(name: str) -> Callable[[Value, Value], Value]:
    return lambda a, b: ex.bitwise(name, a, b)


_METHODS: dict[str, Callable[..., Value]] = {
    "abs": ex.absolute,
    "add": ex.add,
    "and_": ex.conjunction,
    "bitwise_and": _bitwise("bitwise_and"),
    "bitwise_or": _bitwise("bitwise_or"),
    "bitwise_xor": _bitwise("bitwise_xor"),
    "ceil": ex.ceiling,
    "eq": ex.equal,
    "float_pow": ex.power,
    "float_truediv": ex.true_divide,
    "floor": ex.floor,
    "floordiv": ex.floor_divide,
    "ge": lambda a, b: ex.less_or_equal(b, a),
    "gt": lambda a, b: ex.less(b, a),
    "int_floordiv": ex.floor_divide,
    "int_truediv": ex.true_divide,
    "is_integer": lambda a: ex.equal(ex.floor(a), a),
    "le": ex.less_or_equal,
    "lshift": lambda a, b: ex.multiply(a, ex.power(2, b)),
    "lt": ex.less,
    "mod": ex.modulo,
    "mul": ex.multiply,
    "ne": lambda a, b: ex.negation(ex.equal(a, b)),
    "neg": lambda a: ex.multiply(a, -1),
    "or_": ex.disjunction,
    "pos": lambda a: a,
    "pow": ex.power,
    "pow_by_natural": ex.power,
    "rshift": lambda a, b: ex.floor_divide(a, ex.power(2, b)),
    "sub": ex.subtract,
    "sym_and": ex.conjunction,
    "sym_float": ex.real,
    "sym_int": ex.truncate,
    "sym_ite": ex.choose,
    "sym_max": ex.maximum,
    "sym_min": ex.minimum,
    "sym_not": ex.negation,
    "sym_or": ex.disjunction,
    "truediv": ex.true_divide,
    "trunc": ex.truncate,
    "xor": lambda a, b: ex.negation(ex.equal(a, b)),
    **{
        f"sym_{name}": _named(name)
        for name in (
            "acos", "asin", "atan", "cos", "cosh", "exp", "log", "log2", "sin", "sinh", "sqrt",
            "tan", "tanh",
        )
    },
}  # fmt: skip
for _name, _function in _METHODS.items():
    setattr(SizeNode, _name, _method(_function))
