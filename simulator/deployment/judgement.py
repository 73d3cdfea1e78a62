"""What the fleet was told against what the service says, window by window: nothing is asked here, all is compared."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from aggregator.fold.verdicts import Verdict, VerdictKind
from hushsum_proto.answers import Status
from hushsum_proto.rounds import Fate
from simulator.deployment.journal import Journal
from simulator.reconciliation import Sent

_COUNTED: Final = frozenset({Fate.COUNTED.value, Status.ACKNOWLEDGED.value, Status.COUNTED.value})
_UNTOLD: Final = frozenset({"", Fate.UNKNOWN.value, Status.UNKNOWN.value})


@dataclass(frozen=True)
class Tally:
    """Of one window; of deltas, of batches of reports, or of submissions.

    Attributes:
        sent: That the fleet sent for it; submissions: that were spent.
        counted: That the service counted in it, each once.
        lost: Of which the fleet may rely on being counted, and which are not.
        doubled: Counted more than once, of nobody, or although the fleet was told that they are not.
        wrong: Counted in another window than this one, for which they were sent.
        dropped: Sent, and in nothing, and the fleet knows: told late or refused; submissions: spent, in no sum.
    """

    sent: int = 0
    counted: int = 0
    lost: int = 0
    doubled: int = 0
    wrong: int = 0
    dropped: int = 0

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(**{name: value + getattr(other, name) for name, value in vars(self).items()})


def by_id(journal: Journal, verdicts: Iterable[Verdict]) -> dict[int, Tally]:
    """Deltas of mode ``central``, each by its id.

    Args:
        journal: Of the fleet.
        verdicts: Retained by the service, of everything that it folded.
    """
    places: dict[Sent, list[int]] = {}
    for verdict in _counted(verdicts):
        assert verdict.client_id is not None, "an entry that was counted could be read"
        assert verdict.id is not None, "likewise"
        places.setdefault(Sent(verdict.client_id, verdict.id), []).append(_window(verdict))
    tallies: Counter[tuple[int, str]] = Counter()
    for name, account in journal.accounts.items():
        # Which of a client's deltas came late, it does not say: only how many. A delta that is in nothing is one of
        # them, as long as there are any; of the rest the client was told that they are counted.
        known, found = account.told_dropped + account.tallies.unknown, 0
        for sent, window in account.sent(name):
            tallies[window, "sent"] += 1
            windows = places.pop(sent, [])
            found += bool(windows)
            tallies[window, "counted"] += window in windows
            tallies[window, "wrong"] += bool(windows) and window not in windows
            tallies[window, "doubled"] += max(0, len(windows) - 1)
            if not windows:
                tallies[window, "dropped" if known > 0 else "lost"] += 1
                known -= 1
        last = journal.window_range[-1]
        tallies[last, "doubled"] += max(0, found - (account.tallies.deltas - account.told_dropped))
    for windows in places.values():  # of nobody
        for window in windows:
            tallies[window, "doubled"] += 1
    return _tallies(journal, tallies)


def by_number(journal: Journal, verdicts: Iterable[Verdict]) -> dict[int, Tally]:
    """Batches of reports, whose ids tell nothing of who sent them: each counted id once, and numbers against numbers.

    What one window has too many of and another too few is told as counted in the wrong window.

    Args:
        journal: Of the fleet.
        verdicts: Retained by the service, of everything that it folded.
    """
    ids = Counter((_window(verdict), verdict.id) for verdict in _counted(verdicts))
    counted, sent = Counter(window for window, _ in ids), Counter[int]()
    for account in journal.accounts.values():
        for added in account.added:
            sent[added.window] += added.deltas
    known = sum(account.told_dropped + account.tallies.unknown for account in journal.accounts.values())
    moved = sum((counted - sent).values())  # in windows that have too many; a Counter holds nothing below 0
    tallies: Counter[tuple[int, str]] = Counter()
    for window in {*sent, *counted}:
        missing = max(0, sent[window] - counted[window])
        dropped = min(missing, known)
        wrong = min(missing - dropped, moved)
        known, moved = known - dropped, moved - wrong
        tallies[window, "sent"], tallies[window, "counted"] = sent[window], counted[window]
        tallies[window, "dropped"], tallies[window, "wrong"] = dropped, wrong
        tallies[window, "lost"] = missing - dropped - wrong
    for (window, _), times in ids.items():
        tallies[window, "doubled"] += times - 1
    for window, extra in (counted - sent).items():
        tallies[window, "doubled"] += min(extra, moved)
        moved -= min(extra, moved)
    return _tallies(journal, tallies)


def by_submission(journal: Journal, submissions: Mapping[int, int]) -> dict[int, Tally]:
    """Submissions of secure sums and of silos: how many a release says it holds, and what each client was told.

    Args:
        journal: Of the fleet.
        submissions: Of each window's release; 0 where there is none.
    """
    tallies: Counter[tuple[int, str]] = Counter()
    for window in {*submissions, *told_windows(journal)}:
        fates = [account.fates[window] for account in journal.accounts.values() if window in account.fates]
        told, untold = sum(fate in _COUNTED for fate in fates), sum(fate in _UNTOLD for fate in fates)
        found = submissions.get(window, 0)
        tallies[window, "sent"], tallies[window, "counted"] = len(fates), found
        tallies[window, "lost"] = max(0, told - found)
        tallies[window, "doubled"] = max(0, found - told - untold)
        tallies[window, "dropped"] = max(0, len(fates) - max(told, found))
    return _tallies(journal, tallies)


def told_windows(journal: Journal) -> set[int]:
    """Windows for which some client has submitted: those that the fleet filled, and some that it only saw begin."""
    return {window for account in journal.accounts.values() for window in account.fates}


def submitted(journal: Journal, window: int) -> set[str]:
    """Clients that were told that their submission for a window is counted."""
    return {name for name, account in journal.accounts.items() if account.fates.get(window) in _COUNTED}


def counted_batches(journal: Journal, verdicts: Iterable[Verdict], window: int) -> dict[str, list[int]]:
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


def _tallies(journal: Journal, counts: Mapping[tuple[int, str], int]) -> dict[int, Tally]:
    windows = sorted({*journal.window_range, *(window for window, _ in counts)})
    names = Tally.__dataclass_fields__
    return {window: Tally(**{name: counts.get((window, name), 0) for name in names}) for window in windows}
