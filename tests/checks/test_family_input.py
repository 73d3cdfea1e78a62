"""What every sketch family does with what comes from outside: records, increments, packed bytes, keys."""

import warnings
from contextlib import suppress
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from edge_client.encoding import copied, split
from hushsum import Plan, Sketch, canonical
from hushsum.collection import Collection
from hushsum.delta import Delta, DeltaId, apply, encode_all
from hushsum.errors import DeltaError, DroppedRecordsWarning, PlanError, Reason, RecordError
from hushsum.families import FAMILIES
from hushsum.schema import Table
from tests.checks.examples import EXAMPLES, Example, Vectors


@pytest.fixture(params=EXAMPLES, ids=lambda example: f"{example.family}-{example.label}")
def example(request: pytest.FixtureRequest) -> Example:
    found: Example = request.param
    return found


def test_check_takes_every_honest_increments(example: Example, rng: np.random.Generator) -> None:
    family, points = example.build(), example.points
    one = points.take(points.extreme(), np.array([0]))
    for n in (0, 1, 2, 40):
        for records in (points.random(rng, n), points.join(*[one] * n) if n else points.random(rng, 0)):
            family.check(family.encode(example.accepted(family, records)), n)


def test_check_refuses_more_than_the_records_can_make(example: Example, rng: np.random.Generator) -> None:
    family = example.build()
    honest = family.encode(example.accepted(family, example.points.random(rng, 5)))
    for place, sign, size in product((0, -1), (1, -1), (2**62, 5 * family.sensitivity.linf + 1)):
        values = honest.values.copy()
        values[place] = sign * size
        with pytest.raises(DeltaError) as caught:
            family.check(replace(honest, values=values), 5)
        assert caught.value.reason == Reason.IMPOSSIBLE_COUNTS


def test_check_refuses_a_cheater_who_declares_one_record_less(example: Example, rng: np.random.Generator) -> None:
    """Five equal records move the sketch further than any four can."""
    family, points = example.build(), example.points
    one = points.take(points.extreme(), np.array([0]))
    five = family.encode(example.accepted(family, points.join(*[one] * 5)))
    with pytest.raises(DeltaError) as caught:
        family.check(five, 4)
    assert caught.value.reason == Reason.IMPOSSIBLE_COUNTS


def test_check_refuses_increments_of_no_records(example: Example, rng: np.random.Generator) -> None:
    family = example.build()
    honest = family.encode(example.accepted(family, example.points.random(rng, 5)))
    for records in (0, -1):
        with pytest.raises(DeltaError):
            family.check(honest, records)


def test_packed_increments_come_back_and_fit_their_bound(example: Example, rng: np.random.Generator) -> None:
    family, points = example.build(), example.points
    one = points.take(points.extreme(), np.array([0]))
    for n in (1, 2, 15, 300):
        for records in (points.random(rng, n), points.join(*[one] * n)):
            increments = family.encode(example.accepted(family, records))
            encoding, data = family.pack(increments, n)
            assert len(data) <= family.packed_bytes_max(n) <= family.packed_bytes_max(n + 1)
            back = family.unpack(encoding, data, n)
            assert np.array_equal(back.indices, increments.indices)
            assert np.array_equal(back.values, increments.values)


def test_spoilt_bytes_are_refused_or_checked(example: Example, rng: np.random.Generator) -> None:
    """A flipped bit, a cut or a spare byte: no error but DeltaError, and nothing passes that records could not make."""
    family = example.build()
    encoding, data = family.pack(family.encode(example.accepted(family, example.points.random(rng, 3))), 3)
    spoilt = [data[:-1], data + b"\0", b"", b"\xff" * len(data), bytes(len(data))]
    for _ in range(60):
        place = int(rng.integers(len(data)))
        spoilt.append(data[:place] + bytes([data[place] ^ (1 << int(rng.integers(8)))]) + data[place + 1 :])
    refused = 0
    for other in spoilt:
        for number in (encoding, 0, 99):
            try:
                increments = family.unpack(number, other, 3)
                family.check(increments, 3)
            except DeltaError:
                refused += 1
                continue
            assert np.all(np.diff(increments.indices) > 0)
            assert increments.indices[0] >= 0
            assert increments.indices[-1] < np.prod(family.shape)
            assert np.abs(increments.values).max() <= 3 * family.sensitivity.linf
    assert refused >= 2 * len(spoilt) + 2


def test_an_array_that_cannot_be_used_is_refused(example: Example) -> None:
    family = example.build()
    for what, array in example.points.unusable_arrays().items():
        with pytest.raises(RecordError, match="records"):
            family.accept(array)
        with pytest.raises(RecordError, match="queries"):
            family.answer(np.zeros(family.shape, np.int64), array)
        assert what
    for what, array in example.points.unusable_queries().items():
        with pytest.raises(RecordError, match="queries"):
            family.answer(np.zeros(family.shape, np.int64), array)
        assert what


