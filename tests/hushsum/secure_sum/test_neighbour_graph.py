"""The graph of neighbours."""

from collections import Counter
from math import factorial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from hushsum.secure_sum import neighbour_graph

TRANSCRIPT = bytes(range(32))
FROZEN_ORDER = [2, 11, 9, 4, 7, 10, 5, 3, 8, 6, 1, 0]
FROZEN_GRAPH = (
    (1, 2, 4, 6),
    (0, 2, 3, 6),
    (0, 1, 4, 7),
    (1, 5, 6, 7),
    (0, 2, 5, 7),
    (3, 4, 6, 7),
    (0, 1, 3, 5),
    (2, 3, 4, 5),
)
FROZEN_NEIGHBOURS = (138, 294, 408, 605, 679, 763)
transcripts = st.binary(min_size=32, max_size=32)


@st.composite
def graphs(draw: st.DrawFn) -> tuple[bytes, int, int]:
    members = draw(st.integers(3, 60))
    return draw(transcripts), members, 2 * draw(st.integers(1, members))


@given(graphs())
def test_the_graph_is_regular_symmetric_and_without_loops(drawn: tuple[bytes, int, int]) -> None:
    _, members, degree = drawn
    rows = neighbour_graph.neighbours(*drawn)
    assert all(len(row) == len(set(row)) == min(degree, members - 1) for row in rows)
    assert all(row == tuple(sorted(row)) and member not in row for member, row in enumerate(rows))
    assert all(member in rows[other] for member, row in enumerate(rows) for other in row)


@given(graphs())
def test_the_graph_is_connected(drawn: tuple[bytes, int, int]) -> None:
    rows = neighbour_graph.neighbours(*drawn)
    reached, left = {0}, [0]
    while left:
        new = set(rows[left.pop()]) - reached
        reached |= new
        left += new
    assert len(reached) == len(rows)


@given(graphs())
def test_one_member_finds_the_same_neighbours_alone(drawn: tuple[bytes, int, int]) -> None:
    assert tuple(
        neighbour_graph.neighbours_of(*drawn, member) for member in range(drawn[1])
    ) == neighbour_graph.neighbours(*drawn)


@given(transcripts, st.integers(1, 200))
def test_the_order_is_a_permutation(transcript: bytes, members: int) -> None:
    assert sorted(neighbour_graph.order(transcript, members).tolist()) == list(range(members))


def test_neighbours_are_those_who_stand_nearest_in_the_order() -> None:
    circle = neighbour_graph.order(TRANSCRIPT, 11).tolist()
    rows = neighbour_graph.neighbours(TRANSCRIPT, 11, 4)
    for place, member in enumerate(circle):
        assert set(rows[member]) == {circle[(place + step) % 11] for step in (-2, -1, 1, 2)}


def test_a_degree_that_reaches_all_others_is_the_complete_graph() -> None:
    """Whether it is even or odd."""
    for degree in (4, 5, 100):
        assert neighbour_graph.neighbours(TRANSCRIPT, 5, degree) == tuple(
            tuple(other for other in range(5) if other != member) for member in range(5)
        )
    assert neighbour_graph.neighbours(TRANSCRIPT, 1, 2) == ((),)
    assert neighbour_graph.neighbours(TRANSCRIPT, 2, 2) == ((1,), (0,))


def test_the_order_and_the_graph_of_a_transcript_stay_what_they_are() -> None:
    """Frozen: clients of every version and platform must draw the same graph."""
    assert neighbour_graph.order(TRANSCRIPT, 12).tolist() == FROZEN_ORDER
    assert neighbour_graph.neighbours(TRANSCRIPT, 8, 4) == FROZEN_GRAPH
    assert neighbour_graph.neighbours_of(TRANSCRIPT, 1000, 6, 999) == FROZEN_NEIGHBOURS


@pytest.mark.statistical
def test_every_order_is_equally_likely() -> None:
    """χ² over all 120 orders of 5; false alarm: 10^-7."""
    drawn = Counter(tuple(neighbour_graph.order(seed.to_bytes(32, "big"), 5).tolist()) for seed in range(12_000))
    assert len(drawn) == factorial(5)
    assert stats.chisquare(list(drawn.values())).pvalue > 1e-7


def test_another_transcript_is_another_order() -> None:
    """Whichever of its bits differs."""
    whole = int.from_bytes(TRANSCRIPT, "big")
    others = {tuple(neighbour_graph.order((whole ^ 1 << bit).to_bytes(32, "big"), 40).tolist()) for bit in range(256)}
    assert len(others | {tuple(neighbour_graph.order(TRANSCRIPT, 40).tolist())}) == 257


@pytest.mark.parametrize(("members", "degree"), [(9, 3), (9, 0), (9, -2), (0, 2)])
def test_a_graph_that_cannot_be_is_refused(members: int, degree: int) -> None:
    with pytest.raises(ValueError, match="expected"):
        neighbour_graph.neighbours(TRANSCRIPT, members, degree)


def test_a_transcript_of_another_length_and_a_member_who_is_none_are_refused() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        neighbour_graph.order(TRANSCRIPT[:16], 5)
    for member in (-1, 5):
        with pytest.raises(ValueError, match="below 5"):
            neighbour_graph.neighbours_of(TRANSCRIPT, 5, 2, member)
