"""One report a record: its law is the randomiser's, its row is uniform, and no other record decides."""

from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import chi2

from hushsum import GuaranteeError, Plan, RecordError
from hushsum.entropy import OsEntropy, ReplayableEntropy
from hushsum.families import Hashed
from hushsum.local.reports import bit_of, choice_of, reports, sizes_of
from tests.hushsum.local.report_plans import BOTH, counted, entropy_of, report_plan, wave_plan
from tests.plans import set_plan, small_plan

FALSE_ALARM = 1e-6
MANY = 60_000


def assert_law(observed: npt.NDArray[np.int64], law: list[Fraction]) -> None:
    """Pearson's test of counts against exact probabilities."""
    expected = np.array([float(share) for share in law]) * observed.sum()
    assert abs(sum(law) - 1) == 0
    assert np.all(observed[expected == 0] == 0)
    kept = expected > 0
    distance = float((np.square(observed - expected)[kept] / expected[kept]).sum())
    assert distance < chi2.isf(FALSE_ALARM, int(kept.sum()) - 1), distance


def law_of(plan: Plan, record: list[float], label: str | None) -> list[Fraction]:
    """Of a hashed report, from the family's own buckets; None: an unusable one."""
    family, randomiser = plan.family, choice_of(plan)
    assert isinstance(family, Hashed)
    law = []
    for row in range(family.rows):
        value = -1
        if label is not None:
            usable, _ = family.accept([record])
            bucket = int(family.buckets_of(usable, np.array([row]))[0])
            value = (plan.classes.index(label) if plan.classes else 0) * family.buckets + bucket
        law += [randomiser.probability(value, output) / family.rows for output in range(randomiser.outputs)]
    return law


@pytest.mark.statistical
@pytest.mark.parametrize("randomiser", BOTH)
@pytest.mark.parametrize("classes", [[], ["a", "b"]], ids=["one", "classes"])
@pytest.mark.parametrize("usable", [True, False])
def test_a_report_has_the_exact_law_of_its_record(
    randomiser: str, classes: list[str], usable: bool, rng: np.random.Generator
) -> None:
    """False alarm 1e-6 each. An unusable record is uniform over all rows and outputs."""
    plan = report_plan(randomiser, record={"classes": classes}, sketch={"rows": 3, "buckets": 10})
    record, label = [3.0, 8.0] if usable else [3.0, np.nan], "b" if classes else None
    found, problems = reports(plan, [record] * MANY, [label] * MANY if classes else None, entropy_of(rng))
    assert problems.dropped == (0 if usable else MANY)
    expected = law_of(plan, record, (label or "") if usable else None)
    if not usable:
        assert set(expected) == {Fraction(1, len(expected))}
    assert_law(counted(plan, found).reshape(-1), expected)


@pytest.mark.statistical
@pytest.mark.parametrize("usable", [True, False])
def test_a_bit_has_the_exact_law_of_its_record(usable: bool, rng: np.random.Generator) -> None:
    """False alarm 1e-6 each."""
    plan = wave_plan(rows=4)
    record = [3.0, 8.0 if usable else np.inf]
    found, _ = reports(plan, [record] * MANY, None, entropy_of(rng))
    entries = np.zeros(8, np.int64)
    if usable:
        plan.family.add(entries.reshape(4, 2), plan.family.accept([record])[0])
        assert len(set(entries.tolist())) > 4
    coin = bit_of(plan)
    law = [coin.probability(entry, bit) / 8 for entry in entries.tolist() for bit in (0, 1)]
    assert_law(counted(plan, found).reshape(-1), law)


