"""Which parts of a model are engines, and why the others are not."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from t2t.errors import CheckpointError


@dataclass(frozen=True)
class Part:
    """A submodule, and where it runs.

    Attributes:
        name: its path in the model, as `named_modules` has it.
        in_engine: it is an engine; otherwise it runs in PyTorch.
        share: its share of the model's multiplications, from 0 to 1, in the example inputs. Of a
            while_loop one step counts, as only the data tells how many there are; where submodules
            are engines, the loops of PyTorch's part count as nothing.
        reason: why it is no engine; "" where it is.
    """

    name: str
    in_engine: bool
    share: float
    reason: str = ""


class Parts(Sequence[Part]):
    """The parts of a model, in the model's order; printed as a table.

    Attributes:
        share: the engines' share of the model's multiplications, from 0 to 1.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = tuple(parts)
        self.share = sum(part.share for part in parts if part.in_engine)

    def __len__(self) -> int:
        return len(self._parts)

    def __getitem__(self, index: Any) -> Any:
        return self._parts[index]

    def __iter__(self) -> Iterator[Part]:
        return iter(self._parts)

    def __str__(self) -> str:
        width = max((len(part.name) for part in self._parts), default=4)
        lines = [f"{'part':{width}}  runs in   work  reason"]
        lines += [
            f"{part.name:{width}}  {'engine ' if part.in_engine else 'PyTorch'} {part.share:6.1%}"
            f"  {part.reason}".rstrip()
            for part in self._parts
        ]
        count = sum(part.in_engine for part in self._parts)
        lines.append(f"{count} engines with {self.share:.1%} of the multiplications")
        return "\n".join(lines)

    __repr__ = __str__


def read_parts(text: Any) -> list[Part]:
    """Read the table of parts of a checkpoint.

    Raises:
        CheckpointError: it is damaged.
    """
    try:
        return [
            Part(str(x["name"]), bool(x["in_engine"]), float(x["share"]), str(x["reason"]))
            for x in json.loads(text)
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"the checkpoint's table of parts is damaged: {error!r}") from error
