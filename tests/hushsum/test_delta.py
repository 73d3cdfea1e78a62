"""A delta travels in few bytes, does what its records do, and is refused for what its plan does not allow."""

import hashlib
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from hushsum import DeltaError, Plan, Reason, Sketch
from hushsum.bitpacking import varint
from hushsum.delta import Delta, DeltaId, Run, apply, digest, encode, read_header, renumbered
from hushsum.families import Increments
from tests.plans import client_plan, small_plan

ID = DeltaId(2**64 - 1, 12345)


def delta_of(plan: Plan, records: int, seed: int = 0) -> Delta:
    values = np.random.default_rng(seed).uniform(0, 10, (records, 2))
    delta, problems = encode(plan, values, window=-7, id=ID)
    assert delta is not None
    assert problems.dropped == 0
    return delta


def reason_of(data: bytes, plan: Plan) -> Reason:
    with pytest.raises(DeltaError) as caught:
        Delta.unpack(data, plan)
    return caught.value.reason


@pytest.mark.parametrize("records", [1, 2, 30, 500])
def test_a_packed_delta_comes_back_equal(records: int) -> None:
    plan = small_plan()
    delta = delta_of(plan, records)
    back = Delta.unpack(delta.pack(plan), plan)
    assert (back.plan_id, back.window, back.id, back.records) == (plan.id, -7, ID, records)
    assert np.array_equal(back.runs[0].increments.indices, delta.runs[0].increments.indices)
    assert np.array_equal(back.runs[0].increments.values, delta.runs[0].increments.values)


def test_a_delta_does_to_a_sketch_what_its_records_do() -> None:
    plan = small_plan()
    values = np.random.default_rng(1).uniform(-1, 11, (300, 2))
    sketch, folded = Sketch(plan), Sketch(plan)
    sketch.add(values)
    for start in (0, 7):
        delta, _ = encode(plan, values[start : 7 if start == 0 else None], window=0, id=ID)
        assert delta is not None
        apply(delta, folded.counters, folded.counts, plan.privacy.mechanism.count_scale)
    assert np.array_equal(folded.counters, sketch.counters)
    assert np.array_equal(folded.counts, sketch.counts)


def test_a_one_record_delta_costs_its_buckets_and_little_more() -> None:
    plan = small_plan(sketch={"rows": 1000, "buckets": 1024})
    data = delta_of(plan, 1).pack(plan)
    assert len(data) <= 1.1 * 1000 * 10 / 8 + 64


@pytest.mark.parametrize("records", [1, 10, 100, 1000, 4096])
def test_no_delta_is_larger_than_its_plan_says(records: int) -> None:
    plan = small_plan(sketch={"rows": 30, "buckets": 100})
    assert len(delta_of(plan, records).pack(plan)) <= plan.delta_bytes_max


def test_a_record_with_nan_is_dropped_alone() -> None:
    plan = small_plan()
    delta, problems = encode(plan, [[1.0, 2.0], [np.nan, 1.0], [3.0, np.inf]], window=0, id=ID)
    assert problems.dropped == 2
    assert delta is not None
    assert delta.records == 1
    none, problems = encode(plan, [[np.nan, np.nan]], window=0, id=ID)
    assert (none, problems.dropped) == (None, 1)


def test_a_batch_beyond_one_delta_is_refused_on_the_device() -> None:
    with pytest.raises(DeltaError, match="at most 4096"):
        encode(small_plan(), np.zeros((4097, 2)), window=0, id=ID)
    with pytest.raises(DeltaError, match="at most 3"):
        encode(client_plan(3), np.zeros((4, 2)), window=0, id=ID)


def test_the_header_is_read_without_the_plan() -> None:
    plan = small_plan()
    header = read_header(delta_of(plan, 3).pack(plan))
    assert (header.plan_id, header.window, header.id) == (plan.id, -7, ID)


def test_the_digest_is_labelled_and_tells_bytes_apart() -> None:
    assert digest(b"a") == hashlib.sha256(b"hushsum/v1/delta-digest\0a").digest()[:8]
    assert digest(b"a") != digest(b"b")


HEADER = 1 + 32 + 8 + 2 + 1


def craft(run: bytes, runs: int = 1, plan: Plan | None = None) -> bytes:
    plan = plan or small_plan()
    data = delta_of(plan, 1).pack(plan)
    return data[:HEADER] + varint(runs) + run


