"""Partitions of random graphs: no circles, no more engines than the longest alternation needs."""

from hypothesis import given
from hypothesis import strategies as st

from t2t.tracing.partition import levels


@st.composite
def graphs(draw):
    count = draw(st.integers(1, 30))
    reads = [
        draw(st.lists(st.integers(0, index - 1), max_size=3)) if index else []
        for index in range(count)
    ]
    convertible = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    work = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    return reads, convertible, work


def alternations(reads, convertible):
    """Return the most engines that one path visits, by trying all paths."""
    best: list[int] = []
    for index, sources in enumerate(reads):
        before = [
            best[source] + (convertible[index] and not convertible[source]) for source in sources
        ]
        best.append(max([*before, int(convertible[index])]))
    return max(best)


@given(graphs(), st.integers(1, 4))
def test_parts_are_acyclic_and_few(graph, min_block_size) -> None:
    reads, convertible, work = graph
    found = levels(reads, convertible, work, min_block_size)
    for index, sources in enumerate(reads):
        assert all(found[source] <= found[index] for source in sources)
        assert convertible[index] or found[index] % 2 == 1
    engines = {level for level in found if level % 2 == 0}
    for engine in engines:
        assert sum(w for w, level in zip(work, found, strict=True) if level == engine) >= (
            min_block_size
        )
    assert len(engines) <= alternations(reads, convertible)


@given(graphs())
def test_all_that_can_is_in_engines_where_size_does_not_matter(graph) -> None:
    reads, convertible, _ = graph
    found = levels(reads, convertible, [1] * len(reads))
    assert [level % 2 == 0 for level in found] == convertible
    assert len({level for level in found if level % 2 == 0}) == alternations(reads, convertible)


def test_a_small_engine_joins_pytorch_and_its_neighbours_join_each_other() -> None:
    # conv -> nms -> view -> nms -> conv: the view alone is no engine.
    chain = [[], [0], [1], [2], [3]]
    assert levels(chain, [True, False, True, False, True], [5, 1, 0, 1, 5]) == [2, 3, 3, 3, 4]
