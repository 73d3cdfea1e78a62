"""What must be in a window's release, by what the fleet has done and was told."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from aggregator.fold.verdicts import Verdict
from hushsum.privacy.guarantee import CENTRAL
from hushsum.releases import Release
from simulator.deployment import judgement
from simulator.deployment.evidence import Expected
from simulator.deployment.journal import Account, Added, Journal
from simulator.material import Material


@dataclass(frozen=True, eq=False)
class Contents:
    """Of one window.

    Attributes:
        inside: The records that are in its release;
        expected: how many there must be;
        is_certain: whether it is exactly these: of a secure sum or of silos some may be in it of whom nobody was told.
    """

    inside: Material
    expected: Expected
    is_certain: bool = True


def contents_of(
    material: Material, journal: Journal, verdicts: Sequence[Verdict], window: int, release: Release | None
) -> Contents:
    """What must be in the release of a window.

    Args:
        material: The records, dealt as the fleet has them.
        journal: Of the fleet.
        verdicts: Retained by the service; mode ``central``.
        window: Its index.
        release: Its own; None where it is withheld.
    """
    privacy = material.plan.privacy
    if privacy.mode == CENTRAL:
        inside = material.parts(judgement.counted_batches(journal, verdicts, window))
        return _exactly(inside, usable(inside))
    if privacy.reports is not None:
        inside = material.parts(_batches(journal, window))
        return _exactly(inside, sum(each.reports for each in _added(journal, window)), reports=True)
    return _of_submissions(material, journal, window, release)


def usable(material: Material) -> int:
    """How many records a sketch takes."""
    return int(np.isfinite(material.counted).all(axis=1).sum())


def _exactly(inside: Material, records: int, *, reports: bool = False) -> Contents:
    return Contents(inside, Expected(records, records, reports))


def _of_submissions(material: Material, journal: Journal, window: int, release: Release | None) -> Contents:
    """Clients that were told so are in it; those that were told nothing, as far as it says that it has more."""
    counted, untold = judgement.submitted(journal, window)
    found = 0 if release is None else release.submissions or 0
    if found >= len(counted | untold):
        counted, untold = counted | untold, set()
    elif found <= len(counted):
        untold = set()
    batches = _batches(journal, window)
    inside = material.parts({name: places for name, places in batches.items() if name in counted})
    more = material.parts({name: places for name, places in batches.items() if name in untold})
    missing = sum(_left_out(journal.accounts[name]) for name in counted | untold)
    sure = usable(inside)
    return Contents(inside, Expected(max(0, sure - missing), sure + usable(more)), not (untold or missing))


def _left_out(account: Account) -> int:
    """Records of a client that it left out of what it submitted: not those of windows for which it never did."""
    never = sum(added.records for added in account.added if added.window not in account.fates)
    return max(0, account.tallies.records_unspent + account.tallies.records_absent - never)


def _batches(journal: Journal, window: int) -> Mapping[str, list[int]]:
    return {
        name: [added.batch for added in account.added if added.window == window]
        for name, account in journal.accounts.items()
    }


def _added(journal: Journal, window: int) -> list[Added]:
    return [added for account in journal.accounts.values() for added in account.added if added.window == window]