@pytest.mark.statistical
@pytest.mark.parametrize("make", [report_plan, wave_plan])
def test_rows_are_independent_of_records(make: object, rng: np.random.Generator) -> None:
    """Of 20 rows and of two kinds of records: false alarm 1e-6."""
    plan = make()  # type: ignore[operator]  # both make plans without arguments
    records = np.repeat([[1.0, 1.0], [9.0, 2.0]], MANY // 2, axis=0)
    found, _ = reports(plan, records, None, entropy_of(rng))
    rows = found // sizes_of(plan).outputs
    for half in (rows[: MANY // 2], rows[MANY // 2 :]):
        assert_law(np.bincount(half, minlength=20), [Fraction(1, 20)] * 20)


@pytest.mark.parametrize("randomiser", BOTH)
def test_a_report_is_made_of_its_own_record_whatever_the_others_are(randomiser: str) -> None:
    """The same draws, with all other records replaced."""
    plan = report_plan(randomiser)
    records = np.full((50, 2), 1.0)
    others = np.full((50, 2), [9.0, np.nan])
    others[17] = records[17]
    first, _ = reports(plan, records, None, ReplayableEntropy(b"draws"))
    second, _ = reports(plan, others, None, ReplayableEntropy(b"draws"))
    assert first[17] == second[17]
    outputs = sizes_of(plan).outputs
    assert np.array_equal(first // outputs, second // outputs)


@pytest.mark.parametrize("randomiser", BOTH)
def test_compiled_loops_make_the_same_reports(
    randomiser: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = rng.uniform(0, 10, (300, 2))
    found = []
    for kernels in ("plain", "fast"):
        monkeypatch.setenv("HUSHSUM_KERNELS", kernels)
        found.append(reports(report_plan(randomiser), records, None, ReplayableEntropy(b"draws"))[0])
    assert np.array_equal(found[0], found[1])


def test_no_record_is_left_out_and_those_that_cannot_be_used_are_told() -> None:
    plan = report_plan(record={"classes": ["a", "b"]})
    records = [[1.0, 1.0], [np.nan, 1.0], [2.0, 2.0], [3.0, 3.0], [np.inf, 0.0]]
    found, problems = reports(plan, records, ["a", "a", "c", None, "zz"], OsEntropy())
    assert (len(found), problems.dropped) == (5, 4)
    assert found.dtype == np.int64


@pytest.mark.parametrize("label", [7, 1.5, None, b"a", np.nan, "unknown"])
def test_no_single_label_is_an_error_that_would_show(label: object) -> None:
    plan = report_plan(record={"classes": ["a", "b"]})
    found, problems = reports(plan, [[1.0, 1.0]], [label], OsEntropy())
    assert (len(found), problems.dropped) == (1, 1)


def test_sets_are_reported_too() -> None:
    plan = set_plan(privacy={"mode": "local"})
    found, problems = reports(plan, [[1, 2, 3], [], [5], [5, 500]], None, OsEntropy())
    assert (len(found), problems.dropped) == (4, 2)
    assert 0 <= found.min() <= found.max() < plan.counters_shape[1] * plan.counters_shape[2]


def test_nothing_makes_no_report() -> None:
    found, problems = reports(report_plan(), np.empty((0, 2)), None, OsEntropy())
    assert (len(found), problems.dropped) == (0, 0)


@pytest.mark.parametrize(
    ("records", "labels"),
    [
        pytest.param(np.ones((1, 3)), ["a"], id="width"),
        pytest.param(np.array([["x", "y"]]), ["a"], id="type"),
        pytest.param([[1.0, 2.0]], ["a", "b"], id="labels"),
        pytest.param([[1.0, 2.0]], None, id="no labels"),
    ],
)
def test_what_no_record_decides_is_refused(records: object, labels: object) -> None:
    with pytest.raises(RecordError):
        reports(report_plan(record={"classes": ["a", "b"]}), records, labels, OsEntropy())


@pytest.mark.parametrize("plan", [small_plan(), small_plan(privacy={"mode": "local", "local": {"form": "silo"}})])
def test_a_plan_without_reports_makes_none(plan: Plan) -> None:
    with pytest.raises(GuaranteeError, match="devices of this plan send no reports"):
        reports(plan, [[1.0, 1.0]], None, OsEntropy())
