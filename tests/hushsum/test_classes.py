"""Classes: one sketch a label, of which a record touches one, in sketches, deltas, releases and their answers."""

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

import hushsum as hs
from hushsum.delta import Delta, DeltaId, apply, encode
from hushsum.entropy import ReplayableEntropy
from hushsum.errors import ContributionError, DeltaError, DroppedRecordsWarning, Reason, RecordError
from hushsum.query import count_std_error
from hushsum.releases import draw
from hushsum.sketch import Sketch
from tests.plans import classed_plan, small_plan

ID = DeltaId(7, 8)
RECORDS = np.random.default_rng(0).uniform(0, 10, (200, 2))
LABELS = np.array(list("abc"))[np.random.default_rng(1).integers(0, 3, 200)]
QUERIES = np.array([[5.0, 5.0], [1.0, 9.0]])


def filled(plan: hs.Plan | None = None) -> Sketch:
    sketch = Sketch(plan or classed_plan())
    sketch.add(RECORDS, labels=LABELS)
    return sketch


def delta_of(plan: hs.Plan, labels: object, records: npt.ArrayLike = RECORDS) -> Delta:
    delta, _ = encode(plan, records, window=0, id=ID, labels=labels)
    assert delta is not None
    return delta


def reason_of(delta: Delta, plan: hs.Plan) -> Reason:
    with pytest.raises(DeltaError) as caught:
        Delta.unpack(delta.pack(plan), plan)
    return caught.value.reason


def test_a_record_touches_the_counters_and_the_count_of_its_class_alone() -> None:
    sketch = Sketch(classed_plan())
    assert sketch.counters.shape == (3, 20, 64)
    sketch.add(RECORDS[:1], labels="b")
    assert sketch.counts.tolist() == [0, sketch.plan.privacy.mechanism.count_scale, 0]
    assert (sketch.counters[1].sum(axis=1) == 1).all()
    assert not sketch.counters[[0, 2]].any()


def test_each_class_is_the_sketch_of_its_own_records() -> None:
    sketch, plain = filled(), small_plan()
    for index, label in enumerate("abc"):
        alone = Sketch(plain)
        alone.add(RECORDS[label == LABELS])
        assert np.array_equal(sketch.counters[index], alone.counters[0])
        assert sketch.counts[index] == alone.counts[0]
    assert sketch.records == 200


def test_classes_do_not_change_the_noise_for_a_record_touches_one() -> None:
    assert classed_plan().privacy.mechanism == small_plan().privacy.mechanism
    bound = {"unit": "client", "records_per_client": 3}
    assert classed_plan(privacy=bound).privacy.mechanism == small_plan(privacy=bound).privacy.mechanism


def test_a_record_without_a_class_is_dropped_alone_and_counted() -> None:
    labels: list[object] = ["a", None, "z", "b", float("nan"), "c", "c"]
    records = np.array(RECORDS[:7])
    records[5, 0] = np.nan
    sketch, expected = Sketch(classed_plan()), Sketch(classed_plan())
    with pytest.warns(DroppedRecordsWarning, match=r"4 of 7 .*: 1 cannot .*; 3 without .*, such as 'z'$"):
        sketch.add(records, labels=labels)
    expected.add(RECORDS[[0, 3, 6]], labels=["a", "b", "c"])
    assert np.array_equal(sketch.counters, expected.counters)
    delta, problems = encode(classed_plan(), records, window=0, id=ID, labels=labels)
    assert (problems.dropped, delta is not None and [run.records for run in delta.runs]) == (4, [1, 1, 1])
    none, problems = encode(classed_plan(), records[:2], window=0, id=ID, labels=["z", None])
    assert (none, problems.dropped) == (None, 2)


@pytest.mark.parametrize("labels", [None, ["a"], ["a"] * 201, [1.5] * 200, {"a", "b"}, 5, b"a" * 200])
def test_labels_that_cannot_be_used_change_nothing(labels: object) -> None:
    sketch = Sketch(classed_plan())
    with pytest.raises(RecordError, match="labels: "):
        sketch.add(RECORDS, labels=labels)
    with pytest.raises(RecordError, match="labels: "):
        encode(sketch.plan, RECORDS, window=0, id=ID, labels=labels)
    assert not sketch.counters.any()
    assert not sketch.counts.any()


