"""The numbers of ``check``: releases beside the truth, window by window and all together."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from aggregator.fold.verdicts import Verdict, VerdictKind
from hushsum import query
from hushsum.privacy.guarantee import CENTRAL
from hushsum.releases import Release
from hushsum_proto.messages import ServiceStatus
from simulator.accuracy import Accuracy, compare
from simulator.comparison import asked
from simulator.deployment import judgement
from simulator.deployment.contents import contents_of
from simulator.deployment.evidence import count_fault, counter_faults
from simulator.deployment.journal import Account, Journal
from simulator.deployment.judgement import Tally
from simulator.deployment.summary import SUBMISSIONS, DeploymentSummary, WindowSummary
from simulator.exact import ExactSums
from simulator.material import Material
from simulator.progress import Quiet
from simulator.records import Floats


@dataclass(frozen=True, eq=False)
class Found:
    """What the service says.

    Attributes:
        outcomes: Of every window: its release, or None where it is withheld.
        verdicts: Retained.
        status: Of the service, with the population's ledger.
        charged: Outcomes before and after it was asked for that.
    """

    outcomes: Mapping[int, Release | None]
    verdicts: Sequence[Verdict]
    status: ServiceStatus
    charged: tuple[int, int]

    def submissions(self) -> dict[int, int]:
        """Of each window's release."""
        return {window: 0 if each is None else each.submissions or 0 for window, each in self.outcomes.items()}


class _Answers(NamedTuple):
    """Of one release, at the queries that are compared.

    Attributes:
        values: (m,),
        std_errors: (m,), of which
        noise: is noise,
        exact: and the truth (m,).
    """

    values: Floats
    std_errors: Floats
    noise: float
    exact: Floats


