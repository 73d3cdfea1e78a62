"""Mistakes in mode local that no single report, counter or small plan shows, planted one by one: each is caught.

False alarms: an honest check fails with probability 1e-6 at most, by construction. What is planted shows in hundreds or
thousands of draws, so that to miss it is less likely still. The operating system draws: there is no seed to print.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from edge_client.encoding import ReportEncoder
from edge_client.spool.changes import Add
from hushsum.entropy import Entropy
from hushsum.families.hashed.family import Hashed
from hushsum.local import reports as encoding
from hushsum.local.reports import bit_of
from hushsum.noise import KRR, DiscreteGaussian, DiscreteLaplace, OneBit, Projective
from hushsum.plan import Plan
from hushsum.usable_records import RecordProblems
from hushsum_simulator.audit import empirical, local, pipelines
from hushsum_simulator.audit.cases import plan_of
from hushsum_simulator.audit.local import Held

pytestmark = pytest.mark.statistical

Int64 = npt.NDArray[np.int64]
Plant = Callable[[pytest.MonkeyPatch], None]

PLANS = list(local.report_plans())
PLAIN, CLASSES, PROJECTIVE = PLANS[0], PLANS[1], PLANS[2]
SIZES = {f"{plan.privacy.mechanism.name}-{plan.hex_id[:6]}": plan for plan in empirical.real_size_plans()}
LABELS = {"record": {"classes": ["yes", "no"]}}
SHARED = {"classes": local.silo_plan_of(**LABELS), "rows": local.silo_plan_of(sketch={"rows": 3})}
LAWS = {**SHARED, "gaussian": local.silo_plan_of(delta="0.05", epsilon=2)}


# --------------------------------------------------------------------------------------------- several of one call


def give_all_the_value_of_the_first(patch: pytest.MonkeyPatch) -> None:
    """Each report is randomised as it should be, but all are of the first record: it is told n times."""

    def choices(plan: Plan, family: Hashed, accepted: Any, classes: Int64, entropy: Entropy) -> Int64:
        if len(accepted) == len(classes) > 1:
            accepted, classes = np.repeat(accepted[:1], len(classes), axis=0), np.full_like(classes, classes[0])
        return honest(plan, family, accepted, classes, entropy)

    honest = encoding._choices
    patch.setattr(encoding, "_choices", choices)


def give_each_the_value_of_the_one_before(patch: pytest.MonkeyPatch) -> None:
    def randomise(self: KRR, values: Int64, entropy: Entropy) -> Int64:
        return honest(self, np.roll(values, 1), entropy)

    honest = KRR.randomise
    patch.setattr(KRR, "randomise", randomise)


def decide_two_by_one_word(patch: pytest.MonkeyPatch) -> None:
    """Every second report is drawn by the word of the one before."""
    honest = KRR._respond

    def respond(self: KRR, values: Int64, draws: Int64) -> None:
        draws[1::2] = draws[: len(draws) // 2 * 2 : 2]
        honest(self, values, draws)

    patch.setattr(KRR, "_respond", respond)


def keep_every_fiftieth(patch: pytest.MonkeyPatch) -> None:
    honest = KRR._respond

    def respond(self: KRR, values: Int64, draws: Int64) -> None:
        honest(self, values, draws)
        if len(draws) > 3:
            draws[::50] = np.maximum(values[::50], 0)

    patch.setattr(KRR, "_respond", respond)


@pytest.mark.parametrize("plan", [PLAIN, CLASSES], ids=["plain", "classes"])
@pytest.mark.parametrize(
    "mistake",
    [
        give_all_the_value_of_the_first,
        give_each_the_value_of_the_one_before,
        decide_two_by_one_word,
        keep_every_fiftieth,
    ],
)
def test_a_report_that_follows_another_record_of_its_call_is_caught(
    mistake: Plant, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    mistake(monkeypatch)
    assert not local.exact_report_row(plan).holds


def test_the_law_of_a_record_is_the_same_beside_any_other() -> None:
    for plan in PLANS[:5]:
        labels = plan.classes or (None,)
        alone = local.law_of(plan, Held(3.0, labels[0]))
        for other in (Held(0.0, labels[-1]), Held(9.0, labels[0]), Held(float("nan"), labels[0])):
            assert local.law_of(plan, Held(3.0, labels[0]), other) == alone


# ------------------------------------------------------------------------------------------------- the device's own


def drop_unusable_records(patch: pytest.MonkeyPatch) -> None:
    """The device leaves them out, though the encoding would report them."""

    whole = encoding.reports

    def dropped(plan: Plan, records: Any, labels: object, entropy: Entropy) -> tuple[Int64, RecordProblems]:
        sent, problems = whole(plan, records, labels, entropy)
        return sent[: len(sent) - problems.dropped], problems

    patch.setattr(encoding, "reports", dropped)


@pytest.mark.parametrize("plan", [PLAIN, CLASSES, PROJECTIVE], ids=["plain", "classes", "projective"])
def test_a_device_that_drops_unusable_records_is_caught(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    drop_unusable_records(monkeypatch)
    assert not local.exact_report_row(plan).holds
    usable = Held(0.0, (plan.classes or (None,))[0])
    assert not local.run_reports(plan, usable, replace(usable, value=float("nan")), 4000).holds


def test_a_report_behind_a_shuffler_is_conceded_no_delta(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan's δ is the shuffled batch's alone: a device that drops fewer unusable records than that is caught."""
    shuffled = {"randomiser": "k-rr", "shuffle_min": 1000}
    mechanism = {"name": "k-rr", "scale": "2.7", "count_scale": 1}  # few digits: few words decide a report
    plan = plan_of(mode="local", local=shuffled, sketch={"rows": 3, "buckets": 4}, delta="0.2", mechanism=mechanism)

    whole = encoding.reports

    def dropped(plan: Plan, records: Any, labels: object, entropy: Entropy) -> tuple[Int64, RecordProblems]:
        sent, problems = whole(plan, records, labels, entropy)
        return sent[: len(sent) - round(0.15 * problems.dropped)], problems

    usable, unusable = Held(0.0), Held(float("nan"))
    assert local.exact_report_row(plan).delta == 0
    assert local.run_reports(plan, usable, unusable, 4000).holds
    monkeypatch.setattr(encoding, "reports", dropped)
    assert not local.run_reports(plan, usable, unusable, 4000).holds


