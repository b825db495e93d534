"""Records what a part of a model is called with while the whole model runs."""

from __future__ import annotations

import inspect
from collections import Counter, defaultdict
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch

from t2t.errors import ConversionError
from t2t.io import Structure, copied, flatten

Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Call:
    """One call of the part.

    Attributes:
        args: positional arguments; copies, of the first call of a kind only, else empty.
        kwargs: keyword arguments, likewise.
        structure: what the arguments are but for the tensors' sizes: structure, constants, dtypes.
        shapes: the tensors' shapes, in order.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    structure: tuple[Structure, tuple[torch.dtype, ...]]
    shapes: Shapes


def record(module: torch.nn.Module) -> Recording:
    """Record the inputs of a part of a model, to convert the part alone.

        with t2t.record(model.backbone) as recorded:
            for batch in batches:
                model(batch)
        backbone = t2t.convert(model.backbone, recorded.inputs, **recorded.shapes)

    Args:
        module: the part. Its calls are seen, not those of its other methods.

    Returns:
        A context manager; inside the ``with`` block it collects. It holds copies of one call's
        tensors, and the shapes of all calls.

    Raises:
        ConversionError: this is no module.
    """
    if not isinstance(module, torch.nn.Module):
        raise ConversionError(f"record takes a module, not a {type(module).__name__}")
    return Recording(module)


class Recording:
    """The calls of a part, collected between entering and leaving a ``with`` block.

    Attributes:
        calls: all calls, in order.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._handle: Any = None
        self.calls: list[Call] = []

    def __enter__(self) -> Recording:
        if self._handle is not None:
            raise ConversionError("this recording runs already")
        self._handle = self._module.register_forward_pre_hook(
            lambda _, args, kwargs: self.note(args, kwargs), prepend=True, with_kwargs=True
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._handle.remove()
        self._handle = None

    def note(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note one call.

        Raises:
            ConversionError: something else than tensors and constants is among the arguments.
        """
        tensors, structure = flatten((args, kwargs), name="recorded inputs")
        kind = structure, tuple(tensor.dtype for tensor in tensors)
        shapes = tuple(tuple(tensor.shape) for tensor in tensors)
        first = not any(call.structure == kind for call in self.calls)
        # Copies: the model may write to its tensors later.
        args, kwargs = copied((args, kwargs)) if first else ((), {})
        self.calls.append(Call(args, kwargs, kind, shapes))

    @property
    def inputs(self) -> tuple[Any, ...] | dict[str, Any]:
        """The inputs of the first call, as `convert` takes them.

        Positional arguments; all by name, where some were given by name.

        Raises:
            ConversionError: there was no call, or the calls differ in more than sizes; ``calls``
                has the arguments of each kind.
        """
        call = self._one_kind()[0]
        if not call.kwargs:
            return call.args
        bound = inspect.signature(self._module.forward).bind(*call.args, **call.kwargs)
        inputs: dict[str, Any] = {}
        for name, value in bound.arguments.items():
            kind = bound.signature.parameters[name].kind
            if kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL):
                raise ConversionError(
                    f"{name!r} cannot be given by name: convert with calls[0].args and "
                    "calls[0].kwargs"
                )
            inputs.update(value if kind == inspect.Parameter.VAR_KEYWORD else {name: value})
        return inputs

    @property
    def min_shapes(self) -> list[tuple[int, ...]]:
        """The smallest size of every dimension, for each tensor in order."""
        return [tuple(map(min, zip(*shapes, strict=True))) for shapes in self._sizes()]

    @property
    def max_shapes(self) -> list[tuple[int, ...]]:
        """The largest size of every dimension, for each tensor in order."""
        return [tuple(map(max, zip(*shapes, strict=True))) for shapes in self._sizes()]

    @property
    def opt_shapes(self) -> list[tuple[int, ...]]:
        """The shapes of the most frequent call, for each tensor in order."""
        counts = Counter(call.shapes for call in self._one_kind())
        return list(counts.most_common(1)[0][0])

    @property
    def shapes(self) -> dict[str, Any]:
        """Options of `convert` for all sizes that were seen; {} where there was one of each.

        Sizes of different tensors that were equal in every call are one size of the network, which
        refuses others later.
        """
        dims: list[dict[int, Any]] = [{} for _ in self.min_shapes]
        for number, group in enumerate(self._equal_sizes()):
            low, high = (
                shapes[group[0][0]][group[0][1]] for shapes in (self.min_shapes, self.max_shapes)
            )
            dimension = torch.export.Dim(f"size_{number}", min=low, max=high)
            for tensor, dim in group:
                dims[tensor][dim] = dimension
        if not any(dims):
            return {}
        return {"dynamic_shapes": dims, "opt_shapes": self.opt_shapes}

    def _equal_sizes(self) -> list[list[tuple[int, int]]]:
        """Return the dimensions that varied, those of different tensors together if equal."""
        groups: dict[tuple[int, ...], list[tuple[int, int]]] = defaultdict(list)
        for tensor, sizes in enumerate(self._sizes()):
            for dim, seen in enumerate(zip(*sizes, strict=True)):
                if len(set(seen)) > 1:
                    groups[seen].append((tensor, dim))
        found = []
        for group in groups.values():
            # Height and width of one tensor are equal by chance more often than by need.
            together = len({tensor for tensor, _ in group}) > 1
            found += [group] if together else [[place] for place in group]
        return found

    def _sizes(self) -> list[list[tuple[int, ...]]]:
        """Return for each tensor its shapes in all calls."""
        return [list(shapes) for shapes in zip(*(c.shapes for c in self._one_kind()), strict=True)]

    def _one_kind(self) -> list[Call]:
        if not self.calls:
            raise ConversionError(
                "the part was not called while it was recorded (as a module: its other methods "
                "are not seen)"
            )
        first = self.calls[0]
        ranks = [len(shape) for shape in first.shapes]
        for number, call in enumerate(self.calls):
            same = call.structure == first.structure
            if not same or [len(shape) for shape in call.shapes] != ranks:
                raise ConversionError(
                    f"call {number} differs from the first in more than sizes, so one network "
                    "cannot serve both: convert the part for each kind, with the calls' args and "
                    "kwargs"
                )
        return self.calls
