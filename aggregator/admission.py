"""From what stands in the log to what a fold is given: decoded, and refused where its signer may not write it.

Pure, and of the entry alone: every replay decides alike. What a gateway checks beyond this, the fold checks again.
"""

from collections.abc import Sequence
from typing import Final

from aggregator.errors import LogError
from aggregator.records import Logged
from hushsum.delta import read_header
from hushsum.directory import Role
from hushsum.errors import DeltaError, Reason
from hushsum.plan import Plan
from hushsum.privacy.guarantee import LOCAL
from hushsum_proto.batches import PRODUCER_SKEW_MS
from hushsum_proto.client_ids import CLIENT_ID_FORM, flaw_of
from hushsum_proto.convert import entry_from_bytes
from hushsum_proto.entries import CohortSumEntry, DeltaEntry, LogEntry, RefusedEntry, ReportsEntry, SealEntry
from hushsum_proto.errors import MalformedEntryError, NewerEntryError
from hushsum_proto.many_entries import delta_entries

_PROBLEMS: Final = {
    Reason.UNSIGNED: "no key of the directory signed it for this partition",
    Reason.MALFORMED: "a message of the log that holds no entries",
}


def admit_all(plan: Plan, partition: int, stretch: Sequence[Logged]) -> list[tuple[int, LogEntry | RefusedEntry]]:
    """The position of each entry and what :func:`admit` says of it: the same, sooner.

    Raises:
        LogError: As there.
    """
    if not stretch:
        return []
    positions, entries, signers, _, problems = zip(*stretch, strict=True)
    if not _AS_THEY_ARE.issuperset(signers) or set(problems) != {None}:
        return [(logged.position, admit(plan, partition, logged)) for logged in stretch]
    ready = delta_entries(entries)
    return [
        (position, admit(plan, partition, stretch[place]) if delta is None else delta)
        for place, (position, delta) in enumerate(zip(positions, ready, strict=True))
    ]


def admit(plan: Plan, partition: int, logged: Logged) -> LogEntry | RefusedEntry:
    """The entry to fold, or why it is refused.

    Args:
        plan: What is collected.
        partition: The one that the entry stands in.
        logged: As it was read.

    Raises:
        LogError: An entry of a newer format: nothing may be passed over.
    """
    if logged.problem is not None:
        return RefusedEntry(logged.problem, _PROBLEMS.get(logged.problem, logged.problem.value))
    try:
        entry = entry_from_bytes(logged.data)
    except MalformedEntryError as error:
        return RefusedEntry(Reason.MALFORMED, str(error))
    except NewerEntryError as error:
        raise LogError(f"partition {partition}, entry {logged.position}: {error}") from error
    if logged.signer is None or logged.signer is _SIGNERS[type(entry)]:
        return entry
    if logged.signer is Role.PRODUCER and isinstance(entry, DeltaEntry | ReportsEntry):
        if plan.privacy.mode == LOCAL or isinstance(entry, ReportsEntry):
            return RefusedEntry(Reason.UNSIGNED, f"a producer's {_NAMES[type(entry)][2:]}: {_CHARGED_AT_GATEWAYS}")
        return _vouched(plan, entry, logged.appended_ms)
    detail = f"{_NAMES[type(entry)]}, signed by a {logged.signer} key, expected another role's"
    return RefusedEntry(Reason.UNSIGNED, detail)


# Whose deltas need no other look than that they are some.
_AS_THEY_ARE: Final = frozenset({None, Role.GATEWAY})
_CHARGED_AT_GATEWAYS: Final = (
    "what local plans collect is taken by gateways alone, which charge the ledger before a window's first submission"
)
# Whose entries are taken as they are. Nobody but the gateway that a cohort's clients sent their vectors to has its sum.
_SIGNERS: Final[dict[type[LogEntry], Role]] = {
    DeltaEntry: Role.GATEWAY,
    CohortSumEntry: Role.GATEWAY,
    ReportsEntry: Role.GATEWAY,
    SealEntry: Role.RELEASER,
}
_NAMES: Final[dict[type[LogEntry], str]] = {
    DeltaEntry: "a delta",
    CohortSumEntry: "a cohort sum",
    ReportsEntry: "a batch of reports",
    SealEntry: "a seal",
}


def _vouched(plan: Plan, entry: DeltaEntry, appended_ms: int | None) -> DeltaEntry | RefusedEntry:
    """A producer's delta, with the checks that a gateway does by its clock and its authenticator: here the log's."""
    if appended_ms is None:
        return RefusedEntry(Reason.UNSIGNED, "a producer's delta, in a log that has no clock of its own")
    if flaw := flaw_of(entry.client_id):
        return RefusedEntry(Reason.MALFORMED, f"expected {CLIENT_ID_FORM}, got {flaw}")
    if len(entry.delta) > plan.delta_bytes_max:
        detail = f"{len(entry.delta)} bytes, expected at most {plan.delta_bytes_max}"
        return RefusedEntry(Reason.TOO_LARGE, detail)
    try:
        window = read_header(entry.delta).window
    except DeltaError:
        pass  # the fold says why, and whose it is
    else:
        refused = _untimely(plan, window, appended_ms)
        if refused is not None:
            return refused
    return DeltaEntry(entry.client_id, entry.delta, appended_ms)


def _untimely(plan: Plan, window: int, appended_ms: int) -> RefusedEntry | None:
    newest = plan.window.index_at(appended_ms + PRODUCER_SKEW_MS)
    if window > newest:
        return RefusedEntry(Reason.WINDOW_IN_FUTURE, f"window {window}, expected at most {newest} by the log's clock")
    # Whatever a producer's records say of their time, it cannot make a fold open one old window after another.
    oldest = plan.window.index_at(appended_ms - plan.window.lateness_ms - PRODUCER_SKEW_MS)
    if window < oldest:
        return RefusedEntry(Reason.WINDOW_IN_PAST, f"window {window}, expected {oldest} or later by the log's clock")
    return None
