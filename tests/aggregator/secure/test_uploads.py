"""Vectors that come in chunks: exactly what was granted, and nothing else."""

import pytest

from aggregator.secure.coordinator import PastRound, RoundHistory
from aggregator.secure.round import CHUNK_BYTES_MAX, VectorUploads
from hushsum.errors import SecureSumError
from hushsum_proto.rounds import RoundResult


def granted(total: int = 10, at_once: int = 2) -> VectorUploads:
    uploads = VectorUploads(total, at_once)
    uploads.grant("a")
    return uploads


def test_a_vector_comes_together_in_order_and_is_then_let_go() -> None:
    uploads = granted()
    assert uploads.add("a", 0, b"0123") is None
    assert uploads.held_bytes == 4
    assert uploads.add("a", 4, b"456789") == b"0123456789"
    assert uploads.held_bytes == 0


@pytest.mark.parametrize(
    ("offset", "data", "text"),
    [
        (0, b"", "chunk of 0 bytes"),
        (1, b"1", "chunk at offset 1, expected 0"),
        (0, bytes(11), "vector longer than 10 bytes"),
        (0, bytes(CHUNK_BYTES_MAX + 1), "chunk of 262145 bytes"),
    ],
)
def test_a_chunk_that_is_no_next_part_of_the_vector_is_refused(offset: int, data: bytes, text: str) -> None:
    uploads = granted()
    with pytest.raises(SecureSumError, match=text):
        uploads.add("a", offset, data)
    assert uploads.begun == set()


def test_a_chunk_again_or_beyond_the_end_is_refused() -> None:
    uploads = granted()
    uploads.add("a", 0, b"0123")
    with pytest.raises(SecureSumError, match="expected 4"):
        uploads.add("a", 0, b"0123")
    with pytest.raises(SecureSumError, match="longer than 10"):
        uploads.add("a", 4, b"4567890")


def test_without_a_grant_nothing_is_taken() -> None:
    uploads = granted()
    with pytest.raises(SecureSumError, match="not requested"):
        uploads.add("b", 0, b"0")
    uploads.add("a", 0, bytes(10))
    with pytest.raises(SecureSumError, match="not requested"):
        uploads.add("a", 0, bytes(10))


def test_what_came_of_a_client_that_is_dropped_is_let_go_and_stays_spent() -> None:
    uploads = granted()
    uploads.add("a", 0, b"0123")
    uploads.drop("a")
    assert uploads.held_bytes == 0
    assert uploads.begun == {"a"}
    with pytest.raises(SecureSumError, match="not requested"):
        uploads.add("a", 4, b"4")


def became(result: RoundResult, window: int = 7) -> PastRound:
    return PastRound(window, result, frozenset("ab"), frozenset("abc"))


@pytest.mark.parametrize("result", [RoundResult.COUNTED, RoundResult.LATE])
def test_each_is_told_what_became_of_its_own_vector(result: RoundResult) -> None:
    memory = RoundHistory()
    memory.add(b"1", became(result))
    assert memory.result_for("a", b"1", 7) is result
    assert memory.result_for("c", b"1", 7) is RoundResult.LEFT_OUT
    assert memory.result_for("x", b"1", 7) is RoundResult.UNKNOWN
    assert memory.result_for("a", b"1", 8) is RoundResult.UNKNOWN
    assert memory.result_for("a", b"2", 7) is RoundResult.UNKNOWN


@pytest.mark.parametrize("result", [RoundResult.ABORTED, RoundResult.LATE])
def test_of_a_round_without_a_sum_every_member_is_told_the_same(result: RoundResult) -> None:
    memory = RoundHistory()
    memory.add(b"1", PastRound(7, result, frozenset(), frozenset("abc")))
    assert memory.result_for("c", b"1", 7) is result


def test_no_more_clients_are_remembered_than_memory_allows_the_oldest_rounds_going_first() -> None:
    memory = RoundHistory(clients_max=7)
    for number in range(4):
        memory.add(bytes([number]), became(RoundResult.COUNTED, number))
    assert len(memory) == 2
    assert memory.result_for("a", b"\3", 3) is RoundResult.COUNTED
    assert memory.result_for("a", b"\1", 1) is RoundResult.UNKNOWN
    memory.forget_before(3)
    assert len(memory) == 1