def test_no_record_changes_what_becomes_of_others_of_its_batch(example: Example, rng: np.random.Generator) -> None:
    """Whatever it is, and however it comes: a batch becomes the sum of what its parts become, on the device too."""
    plan, points = plan_of(example), example.points
    of_others: dict[int, tuple[Any, npt.NDArray[np.int64]]] = {}  # they come again with each odd one
    for what, others, one, both in points.odd_batches(points.random(rng, 5)):
        if id(others) not in of_others:
            of_others[id(others)] = others, sketched(plan, others)
        apart = [of_others[id(others)][1], sketched(plan, one)]
        assert apart[0].any(), what
        for way in (sketched, encoded, on_the_device):
            assert np.array_equal(way(plan, both), apart[0] + apart[1]), f"{what}, {way.__name__}"


def plan_of(example: Example) -> Plan:
    record = Collection(example.points.record, (), (), ()).to_fields()
    sketch = {"family": example.family, **example.build().to_fields()}
    fields = {"name": "test", "record": record, "sketch": sketch}
    privacy, window = {"epsilon": 1, "total_epsilon": 100}, {"length": "1h", "lateness": "5m"}
    return Plan.from_fields({**fields, "privacy": privacy, "window": window}, example.parameters)


def sketched(plan: Plan, records: Any) -> npt.NDArray[np.int64]:
    sketch = Sketch(plan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DroppedRecordsWarning)
        with suppress(RecordError):  # where none can be used: that is an error, and adds nothing
            sketch.add(records)
    return sketch.counters


def encoded(plan: Plan, records: Any) -> npt.NDArray[np.int64]:
    return folded(plan, encode_all(plan, records, window=0, id=DeltaId(0, 0))[0])


def on_the_device(plan: Plan, records: Any) -> npt.NDArray[np.int64]:
    unbound = split(plan, copied(records), 0).deltas
    return folded(plan, [Delta.unpack(each.pack(DeltaId(0, 0)), plan) for each in unbound])


def folded(plan: Plan, deltas: list[Delta]) -> npt.NDArray[np.int64]:
    counters, counts = np.zeros(plan.counters_shape, np.int64), np.zeros(1, np.int64)
    for delta in deltas:
        apply(delta, counters, counts, 1)
    return counters


def test_a_bad_record_is_dropped_alone_and_a_bad_query_is_refused(example: Example, rng: np.random.Generator) -> None:
    family, points = example.build(), example.points
    records, queries = points.random(rng, 30), points.queries(rng, 30)
    for spoilt in points.spoil(records, [0, 7, 29], rng):
        rest, kept = family.accept(spoilt)
        assert np.flatnonzero(~kept).tolist() == [0, 7, 29]
        expected = family.encode(example.accepted(family, points.take(records, kept)))
        came = family.encode(rest)
        assert np.array_equal(came.indices, expected.indices)
        assert np.array_equal(came.values, expected.values)
    for spoilt in points.spoil(queries, [0, 7, 29], rng):
        with pytest.raises(RecordError):
            family.answer(np.zeros(family.shape, np.int64), spoilt)


def test_accepted_records_can_be_cut(example: Example, rng: np.random.Generator) -> None:
    family, records = example.build(), example.points.random(rng, 30)
    accepted, mask = example.accepted(family, records), rng.random(30) < 0.5
    whole = example.counters_of(family, records)
    cut = np.zeros(family.shape, np.int64)
    for part in (accepted[mask], accepted[~mask]):
        family.add(cut, part)
    assert np.array_equal(cut, whole)
    family.add(cut, accepted[10:20])
    assert not np.array_equal(cut, whole)


def test_records_beyond_the_bounds_are_those_on_the_bounds(example: Example, rng: np.random.Generator) -> None:
    points = example.points
    if not isinstance(points, Vectors):
        pytest.skip("sets have no bounds")
    family = example.build()
    far = points.random(rng, 50) * 5 - 2 * (points.low + points.high)
    clipped = np.clip(far, points.low, points.high)
    assert not np.array_equal(far, clipped)
    assert np.array_equal(example.counters_of(family, far), example.counters_of(family, clipped))


def test_no_records_change_nothing(example: Example, rng: np.random.Generator) -> None:
    family, none = example.build(), example.points.random(rng, 0)
    assert not example.counters_of(family, none).any()
    assert not len(family.encode(example.accepted(family, none)).indices)
    answer = family.answer(example.counters_of(family, none), example.points.queries(rng, 0))
    assert answer.value.shape == answer.std_error.shape == (0,)


def test_the_fields_are_canonical_and_make_the_same_family(example: Example) -> None:
    family = example.build()
    written = family.to_fields()
    canonical.encode(written)
    back = FAMILIES[example.family].from_table(Table(written, "sketch"), example.points.record, example.parameters)
    assert back == family
    assert back.to_fields() == written
    assert not example.seeded or example.build(2) != family


def test_a_key_that_the_family_does_not_use_is_refused(example: Example) -> None:
    with pytest.raises(PlanError, match="expected a known key"):
        example.build(surprise=1)


def test_kernels_of_points_that_are_far_apart_are_finite(example: Example) -> None:
    extreme = example.points.inside()
    if example.kernel:
        assert np.isfinite(example.build().kernel(extreme, extreme)).all()