def test_a_client_sends_as_many_reports_as_its_plan_says_and_no_more() -> None:
    assert all(check.holds for check in pipelines.bound_checks())


def count_usable_records_alone(addition: Add) -> Add:
    return replace(addition, records_max=None) if addition.dropped else addition


@pytest.mark.parametrize("mistake", [lambda each: replace(each, records_max=None), count_usable_records_alone])
def test_a_client_that_sends_more_reports_is_caught(
    mistake: Callable[[Add], Add], monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = ReportEncoder.encode
    monkeypatch.setattr(ReportEncoder, "encode", lambda self, *args: mistake(honest(self, *args)))
    assert not any(check.holds for check in pipelines.bound_checks())


# ----------------------------------------------------------------------------------------------------- real sizes


@pytest.mark.parametrize("plan", SIZES.values(), ids=SIZES)
def test_what_is_drawn_under_plans_of_real_sizes_fits(plan: Plan) -> None:
    assert empirical.drawn_check(plan).holds


def tell_of_many_values(kind: Any) -> Plant:
    """Above eight values the true one is sent, or a report that surely supports it."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        honest = kind._respond

        def respond(self: Any, values: Int64, draws: Int64) -> None:
            if self.inputs > 8:
                draws %= self.ratio.numerator * getattr(self, "_orthogonal", 1)  # words of hits
            honest(self, values, draws)

        patch.setattr(kind, "_respond", respond)

    return plant


def send_the_sign_of_fine_numbers(patch: pytest.MonkeyPatch) -> None:
    honest = OneBit.randomise

    def randomise(self: OneBit, entries: Int64, entropy: Entropy, nothing: Any = None) -> Int64:
        drawn = honest(self, entries, entropy, nothing)
        return (entries > 0).astype(np.int64) if self.peak > 64 else drawn

    patch.setattr(OneBit, "randomise", randomise)


@pytest.mark.parametrize(
    ("mistake", "name", "above"),
    [
        (tell_of_many_values(KRR), "k-rr", 8),
        (tell_of_many_values(Projective), "projective", 8),
        (send_the_sign_of_fine_numbers, "one-bit", 64),
    ],
)
def test_a_mistake_under_large_plans_alone_is_caught(
    mistake: Plant, name: str, above: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    mistake(monkeypatch)
    plans = [plan for plan in empirical.real_size_plans() if plan.privacy.mechanism.name == name]
    large = [plan for plan in plans if name != "one-bit" or bit_of(plan).peak > above]
    assert len(large) >= 2
    assert not any(empirical.drawn_check(plan).holds for plan in large)


# ------------------------------------------------------------------------------------------------ silos: shared noise


@pytest.mark.parametrize("plan", LAWS.values(), ids=LAWS)
def test_honest_silos_share_no_noise(plan: Plan) -> None:
    assert local.pairs_check(plan, 400).holds


def test_runs_of_honest_silos_with_classes_prove_no_more_than_is_claimed() -> None:
    assert local.run_silo(SHARED["classes"], 500).holds


def negate_the_second_half(patch: pytest.MonkeyPatch) -> None:
    """Of six numbers or more the last half has the noise of the first, with the other sign."""
    for kind in (DiscreteLaplace, DiscreteGaussian):
        honest: Any = kind.sample

        def sample(self: Any, size: int, entropy: Entropy, honest: Any = honest) -> Int64:
            drawn: Int64 = honest(self, size, entropy)
            if size >= 6:
                drawn[size // 2 : 2 * (size // 2)] = -drawn[: size // 2]
            return drawn

        patch.setattr(kind, "sample", sample)


def take_over_noise(patch: pytest.MonkeyPatch, sign: int) -> None:
    """The count's noise is that of the first counter one submission before, in one form or the other."""
    for kind in (DiscreteLaplace, DiscreteGaussian):
        honest: Any = kind.sample
        before: dict[int, int] = {}

        def sample(self: Any, size: int, entropy: Entropy, honest: Any = honest, before: Any = before) -> Int64:
            drawn: Int64 = honest(self, size, entropy)
            drawn[-1], before[size] = sign * before.get(size, drawn[-1]), int(drawn[0])
            return drawn

        patch.setattr(kind, "sample", sample)


@pytest.mark.parametrize("plan", SHARED.values(), ids=SHARED)
def test_noise_of_one_half_that_cancels_the_other_is_caught(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    negate_the_second_half(monkeypatch)
    assert not local.pairs_check(plan, 400).holds
    assert not local.run_silo(plan, 1000).holds


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("plan", LAWS.values(), ids=LAWS)
def test_noise_of_the_submission_before_is_caught(plan: Plan, sign: int, monkeypatch: pytest.MonkeyPatch) -> None:
    take_over_noise(monkeypatch, sign)
    assert not local.pairs_check(plan, 400).holds
