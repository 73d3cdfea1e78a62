"""What the fleet was told against what the service says, window by window.

The verdicts that a service has retained are read from its store, for its operator's checks alone.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from aggregator import offline
from aggregator.fold.state import Verdict, VerdictKind
from aggregator.runtime import SystemRuntime
from aggregator.store import checkpoints
from aggregator.store.postgres import PostgresDatabase, PostgresSettings
from hushsum.plan import Plan
from hushsum_proto.answers import Status
from hushsum_proto.rounds import RoundResult
from hushsum_simulator.demo.evaluation import SentDelta
from hushsum_simulator.deployment.journal import FleetJournal
from hushsum_simulator.deployment.settings import DeploymentSettings
from hushsum_simulator.errors import VariableError

_COUNTED: Final = frozenset({RoundResult.COUNTED.value, Status.ACKNOWLEDGED.value, Status.COUNTED.value})
_UNTOLD: Final = frozenset({"", RoundResult.UNKNOWN.value, Status.UNKNOWN.value})


@dataclass(frozen=True)
class VerdictTally:
    """Of one window; of deltas, of batches of reports, or of submissions.

    Attributes:
        sent: That the fleet sent for it; submissions: that were spent.
        counted: That the service counted in it, each once.
        lost: Of which the fleet was not told that they are dropped, and which are not counted; submissions: of which it
            may rely on being counted, and which are not.
        doubled: Counted more than once, of nobody, or although the fleet was told that they are not.
        wrong: Counted in another window than this one, for which they were sent.
        dropped: In nothing, and the fleet was told so: late or refused; submissions: spent, in no sum.
        untold: Submissions alone: spent, and neither told to count nor needed for what counts.
    """

    sent: int = 0
    counted: int = 0
    lost: int = 0
    doubled: int = 0
    wrong: int = 0
    dropped: int = 0
    untold: int = 0

    def __add__(self, other: "VerdictTally") -> "VerdictTally":
        return VerdictTally(**{name: value + getattr(other, name) for name, value in vars(self).items()})


def by_id(journal: FleetJournal, verdicts: Iterable[Verdict]) -> dict[int, VerdictTally]:
    """Deltas of mode ``central``, each by its id.

    Args:
        journal: Of the fleet.
        verdicts: Retained by the service, of everything that it folded.
    """
    places: dict[SentDelta, list[int]] = {}
    for verdict in _counted(verdicts):
        assert verdict.client_id is not None, "an entry that was counted could be read"
        assert verdict.id is not None, "likewise"
        places.setdefault(SentDelta(verdict.client_id, verdict.id), []).append(_window(verdict))
    tallies: Counter[tuple[int, str]] = Counter()
    for name, account in journal.accounts.items():
        dropped = account.told_dropped
        for sent, window in account.sent(name):
            windows = places.pop(sent, [])
            tallies[window, "sent"] += 1
            tallies[window, "counted"] += window in windows
            tallies[window, "wrong"] += bool(windows) and window not in windows
            # What counts although its client was told that it does not is one too many.
            tallies[window, "doubled"] += max(0, len(windows) - (sent.id not in dropped))
            if not windows:
                tallies[window, "dropped" if sent.id in dropped else "lost"] += 1
    for windows in places.values():  # of nobody
        for window in windows:
            tallies[window, "doubled"] += 1
    return _tallies(journal, tallies)


def by_number(journal: FleetJournal, verdicts: Iterable[Verdict]) -> dict[int, VerdictTally]:
    """Batches of reports: each that was answered by its id, and all of them by their numbers in each window.

    A batch's id tells nothing of its window: what is lost is told of windows that have too few, what is doubled of
    those that have too many. What is left of both was counted in the wrong window.

    Args:
        journal: Of the fleet.
        verdicts: Retained by the service, of everything that it folded.
    """
    ids = Counter((_window(verdict), verdict.id) for verdict in _counted(verdicts))
    counted, sent = Counter(window for window, _ in ids), Counter[int]()
    for account in journal.accounts.values():
        for added in account.added:
            sent[added.window] += added.deltas
    answered = {id for account in journal.accounts.values() for id in account.answers}
    told = {id for account in journal.accounts.values() for id in account.told_dropped}
    found = {id for _, id in ids}
    unanswered, unclaimed = sum(sent.values()) - len(answered), len(found - answered)
    lost = len(answered - told - found) + max(0, unanswered - unclaimed)
    doubled = len(told & found) + max(0, unclaimed - unanswered) + len(ids) - len(found)
    few, many = sent - counted, counted - sent
    last = journal.window_range[-1]
    tallies: Counter[tuple[int, str]] = Counter()
    for (window, _), times in ids.items():
        tallies[window, "doubled"] += times - 1
    for name, number, among in (("lost", lost, few), ("dropped", len(told - found), few), ("doubled", doubled, many)):
        left = number
        for window in sorted(among):
            taken = min(left, among[window])
            tallies[window, name] += taken
            among[window] -= taken
            left -= taken
        tallies[last, name] += left  # hidden by another one of the same window
    for window in {*sent, *counted}:
        tallies[window, "sent"], tallies[window, "counted"] = sent[window], counted[window]
        tallies[window, "wrong"] = few[window]
    return _tallies(journal, tallies)


def by_submission(journal: FleetJournal, submissions: Mapping[int, int]) -> dict[int, VerdictTally]:
    """Submissions of secure sums and of silos: how many a release says it holds, and what each client was told.

    Args:
        journal: Of the fleet.
        submissions: Of each window's release; 0 where there is none.
    """
    tallies: Counter[tuple[int, str]] = Counter()
    for window in {*submissions, *told_windows(journal)}:
        results = [account.results[window] for account in journal.accounts.values() if window in account.results]
        told, untold = sum(result in _COUNTED for result in results), sum(result in _UNTOLD for result in results)
        found = submissions.get(window, 0)
        tallies[window, "sent"], tallies[window, "counted"] = len(results), found
        tallies[window, "lost"] = max(0, told - found)
        tallies[window, "doubled"] = max(0, found - told - untold)
        tallies[window, "untold"] = untold - min(untold, max(0, found - told))
        tallies[window, "dropped"] = len(results) - told - untold
    return _tallies(journal, tallies)


def told_windows(journal: FleetJournal) -> set[int]:
    """Windows for which some client has submitted: those that the fleet filled, and some that it only saw begin."""
    return {window for account in journal.accounts.values() for window in account.results}


def submitted(journal: FleetJournal, window: int) -> tuple[set[str], set[str]]:
    """Clients that were told that their submission for a window is counted; and those that were told nothing."""
    results = {name: account.results[window] for name, account in journal.accounts.items() if window in account.results}
    counted = {name for name, result in results.items() if result in _COUNTED}
    return counted, {name for name, result in results.items() if result in _UNTOLD}


def counted_batches(journal: FleetJournal, verdicts: Iterable[Verdict], window: int) -> dict[str, list[int]]:
    """Mode ``central``: of each client, its batches whose deltas are all counted in a window."""
    ids = {(verdict.client_id, verdict.id) for verdict in _counted(verdicts) if verdict.window == window}
    return {
        name: [
            added.batch
            for added in account.added
            if added.window == window and all((name, sent) in ids for sent in account.ids(added))
        ]
        for name, account in journal.accounts.items()
    }


def _counted(verdicts: Iterable[Verdict]) -> Iterable[Verdict]:
    return (verdict for verdict in verdicts if verdict.kind is VerdictKind.COUNTED)


def _window(verdict: Verdict) -> int:
    assert verdict.window is not None, "an entry that was counted could be read"
    return verdict.window


def _tallies(journal: FleetJournal, counts: Mapping[tuple[int, str], int]) -> dict[int, VerdictTally]:
    windows = sorted({*journal.window_range, *(window for window, _ in counts)})
    names = VerdictTally.__dataclass_fields__
    return {window: VerdictTally(**{name: counts.get((window, name), 0) for name in names}) for window in windows}


_POOL = 3


async def retained(settings: DeploymentSettings, plan: Plan) -> list[Verdict]:
    """One for each entry that was folded.

    Raises:
        VariableError: No store is named.
        StoreError: It cannot be read.
    """
    if settings.store is not None:
        found = await asyncio.to_thread(offline.read_verdicts, settings.store, plan)
    elif settings.postgres_dsn:
        found = await _from_postgres(settings.postgres_dsn, plan)
    else:
        raise VariableError(
            "HUSHSUM_POSTGRES_DSN", "", "the address of the service's store, or its file: HUSHSUM_STORE"
        )
    return [verdict for _, verdict in found]


async def _from_postgres(dsn: str, plan: Plan) -> list[tuple[int, Verdict]]:
    database = await PostgresDatabase.open(PostgresSettings(dsn, pool=_POOL), SystemRuntime())
    try:
        return await database.read(checkpoints.verdicts, plan.id)
    finally:
        await database.close()