class Comparison:
    """What the fleet did, and what the service says of it.

    Args:
        material: The records, dealt as the fleet has them.
        journal: Of the fleet.
        found: By the service.

    Attributes:
        latest: The last release with records in it, and their truth; None where there is none.
    """

    def __init__(self, material: Material, journal: Journal, found: Found) -> None:
        self._material, self._journal, self._found = material, journal, found
        self._plan = material.plan
        self._submits = self._plan.privacy.mode != CENTRAL and self._plan.privacy.reports is None
        self._answers: list[_Answers] = []
        self.latest: tuple[Release, ExactSums] | None = None
        tallies = self._tallies()
        windows = sorted({*tallies, *found.outcomes})
        self._windows = tuple(self._window(window, tallies.get(window, Tally())) for window in windows)

    def summary(self) -> DeploymentSummary:
        """Everything in numbers."""
        plan, status = self._plan, self._found.status
        together = self._together()
        return DeploymentSummary(
            mode=plan.privacy.mode,
            what="deltas" if plan.privacy.mode == CENTRAL else "batches" if plan.privacy.reports else SUBMISSIONS,
            windows=self._windows,
            mean_relative_error=together.mean_relative,
            expected_relative_error=together.expected_relative,
            queries=together.queries,
            epsilon=float(plan.privacy.epsilon),
            delta=float(plan.privacy.delta),
            unit=plan.privacy.unit,
            epsilon_spent=float(Fraction(status.epsilon_spent)),
            epsilon_left=float(Fraction(status.epsilon_left)),
            windows_charged=self._found.charged,
            plan_id=plan.hex_id,
            **self._of_clients(),
        )

    def _tallies(self) -> dict[int, Tally]:
        if self._plan.privacy.mode == CENTRAL:
            return judgement.by_id(self._journal, self._found.verdicts)
        if self._plan.privacy.reports is not None:
            return judgement.by_number(self._journal, self._found.verdicts)
        return judgement.by_submission(self._journal, self._found.submissions())

    def _window(self, window: int, tally: Tally) -> WindowSummary:
        release, filled = self._found.outcomes.get(window), window in self._journal.window_range
        contents = contents_of(self._material, self._journal, self._found.verdicts, window, release)
        inside = contents.inside
        records = len(inside.counted)
        summary = WindowSummary(window, filled, tally, records, released=release is not None)
        if release is None:
            return summary
        faults = [count_fault(release, contents.expected)]
        if contents.is_certain and self._plan.privacy.reports is None:
            faults += counter_faults(release, inside)
        summary = replace(summary, faults=tuple(filter(None, faults)))
        if not records:
            return summary
        truth = ExactSums(self._plan, inside.labelled)
        self.latest = (release, truth)
        queries, exact = asked(inside, truth, Quiet())
        answer = release.kernel_sum(queries)
        self._answers.append(_Answers(answer.value, answer.std_error, self._noise(release), exact))
        accuracy = compare(answer.value, answer.std_error, exact, records)
        mean, expected = accuracy.mean_relative, accuracy.expected_relative
        return replace(summary, mean_relative_error=mean, expected_relative_error=expected)

    def _noise(self, release: Release) -> float:
        of_reports = self._plan.privacy.reports is not None
        return query.noise_std_error(self._plan, int(release.count) if of_reports else release.submissions)

    def _together(self) -> Accuracy:
        """All windows: their answers add up, their noise is independent, and what the hash errs by is not."""
        if not self._answers:
            return Accuracy(None, None, 0, 0.0, 0.0)
        least = min(len(each.exact) for each in self._answers)
        hashing = sum(np.sqrt(np.maximum(0.0, each.std_errors[:least] ** 2 - each.noise**2)) for each in self._answers)
        noise = math.sqrt(sum(each.noise**2 for each in self._answers))
        return compare(
            np.sum([each.values[:least] for each in self._answers], axis=0),
            np.hypot(hashing, noise),
            np.sum([each.exact[:least] for each in self._answers], axis=0),
            sum(each.records for each in self._windows),
        )

    def _of_clients(self) -> dict[str, Any]:  # Any: numbers of a summary, which checks nothing
        accounts, releases = list(self._journal.accounts.values()), self._found.outcomes.values()
        of_reports = self._plan.privacy.reports is not None
        every = [added for account in accounts for added in account.added]
        return {
            "clients": len(accounts),
            "lives": sum(account.lives for account in accounts),
            "records": sum(_usable(share.batches) for share in self._material.shares),
            "records_added": sum(self._added_once(name) for name in self._journal.accounts),
            "records_left_out": sum(each.tallies.records_unspent + each.tallies.records_absent for each in accounts),
            "resent": sum(each.tallies.deltas_resent for each in accounts),
            "unanswered": sum(_unanswered(each, submits=self._submits) for each in accounts),
            "duplicates": sum(each.kind is VerdictKind.DUPLICATE for each in self._found.verdicts),
            "reports_sent": sum(added.reports for added in every),
            "reports_counted": sum(int(each.count) for each in releases if each is not None) if of_reports else 0,
            "accounts_wrong": sum(map(_is_wrong, accounts)) if self._submits else 0,
            "seconds": self._journal.seconds,
        }

    def _added_once(self, name: str) -> int:
        """Records of a client that has added each of its batches once; else 0."""
        added = self._journal.accounts[name].added
        batches = [len(share.batches) for share in self._material.shares if share.client_id == name]
        if [list(range(count)) for count in batches] != [[each.batch for each in added]]:
            return 0
        return sum(each.records for each in added)


def _usable(batches: Sequence[Floats]) -> int:
    return sum(int(np.isfinite(batch).all(axis=1).sum()) for batch in batches)


def _unanswered(account: Account, *, submits: bool) -> int:
    if submits:
        return sum(not fate for fate in account.fates.values())
    told = account.tallies
    answered = told.acknowledged + told.counted + told.late + told.unknown + sum(told.refused.values())
    return told.deltas - answered


def _is_wrong(account: Account) -> bool:
    tallies = account.tallies
    told = tallies.submissions_counted + tallies.submissions_lost
    return not tallies.submissions_spent == told == len(account.fates)
