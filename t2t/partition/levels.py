"""Which calls of a graph run in engines and which in PyTorch, with as few engines as can be.

Every call gets a level that is not below that of any call it reads from, even for engines and odd
for PyTorch; the calls of one level are one part. Parts cannot wait for each other in a circle, as
what a call reads stands on its own level or below. A path that enters engines k times needs k of
them in any partition, and the levels need no more than the path that enters most: there is no
partition with fewer engines. (torch.fx's partitioner merges greedily, without such a bound, and
takes graphs of torch.fx, which have no place for this one's precision, modules and sizes.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence


def levels(
    reads: Sequence[Collection[int]],
    convertible: Sequence[bool],
    work: Sequence[int],
    min_block_size: int = 1,
) -> list[int]:
    """Return the level of every call: even numbers are engines, odd ones run in PyTorch.

    Args:
        reads: for each call the indices of the calls that it reads from, all smaller than its own.
        convertible: whether an engine can hold the call.
        work: how many calls that compute something the call is worth; 0 for one that only moves
            data, which alone is not worth an engine.
        min_block_size: engines of less work than this run in PyTorch instead.
    """
    in_engine = list(convertible)
    while True:
        found: list[int] = []
        for index, sources in enumerate(reads):
            least = max((found[source] for source in sources), default=1)
            found.append(least + (least % 2 == (1 if in_engine[index] else 0)))
        sizes: Counter[int] = Counter()
        for level, amount in zip(found, work, strict=True):
            sizes[level] += amount
        small = {level for level in found if level % 2 == 0 and sizes[level] < min_block_size}
        if not small:
            return found
        # The first only: what comes behind it may join another engine then.
        first = min(small)
        in_engine = [
            inside and level != first for inside, level in zip(in_engine, found, strict=True)
        ]
