"""Audits of mode local: honest devices keep what they claim, exactly and by runs, and planted mistakes are caught.

False alarms: an honest row or check fails with probability 1e-6 at most, by construction.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from hushsum.entropy import Entropy
from hushsum.families.hashed.family import Hashed
from hushsum.local import reports as encoding
from hushsum.noise import KRR, DiscreteGaussian, DiscreteLaplace, OneBit, Projective, Sampler
from hushsum.plan import Plan
from hushsum.privacy.mechanisms import Mechanism
from hushsum.usable_records import RecordProblems
from hushsum_simulator.audit import local
from hushsum_simulator.audit.local import Held

pytestmark = pytest.mark.statistical

Int64 = npt.NDArray[np.int64]
Plant = Callable[[pytest.MonkeyPatch], None]

PLANS = list(local.report_plans())
PLAIN, CLASSES, PROJECTIVE = PLANS[0], PLANS[1], PLANS[2]
ONE_BIT = next(plan for plan in PLANS if plan.privacy.mechanism.name == "one-bit")


def shown(plan: Plan) -> str:
    return f"{plan.privacy.mechanism.name}-{plan.privacy.unit}-{len(plan.classes)}"


# --------------------------------------------------------------------------------------------------------- reports


@pytest.mark.parametrize("plan", PLANS, ids=shown)
def test_the_reports_of_a_unit_keep_what_is_claimed_and_hardly_less(plan: Plan) -> None:
    """Over all words that decide a report; of buckets it comes to m·ln λ, of a bit that no record drives to its peak
    to less."""
    row = local.exact_report_row(plan)
    m = plan.privacy.records_per_client or 1
    stated = m * math.log(plan.privacy.mechanism.scale)
    assert row.exact is not None
    assert row.holds
    assert row.exact == pytest.approx(stated) or (plan is not PLAIN and 0.5 * stated < row.exact < stated)
    assert row.relation == "replace"


def test_the_law_of_a_report_is_that_of_its_row_and_its_value() -> None:
    law = local.law_of(PLAIN, Held(3.0))
    _, rows, outputs = PLAIN.counters_shape
    ratio = PLAIN.privacy.mechanism.scale
    likely, other = ratio / (ratio + outputs - 1) / rows, 1 / (ratio + outputs - 1) / rows
    assert sorted(law.values()) == [other] * (rows * (outputs - 1)) + [likely] * rows
    for row in range(rows):
        assert sum(law[row * outputs + output] for output in range(outputs)) == Fraction(1, rows)


@pytest.mark.parametrize("plan", PLANS, ids=shown)
def test_an_unusable_record_reports_uniformly(plan: Plan) -> None:
    held = [Held(math.nan, label) for label in plan.classes or (None,)]
    held += [Held(3.0, "neither")] if plan.classes else []
    for record in held:
        law = local.law_of(plan, record)
        assert set(law.values()) == {Fraction(1, math.prod(plan.counters_shape))}


@pytest.mark.parametrize("plan", [PLAIN, CLASSES, PROJECTIVE, ONE_BIT], ids=shown)
def test_runs_of_honest_devices_prove_no_more_than_is_claimed(plan: Plan) -> None:
    first, second = Held(0.0, (plan.classes or (None,))[0]), Held(10.0, (plan.classes or (None,))[-1])
    assert local.run_reports(plan, first, second, 4000).holds
    assert local.run_reports(plan, first, replace(first, value=math.nan), 4000).holds


def test_runs_come_near_what_is_claimed() -> None:
    assert (local.run_reports(PLAIN, Held(0.0), Held(10.0), 20_000).audited or 0) > 0.5


def test_the_stated_laws_of_real_sizes_keep_their_ratios() -> None:
    checks = list(local.size_checks())
    assert len(checks) == 3
    assert all(check.holds for check in checks)


# ------------------------------------------------------------------------------------------------ planted: reports


def keep_too_often(patch: pytest.MonkeyPatch) -> None:
    """A value is kept, or a hyperplane hit, 5 % more often than λ allows."""
    for kind in (KRR, Projective):
        honest: Any = kind._respond

        def respond(self: Any, values: Int64, draws: Int64, honest: Any = honest) -> Any:
            a = self.ratio.numerator * getattr(self, "_orthogonal", 1)
            left = draws % self._total
            stolen = (left >= a) & (left < a + a // 20)  # words of other outputs that count as hits
            np.subtract(draws, left, out=draws, where=stolen)
            return honest(self, values, draws)

        patch.setattr(kind, "_respond", respond)


def send_the_label_in_the_clear(patch: pytest.MonkeyPatch) -> None:
    """The bucket is randomised and the class is not."""

    def choices(plan: Plan, family: Hashed, accepted: Any, classes: Int64, entropy: Entropy) -> Int64:
        sent = honest(plan, family, accepted, classes, entropy)
        rows, outputs = np.divmod(sent, len(plan.classes) * family.buckets)
        outputs = np.where(classes < 0, outputs, np.maximum(classes, 0) * family.buckets + outputs % family.buckets)
        return rows * len(plan.classes) * family.buckets + outputs

    honest = encoding._choices
    patch.setattr(encoding, "_choices", choices)


def choose_the_row_by_the_record(patch: pytest.MonkeyPatch) -> None:
    """The row hangs on the bucket that the record has in row 0."""

    def choices(plan: Plan, family: Hashed, accepted: Any, classes: Int64, entropy: Entropy) -> Int64:
        sent = honest(plan, family, accepted, classes, entropy)
        usable = classes >= 0
        sent[usable] %= plan.counters_shape[2]
        bucket = family.buckets_of(accepted, np.zeros(len(accepted), np.int64))
        sent[usable] += bucket % family.rows * plan.counters_shape[2]
        return sent

    honest = encoding._choices
    patch.setattr(encoding, "_choices", choices)


def send_nothing_of_an_unusable_record(patch: pytest.MonkeyPatch) -> None:
    def reports(plan: Plan, records: Any, labels: object, entropy: Entropy) -> tuple[Int64, RecordProblems]:
        sent, problems = honest(plan, records, labels, entropy)
        return sent[plan.family.accept(records)[1]], problems

    honest = encoding.reports
    patch.setattr(encoding, "reports", reports)


def round_before_the_coin(patch: pytest.MonkeyPatch) -> None:
    """An entry is sent as the sign that it has, of which no coin is thrown."""

    def randomise(self: OneBit, entries: Int64, entropy: Entropy, nothing: Any = None) -> Int64:
        drawn = honest(self, entries, entropy, nothing)
        return np.where(entries == 0, drawn, (entries > 0).astype(np.int64))

    honest = OneBit.randomise
    patch.setattr(OneBit, "randomise", randomise)


@pytest.mark.parametrize(
    ("mistake", "plan", "far"),
    [
        (keep_too_often, PLAIN, False),
        (keep_too_often, CLASSES, False),
        (keep_too_often, PROJECTIVE, False),
        (send_the_label_in_the_clear, CLASSES, True),
        (choose_the_row_by_the_record, PLAIN, True),
        (send_nothing_of_an_unusable_record, PLAIN, True),
        (round_before_the_coin, ONE_BIT, True),
    ],
)
def test_a_mistake_in_reports_is_caught(mistake: Plant, plan: Plan, far: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exactly always; and by runs where it is no matter of a few per cent."""
    mistake(monkeypatch)
    assert not local.exact_report_row(plan).holds
    if far:
        first = Held(0.0, (plan.classes or (None,))[0])
        others = (Held(10.0, (plan.classes or (None,))[-1]), replace(first, value=math.nan), Held(5.0, first.label))
        assert not all(local.run_reports(plan, first, other, 4000).holds for other in others)


