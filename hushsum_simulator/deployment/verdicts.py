"""The answers that the fleet received against what the service has counted, window by window.

What was counted is read from the verdicts that a service retains in its store, for its operator's checks alone. Where
the noise of a plan rounds away, it is read from the counters of a release.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from aggregator.fold.verdicts import Verdict, VerdictKind
from aggregator.runtime import SystemRuntime
from aggregator.store import checkpoints
from aggregator.store.postgres import PostgresDatabase, PostgresSettings
from aggregator.store.store import read_verdicts
from hushsum.plan import Plan
from hushsum_proto.answers import Status
from hushsum_proto.rounds import RoundResult
from hushsum_simulator.demo.evaluation import SentDelta
from hushsum_simulator.deployment.journal import KEPT, FleetJournal
from hushsum_simulator.deployment.settings import DeploymentSettings
from hushsum_simulator.errors import VariableError

Integers = npt.NDArray[np.int64]

_COUNTED: Final = KEPT | {RoundResult.COUNTED.value}
_UNTOLD: Final = frozenset({"", RoundResult.UNKNOWN.value, Status.UNKNOWN.value})


@dataclass(frozen=True)
class VerdictTally:
    """Numbers of one window: of deltas, of batches of reports, or of submissions.

    Attributes:
        sent: Sent for it by the fleet; submissions: charged for it.
        counted: Counted in it by the service, each once.
        lost: Not counted, although no client was told that they are dropped; submissions: although their clients may
            rely on being counted.
        doubled: Counted more than once, sent by no client, or counted although their client was told that they are not.
        wrong: Sent for it, and counted in another window.
        dropped: Not counted, and their clients know: late or refused; submissions: charged, and in no sum.
        untold: Not counted, and their clients know nothing: submissions, and deltas under :func:`by_id`'s ``lenient``.
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