def run_of(*, class_index: int = 0, records: int = 1, shape: tuple[int, int] = (20, 64), packed: bytes = b"") -> bytes:
    numbers = (class_index, records, *shape)
    return b"".join(map(varint, numbers)) + b"\x01" + varint(len(packed)) + packed


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (lambda good: b"", Reason.MALFORMED),
        (lambda good: good[:20], Reason.MALFORMED),
        (lambda good: b"\x00" + good[1:], Reason.MALFORMED),
        (lambda good: b"\x02" + good[1:], Reason.NEWER_FORMAT),
        (lambda good: good[:1] + bytes(32) + good[33:], Reason.WRONG_PLAN),
        (lambda good: good + b"\0", Reason.MALFORMED),
        (lambda good: good[:-1], Reason.MALFORMED),
        (lambda good: good[:HEADER] + b"\x80\x00" + good[HEADER + 1 :], Reason.MALFORMED),
        (lambda good: craft(b"", runs=0), Reason.EMPTY),
        (lambda good: craft(run_of(), runs=2), Reason.MALFORMED),
        (lambda good: craft(run_of(class_index=1)), Reason.MALFORMED),
        (lambda good: craft(run_of(records=0)), Reason.EMPTY),
        (lambda good: craft(run_of(records=4097)), Reason.TOO_MANY_RECORDS),
        (lambda good: craft(run_of(records=2**63)), Reason.TOO_MANY_RECORDS),
        (lambda good: craft(run_of(shape=(21, 64))), Reason.WRONG_SHAPE),
        (lambda good: craft(run_of(shape=(20, 63))), Reason.WRONG_SHAPE),
        (lambda good: good + bytes(10**6), Reason.TOO_LARGE),
    ],
)
def test_bad_bytes_have_their_own_reason(data: Callable[[bytes], bytes], reason: Reason) -> None:
    plan = small_plan()
    assert reason_of(data(delta_of(plan, 1).pack(plan)), plan) is reason


def test_a_delta_of_no_runs_is_refused_as_empty() -> None:
    plan = small_plan()
    data = Delta(plan.id, -7, ID, ()).pack(plan)
    assert data == craft(b"", runs=0)
    assert reason_of(data, plan) is Reason.EMPTY
    none, problems = encode(plan, [[np.nan, 1.0]], window=0, id=ID)
    assert (none, problems.dropped) == (None, 1)


def test_a_bucket_out_of_range_is_refused() -> None:
    plan = small_plan(sketch={"buckets": 60})
    packed = b"\xff" * 15
    assert reason_of(craft(run_of(shape=(20, 60), packed=packed), plan=plan), plan) is Reason.BUCKET_OUT_OF_RANGE


def test_counts_that_no_records_make_are_refused() -> None:
    plan = small_plan()
    delta = delta_of(plan, 2000)
    increments = delta.runs[0].increments
    heavier = Increments(increments.indices, increments.values + (np.arange(len(increments.values)) == 3))
    forged = replace(delta, runs=(Run(0, 2000, heavier),)).pack(plan)
    assert reason_of(forged, plan) is Reason.IMPOSSIBLE_COUNTS


def test_a_number_beyond_its_range_is_malformed() -> None:
    plan = small_plan()
    good = delta_of(plan, 1).pack(plan)
    for sequence in (varint(2**63), varint(2**64), b"\xff" * 11, b"\x80\x00"):
        assert reason_of(good[:41] + sequence + good[43:], plan) is Reason.MALFORMED


def test_ids_are_within_their_ranges() -> None:
    assert DeltaId(2**64 - 1, 2**63 - 1).sequence == 2**63 - 1
    for stream, sequence in ((2**64, 0), (-1, 0), (0, 2**63), (0, -1)):
        with pytest.raises(ValueError, match="invalid delta id"):
            DeltaId(stream, sequence)


def test_a_delta_of_exactly_the_largest_size_is_not_too_large_and_one_byte_more_is() -> None:
    plan = small_plan()
    header = delta_of(plan, 1).pack(plan)[:HEADER]
    for size, reason in ((plan.delta_bytes_max, Reason.MALFORMED), (plan.delta_bytes_max + 1, Reason.TOO_LARGE)):
        assert reason_of(header + bytes([200]) * (size - len(header)), plan) is reason


def test_a_repr_shows_none_of_the_buckets() -> None:
    delta = delta_of(small_plan(), 3)
    assert "array" not in repr(delta)


def test_unpacking_random_bytes_raises_nothing_but_a_delta_error() -> None:
    plan = small_plan()
    good = delta_of(plan, 40).pack(plan)
    generator = np.random.default_rng(11)
    for _ in range(2000):
        broken = bytearray(good)
        for at in generator.integers(0, len(good), generator.integers(1, 4)):
            broken[at] = generator.integers(0, 256)
        try:
            Delta.unpack(bytes(broken[: generator.integers(1, len(good) + 1)]), plan)
        except DeltaError:
            continue


@pytest.mark.parametrize("sequence", (0, 127, 128, 2**63 - 1))
def test_a_packed_delta_under_another_id_has_the_bytes_that_it_would_be_packed_to(sequence: int) -> None:
    plan = small_plan()
    delta, _ = encode(plan, np.array([[1.0, 2.0], [3.0, 4.0]]), window=-5, id=DeltaId(7, 300))
    assert delta is not None
    other = DeltaId(2**64 - 1, sequence)
    assert renumbered(delta.pack(plan), other) == replace(delta, id=other).pack(plan)
