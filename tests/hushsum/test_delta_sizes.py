"""A delta of a plan fits one message, however many records and classes; a plan of which none fits is refused."""

import numpy as np
import pytest

from hushsum import DeltaError, Plan, PlanError, Reason
from hushsum.bitpacking import varint
from hushsum.delta import Delta, DeltaId, encode
from hushsum.delta_sizes import BYTES_MAX, DeltaSizes
from hushsum.families import Hashed
from hushsum.schema import Table
from tests.plans import classed_plan, client_plan, small_plan

ID = DeltaId(1, 2)
MANY = [f"c{number}" for number in range(64)]


@pytest.mark.parametrize("classes", ([], ["a", "b"], [f"c{number}" for number in range(1024)]), ids=len)
def test_a_plan_of_ordinary_size_has_deltas_of_4096_records(classes: list[str]) -> None:
    plan = small_plan(record={"classes": classes}, sketch={"rows": 1000, "buckets": 1024})
    assert plan.delta_records_max == 4096
    assert plan.delta_bytes_max < BYTES_MAX


def test_a_client_whose_records_are_bounded_has_no_larger_deltas() -> None:
    assert client_plan(3).delta_records_max == 3
    assert client_plan(5000).delta_records_max == 4096


@pytest.mark.parametrize("classes", (1, 3, 200))
@pytest.mark.parametrize(("rows", "buckets"), [(2**19, 4096), (2**17, 2**13), (2**15, 2**10), (2**20, 2048)])
def test_the_records_of_a_delta_are_the_most_that_always_fit(classes: int, rows: int, buckets: int) -> None:
    family = small_plan(sketch={"rows": rows, "buckets": buckets}).family
    sizes = DeltaSizes(family, classes, None)
    most = sizes.records_max
    assert 1 <= most <= 4096
    assert sizes.bytes_max <= BYTES_MAX
    bounded = DeltaSizes(family, classes, most)
    assert (bounded.records_max, bounded.bytes_max) == (most, sizes.bytes_max)
    if most < 4096:
        assert DeltaSizes(family, classes, most + 1).records_max == most
        assert sizes._bytes(most + 1) > BYTES_MAX


def test_a_plan_of_which_one_record_does_not_fit_is_refused() -> None:
    class Wide(Hashed):
        def packed_bytes_max(self, records: int) -> int:
            return BYTES_MAX + records

    family = small_plan().family
    assert isinstance(family, Hashed)
    DeltaSizes(family, 1, None).check()
    wide = Wide.from_table(Table({**family.to_fields()}, "sketch"), small_plan().record)
    with pytest.raises(
        PlanError, match=r"^sketch.rows: got 'a delta of up to 16777313 bytes for one record'.*fewer rows"
    ):
        DeltaSizes(wide, 1, None).check()


@pytest.mark.parametrize("records", (1, 2, 3, 100, 4095, 4096))
def test_a_run_of_any_records_is_within_its_bound(records: int, rng: np.random.Generator) -> None:
    plan = small_plan(sketch={"rows": 5, "buckets": 3})
    points = rng.uniform(0, 10, (records, 2))
    packed = plan.family.pack(plan.family.encode(plan.family.accept(points)[0]), records)[1]
    most = plan.delta_sizes.run_bytes_max(records)
    assert len(packed) <= plan.family.packed_bytes_max(records) <= most
    assert most <= plan.family.packed_bytes_max(2 * records)


def packed_runs(plan: Plan, *runs: tuple[int, int, int, bytes]) -> bytes:
    """A delta of runs (class, records, encoding, packed rows), whatever they hold."""
    rows, width = plan.family.shape
    data = Delta(plan.id, 0, ID, ()).pack(plan)[:-1] + varint(len(runs))
    for index, records, encoding, packed in runs:
        data += b"".join(varint(number) for number in (index, records, rows, width))
        data += bytes([encoding]) + varint(len(packed)) + packed
    return data


def unpacked(plan: Plan, data: bytes, monkeypatch: pytest.MonkeyPatch) -> tuple[Reason, int]:
    """Why the delta is refused, and how many runs were unpacked before."""
    calls: list[int] = []
    unpack = Hashed.unpack

    def counted(self: Hashed, encoding: int, packed: bytes, records: int) -> object:
        calls.append(records)
        return unpack(self, encoding, packed, records)

    with monkeypatch.context() as patch:
        patch.setattr(Hashed, "unpack", counted)
        with pytest.raises(DeltaError) as caught:
            Delta.unpack(data, plan)
    return caught.value.reason, len(calls)


def test_a_run_larger_than_its_records_can_need_is_refused_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = classed_plan(*MANY, sketch={"rows": 2000, "buckets": 2})
    listed = bytes(2000 * 1024 // 8)  # one bit for each bucket of each record: well formed, and far from the smallest
    data = packed_runs(plan, (0, 1024, 1, listed))
    assert len(data) < plan.delta_bytes_max
    assert unpacked(plan, data, monkeypatch) == (Reason.MALFORMED, 0)


def test_runs_beyond_the_records_of_a_delta_or_out_of_order_are_refused_before_they_are_unpacked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = classed_plan(*MANY)
    records = np.random.default_rng(0).uniform(0, 10, (2048, 2))
    delta, _ = encode(plan, records, window=0, id=ID, labels=["c0"] * 2048)
    assert delta is not None
    encoding, packed = plan.family.pack(delta.runs[0].increments, 2048)
    runs = [(index, 2048, encoding, packed) for index in range(8)]
    assert len(packed_runs(plan, *runs)) < plan.delta_bytes_max
    assert Delta.unpack(packed_runs(plan, *runs[:2]), plan).records == 4096
    assert unpacked(plan, packed_runs(plan, *runs), monkeypatch) == (Reason.TOO_MANY_RECORDS, 2)
    for order in ([0, 0], [3, 3], [5, 2]):
        some = [runs[index] for index in order]
        assert unpacked(plan, packed_runs(plan, *some), monkeypatch) == (Reason.MALFORMED, 1)
