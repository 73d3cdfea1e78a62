"""A check does not pass what a service did not do: releases without records, with too many, without noise."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import hushsum
from aggregator.fold.verdicts import Verdict, VerdictKind
from edge_client import Counts
from hushsum.delta import DeltaId
from hushsum.entropy import OsEntropy
from hushsum.releases import Release, of_sums
from hushsum.sketch import Sketch
from hushsum_simulator.deployment.check import (
    Comparison,
    DeploymentSummary,
    Found,
    WindowSummary,
    contents_of,
    counter_faults,
)
from hushsum_simulator.deployment.journal import Account, Added, FleetJournal
from hushsum_simulator.deployment.prepare import dealt, made_plan, source_of
from hushsum_simulator.deployment.settings import DeploymentSettings
from hushsum_simulator.deployment.verdicts import VerdictTally
from hushsum_simulator.scenario import Material
from tests.plans import secure_plan

FIRST, WINDOWS = 100, 2
SMALL = {"CLIENTS": "6", "RECORDS": "8000", "WINDOWS": str(WINDOWS)}
FACTORS = {"nothing": 0, "half": 1, "all": 2, "three-times": 6}  # in halves
EXPECTED_MAX = 0.15  # the error that sizes are chosen for


@dataclass(frozen=True)
class Run:
    """A fleet that was told that everything counts, and a service that says so."""

    material: Material
    journal: FleetJournal
    verdicts: list[Verdict]

    def summary(self, releases: Mapping[int, Release | None]) -> DeploymentSummary:
        status: Any = SimpleNamespace(epsilon_spent=str(self.material.plan.privacy.epsilon), epsilon_left="9")
        return Comparison(self.material, self.journal, Found(releases, self.verdicts, status, (2, 2))).summary()

    def releases(self, halves: int = 2) -> dict[int, Release | None]:
        """Of each window, with so many halves of its records."""
        plan = self.material.plan
        found: dict[int, Release | None] = {}
        for window in range(FIRST, FIRST + WINDOWS):
            inside = contents_of(self.material, self.journal, self.verdicts, window, None).inside.counted
            sketch = Sketch(plan)
            for part in range(halves):
                sketch.add(inside[part % 2 :: 2])
            found[window] = hushsum.release(sketch)
        return found

    def with_answers(self, change: Callable[[dict[DeltaId, str]], dict[DeltaId, str]]) -> "Run":
        accounts = {name: replace(each, answers=change(each.answers)) for name, each in self.journal.accounts.items()}
        return replace(self, journal=replace(self.journal, accounts=accounts))


def ran(mode: str) -> Run:
    settings = DeploymentSettings.from_environment(
        {f"HUSHSUM_{name}": value for name, value in (SMALL | {"MODE": mode}).items()}
    )
    source = source_of(settings)
    material = dealt(settings, made_plan(settings, source, ""), source)
    accounts, verdicts, by_report = {}, [], mode == "local"
    for stream, share in enumerate(material.shares, start=1):
        count = len(share.batches)
        added = [
            Added(FIRST + WINDOWS * place // count, place, place, 1, len(batch), len(batch) if by_report else 0)
            for place, batch in enumerate(share.batches)
        ]
        ids = [DeltaId(1000 * stream + place, 0) if by_report else DeltaId(stream, place) for place in range(count)]
        answers = dict.fromkeys(ids, "acknowledged")
        told = Counts(records=share.records, deltas=count, acknowledged=count)
        accounts[share.client_id] = Account(stream, added, told, answers, lives=1)
        verdicts += [
            Verdict(VerdictKind.COUNTED, None, id, None if by_report else share.client_id, each.window, 0)
            for id, each in zip(ids, added, strict=True)
        ]
    return Run(material, FleetJournal(material.plan.hex_id, FIRST, WINDOWS, 1.0, accounts), verdicts)


@pytest.fixture(scope="module")
def central() -> Run:
    return ran("central")


@pytest.fixture(scope="module")
def local() -> Run:
    return ran("local")


def faults(summary: DeploymentSummary) -> list[list[str]]:
    return [list(each.faults) for each in summary.windows]


@pytest.mark.statistical
@pytest.mark.parametrize("name", FACTORS)
def test_a_release_of_other_records_than_were_counted_is_found(central: Run, name: str) -> None:
    """False alarms: 2 windows of 7e-7 each (counts) and 1e-8 (counters); what is planted is 20 standard errors off."""
    summary = central.summary(central.releases(FACTORS[name]))
    found = summary.violations()
    if name == "all":
        assert found == []
        return
    for window in (FIRST, FIRST + 1):
        assert any(f"window {window} counts" in each and "records ±" in each for each in found), found
        assert any(f"window {window} contains" in each and "times the counted records" in each for each in found), found


@pytest.mark.statistical
def test_sizes_leave_answers_that_say_something(central: Run) -> None:
    """What is expected hardly depends on the draw: the noise's variance is known."""
    errors = [each.expected_relative_error for each in central.summary(central.releases()).windows]
    assert all(each is not None and each < EXPECTED_MAX for each in errors), errors


