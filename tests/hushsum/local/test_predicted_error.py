"""Predicted errors are those that decoding has: report by report exactly, and over whole collections."""

import math
from fractions import Fraction

import numpy as np
import pytest

from hushsum import GuaranteeError, Plan
from hushsum.families import Hashed
from hushsum.local import estimation, predicted_error
from hushsum.local.reports import choice_of
from hushsum.noise.randomized_response import KRR
from tests.hushsum.local.report_plans import BOTH, collected, entropy_of, rehashed_plan, report_plan, wave_plan
from tests.plans import small_plan

QUERY = np.array([[3.0, 3.0]])
CLASSES = pytest.mark.parametrize("classes", [[], ["a", "b", "c"]], ids=["one", "three"])


def moments(plan: Plan, values: list[int], label: str | None) -> tuple[float, float]:
    """Mean and mean square of what one report adds to an answer, over a uniform choice of values; of one row."""
    randomiser, counters = choice_of(plan), np.zeros(plan.counters_shape, np.int64)
    first = second = 0.0
    for output in range(randomiser.outputs):
        counters[0, 0, output] = 1
        read = estimation.kernel_sum(plan, counters, QUERY, label=label).value[0]
        counters[0, 0, output] = 0
        chance = float(sum(randomiser.probability(value, output) for value in values)) / len(values)
        first, second = first + chance * read, second + chance * read * read
    return first, second


def exact_variance(plan: Plan, near: float, own: float, label: str | None) -> float:
    """Of a report: near ones in the query's bucket and class b, far ones of class b, the rest of class a."""
    family = plan.family
    assert isinstance(family, Hashed)
    bucket, width = int(next(family.buckets_at(QUERY))[1][0, 0]), family.buckets
    base = width if plan.classes else 0
    far = [v for v in range(width) if family.rehashed or v != bucket]
    kinds = [(near, [base + bucket]), (own, [base + v for v in far]), (1 - near - own, far)]
    found = [(share, *moments(plan, values, label)) for share, values in kinds if share > 0]
    total = sum(share * second for share, _, second in found)
    return total - sum(share * first**2 for share, first, _ in found)


@pytest.mark.parametrize("randomiser", BOTH)
@pytest.mark.parametrize("make", [report_plan, rehashed_plan])
@CLASSES
@pytest.mark.parametrize("near", [0.0, 0.3])
def test_the_variance_of_a_report_is_the_predicted_one(
    randomiser: str, make: object, classes: list[str], near: float
) -> None:
    """Exactly for k-rr; within 20 % for projective responses, whose supports are not quite independent."""
    plan = make(randomiser, sketch={"rows": 1, "buckets": 8}, record={"classes": classes})  # type: ignore[operator]  # both make plans
    within = 1e-9 if randomiser == "k-rr" else 0.2
    for label, own in ((None, 0.5 if classes else 1 - near), *((("b", 0.2), ("b", 0.0)) if classes else ())):
        share = None if label is None else near + own
        found = predicted_error.report_variance(predicted_error.setting(plan), near=near, label=share)
        assert found == pytest.approx(exact_variance(plan, near, own, label), rel=within)


@pytest.mark.parametrize(("ratio", "width", "expected"), [(4, 16, 0.112), (4, 64, 0.076), (4, 256, 0.131)])
def test_far_records_of_k_rr_add_what_is_published(ratio: int, width: int, expected: float) -> None:
    """The closed form: docs/explanation/proofs/randomised-response.md."""
    setting = predicted_error.Setting.of(KRR(Fraction(math.exp(ratio)).limit_denominator(1000), width), width)
    assert predicted_error.report_variance(setting) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("classes", [1, 2, 7])
@pytest.mark.parametrize("ratio", [Fraction(3), Fraction(20), Fraction(5459815, 100000)])
def test_the_best_width_is_the_least_of_all(ratio: Fraction, classes: int) -> None:
    def variance(width: int) -> float:
        setting = predicted_error.Setting.of(KRR(ratio, width * classes), width, classes)
        return predicted_error.report_variance(setting, label=1 / classes)

    best = predicted_error.best_width(ratio, classes)
    assert 2 <= best <= ratio + 2
    others = range(2, 200)
    assert variance(best) <= 1.05 * min(variance(width) for width in others)
    if classes == 1:
        assert best == min(others, key=variance)


@pytest.mark.statistical
@pytest.mark.parametrize("randomiser", BOTH)
def test_whole_collections_err_as_predicted(randomiser: str, rng: np.random.Generator) -> None:
    """300 far queries in 20 collections: their error is known within 2 %, and 20 % off is 10 of its errors."""
    plan = rehashed_plan(randomiser, sketch={"rows": 400, "buckets": 8, "bandwidth": "0.1"})
    records, queries = rng.uniform(0, 10, (2000, 2)), rng.uniform(0, 10, (300, 2))
    exact = plan.family.kernel(records, queries).sum(axis=0)
    off = [
        estimation.kernel_sum(plan, collected(plan, records, entropy_of(rng)), queries).value - exact for _ in range(20)
    ]
    predicted = predicted_error.answer_error(predicted_error.setting(plan), 2000, near=float(exact.mean()) / 2000)
    assert np.sqrt(np.square(off).mean()) == pytest.approx(predicted, rel=0.2)
    assert estimation.noise_std_error(plan, 2000) == pytest.approx(predicted, rel=0.05)


@pytest.mark.statistical
def test_whole_collections_of_bits_err_as_predicted(rng: np.random.Generator) -> None:
    """As for buckets: the spread of frequencies is small beside that of bits."""
    plan = wave_plan(1.0, rows=400, bandwidth="0.5")
    records, queries = rng.uniform(0, 10, (2000, 2)), rng.uniform(0, 10, (300, 2))
    exact = plan.family.kernel(records, queries).sum(axis=0)
    off = [
        estimation.kernel_sum(plan, collected(plan, records, entropy_of(rng)), queries).value - exact for _ in range(20)
    ]
    predicted = predicted_error.answer_error(predicted_error.setting(plan), 2000)
    assert np.sqrt(np.square(off).mean()) == pytest.approx(predicted, rel=0.2)


def test_hashing_adds_to_it_and_rows_take_it_off_again() -> None:
    setting = predicted_error.setting(report_plan())
    alone = predicted_error.answer_error(setting, 1000)
    assert predicted_error.answer_error(setting, 1000, rows=10, pairs=0.01) == pytest.approx(
        math.hypot(alone, 1000 * 0.1 / 10**0.5)
    )


def test_plans_without_reports_have_no_such_errors() -> None:
    with pytest.raises(GuaranteeError):
        predicted_error.setting(small_plan())