def by_id(journal: FleetJournal, verdicts: Iterable[Verdict], *, lenient: bool = False) -> dict[int, VerdictTally]:
    """Compares deltas of mode ``central``, each by its id.

    With ``lenient`` a delta that was answered ``unknown`` may be missing: windows of such a run close while clients are
    cut off from the service.
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
            # A delta that counts although its client was told otherwise is one too many.
            tallies[window, "doubled"] += max(0, len(windows) - (sent.id not in dropped))
            if not windows:
                excused = lenient and account.answers.get(sent.id) == Status.UNKNOWN.value
                tallies[window, "dropped" if sent.id in dropped else "untold" if excused else "lost"] += 1
    for windows in places.values():  # sent by no client
        for window in windows:
            tallies[window, "doubled"] += 1
    return _tallies(journal, tallies)


def read_from_release(
    plan: Plan, journal: FleetJournal, cells: Mapping[SentDelta, Integers], counters: Integers, counts: Integers
) -> tuple[list[Verdict], bool]:
    """Which deltas a release holds, each as often as it does; for a plan whose noise rounds away.

    The records are so different that each is known by its ``cells``: the counters that its delta adds 1 to.

    Returns:
        The verdicts, and whether they explain every counter of the release.
    """
    window, total = journal.first_window, counters.ravel()
    sent = [delta for name, account in journal.accounts.items() for delta, _ in account.sent(name)]
    kept = [journal.accounts[delta.client_id].answers.get(delta.id) in KEPT for delta in sent]
    times = np.array(kept, dtype=np.int64)
    if not np.array_equal(_sum(sent, times, cells, len(total)), total):
        times = _decomposed(sent, cells, total)
    explained = np.array_equal(_sum(sent, times, cells, len(total)), total)
    explained = explained and int(counts.sum()) == int(times.sum()) * plan.privacy.mechanism.count_scale
    found = zip(sent, times.tolist(), strict=True)
    verdicts = [
        Verdict(VerdictKind.COUNTED, None, delta.id, delta.client_id, window, 0)
        for delta, number in found
        for _ in range(number)
    ]
    return verdicts, explained


def _sum(sent: Sequence[SentDelta], times: Integers, cells: Mapping[SentDelta, Integers], size: int) -> Integers:
    total = np.zeros(size, np.int64)
    for delta, number in zip(sent, times.tolist(), strict=True):
        total[cells[delta]] += number
    return total


def _decomposed(sent: Sequence[SentDelta], cells: Mapping[SentDelta, Integers], total: Integers) -> Integers:
    """How often each delta is in a sum: the least squares of a sparse system whose columns are nearly random."""
    from scipy.sparse import csc_array
    from scipy.sparse.linalg import lsqr

    rows = np.concatenate([cells[delta] for delta in sent])
    columns = np.repeat(np.arange(len(sent)), [len(cells[delta]) for delta in sent])
    matrix = csc_array((np.ones(len(rows)), (rows, columns)), shape=(len(total), len(sent)))
    found = lsqr(matrix, total.astype(np.float64), atol=1e-12, btol=1e-12, iter_lim=5000)[0]
    times: Integers = np.rint(found).astype(np.int64)
    return times


def by_number(journal: FleetJournal, verdicts: Iterable[Verdict]) -> dict[int, VerdictTally]:
    """Compares batches of reports: each answered one by its id, and all by their numbers in each window.

    A batch's id says nothing about its window: lost batches are assigned to windows with too few, doubled ones to
    windows with too many. The remaining differences were counted in a wrong window.
    """
    ids = Counter((_window(verdict), verdict.id) for verdict in _counted(verdicts))
    counted, sent = Counter(window for window, _ in ids), Counter[int]()
    for account in journal.accounts.values():
        for added in account.added:
            sent[added.window] += added.deltas
    answered = {id for account in journal.accounts.values() for id in account.answers}
    dropped = {id for account in journal.accounts.values() for id in account.told_dropped}
    found = {id for _, id in ids}
    unanswered, unclaimed = sum(sent.values()) - len(answered), len(found - answered)
    lost = len(answered - dropped - found) + max(0, unanswered - unclaimed)
    doubled = len(dropped & found) + max(0, unclaimed - unanswered) + len(ids) - len(found)
    few, many = sent - counted, counted - sent
    last = journal.window_range[-1]
    tallies: Counter[tuple[int, str]] = Counter()
    for (window, _), times in ids.items():
        tallies[window, "doubled"] += times - 1
    for name, number, among in (
        ("lost", lost, few),
        ("dropped", len(dropped - found), few),
        ("doubled", doubled, many),
    ):
        left = number
        for window in sorted(among):
            taken = min(left, among[window])
            tallies[window, name] += taken
            among[window] -= taken
            left -= taken
        tallies[last, name] += left  # masked by the opposite error in the same window
    for window in {*sent, *counted}:
        tallies[window, "sent"], tallies[window, "counted"] = sent[window], counted[window]
        tallies[window, "wrong"] = few[window]
    return _tallies(journal, tallies)


def by_submission(journal: FleetJournal, submissions: Mapping[int, int]) -> dict[int, VerdictTally]:
    """Compares submissions of secure sums and of silos: the number that a release states, and their clients' results.

    ``submissions`` is the number in each window's release, 0 without one.
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
    """Windows with a submission: those that the fleet filled, and some during which it was merely running."""
    return {window for account in journal.accounts.values() for window in account.results}


def submitted(journal: FleetJournal, window: int) -> tuple[set[str], set[str]]:
    """Clients whose submission for a window was reported as counted; and those whose result is unknown."""
    results = {name: account.results[window] for name, account in journal.accounts.items() if window in account.results}
    counted = {name for name, result in results.items() if result in _COUNTED}
    return counted, {name for name, result in results.items() if result in _UNTOLD}


def counted_batches(journal: FleetJournal, verdicts: Iterable[Verdict], window: int) -> dict[str, list[int]]:
    """Mode ``central``: of each client the batches whose deltas are all counted in a window."""
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
    """The verdicts in the service's store, one for each entry that was folded.

    Raises:
        VariableError: The settings name no store.
        StoreError: It cannot be read.
    """
    if settings.store is not None:
        found = await asyncio.to_thread(read_verdicts, settings.store, plan)
    elif settings.postgres_dsn:
        found = await _from_postgres(settings.postgres_dsn, plan)
    else:
        raise VariableError(
            "HUSHSUM_POSTGRES_DSN", "", "the address of the service's store, or its file in HUSHSUM_STORE"
        )
    return [verdict for _, verdict in found]


async def _from_postgres(dsn: str, plan: Plan) -> list[tuple[int, Verdict]]:
    database = await PostgresDatabase.open(PostgresSettings(dsn, pool=_POOL), SystemRuntime())
    try:
        return await database.read(checkpoints.verdicts, plan.id)
    finally:
        await database.close()
