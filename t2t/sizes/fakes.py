"""Fake tensors, of static and of dynamic sizes.

PyTorch computes the sizes of a result by code that asks about every size, stride and layout: for
one addition a hundred questions, most of them about what a network does not have. The operators
that models consist of have rules here instead; all others are run as PyTorch runs them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from t2t.sizes import expressions as ex
from t2t.sizes.data import data_sized
from t2t.sizes.nodes import SizeEnvironment
from t2t.sizes.polynomials import exact_quotient
from t2t.sizes.terms import Polynomial, Symbol, Value, bounds, value_of
from t2t.torch_internals import (
    DisabledDispatch,
    FakeTensor,
    FakeTensorMode,
    OpOverload,
    in_kernel_invocation_manager,
    schema_of,
)

aten = torch.ops.aten

Sizes = tuple[Value, ...]
Rule = Callable[..., Any]

_RULES: dict[OpOverload, Rule] = {}


class StaticFakeMode(FakeTensorMode):  # type: ignore[no-untyped-call]
    """A fake tensor mode that knows the most frequent results at once.

    PyTorch takes five times as long even to find a result in its cache.

    Args:
        shape_env: decides on symbolic sizes; None where there are none.
    """

    def __init__(self, shape_env: Any = None) -> None:
        super().__init__(allow_non_fake_inputs=True, shape_env=shape_env)
        self._dtypes: dict[Any, torch.dtype] = {}

    def dispatch(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Compute the fake result of an operator."""
        result = self._known(func, args, kwargs or {})
        if result is not None:
            return result
        return super().dispatch(func, types, args, kwargs or {})

    def _known(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return a view, or what tensors of one shape, dtype and device make like themselves."""
        if func is aten.cat.default:
            return self._joined(*args, **kwargs)
        first = args[0] if args else None
        if not isinstance(first, FakeTensor) or first._has_symbolic_sizes_strides:
            return None
        if func is aten.new_empty.default:
            plain = kwargs.keys() <= {"dtype", "pin_memory"} and not _is_dynamic(args)
            dtype = kwargs.get("dtype") or first.dtype
            return self._contiguous(args[1], dtype, first.fake_device) if plain else None
        if func in _VIEWS:
            plain = not (_is_dynamic((*args, *kwargs.values())) or first.is_complex())
            return self._view(func, args, kwargs) if plain else None
        if not first.is_contiguous():
            return None
        if func is aten.empty_like.default:
            plain = kwargs.keys() <= {"pin_memory"}
            return self._contiguous(first.shape, first.dtype, first.fake_device) if plain else None
        if not _is_pointwise(func) or not first.is_floating_point():
            return None
        others = (*args[1:], *kwargs.values())
        if not all(type(x) in _NUMBERS or _is_alike(first, x) for x in others):
            return None
        if schema_of(func).is_mutable:
            return first
        computed = _dtype(func, self, args, kwargs)
        return self._contiguous(first.shape, computed, first.fake_device) if computed else None

    def _joined(self, tensors: Sequence[Any], dim: int = 0) -> Any:
        first = tensors[0] if tensors else None
        if not isinstance(first, FakeTensor) or first._has_symbolic_sizes_strides:
            return None
        if not first.is_contiguous() or not -first.ndim <= dim < first.ndim:
            return None
        total, sizes = 0, list(first.shape)
        for x in tensors:
            if not _is_alike(first, x, among=dim % first.ndim):
                return None
            total += x.shape[dim]
        sizes[dim] = total
        return self._contiguous(sizes, first.dtype, first.fake_device)

    def _view(self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        with in_kernel_invocation_manager(self):
            made = func(*args, **kwargs)
        device = args[0].fake_device
        if isinstance(made, torch.Tensor):
            return FakeTensor(self, made, device)
        return [FakeTensor(self, x, device) for x in made]

    def _contiguous(self, sizes: Sequence[int], dtype: torch.dtype, device: torch.device) -> Any:
        with DisabledDispatch():
            made = torch.empty(sizes, dtype=dtype, device="meta")
        return FakeTensor(self, made, device)


class SizedFakeMode(StaticFakeMode):  # type: ignore[no-untyped-call]
    """A fake tensor mode whose sizes are expressions.

    Args:
        env: decides on sizes.

    Attributes:
        new_size: makes a size that depends on the data, of an operator's name, its least and its
            greatest value; None where such sizes are refused.
        made: the symbols of such sizes.
        cuts: the sizes of slices between bounds of which nobody knows whether they are negative.
        counts: how many elements of a tensor are not zero, by its id, with the tensor and how
            often it had been written to.
    """

    shape_env: SizeEnvironment

    def __init__(self, env: SizeEnvironment) -> None:
        super().__init__(env)
        self.new_size: Callable[[str, int, int], Any] | None = None
        self.counts: dict[int, tuple[torch.Tensor, int, Any]] = {}
        self.made: set[Symbol] = set()
        self.cuts: dict[tuple[Value, ...], Value] = {}

    def dispatch(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Compute the fake result of an operator."""
        options = kwargs or {}
        if self.new_size is not None:
            with self:
                sized = data_sized(self, func, [self._faked(x) for x in args], options)
            if sized is not NotImplemented:
                return sized
        # To look up a dynamic result costs more than to compute it.
        self.cache_enabled = not (_is_dynamic(args) or _is_dynamic(options.values()))
        rule = None if self.cache_enabled else _rule_of(func)
        if rule is not None:
            result = rule(self, *map(self._faked, args), **options)
            if result is not NotImplemented:
                return result
        return super().dispatch(func, types, args, options)

    def _faked(self, x: Any) -> Any:
        """Return the fake tensor of a constant, and other arguments as they are."""
        if isinstance(x, torch.Tensor) and not isinstance(x, FakeTensor):
            return self.fake_tensor_converter.from_real_tensor(self, x)
        return x

    def fresh(
        self,
        sizes: Sequence[Value],
        dtype: torch.dtype,
        device: torch.device,
        order: Sequence[int] | None = None,
    ) -> Any:
        """Return a tensor with memory of its own.

        Args:
            sizes: its sizes.
            dtype: its dtype.
            device: its device.
            order: its dimensions in the order in which they lie in memory; contiguous by default.
        """
        strides: list[Value] = [1] * len(sizes)
        step: Value = 1
        for dim in reversed(range(len(sizes)) if order is None else order):
            strides[dim] = step
            step = ex.multiply(step, ex.maximum(sizes[dim], 1))
        with in_kernel_invocation_manager(self):
            memory = torch.empty(0, dtype=dtype, device="meta")
            made = memory.as_strided(self._numbers(sizes), self._numbers(strides))
        return FakeTensor(self, made, device)

    def view(
        self, x: Any, sizes: Sequence[Value], strides: Sequence[Value], offset: Value | None = None
    ) -> Any:
        """Return a view of a tensor's memory."""
        start = x.storage_offset() if offset is None else self.shape_env.size(offset)
        with in_kernel_invocation_manager(self):
            made = aten.as_strided.default(x, self._numbers(sizes), self._numbers(strides), start)
        return FakeTensor(self, made, x.fake_device)

    def require(self, condition: Value, *, may_be_left: bool = True) -> bool:
        """Note what PyTorch requires of the sizes; False where the example does not fulfil it.

        Args:
            condition: what it requires.
            may_be_left: sizes that depend on the data may be checked when the model runs: for
                others, PyTorch raises.
        """
        return bool(self.shape_env.decide(condition, "requirement", may_be_left=may_be_left))

    def _numbers(self, values: Iterable[Value]) -> list[Any]:
        return [self.shape_env.size(value) for value in values]


@functools.cache
def _rule_of(operator: Any) -> Rule | None:
    """Return what computes the fake result of an operator, where PyTorch's own way is not taken."""
    if operator in _RULES:
        return _RULES[operator]
    if not isinstance(operator, OpOverload) or schema_of(operator).is_mutable:
        return None
    is_pointwise = torch.Tag.pointwise in operator.tags
    return functools.partial(_pointwise, operator) if is_pointwise else None


_NUMBERS = (bool, int, float)
_VIEWS = frozenset(
    (
        aten.alias.default,
        aten.detach.default,
        aten.diagonal.default,
        aten.expand.default,
        aten.permute.default,
        aten.select.int,
        aten.slice.Tensor,
        aten.split.Tensor,
        aten.split_with_sizes.default,
        aten.squeeze.default,
        aten.squeeze.dim,
        aten.squeeze.dims,
        aten.t.default,
        aten.transpose.int,
        aten.unbind.int,
        aten.unsqueeze.default,
        aten.view.default,
    )
)


@functools.cache
def _is_pointwise(func: Any) -> bool:
    """Return whether an operator works element by element, on its first argument if in place."""
    if not isinstance(func, OpOverload) or torch.Tag.pointwise not in func.tags:
        return False
    written = [
        x.alias_info is not None and x.alias_info.is_write for x in schema_of(func).arguments
    ]
    return len(schema_of(func).returns) == 1 and not any(written[1:])


def _is_alike(x: Any, other: Any, among: int | None = None) -> bool:
    """Return whether two tensors differ in their data only, or in one size besides."""
    return (
        isinstance(other, FakeTensor)
        and not other._has_symbolic_sizes_strides
        and other.dtype == x.dtype
        and (
            other.shape == x.shape
            if among is None
            else other.ndim == x.ndim
            and all(
                a == b or i == among
                for i, (a, b) in enumerate(zip(x.shape, other.shape, strict=True))
            )
        )
        and other.fake_device == x.fake_device
        and other.is_contiguous()
    )


def _is_dynamic(args: Iterable[Any]) -> bool:
    for x in args:
        if isinstance(x, FakeTensor):
            if x._has_symbolic_sizes_strides:
                return True
        elif isinstance(x, torch.SymInt | torch.SymFloat) or (
            isinstance(x, list | tuple) and _is_dynamic(x)
        ):
            return True
    return False


def sizes_of(x: torch.Tensor) -> Sizes:
    """Return a tensor's sizes as expressions."""
    return tuple(map(value_of, x.shape))


def _strides_of(x: torch.Tensor) -> Sizes:
    return tuple(map(value_of, x.stride()))


def _rule(*operators: OpOverload) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        _RULES.update(dict.fromkeys(operators, function))
        return function

    return register


# -- new results ---------------------------------------------------------------------------------


def _pointwise(func: OpOverload, mode: SizedFakeMode, *args: Any, **kwargs: Any) -> Any:
    tensors = [x for x in args if isinstance(x, torch.Tensor)]
    tensors += [x for x in kwargs.values() if isinstance(x, torch.Tensor)]
    if not tensors or kwargs.get("memory_format") not in (None, torch.preserve_format):
        return NotImplemented
    sizes = _broadcast(mode, [sizes_of(x) for x in tensors])
    dtype = _dtype(func, mode, args, kwargs)
    if sizes is None or dtype is None:
        return NotImplemented
    main = max(tensors, key=lambda x: x.ndim)
    return mode.fresh(sizes, dtype, main.device, _order(mode, main, len(sizes)))


def _broadcast(mode: SizedFakeMode, shapes: Sequence[Sizes]) -> Sizes | None:
    """Return the common shape, or None where the example has none."""
    if len(shapes) == 1:
        return shapes[0]
    result: list[Value] = []
    for place in range(1, max(map(len, shapes)) + 1):
        size: Value = 1
        for shape in shapes:
            if place <= len(shape):
                size = _common(mode, size, shape[-place])
                if size is None:
                    return None
        result.append(size)
    return tuple(reversed(result))


def _common(mode: SizedFakeMode, a: Value, b: Value) -> Any:
    """Return the size that two sizes broadcast to."""
    if a == b or b == 1:
        return a
    if a == 1:
        return b
    one, other = mode.shape_env.example(a), mode.shape_env.example(b)
    if one == other:
        mode.require(ex.equal(a, b), may_be_left=False)
        return b if isinstance(b, int) else a
    if 1 in (one, other):
        mode.require(ex.equal(a if one == 1 else b, 1), may_be_left=False)
        return b if one == 1 else a
    return None


def _dtype(
    func: OpOverload, mode: StaticFakeMode, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> torch.dtype | None:
    """Return the dtype of a result, which PyTorch computes of one element once."""
    key = (func, tuple(map(_kind, args)), tuple((k, _kind(v)) for k, v in kwargs.items()))
    if key not in mode._dtypes:
        small = [_single(x) for x in args]
        with DisabledDispatch():
            result = func(*small, **{name: _single(x) for name, x in kwargs.items()})
        if not isinstance(result, torch.Tensor):
            return None
        mode._dtypes[key] = result.dtype
    return mode._dtypes[key]


def _kind(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return x.dtype, x.ndim > 0
    return type(x) if isinstance(x, int | float | complex | torch.SymInt | torch.SymFloat) else x


def _single(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return torch.empty([1] * min(x.ndim, 1), dtype=x.dtype, device="meta")
    return 1 if isinstance(x, torch.SymInt) else 1.0 if isinstance(x, torch.SymFloat) else x


def _order(mode: SizedFakeMode, x: torch.Tensor, rank: int) -> list[int] | None:
    """Return the order of a tensor's dimensions in memory; None where it is the usual one."""
    if x.ndim != rank:
        return None
    steps = [mode.shape_env.example(stride) for stride in _strides_of(x)]
    order = sorted(range(rank), key=lambda dim: -steps[dim])
    return None if order == list(range(rank)) or 0 in steps else order


@_rule(aten.new_empty.default)
def _new_empty(mode: SizedFakeMode, self: Any, size: Sequence[Any], **options: Any) -> Any:
    dtype, device = options.get("dtype") or self.dtype, options.get("device") or self.device
    return mode.fresh([value_of(n) for n in size], dtype, torch.device(device))


@_rule(aten.empty_like.default)
def _empty_like(mode: SizedFakeMode, self: Any, **options: Any) -> Any:
    if options.get("memory_format") not in (None, torch.preserve_format, torch.contiguous_format):
        return NotImplemented
    order = None
    if options.get("memory_format") != torch.contiguous_format:
        order = _order(mode, self, self.ndim)
    dtype, device = options.get("dtype") or self.dtype, options.get("device") or self.device
    return mode.fresh(sizes_of(self), dtype, torch.device(device), order)


@_rule(aten.empty.memory_format)
def _empty(mode: SizedFakeMode, size: Sequence[Any], **options: Any) -> Any:
    dtype = options.get("dtype") or torch.get_default_dtype()
    device = torch.device(options.get("device") or "cpu")
    if options.get("memory_format") not in (None, torch.contiguous_format):
        return NotImplemented
    return mode.fresh([value_of(n) for n in size], dtype, device)


@_rule(aten.clone.default)
def _clone(mode: SizedFakeMode, self: Any, memory_format: Any = None) -> Any:
    return _empty_like(mode, self, memory_format=memory_format)


@_rule(aten._softmax.default, aten._log_softmax.default)
def _softmax(mode: SizedFakeMode, self: Any, dim: int, half_to_float: bool) -> Any:
    del dim
    dtype = torch.float32 if half_to_float else self.dtype
    return mode.fresh(sizes_of(self), dtype, self.device)


@_rule(aten.cat.default)
def _cat(mode: SizedFakeMode, tensors: Sequence[Any], dim: int = 0) -> Any:
    parts = [x for x in tensors if sizes_of(x) != (0,)]
    if not parts or len({x.ndim for x in parts}) > 1:
        return NotImplemented
    first = sizes_of(parts[0])
    place = dim % len(first)
    total: Value = 0
    for part in parts:
        for axis, (size, other) in enumerate(zip(first, sizes_of(part), strict=True)):
            if axis == place:
                total = ex.add(total, other)
            elif size != other and not mode.require(ex.equal(size, other)):
                return NotImplemented
    dtype = functools.reduce(torch.promote_types, [x.dtype for x in tensors])
    orders = [_order(mode, x, len(first)) for x in parts]
    order = orders[0] if all(other == orders[0] for other in orders) else None
    sizes = [total if axis == place else size for axis, size in enumerate(first)]
    return mode.fresh(sizes, dtype, parts[0].device, order)


# -- views ---------------------------------------------------------------------------------------


@_rule(aten.alias.default, aten.detach.default)
def _alias(mode: SizedFakeMode, self: Any) -> Any:
    with in_kernel_invocation_manager(mode):
        made = aten.alias.default(self)
    return FakeTensor(mode, made, self.fake_device)


@_rule(aten.permute.default)
def _permute(mode: SizedFakeMode, self: Any, dims: Sequence[int]) -> Any:
    sizes, strides = sizes_of(self), _strides_of(self)
    return mode.view(self, [sizes[dim] for dim in dims], [strides[dim] for dim in dims])


@_rule(aten.transpose.int)
def _transpose(mode: SizedFakeMode, self: Any, dim0: int, dim1: int) -> Any:
    order = list(range(self.ndim))
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return _permute(mode, self, order)


@_rule(aten.t.default)
def _t(mode: SizedFakeMode, self: Any) -> Any:
    return _permute(mode, self, range(self.ndim)[::-1])


@_rule(aten.unsqueeze.default)
def _unsqueeze(mode: SizedFakeMode, self: Any, dim: int) -> Any:
    sizes, strides = list(sizes_of(self)), list(_strides_of(self))
    place = dim % (len(sizes) + 1)
    step = ex.multiply(sizes[place], strides[place]) if place < len(sizes) else 1
    sizes.insert(place, 1)
    strides.insert(place, step)
    return mode.view(self, sizes, strides)


@_rule(aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims)
def _squeeze(mode: SizedFakeMode, self: Any, dim: Any = None) -> Any:
    sizes, strides = sizes_of(self), _strides_of(self)
    chosen = range(len(sizes)) if dim is None else [dim] if isinstance(dim, int) else dim
    places = {axis % len(sizes) for axis in chosen} if sizes else set()
    kept = [
        axis
        for axis in range(len(sizes))
        if axis not in places or not mode.shape_env.decide(ex.equal(sizes[axis], 1), "decision")
    ]
    return mode.view(self, [sizes[axis] for axis in kept], [strides[axis] for axis in kept])


@_rule(aten.expand.default)
def _expand(mode: SizedFakeMode, self: Any, size: Sequence[Any], *, implicit: bool = False) -> Any:
    del implicit
    new = len(size) - self.ndim
    sizes: list[Value] = []
    strides: list[Value] = []
    old = zip([1] * new + list(sizes_of(self)), [0] * new + list(_strides_of(self)), strict=True)
    for place, ((have, stride), wanted) in enumerate(zip(old, map(value_of, size), strict=True)):
        if wanted == -1 and place >= new:
            wanted = have
        keep = have == wanted
        if not keep and have != 1:
            keep = mode.shape_env.example(have) == mode.shape_env.example(wanted)
            if not mode.require(ex.equal(have, wanted if keep else 1), may_be_left=False):
                return NotImplemented
        sizes.append(wanted)
        strides.append(stride if keep else 0)
    return mode.view(self, sizes, strides)


@_rule(aten.select.int)
def _select(mode: SizedFakeMode, self: Any, dim: int, index: Any) -> Any:
    sizes, strides = list(sizes_of(self)), list(_strides_of(self))
    place, number = dim % len(sizes), value_of(index)
    size = sizes.pop(place)
    negative = mode.shape_env.decide(ex.less(number, 0), "decision")
    start = ex.add(number, size) if negative else number
    if not (mode.require(ex.less_or_equal(0, start)) and mode.require(ex.less(start, size))):
        return NotImplemented
    offset = ex.add(value_of(self.storage_offset()), ex.multiply(start, strides.pop(place)))
    return mode.view(self, sizes, strides, offset)


@_rule(aten.slice.Tensor)
def _slice(
    mode: SizedFakeMode, self: Any, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1
) -> Any:
    sizes, strides = list(sizes_of(self)), list(_strides_of(self))
    place, stride = dim % len(sizes), value_of(step)
    size = sizes[place]
    first = _bound(mode, size, 0 if start is None else value_of(start))
    last = _bound(mode, size, size if end is None else value_of(end))
    length = ex.maximum(ex.subtract(last, first), 0)
    sizes[place] = ex.floor_divide(ex.add(length, ex.subtract(stride, 1)), stride)
    if any(_is_open(mode, value_of(bound)) for bound in (start, end) if bound is not None):
        key = (size, first, last, stride)
        if key not in mode.cuts:
            assert mode.new_size is not None
            most = bounds(size)[1]
            if not math.isfinite(most):
                return NotImplemented
            mode.cuts[key] = value_of(mode.new_size("slice", 0, int(most)))
        sizes[place] = mode.cuts[key]
    offset = ex.add(value_of(self.storage_offset()), ex.multiply(first, strides[place]))
    strides[place] = ex.multiply(strides[place], stride)
    return mode.view(self, sizes, strides, offset)


def _is_open(mode: SizedFakeMode, bound: Value) -> bool:
    """Return whether the data decides if a bound of a slice is negative."""
    negative = ex.less(bound, 0)
    return not isinstance(negative, bool) and bool(ex.symbols_of(bound) & mode.made)


def _bound(mode: SizedFakeMode, size: Value, bound: Value) -> Value:
    """Return a bound of a slice as a place in the dimension."""
    if _is_open(mode, bound):
        bound = ex.choose(ex.less(bound, 0), ex.maximum(ex.add(bound, size), 0), bound)
        return ex.minimum(bound, size)
    if mode.shape_env.decide(ex.less(bound, 0), "decision"):
        bound = ex.maximum(ex.add(bound, size), 0)
    return ex.minimum(bound, size)


@_rule(aten.view.default)
def _view(mode: SizedFakeMode, self: Any, size: Sequence[Any]) -> Any:
    old = sizes_of(self)
    wanted = [value_of(n) for n in size]
    total = _product(old)
    if -1 in wanted:
        place = wanted.index(-1)
        known = _product(wanted[:place] + wanted[place + 1 :])
        # As in PyTorch: without elements, no size can be inferred.
        if not mode.require(ex.negation(ex.equal(known, 0))):
            return NotImplemented
        wanted[place] = _quotient(total, known)
    if not mode.require(ex.equal(_product(wanted), total)):
        return NotImplemented
    strides = _view_strides(old, _strides_of(self), wanted)
    return NotImplemented if strides is None else mode.view(self, wanted, strides)


def _quotient(total: Value, known: Value) -> Value:
    if isinstance(total, Polynomial) and isinstance(known, Polynomial):
        exact = exact_quotient(total, known)
        if exact is not None:
            return exact
    return ex.floor_divide(total, known)


def _product(sizes: Iterable[Value]) -> Value:
    total: Value = 1
    for size in sizes:
        total = ex.multiply(total, size)
    return total


def _view_strides(old: Sizes, strides: Sizes, new: Sequence[Value]) -> list[Value] | None:
    """Return the strides of a view with other sizes; None where there is no such view.

    Dimensions that lie in memory as one may be cut anew; PyTorch's `computeStride`.
    """
    if 0 in old:
        return None
    result: list[Value] = [1] * len(new)
    place = len(new) - 1
    step: Value = strides[-1] if strides else 1
    block: Value = 1
    for dim in reversed(range(len(old))):
        block = ex.multiply(block, old[dim])
        joined = dim > 0 and (old[dim - 1] == 1 or strides[dim - 1] == ex.multiply(block, step))
        if joined:
            continue
        covered: Value = 1
        while place >= 0 and (covered != block or new[place] == 1):
            result[place] = ex.multiply(covered, step)
            covered = ex.multiply(covered, new[place])
            place -= 1
        if covered != block:
            return None
        if dim > 0:
            block, step = 1, strides[dim - 1]
    return result if place < 0 else None
