"""Compiled loops read what unpacking reads, of good deltas and of any other bytes: neither more, nor less."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hushsum import DeltaError, Plan, Reason
from hushsum.bitpacking import Encoding, pack_bits, pack_elias_fano, varint
from hushsum.delta import Delta, DeltaId, Run, apply, digest, read_header
from hushsum.delta_decoder import Batch, DeltaReader, digests, reader_of
from hushsum.delta_decoder_loops import BAD_BODY, BAD_HEADER, GOOD, SLACK
from hushsum.families import Increments
from tests.plans import classed_plan, model_plan, set_plan, small_plan

ROWS = 7
ID = DeltaId(2**64 - 1, 12345)


def reader_for(plan: Plan) -> DeltaReader:
    """Of which the limits on sizes are known already."""
    reader = reader_of(plan)
    assert reader is not None
    nothing = Increments(np.zeros(0, np.int64), np.zeros(0, np.int64))
    for power in range(plan.delta_records_max.bit_length()):
        reader.learn(Delta(plan.id, 0, DeltaId(0, 0), (Run(0, 2**power, nothing),)))
    return reader


def plan_of(width: int, *classes: str, rows: int = ROWS, **privacy: object) -> Plan:
    sketch = {"rows": rows, "buckets": width}
    if classes:
        return classed_plan(*classes, sketch=sketch, privacy=privacy)
    return small_plan(sketch=sketch, privacy=privacy)


def made(plan: Plan, records: int, seed: int, class_index: int = 0, few: bool = False) -> Run:
    """A run of records at random, in all buckets or in few."""
    rows, width = plan.family.shape
    drawn = np.random.default_rng(seed).integers(0, min(width, 3) if few else width, (rows, records))
    indices, values = np.unique(drawn + np.arange(rows)[:, None] * width, return_counts=True)
    return Run(class_index, records, Increments(indices, values))


def packed(plan: Plan, *runs: Run, window: int = 5, id: DeltaId = ID) -> bytes:
    return Delta(plan.id, window, id, runs).pack(plan)


def with_encoding(plan: Plan, records: int, seed: int, encoding: Encoding) -> bytes:
    """A delta in one of the encodings, also where another is smaller; only what is not too large is legal."""
    rows, width = plan.family.shape
    drawn = np.sort(np.random.default_rng(seed).integers(0, width, (rows, records)), axis=1)
    if encoding is Encoding.LIST:
        body = pack_bits(drawn.reshape(-1), (width - 1).bit_length())
    elif encoding is Encoding.ELIAS_FANO:
        body = pack_elias_fano(drawn.astype(np.int64), width)
    else:
        counts = np.stack([np.bincount(row, minlength=width) for row in drawn]).reshape(-1)
        bits = int(counts.max()).bit_length()
        body = bytes([bits]) + pack_bits(counts, bits)
    head = packed(plan, made(plan, 1, 0))
    start = head.index(varint(1) + varint(0) + varint(1) + varint(rows) + varint(width))
    return (
        head[:start]
        + b"".join(varint(n) for n in (1, 0, records, rows, width))
        + bytes([encoding])
        + varint(len(body))
        + body
    )


def added(plan: Plan, batch: Batch, i: int) -> tuple[list[int], list[int]]:
    """What a good delta of a batch adds: counters, and count counters by class, where the plan has some."""
    sums = np.zeros(plan.counters_shape, np.int64).reshape(plan.counters_shape[0], -1)
    counts = np.zeros(len(sums), np.int64)
    at, end, records = batch.spans[i].tolist()
    while at < end:
        number, of, length = batch.ready[at : at + 3].tolist()
        entries = batch.ready[at + 3 : at + 3 + abs(length)]
        if length >= 0:
            np.add.at(sums[number], entries, 1)
        else:
            np.add.at(sums[number], entries[::2], entries[1::2])
        counts[number] += of
        at += 3 + abs(length)
    assert (at, counts.sum()) == (end, records)
    scale = plan.privacy.mechanism.count_scale
    return sums.reshape(-1).tolist(), (scale * counts)[: plan.count_counters].tolist()


def agrees(plan: Plan, reader: DeltaReader, deltas: list[bytes]) -> list[Reason | None]:
    """Reads deltas both ways, and gives what unpacking says of each."""
    batch, at = reader.batch(deltas), 0
    said: list[Reason | None] = []
    while at < len(deltas):
        first, at = at, reader.read(batch, at)
        assert at > first
        said += [agrees_on(plan, batch, i, deltas[i]) for i in range(first, at)]
    return said


def agrees_on(plan: Plan, batch: Batch, i: int, data: bytes) -> Reason | None:
    try:
        delta = Delta.unpack(data, plan)
    except DeltaError as error:
        if batch.states[i] == GOOD:
            raise AssertionError(f"taken for good: {data.hex()}") from error
        return error.reason
    assert batch.states[i] == GOOD, data.hex()
    assert batch.headers[i].tolist() == [delta.id.sequence, delta.window]
    assert (batch.streams[i], batch.spans[i, 2]) == (delta.id.stream, delta.records)
    counters, counts = np.zeros(plan.counters_shape, np.int64), np.zeros(plan.count_counters, np.int64)
    apply(delta, counters, counts, plan.privacy.mechanism.count_scale)
    assert added(plan, batch, i) == (counters.reshape(-1).tolist(), counts.tolist())
    return None


WIDTHS = [2, 3, 64, 100, 1000, 4097]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("records", [1, 2, 5, 40, 300])
def test_good_deltas_are_read_as_they_are_unpacked(width: int, records: int, seed: int) -> None:
    plan = plan_of(width)
    reader = reader_for(plan)
    deltas = [packed(plan, made(plan, records, seed + i, few=i % 2 == 1), window=i - 3) for i in range(6)]
    assert agrees(plan, reader, deltas) == [None] * 6


@pytest.mark.parametrize("encoding", [Encoding.LIST, Encoding.ELIAS_FANO, Encoding.DENSE])
@pytest.mark.parametrize("width", WIDTHS)
def test_every_encoding_is_read_and_refused_where_another_would_be_much_smaller(
    encoding: Encoding, width: int, seed: int
) -> None:
    plan = plan_of(width)
    reader = reader_for(plan)
    said = agrees(plan, reader, [with_encoding(plan, n, seed + n, encoding) for n in (1, 2, 3, 7, 30, 200, 3000)])
    assert None in said or (encoding is Encoding.DENSE and width >= 1000)


def test_runs_of_several_classes_are_read_and_none_are_refused(seed: int) -> None:
    plan = plan_of(64, "a", "b", "c")
    runs = [made(plan, n, seed + n, class_index) for class_index, n in enumerate((1, 200, 7))]
    deltas = [packed(plan, *runs), packed(plan, runs[2]), packed(plan, runs[0], runs[2]), packed(plan, *runs[::-1])]
    assert agrees(plan, reader_for(plan), deltas) == [None, None, None, Reason.MALFORMED]
    one = plan_of(64)
    good, nothing = packed(one, made(one, 1, seed)), packed(one)
    assert agrees(one, reader_for(one), [nothing, good[:-20], b"", good])[::3] == [Reason.EMPTY, None]


@pytest.mark.parametrize("make", [model_plan, set_plan])
def test_other_families_of_rows_are_read_too(make: type, seed: int) -> None:
    plan = make()
    assert agrees(plan, reader_for(plan), [packed(plan, made(plan, n, seed)) for n in (1, 3, 50)]) == [None] * 3


def test_families_of_signed_counters_are_left_to_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    assert reader_of(small_plan(sketch={"family": "partition", "kernel": ..., "bandwidth": 2.5})) is None
    monkeypatch.setenv("HUSHSUM_KERNELS", "plain")
    assert reader_of(small_plan()) is None


PLANS = [plan_of(64), plan_of(100, "a", "b"), plan_of(5), plan_of(1000, rows=2)]
READERS = [reader_for(plan) for plan in PLANS]


@settings(max_examples=150)
@given(which=st.integers(0, len(PLANS) - 1), seed=st.integers(0, 2**32), records=st.sampled_from([1, 2, 9, 130]))
def test_whatever_bytes_are_altered_both_refuse_or_both_take_it_for_the_same(
    which: int, seed: int, records: int
) -> None:
    plan, reader, drawn = PLANS[which], READERS[which], random.Random(seed)  # mutations
    kind = drawn.choice(list(Encoding)[:3])
    good = drawn.choice([packed(plan, made(plan, records, seed)), with_encoding(plan, records, seed, kind)])
    agrees(plan, reader, [mutated(good, drawn) for _ in range(20)])


def mutated(good: bytes, drawn: random.Random) -> bytes:
    data = bytearray(good)
    for _ in range(drawn.randrange(1, 4)):
        # Half of all behind the header, where the numbers stand that sizes depend on.
        at = drawn.randrange(41, min(len(data), 60)) if drawn.random() < 0.5 else drawn.randrange(len(data))
        match drawn.randrange(5):
            case 0:
                data[at] ^= 1 << drawn.randrange(8)
            case 1:
                data[at] = drawn.choice([0, 1, 0x7F, 0x80, 0xFF])
            case 2:
                del data[at : at + drawn.randrange(1, 4)]
            case 3:
                data[at:at] = drawn.randbytes(drawn.randrange(1, 4))
            case _:
                data[at : at + 1] = varint(drawn.choice([0, 1, 2**31 - 1, 2**31, 2**63, 2**64 - 1]))
        if len(data) < 62:
            break
    return bytes(data)


@given(noise=st.binary(max_size=80), tail=st.binary(max_size=40))
def test_bytes_at_random_are_refused_by_both(noise: bytes, tail: bytes) -> None:
    plan, reader = PLANS[0], READERS[0]
    agrees(plan, reader, [noise, b"\x01" + plan.id + bytes(8) + tail, b"\x01" + plan.id + bytes(10) + tail])


def test_what_cannot_be_a_header_and_what_cannot_be_a_body_are_told_apart() -> None:
    plan, reader = PLANS[0], READERS[0]
    good = packed(plan, made(plan, 1, 0))
    batch = reader.batch([good, good[:30], b"\x02" + good[1:], good[:-1], good + bytes(plan.delta_bytes_max)])
    reader.read(batch, 0)
    assert batch.states.tolist() == [GOOD, BAD_HEADER, BAD_HEADER, BAD_BODY, BAD_BODY]
    assert batch.headers[3].tolist() == [12345, 5]


def test_the_buffer_ends_in_slack_for_every_length() -> None:
    for length in range(9):
        batch = READERS[0].batch([bytes(length)])
        buffer, words = batch.packed
        assert len(buffer) >= length + SLACK
        assert words.astype(">u4").tobytes() == buffer.tobytes()


def test_reading_stops_where_memory_is_full_and_goes_on(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(1000)
    reader = reader_for(plan)
    reader._ready = np.full(2 * ROWS * 60 + 400, 77, np.int32)
    deltas = [packed(plan, made(plan, n, seed + n)) for n in (1, 60, 30, 60, 90, 1, 400, 2)]
    batch = reader.batch(deltas)
    at, ends = 0, []
    while at < len(deltas):
        at = reader.read(batch, at)
        ends.append(at)
    assert len(ends) > 2
    never = [i for i, state in enumerate(batch.states) if state == BAD_BODY]
    assert never == [6], "what never fits is left to unpacking, and nothing else"


def test_checking_one_gives_its_records_or_the_reason(seed: int) -> None:
    plan = plan_of(64)
    reader = reader_of(plan)
    assert reader is not None
    good = packed(plan, made(plan, 30, seed))
    assert [reader.check(good), reader.check(good)] == [30, 30]
    for bad in (good[:-1], b"", good + bytes(plan.delta_bytes_max), with_encoding(plan, 300, seed, Encoding.LIST)):
        with pytest.raises(DeltaError) as slow:
            Delta.unpack(bad, plan)
        with pytest.raises(DeltaError) as fast:
            reader.check(bad)
        assert (fast.value.reason, fast.value.detail) == (slow.value.reason, slow.value.detail)


def test_digests_are_those_of_each(seed: int) -> None:
    drawn = random.Random(seed)  # bytes to digest
    reader = READERS[0]
    deltas = [drawn.randbytes(size) for size in [*range(200), *(drawn.randrange(513) for _ in range(100))]]
    for count in (0, 1, 31, 32, 63, 64, 65, 128, 300):
        some = drawn.sample(deltas, count)
        expected = b"".join(digest(delta) for delta in some)
        assert digests(reader.batch(some)).astype(">i8").tobytes() == expected, f"{count}, seed {seed}"
        some = [*some, drawn.randbytes(drawn.choice([513, 1304, 5000]))]
        expected = b"".join(digest(delta) for delta in some)
        assert digests(reader.batch(some)).astype(">i8").tobytes() == expected, f"{count}, seed {seed}"


def test_deltas_are_gathered_as_they_are_joined(seed: int) -> None:
    drawn, reader = random.Random(seed), READERS[0]
    deltas = [drawn.randbytes(drawn.randrange(200)) for _ in range(30)]
    data, spans = b"", []
    for delta in deltas:
        data += drawn.randbytes(drawn.randrange(9))
        spans.append((len(data), len(data) + len(delta)))
        data += delta
    joined, gathered = reader.batch(deltas), reader.gathered(data, np.array(spans))
    assert np.array_equal(joined.offsets, gathered.offsets)
    assert [part.tobytes() for part in joined.packed] == [part.tobytes() for part in gathered.packed]


def test_headers_are_read_as_alone(seed: int) -> None:
    plan, reader = PLANS[0], READERS[0]
    edges = [(0, 0, 0), (2**64 - 1, 2**63 - 1, -(2**63)), (2**63, 127, 2**63 - 1), (1, 128, -1)]
    deltas = [packed(plan, made(plan, 1, 0), window=w, id=DeltaId(stream, n)) for stream, n, w in edges]
    batch = reader.batch(deltas)
    reader.read(batch, 0)
    for i, data in enumerate(deltas):
        header = read_header(data)
        assert (int(batch.streams[i]), *batch.headers[i].tolist()) == edges[i]
        assert (header.id.stream, header.id.sequence, header.window) == edges[i]