@pytest.mark.statistical
def test_the_right_count_does_not_hide_other_counters_and_right_counters_no_other_count(central: Run) -> None:
    right, empty = central.releases(), central.releases(0)
    mixed, other = {}, {}
    for window, release in right.items():
        nothing = empty[window]
        assert release is not None
        assert nothing is not None
        mixed[window] = replace(release, counters=nothing.counters)
        other[window] = replace(release, counts=nothing.counts)
    assert all("times the counted records" in each[0] for each in faults(central.summary(mixed)))
    assert all("records ±" in each[0] and len(each) == 1 for each in faults(central.summary(other)))


@pytest.mark.statistical
@pytest.mark.parametrize("factor", [0, 2])
def test_a_release_without_its_noise_or_with_twice_of_it_is_found(central: Run, factor: int) -> None:
    changed: dict[int, Release | None] = {}
    for window, release in central.releases().items():
        assert release is not None
        exact = Sketch(central.material.plan)
        exact.add(contents_of(central.material, central.journal, central.verdicts, window, None).inside.counted)
        changed[window] = replace(release, counters=exact.counters + factor * (release.counters - exact.counters))
    assert all("times the variance of its plan's noise" in each[-1] for each in faults(central.summary(changed)))


def with_reports(run: Run, more: int | None) -> dict[int, Release | None]:
    """Releases of a run of reports that hold so many more than were sent in each window; None: that hold none."""
    plan = run.material.plan
    made: dict[int, Release | None] = {}
    for window, sent in reports_sent(run).items():
        counters, reports = np.zeros(plan.counters_shape, np.int64), 0 if more is None else sent + more
        counters[0, 0, 0] = reports
        counts = np.array([reports])
        made[window] = Release(plan, "tumbling", window, counters, counts, plan.guarantee, accounted=True)
    return made


def reports_sent(run: Run) -> dict[int, int]:
    added = [each for account in run.journal.accounts.values() for each in account.added]
    return {
        window: sum(each.reports for each in added if each.window == window) for window in range(FIRST, FIRST + WINDOWS)
    }


@pytest.mark.parametrize("more", [-1, 1])
def test_reports_are_counted_to_the_last_one_in_each_window(local: Run, more: int) -> None:
    found = local.summary(with_reports(local, more)).violations()
    for window, sent in reports_sent(local).items():
        wanted = f"window {window} contains {sent + more:,} reports, expected {sent:,}"
        assert any(wanted in each for each in found), found


def test_nothing_that_is_told_late_excuses_missing_reports(local: Run) -> None:
    late = local.with_answers(lambda answers: dict.fromkeys(answers, "late"))
    found = replace(late, verdicts=[]).summary(with_reports(local, None)).violations()
    assert any("releases contain" not in each and "late or refused" in each for each in found), found
    assert any("the releases contain 0 reports" in each for each in found), found
    assert any(f"window {FIRST} counts none" in each for each in found), found


@pytest.mark.parametrize("word", ["late", "refused", "unknown", "acknowledged"])
def test_a_run_in_which_nothing_counts_does_not_pass(central: Run, word: str) -> None:
    run = central.with_answers(lambda answers: dict.fromkeys(answers, word))
    found = replace(run, verdicts=[]).summary(central.releases(0)).violations()
    wanted = "late or refused" if word in {"late", "refused"} else "deltas were lost"
    assert any(wanted in each for each in found), found
    assert any(f"window {FIRST} counts none of" in each for each in found), found


@pytest.mark.parametrize(
    ("tally", "released", "wanted"),
    [
        pytest.param(VerdictTally(sent=5, dropped=5), False, "is withheld, although 5 submissions", id="all-aborted"),
        pytest.param(VerdictTally(sent=5, untold=5), False, "window 100 counts none of 5", id="all-unknown"),
        pytest.param(
            VerdictTally(sent=5, counted=2, untold=3), True, "2 of 5 submissions are in a sum", id="under-half"
        ),
        pytest.param(VerdictTally(sent=5, counted=3, dropped=1, untold=1), True, "", id="over-half"),
    ],
)
def test_secure_sums_need_half_of_what_was_submitted(
    central: Run, tally: VerdictTally, released: bool, wanted: str
) -> None:
    summary = central.summary(central.releases())
    window = WindowSummary(FIRST, filled=True, tally=tally, records=10, released=released)
    found = replace(summary, mode="secure", what="submissions", windows=(window,)).violations()
    assert any(wanted in each for each in found) if wanted else found == [], found


def test_the_noise_of_a_secure_sum_is_that_of_its_clients_and_noise_of_one_share_is_not() -> None:
    plan = secure_plan(sketch={"rows": 64})
    cohort = plan.privacy.cohort
    assert cohort is not None
    records = np.random.default_rng(5).uniform(0, 10, (500, 2))
    sketch, share = Sketch(plan).add(records), plan.privacy.mechanism.share()
    size = sketch.counters.size + sketch.counts.size

    def faults(shares: int) -> list[str]:
        noise = np.sum([share.sample(size, OsEntropy()) for _ in range(shares)], axis=0)
        counters = sketch.counters + noise[: sketch.counters.size].reshape(sketch.counters.shape)
        counts = sketch.counts + noise[sketch.counters.size :]
        release = of_sums(plan, counters, counts, window=0, cohorts=1, submissions=cohort.size)
        inside: Any = SimpleNamespace(counted=records)
        return counter_faults(release, inside)

    assert faults(cohort.size) == []
    assert faults(1)