def test_labels_need_a_plan_with_classes() -> None:
    with pytest.raises(RecordError, match="this plan has no classes"):
        Sketch(small_plan()).add(RECORDS, labels=LABELS)


def test_classes_merge_class_by_class_and_come_out_again() -> None:
    left, right = Sketch(classed_plan()), Sketch(classed_plan())
    left.add(RECORDS[:80], labels=LABELS[:80])
    right.add(RECORDS[80:], labels=LABELS[80:])
    merged = left + right
    assert np.array_equal(merged.counters, filled().counters)
    assert np.array_equal(merged.counts, filled().counts)
    assert np.array_equal((merged - right).counters, left.counters)


def test_the_same_classes_in_another_order_are_another_plan() -> None:
    with pytest.raises(hs.PlanMismatchError):
        _ = Sketch(classed_plan("a", "b")) + Sketch(classed_plan("b", "a"))


def test_the_bound_of_a_client_covers_all_its_classes_together() -> None:
    plan = classed_plan(privacy={"unit": "client", "records_per_client": 3})
    sketch = Sketch(plan)
    with pytest.warns(DroppedRecordsWarning):  # z is dropped, and costs nothing
        sketch.add(RECORDS[:4], clients=["x", "x", "x", "y"], labels=["a", "b", "z", "a"])
    with pytest.raises(ContributionError, match="'x' would have 4"):
        sketch.add(RECORDS[:2], clients=["x", "x"], labels=["c", "a"])
    sketch.add(RECORDS[:1], clients=["x"], labels=["c"])
    assert (sketch.counts // plan.privacy.mechanism.count_scale).tolist() == [2, 1, 1]
    with pytest.raises(DeltaError, match="at most 3"):
        encode(plan, RECORDS[:4], window=0, id=ID, labels=list("abca"))


def test_a_packed_delta_comes_back_with_the_classes_that_its_records_have() -> None:
    plan, folded = classed_plan(), Sketch(classed_plan())
    for labels in (LABELS, ["b"] * 200, np.where(LABELS == "b", "c", LABELS)):
        delta = delta_of(plan, labels)
        back = Delta.unpack(delta.pack(plan), plan)
        assert [run.class_index for run in back.runs] == sorted({"abc".index(label) for label in labels})
        assert back.records == 200
        apply(back, folded.counters, folded.counts, plan.privacy.mechanism.count_scale)
        expected = Sketch(plan)
        expected.add(RECORDS, labels=labels)
        assert np.array_equal(folded.counters, expected.counters)
        assert np.array_equal(folded.counts, expected.counts)
        folded = Sketch(plan)


@pytest.mark.parametrize("order", [(1, 0), (0, 0), (0, 2, 1), (0, 1, 1), (2, 1, 0), (1, 1, 1)])
def test_classes_twice_or_out_of_order_are_malformed(order: tuple[int, ...]) -> None:
    plan = classed_plan()
    delta = delta_of(plan, LABELS)
    runs = tuple(replace(delta.runs[index], class_index=index) for index in order)
    assert reason_of(replace(delta, runs=runs), plan) is Reason.MALFORMED


def test_a_class_that_the_plan_does_not_have_and_more_runs_than_classes_are_malformed() -> None:
    plan = classed_plan()
    delta = delta_of(plan, LABELS)
    assert reason_of(replace(delta, runs=(replace(delta.runs[0], class_index=3),)), plan) is Reason.MALFORMED
    more = (*delta.runs, replace(delta.runs[0], class_index=3))
    assert reason_of(replace(delta, runs=more), plan) is Reason.MALFORMED


def test_the_limit_of_a_delta_holds_over_all_its_classes() -> None:
    plan = classed_plan(privacy={"unit": "client", "records_per_client": 4})
    whole = classed_plan()
    runs = delta_of(whole, ["a", "a", "b", "b", "c"], RECORDS[:5]).runs
    delta = delta_of(plan, ["a"], RECORDS[:1])
    assert reason_of(replace(delta, runs=runs), plan) is Reason.TOO_MANY_RECORDS
    assert Delta.unpack(replace(delta, runs=runs[:2]).pack(plan), plan).records == 4


def test_a_repr_shows_no_label() -> None:
    assert "class" not in repr(delta_of(classed_plan(), ["b"], RECORDS[:1]))


def test_each_run_must_hold_what_its_own_records_make() -> None:
    plan = classed_plan()
    data = delta_of(plan, ["a", "a", "b"], RECORDS[:3]).pack(plan)
    at = 1 + 32 + 8 + 1 + 1 + 1  # after version, plan, stream, sequence, window and number of runs
    assert data[at : at + 2] == b"\0\2"
    for records in (1, 3):
        with pytest.raises(DeltaError) as caught:
            Delta.unpack(data[: at + 1] + bytes([records]) + data[at + 2 :], plan)
        assert caught.value.reason in {Reason.IMPOSSIBLE_COUNTS, Reason.MALFORMED}


@pytest.mark.parametrize(
    ("classes", "rows", "buckets"), [(2, 30, 100), (3, 1, 2), (40, 3, 5000), (1024, 1, 2), (1024, 30, 100)]
)
def test_no_labelled_delta_is_larger_than_its_plan_says(
    classes: int, rows: int, buckets: int, rng: np.random.Generator
) -> None:
    labels = [f"label {number}" for number in range(classes)]
    plan = classed_plan(*labels, sketch={"rows": rows, "buckets": buckets, "bandwidth": "0.01"})
    most = plan.delta_records_max
    assert most == 4096
    powers = most // 2 ** np.arange(1, 13)
    splits = [
        np.arange(most) % classes,  # even
        np.repeat(np.arange(len(powers)), powers) % classes,  # halves
        np.minimum(np.arange(most), classes - 1),  # one record each, and the rest in the last
        np.minimum(rng.geometric(min(0.5, 8 / classes), most) - 1, classes - 1),
        np.zeros(most, np.int64),
        np.arange(min(classes, most)),  # one record each
    ]
    for split in splits:
        records = rng.uniform(0, 10, (len(split), 2))
        delta, _ = encode(plan, records, window=-(2**63), id=DeltaId(1, 2**63 - 1), labels=[labels[at] for at in split])
        assert delta is not None
        data = delta.pack(plan)
        assert len(data) <= plan.delta_bytes_max
        assert Delta.unpack(data, plan).records == len(split)


def plan_of(family: str, **keys: object) -> hs.Plan:
    """A plan of forty classes with this family."""
    record = {"dim": 2, "lower": [0, 0], "upper": [10, 10], "classes": [str(number) for number in range(40)]}
    sketch = {"family": family, **keys}
    return hs.Plan(name="test", record=record, sketch=sketch, privacy={"epsilon": 1, "total_epsilon": 10})


FAMILIES: dict[str, dict[str, object]] = {
    "fourier": {"kernel": "gaussian", "bandwidth": 4, "rows": 24},
    "hermite": {"kernel": "gaussian", "bandwidth": 2},
    "partition": {"bandwidth": 4, "buckets": 64, "rows": 20},
    "paired": {"radius": 2, "rows": 20},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_classes_within_the_size_that_its_plan_says(family: str, rng: np.random.Generator) -> None:
    plan = plan_of(family, **FAMILIES[family])
    for numbers in (np.arange(40), np.arange(4096) % 40, np.minimum(rng.geometric(0.2, 4096), 39)):
        records, labels = rng.uniform(0, 10, (len(numbers), 2)), [str(number) for number in numbers]
        delta, _ = encode(plan, records, window=0, id=ID, labels=labels)
        assert delta is not None
        data = delta.pack(plan)
        assert len(data) <= plan.delta_bytes_max
        folded, expected = Sketch(plan), Sketch(plan)
        expected.add(records, labels=labels)
        apply(Delta.unpack(data, plan), folded.counters, folded.counts, plan.privacy.mechanism.count_scale)
        assert np.array_equal(folded.counters, expected.counters)
        assert np.array_equal(folded.counts, expected.counts)


def test_the_noise_of_all_classes_is_in_the_error_of_an_answer_about_them_all() -> None:
    plan = plan_of("hermite", **FAMILIES["hermite"])  # whose errors are those of the noise alone
    sketch = Sketch(plan)
    sketch.add(RECORDS, labels=["7"] * 200)
    release = hs.release(sketch)
    one, all_of_them = release.kernel_sum(QUERIES, label="7").std_error, release.kernel_sum(QUERIES).std_error
    assert (one > 0).all()
    assert np.allclose(all_of_them, math.sqrt(40) * one)


def test_more_classes_than_records_cost_a_delta_no_more_room() -> None:
    bound = {"unit": "client", "records_per_client": 3}
    many = [str(number) for number in range(1000)]
    assert classed_plan(*many, privacy=bound).delta_bytes_max == classed_plan(privacy=bound).delta_bytes_max


def test_a_plan_with_too_many_counters_in_all_its_classes_is_refused() -> None:
    with pytest.raises(hs.PlanError) as caught:
        classed_plan(*map(str, range(1024)), sketch={"rows": 2**10, "buckets": 2**12})
    assert caught.value.key == "record.classes"


def released(plan: hs.Plan | None = None) -> hs.Release:
    return draw(filled(plan), kind="tumbling", window=3, entropy=ReplayableEntropy(b"test"), accounted=True)


def exact() -> hs.Release:
    """A release to which no noise was added."""
    sketch = filled()
    return replace(released(), counters=sketch.counters, counts=sketch.counts)


def test_every_class_has_noise_of_its_own() -> None:
    sketch, release = filled(), released()
    noise = release.counters - sketch.counters
    assert not np.array_equal(noise[0], noise[1])
    assert len(set((release.counts - sketch.counts).tolist())) > 1
    law = sketch.plan.privacy.mechanism.noise()
    drawn = law.sample(3 * 20 * 64 + 3, ReplayableEntropy(b"test"))
    assert np.array_equal(np.append(noise.reshape(-1), release.counts - sketch.counts), drawn)


def test_an_answer_of_a_class_is_that_of_its_own_sketch() -> None:
    release = exact()
    for label in "abc":
        alone = Sketch(small_plan())
        alone.add(RECORDS[label == LABELS])
        answer = small_plan().family.answer(alone.counters[0], QUERIES)
        assert np.array_equal(release.kernel_sum(QUERIES, label=label).value, answer.value)
        assert release.count_of(label) == alone.records


def test_an_answer_without_a_label_is_that_of_all_classes_together() -> None:
    release = exact()
    together = sum(release.kernel_sum(QUERIES, label=label).value for label in "abc")
    assert np.allclose(release.kernel_sum(QUERIES).value, together, rtol=1e-12)
    assert release.count == sum(map(release.count_of, "abc")) == 200
    assert np.allclose(release.density(QUERIES).value, release.kernel_sum(QUERIES).value / 200)
    assert np.allclose(
        release.density(QUERIES, label="b").value, release.kernel_sum(QUERIES, label="b").value / release.count_of("b")
    )


def test_the_error_of_a_count_is_that_of_its_classes() -> None:
    plan = classed_plan()
    one = count_std_error(plan, label="a")
    assert one == count_std_error(small_plan())
    assert count_std_error(plan) == pytest.approx(math.sqrt(3) * one)


@pytest.mark.parametrize("label", ["z", "", "A", 0, b"a"])
def test_a_label_that_the_plan_does_not_have_is_refused(label: str) -> None:
    release = released()
    for ask in (
        lambda: release.kernel_sum(QUERIES, label=label),
        lambda: release.density(QUERIES, label=label),
        lambda: release.count_of(label),
    ):
        with pytest.raises(RecordError, match="the plan's classes are 'a', 'b', 'c'"):
            ask()


def test_a_plan_without_classes_has_no_label_to_ask_for() -> None:
    sketch = Sketch(small_plan())
    release = draw(sketch, kind="tumbling", window=3, entropy=ReplayableEntropy(b"test"), accounted=True)
    with pytest.raises(RecordError, match="it has no classes"):
        release.count_of("a")


def test_a_release_file_keeps_every_class() -> None:
    release = released()
    loaded = hs.Release.from_bytes(release.to_bytes())
    assert np.array_equal(loaded.counters, release.counters)
    assert np.array_equal(loaded.counts, release.counts)
    assert loaded.plan.classes == ("a", "b", "c")
    assert [loaded.count_of(label) for label in "abc"] == [release.count_of(label) for label in "abc"]


def test_another_epsilon_keeps_the_counts_of_every_class() -> None:
    written = {"name": "discrete-laplace", "scale": "100", "count_scale": 7}
    release = hs.release(filled(classed_plan(privacy={"mechanism": written})), epsilon=50)
    for label in "abc":  # noise of scale 22/50, divided by 2: 20 is farther than one in 10^39 goes
        assert abs(release.count_of(label) - np.count_nonzero(label == LABELS)) < 20