# ----------------------------------------------------------------------------------------------------------- silos


@pytest.mark.parametrize("plan", list(local.silo_plans()), ids=shown)
def test_a_submission_keeps_what_is_claimed_of_it(plan: Plan) -> None:
    row = local.exact_silo_row(plan)
    assert row.holds
    assert row.relation == "zero-out"
    assert (row.exact or 0) > 0.7 * row.epsilon


def test_runs_of_honest_silos_prove_no_more_than_is_claimed() -> None:
    assert local.run_silo(local.silo_plan_of(), 500).holds
    assert local.noise_check(local.silo_plan_of(record={"classes": ["yes", "no"]}), 500).holds


def half_the_noise(patch: pytest.MonkeyPatch) -> None:
    honest = Mechanism.noise

    def noise(self: Mechanism) -> Sampler:
        sampler = honest(self)
        assert isinstance(sampler, DiscreteLaplace | DiscreteGaussian)
        return replace(sampler, scale=sampler.scale / 2)

    patch.setattr(Mechanism, "noise", noise)


def without_noise_on(part: slice) -> Plant:
    """Some of what is submitted has none."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        for kind in (DiscreteLaplace, DiscreteGaussian):
            honest: Any = kind.sample

            def sample(self: Any, size: int, entropy: Entropy, honest: Any = honest) -> Int64:
                drawn: Int64 = honest(self, size, entropy)
                drawn[part] = 0
                return drawn

            patch.setattr(kind, "sample", sample)

    return plant


@pytest.mark.parametrize(
    ("mistake", "keys"),
    [
        (without_noise_on(slice(-1, None)), {}),  # the count counter
        (without_noise_on(slice(0, 1)), {}),
        (without_noise_on(slice(2, 4)), {"record": {"classes": ["yes", "no"]}}),  # the second class
    ],
)
def test_noise_that_is_missing_anywhere_is_caught(
    mistake: Plant, keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = local.silo_plan_of(**keys)
    mistake(monkeypatch)
    assert not local.noise_check(plan, 100).holds
    if not keys:
        assert not local.run_silo(plan, 200).holds


def test_noise_of_half_the_scale_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    half_the_noise(monkeypatch)
    assert not local.exact_silo_row(local.silo_plan_of()).holds


def test_noise_that_two_counters_share_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = DiscreteLaplace.sample

    def sample(self: DiscreteLaplace, size: int, entropy: Entropy) -> Int64:
        return np.repeat(honest(self, 1, entropy), size)

    monkeypatch.setattr(DiscreteLaplace, "sample", sample)
    assert not local.noise_check(local.silo_plan_of(), 100).holds
