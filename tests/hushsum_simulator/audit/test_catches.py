"""Whole roads, audited by runs: honest code passes, and each planted mistake is caught.

False alarms: an honest row fails with probability 1e-6 at most, by construction. A planted mistake is missed as rarely:
where it is caught by a margin, the margin is more than five standard deviations of what is counted.
"""

from collections.abc import Callable
from fractions import Fraction

import pytest

from hushsum.plan import Plan
from hushsum.privacy import noisy_max
from hushsum_simulator.audit import cases, exact, runner
from hushsum_simulator.audit.cases import Case, DataSet
from hushsum_simulator.audit.empirical import outcome_check, sampler_check, selection_check
from hushsum_simulator.audit.pipelines import Pipeline, Seen, Tell, decided, in_process, service
from hushsum_simulator.audit.report import AuditRow
from hushsum_simulator.progress import Quiet
from tests.doubles import ManualRuntime
from tests.hushsum_simulator.audit import planted

pytestmark = pytest.mark.statistical

CLIENT: dict[str, object] = {"unit": "client", "records_per_client": 2}
DELTA: dict[str, object] = {"delta": "0.05", "epsilon": 2}


def run(case: Case, pipeline: Pipeline, runs: int, *, asks: bool = False) -> AuditRow:
    row = runner.run(case, pipeline, runs, Quiet(), asks=asks)
    assert row.audited is not None
    return row


def in_memory(plan: Plan, data: DataSet, runs: int, tell: Tell) -> list[Seen]:
    """A whole service without files, in virtual time."""
    return service(plan, data, runs, tell, opened=planted.in_memory, runtime=ManualRuntime())


def on_a_full_disk(plan: Plan, data: DataSet, runs: int, tell: Tell) -> list[Seen]:
    """The same, where a release is stored at the third try alone, and a withheld window at once."""
    return service(plan, data, runs, tell, opened=planted.on_a_full_disk, runtime=ManualRuntime())


def gated(share: str, **keys: object) -> Case:
    """One record decides whether its client is there, and the window has just enough clients with it."""
    return cases.lone_record(cases.plan_of(min_clients=4, min_clients_share=share, **keys), "", clients=3)


@pytest.mark.parametrize(
    ("case", "pipeline", "runs"),
    [
        (cases.case(cases.plan_of()), in_process, 4000),
        (cases.case(cases.plan_of(**CLIENT)), decided, 2000),
        (cases.case(cases.plan_of(**DELTA)), in_process, 2000),
        (cases.case(cases.plan_of(counted=False)), in_process, 4000),
        (gated("0.9", epsilon=2, counted=False), in_memory, 100),
        (cases.bad_record(cases.plan_of(), ""), decided, 1000),
        (gated("0.5"), decided, 1000),
        (gated("0.9", epsilon=2), in_memory, 100),
        (gated("0.9", epsilon=2), on_a_full_disk, 100),
    ],
)
def test_honest_code_shows_no_more_than_it_claims(case: Case, pipeline: Pipeline, runs: int) -> None:
    assert run(case, pipeline, runs).holds


def test_the_lower_limit_comes_near_what_is_claimed() -> None:
    assert (run(cases.case(cases.plan_of()), in_process, 4000).audited or 0) > 0.3


# ------------------------------------------------------------------------------------------------- planted mistakes


@pytest.mark.parametrize("mistake", [planted.half_the_noise, planted.half_the_noise_in_the_sampler])
@pytest.mark.parametrize("keys", [{}, DELTA], ids=["pure", "delta"])
def test_half_the_noise_is_caught(
    mistake: planted.Plant, keys: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    mistake(monkeypatch)
    assert not run(cases.case(cases.plan_of(**keys)), in_process, 5000).holds


def test_a_density_over_the_exact_n_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    case = cases.case(cases.plan_of())
    assert run(case, in_process, 400, asks=True).holds
    planted.divide_by_the_exact_n(monkeypatch)
    assert not run(case, in_process, 400, asks=True).holds


@pytest.mark.parametrize("keys", [{}, DELTA], ids=["pure", "delta"])
def test_rows_that_still_sum_to_the_exact_n_are_caught(
    keys: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = cases.case(cases.plan_of(counted=False, **keys))
    assert not case.plan.count_counters
    assert run(case, in_process, 400).holds
    planted.rows_that_sum_to_the_exact_n(monkeypatch)
    assert not run(case, in_process, 400).holds


def test_a_gate_on_the_exact_count_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    planted.gate_on_the_exact_count(monkeypatch)
    assert not run(gated("0.5"), decided, 600).holds


def test_a_redrawn_withheld_outcome_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    planted.redraw_a_withheld_outcome(monkeypatch)
    row = run(gated("0.9", epsilon=2), in_memory, 100)
    assert row.redrawn > 10
    assert not row.holds


@pytest.mark.parametrize(("road", "runs"), [(decided, 600), (in_memory, 100)])
def test_a_window_that_is_drawn_until_it_is_released_is_caught(
    road: Pipeline, runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = cases.plan_of(min_clients=4, min_clients_share="0.5")
    assert outcome_check(plan, 3, road(plan, cases.others(3), runs, lambda _: None)).holds
    planted.draw_until_it_is_released(monkeypatch)
    assert not outcome_check(plan, 3, road(plan, cases.others(3), runs, lambda _: None)).holds


def test_a_draw_that_is_made_anew_where_storing_it_failed_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = cases.plan_of(min_clients=4, min_clients_share="0.5")
    assert outcome_check(plan, 3, on_a_full_disk(plan, cases.others(3), 300, lambda _: None)).holds
    planted.draw_anew_at_every_try(monkeypatch)
    assert outcome_check(plan, 3, in_memory(plan, cases.others(3), 100, lambda _: None)).holds, "where nothing fails"
    assert not outcome_check(plan, 3, on_a_full_disk(plan, cases.others(3), 300, lambda _: None)).holds


def test_a_bad_record_that_refuses_its_batch_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    planted.one_bad_record_refuses_its_batch(monkeypatch)
    assert not run(cases.bad_record(cases.plan_of(), ""), decided, 600).holds


# --------------------------------------------------------------------------------------------------- goodness of fit


@pytest.mark.parametrize("keys", [{}, DELTA], ids=["laplace", "gaussian"])
def test_half_the_noise_in_the_sampler_does_not_fit_its_law(
    keys: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    mechanism = cases.plan_of(**keys).privacy.mechanism
    assert sampler_check(mechanism, 20_000).holds
    planted.half_the_noise_in_the_sampler(monkeypatch)
    assert not sampler_check(mechanism, 2000).holds


def test_a_choice_follows_its_chances_and_one_of_half_the_noise_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert selection_check(Fraction(1), 2000).holds
    assert exact.selection_epsilon(1, Fraction(1)) == pytest.approx(1)
    honest: Callable[..., Fraction] = noisy_max.scale_for
    monkeypatch.setattr("hushsum.privacy.noisy_max.scale_for", lambda *arguments: honest(*arguments) / 2)
    assert not selection_check(Fraction(1), 2000).holds
    monkeypatch.setattr(exact, "scale_for", lambda *arguments: honest(*arguments) / 2)
    assert exact.selection_epsilon(1, Fraction(1)) == pytest.approx(2)
