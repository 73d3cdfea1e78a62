import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.errors import StoreError
from aggregator.fold.deduplication import REACH, STREAM_FORMAT, Observation, StreamState
from hushsum.errors import Reason

A, B = b"aaaaaaaa", b"bbbbbbbb"
Step = tuple[int, bytes, int, Reason | None, bool]
STEPS = st.lists(
    st.tuples(
        st.integers(-80, 80),  # from the highest so far
        st.sampled_from([A, B]),
        st.integers(0, 2),  # window
        st.sampled_from([None, Reason.TOO_MANY_RECORDS]),
        st.booleans(),  # saved and loaded in between
    ),
    max_size=120,
)


class Oracle:
    """Remembers everything for ever."""

    def __init__(self) -> None:
        self.uses: dict[int, tuple[bytes, int, Reason | None]] = {}

    def observe(self, sequence: int, digest: bytes, window: int) -> Observation:
        highest = max(self.uses, default=-1)
        if sequence <= highest - REACH:
            return Observation.DUPLICATE
        if sequence not in self.uses:
            return Observation.NEW
        known, known_window, _ = self.uses[sequence]
        if window != known_window:
            return Observation.ID_OF_ANOTHER_WINDOW
        return Observation.DUPLICATE if digest == known else Observation.ID_REUSED


@given(start=st.sampled_from([0, 63, 64, 2**63 - 200]), steps=STEPS)
def test_a_stream_agrees_with_one_that_remembers_everything(start: int, steps: list[Step]) -> None:
    stream, oracle = StreamState(), Oracle()
    for offset, digest, window, reason, saved in steps:
        sequence = max(0, min(2**63 - 1, max(oracle.uses, default=start) + offset))
        found = stream.observe(sequence, digest, window)
        assert found is oracle.observe(sequence, digest, window)
        if found is Observation.NEW:
            stream.record(sequence, digest, window, reason)
            oracle.uses[sequence] = (digest, window, reason)
            assert stream.last_window == max(use[1] for use in oracle.uses.values())
        if saved:
            stream = StreamState.from_bytes(stream.to_bytes())
    highest = max(oracle.uses, default=-1)
    for sequence, use in oracle.uses.items():
        assert stream.use_of(sequence) == (use if sequence > highest - REACH else None)


def test_what_falls_out_of_reach_leaves_no_trace_in_the_bytes() -> None:
    stream = StreamState()
    for sequence in range(REACH):
        stream.record(sequence, A, 5)
    stream.record(2 * REACH - 1, B, 5)
    assert A not in stream.to_bytes()
    assert stream.use_of(REACH - 1) is None


def test_a_short_stream_is_small() -> None:
    stream = StreamState()
    stream.record(0, A, 5)
    assert len(stream.to_bytes()) < 50
    assert len(stream._slots) == 17


def test_a_newer_format_is_refused_by_name() -> None:
    data = StreamState().to_bytes()
    with pytest.raises(StoreError, match="update the service"):
        StreamState.from_bytes(bytes([STREAM_FORMAT + 1]) + data[1:])


@pytest.mark.parametrize("data", [b"", b"\x00", StreamState().to_bytes()[:-1], StreamState().to_bytes() + b"x"])
def test_bytes_that_are_no_stream_are_refused(data: bytes) -> None:
    with pytest.raises(StoreError):
        StreamState.from_bytes(data)


def test_version_1_bytes_are_read_for_ever() -> None:
    stream = StreamState()
    stream.record(2, A, 7)
    stream.record(3, B, -1, Reason.TOO_MANY_RECORDS)
    frozen = (
        "01"
        "0000000000000003"
        "000000000000000c"
        "0000000000000007"
        "04" + "00" * 34 + "6161616161616161"
        "0000000000000007"
        "00" + "6262626262626262"
        "ffffffffffffffff"
        "01"
    )
    assert stream.to_bytes().hex() == frozen
    assert StreamState.from_bytes(bytes.fromhex(frozen)).use_of(3) == (B, -1, Reason.TOO_MANY_RECORDS)
