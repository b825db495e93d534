"""A real forward pass whose products and additions are seen, as a trace would see them."""

from __future__ import annotations

import functools
import importlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.backends import mha

from t2t import registry
from t2t.io import tree_leaves
from t2t.isolation import uninterrupted
from t2t.quantization.scales import call_key
from t2t.torch_internals import DispatchMode
from t2t.tracing.kinds import is_wrapped
from t2t.tracing.patches import TRACE_LOCK, patch
from t2t.tracing.quantizing import PRODUCTS, Operands

# Fills the registry, which says what a trace takes as a whole.
importlib.import_module("t2t.converters")

Handler = Callable[[str, list[torch.Tensor], int | None], Sequence[torch.Tensor]]
"""Takes the name of a call, its two operands, and the dimension of the second one that is summed
over (None of additions); returns the operands that it is to be made with."""

aten = torch.ops.aten

# Operators that reach the dispatcher by themselves, as `PRODUCTS`.
_FIRST, _SECOND, _THIRD = (0, ""), (1, ""), (2, "")
_OPERATORS = {
    aten.convolution.default: Operands("conv", (_FIRST, _SECOND), 1),
    aten._convolution.default: Operands("conv", (_FIRST, _SECOND), 1),
    aten.mm.default: Operands("matmul", (_FIRST, _SECOND), -2),
    aten.bmm.default: Operands("matmul", (_FIRST, _SECOND), -2),
    aten.addmm.default: Operands("matmul", (_SECOND, _THIRD), -2),
    aten.baddbmm.default: Operands("matmul", (_SECOND, _THIRD), -2),
    aten.add.Tensor: Operands("add", (_FIRST, _SECOND), None),
    aten.add_.Tensor: Operands("add", (_FIRST, _SECOND), None),
}
_TRANSPOSED = 6


def is_addition(a: Any, b: Any) -> bool:
    """Return whether two operands are of one shape, as those of a residual addition."""
    return (
        isinstance(a, torch.Tensor)
        and isinstance(b, torch.Tensor)
        and a.is_floating_point()
        and b.is_floating_point()
        and a.dim() == b.dim() > 2
        and tuple(map(str, a.shape)) == tuple(map(str, b.shape))
    )


@contextmanager
def seen_products(module: Any, handler: Handler) -> Iterator[None]:
    """Let a handler see, and change, the operands of products while a module runs.

    Torch is patched inside the ``with`` block exactly where a trace patches it, so that both see
    the same calls; calls of other threads are left alone.

    Args:
        module: the module that runs; names of calls are made of its submodules' paths.
        handler: is called before each product and addition.
    """
    with TRACE_LOCK, uninterrupted() as interrupts, ExitStack() as stack:
        watch = _Watch(module, handler)
        for name in registry.function_converters():
            owner, attribute = registry.resolve(name)
            patch(stack, owner, attribute, functools.partial(watch.function, name))
        patch(stack, torch.nn.Module, "__call__", watch.scoped)
        # Encoder layers would run as one operator, as they do not in a trace.
        stack.callback(mha.set_fastpath_enabled, mha.get_fastpath_enabled())
        mha.set_fastpath_enabled(False)
        stack.enter_context(watch)
        with interrupts.allowed():
            yield


def _is_wrapped(x: Any) -> bool:
    """Return whether torch.func will take this tensor's wrapper off before its operators arrive."""
    return isinstance(x, torch.Tensor) and is_wrapped(x)


class _Watch(DispatchMode):
    def __init__(self, module: Any, handler: Handler) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        modules = module.named_modules() if isinstance(module, torch.nn.Module) else ()
        self._paths = {id(part): path for path, part in modules}
        self._handler = handler
        self._scopes = [""]
        self._counts: Counter[tuple[str, str]] = Counter()
        self._thread = threading.get_ident()
        # Inside of a function that a trace takes as a whole, its operators are not seen.
        self._inside = 0

    def _is_active(self) -> bool:
        return not self._inside and threading.get_ident() == self._thread

    def function(self, name: str, original: Callable[..., Any]) -> Any:
        """Return what takes the place of a function that has a converter."""

        @functools.wraps(original)
        def seen(*args: Any, **kwargs: Any) -> Any:
            if not self._is_active() or any(map(_is_wrapped, tree_leaves((args, kwargs)))):
                return original(*args, **kwargs)
            product = PRODUCTS.get(name)
            if product is not None:
                args, kwargs = self._handled(product, args, kwargs)
            self._inside += 1
            try:
                return original(*args, **kwargs)
            finally:
                self._inside -= 1

        return seen

    def scoped(self, original: Callable[..., Any]) -> Any:
        """Return what takes the place of nn.Module.__call__."""

        @functools.wraps(original)
        def __call__(part: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807  it takes that place
            if not self._is_active():
                return original(part, *args, **kwargs)
            self._scopes.append(self._paths.get(id(part)) or self._scopes[-1])
            try:
                return original(part, *args, **kwargs)
            finally:
                self._scopes.pop()

        return __call__

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        del types
        kwargs = kwargs or {}
        found = _OPERATORS.get(func) if self._is_active() else None
        if found is None:
            return func(*args, **kwargs)
        if found.kind == "add" and not (is_addition(*args[:2]) and kwargs.get("alpha", 1) == 1):
            return func(*args, **kwargs)
        if found.kind == "conv" and args[_TRANSPOSED]:
            found = found._replace(kind="conv_transpose", summed=0)
        given, _ = self._handled(found, args, kwargs)
        if func is aten.add_.Tensor and given[0] is not args[0]:
            args[0].copy_(given[0])
            given = (args[0], *given[1:])
        return func(*given, **kwargs)

    def _handled(
        self, product: Operands, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        kind, places, summed = product
        found = [args[p] if p < len(args) else kwargs.get(name) for p, name in places]
        operands = [x for x in found if isinstance(x, torch.Tensor)]
        if len(operands) < len(found):
            return args, kwargs
        scope = self._scopes[-1]
        key = call_key(scope, kind, self._counts[scope, kind])
        self._counts[scope, kind] += 1
        self._inside += 1
        try:
            changed = self._handler(key, operands, summed)
        finally:
            self._inside -= 1
        given, keywords = list(args), dict(kwargs)
        for (position, name), x in zip(places, changed, strict=True):
            if position < len(given):
                given[position] = x
            else:
                keywords[name] = x
        return tuple(given), keywords
