"""Entries of the log: how messages hold and sign them, and the checks before the fold.

Pure. A message that the directory does not authenticate is refused before any of its content is trusted, its version
included. Whether an entry may count depends on the entry alone, so that every replay decides alike; the fold repeats
the checks of a gateway.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np

from aggregator.errors import LogError
from aggregator.fold.state import Int64
from aggregator.model import EntryColumns, PositionedEntry
from hushsum.delta import read_header
from hushsum.errors import DeltaError, Reason
from hushsum.plan import Plan
from hushsum.privacy.guarantee import LOCAL
from hushsum.signing import Directory, Role, SigningKey
from hushsum_proto.batches import BATCH_ENTRIES_MAX, PRODUCER_SKEW_MS, UNSIGNED, Batch, is_signed, signed_batch
from hushsum_proto.client_ids import CLIENT_ID_FORM, flaw_of
from hushsum_proto.convert import entry_from_bytes
from hushsum_proto.convert_batches import batch_from_bytes, batch_to_bytes
from hushsum_proto.entries import (
    ENTRY_FORMAT,
    CohortSumEntry,
    DeltaEntry,
    LogEntry,
    RefusedEntry,
    ReportsEntry,
    SealEntry,
)
from hushsum_proto.errors import MalformedEntryError, NewerEntryError
from hushsum_proto.many_entries import delta_columns, joined, message_entries


class OpenedMessage(NamedTuple):
    """The content of a message.

    Attributes:
        entries: The bytes of each; none if there is a ``problem``.
        signer: The role of the signing key; None if messages are not signed.
        problem: Why the whole message is refused.
    """

    entries: tuple[bytes, ...]
    signer: Role | None = None
    problem: Reason | None = None


_MALFORMED: Final = OpenedMessage((), None, Reason.MALFORMED)
_UNSIGNED: Final = OpenedMessage((), None, Reason.UNSIGNED)


class LogMessages(Protocol):
    """Encodes and decodes messages."""

    def write(self, partition: int, entries: Sequence[bytes], *, seals: bool) -> bytes:
        """The bytes of one message with 1 to 65,536 entries of a partition: all are seals, or none is."""

    def read(self, partition: int, value: bytes) -> OpenedMessage:
        """The content of a message.

        Raises:
            NewerEntryError: A newer format by a trusted writer: it may not be skipped.
            LogError: It cannot be determined whether the message is to be trusted.
        """

    def find(self, data: bytes, spans: Int64) -> Int64 | None:
        """The entries of many unsigned messages at once; only for speed.

        Args:
            data: What the messages lie in.
            spans: (n, 2) where each begins and ends.

        Returns:
            (k, 4): the message of each entry, its place in it, and where it begins and ends. None: :meth:`read` is to
            be asked about each message.
        """


class PlainMessages:
    """Messages of a log that only gateways and releasers can write to."""

    def write(self, partition: int, entries: Sequence[bytes], *, seals: bool) -> bytes:
        del partition, seals
        return batch_to_bytes(Batch(tuple(entries)))

    def read(self, partition: int, value: bytes) -> OpenedMessage:
        try:
            batch = batch_from_bytes(value)
        except MalformedEntryError:
            return _MALFORMED
        if batch.suite != UNSIGNED:
            raise LogError(f"partition {partition}: signed message, but no key registry is configured: set `directory`")
        return _opened(batch, None)

    def find(self, data: bytes, spans: Int64) -> Int64 | None:
        return message_entries(data, spans)


class SignedMessages:
    """Messages of a log that others can write to: each is signed by a key of the directory.

    Args:
        gateway: This process's key for all but seals; None if it writes none.
        releaser: Its key for seals; None if it writes none.
        producers: Whether the directory's producers may write here; else their signatures are not accepted.

    Raises:
        DirectoryError: A key is not in the directory, or has another role.
    """

    def __init__(
        self,
        plan_id: bytes,
        directory: Directory,
        gateway: SigningKey | None = None,
        releaser: SigningKey | None = None,
        *,
        producers: bool = False,
    ) -> None:
        self._plan_id = plan_id
        self._keys = {id: key for id, key in directory.keys.items() if producers or key.role is not Role.PRODUCER}
        self._signers = {
            seals: (directory.expect(key.verify_key, role).id, key)
            for seals, role, key in ((False, Role.GATEWAY, gateway), (True, Role.RELEASER, releaser))
            if key is not None
        }

    def write(self, partition: int, entries: Sequence[bytes], *, seals: bool) -> bytes:
        """The bytes of one message, signed with the gateway's or the releaser's key.

        Raises:
            LogError: This process has no such key.
        """
        signer = self._signers.get(seals)
        if signer is None:
            raise LogError(f"no {'releaser' if seals else 'gateway'} key is configured for signing")
        key_id, key = signer
        batch = signed_batch(entries, plan_id=self._plan_id, partition=partition, key_id=key_id, key=key)
        return batch_to_bytes(batch)

    def read(self, partition: int, value: bytes) -> OpenedMessage:
        """The content of a message.

        Raises:
            NewerEntryError: A newer format, signed by a key of the directory.
        """
        try:
            batch = batch_from_bytes(value)
        except MalformedEntryError:
            return _MALFORMED
        key = self._keys.get(batch.key_id)
        if key is None or not is_signed(batch, key.public_key, plan_id=self._plan_id, partition=partition):
            return _UNSIGNED
        return _opened(batch, key.role)

    def find(self, data: bytes, spans: Int64) -> Int64 | None:  # noqa: ARG002  the form of LogMessages
        return None  # each has a signature of its own


def _opened(batch: Batch, signer: Role | None) -> OpenedMessage:
    if batch.format_version > ENTRY_FORMAT:
        raise NewerEntryError(batch.format_version, ENTRY_FORMAT)
    if batch.format_version < ENTRY_FORMAT or not 1 <= len(batch.entries) <= BATCH_ENTRIES_MAX:
        return _MALFORMED
    return OpenedMessage(batch.entries, signer)


_PROBLEMS: Final = {
    Reason.UNSIGNED: "no key of the key registry signed it for this partition",
    Reason.MALFORMED: "log message without entries",
}


def admit_all(
    plan: Plan, partition: int, entry_batch: Sequence[PositionedEntry]
) -> Sequence[tuple[int, LogEntry | RefusedEntry]]:
    """The position of each entry and the result of :func:`admit` for it, faster than one by one."""
    columns = entry_batch if isinstance(entry_batch, EntryColumns) else _columns(entry_batch)
    found = None if columns is None else delta_columns(columns.positions, columns.data, columns.spans)
    if found is None:
        return [(positioned.position, admit(plan, partition, positioned)) for positioned in entry_batch]
    deltas, odd = found
    if not odd:
        return deltas
    admitted: list[tuple[int, LogEntry | RefusedEntry]] = list(deltas)
    for place in odd:
        admitted[place] = entry_batch[place].position, admit(plan, partition, entry_batch[place])
    return admitted


def _columns(entry_batch: Sequence[PositionedEntry]) -> EntryColumns | None:
    """The columns of entries, if those that are deltas need no further check."""
    if not entry_batch:
        return None
    positions, entries, signers, _, problems = zip(*entry_batch, strict=True)
    if not _ADMITTED_AS_DELTAS.issuperset(signers) or set(problems) != {None}:
        return None
    data, spans = joined(entries)
    return EntryColumns(np.array(positions, np.int64), data, spans, np.full(len(spans), -1))


def admit(plan: Plan, partition: int, positioned: PositionedEntry) -> LogEntry | RefusedEntry:
    """The entry to fold, or why it is refused; LogError for one of a newer format, which may not be skipped."""
    if positioned.problem is not None:
        return RefusedEntry(positioned.problem, _PROBLEMS.get(positioned.problem, positioned.problem.value))
    try:
        entry = entry_from_bytes(positioned.data)
    except MalformedEntryError as error:
        return RefusedEntry(Reason.MALFORMED, str(error))
    except NewerEntryError as error:
        raise LogError(f"partition {partition}, entry {positioned.position}: {error}") from error
    if positioned.signer is None or positioned.signer is _SIGNERS[type(entry)]:
        return entry
    if positioned.signer is Role.PRODUCER and isinstance(entry, DeltaEntry | ReportsEntry):
        if plan.privacy.mode == LOCAL or isinstance(entry, ReportsEntry):
            return RefusedEntry(Reason.UNSIGNED, f"a producer's {_NAMES[type(entry)][2:]}: {_CHARGED_AT_GATEWAYS}")
        return _admit_of_producer(plan, entry, positioned.appended_ms)
    detail = f"{_NAMES[type(entry)]}, signed by a {positioned.signer} key, expected another role's"
    return RefusedEntry(Reason.UNSIGNED, detail)


# Deltas of these signers need no further check.
_ADMITTED_AS_DELTAS: Final = frozenset({None, Role.GATEWAY})
_CHARGED_AT_GATEWAYS: Final = "plans of mode local accept submissions only from gateways, which charge the ledger first"
# The role that signs each kind of entry. Only the gateway that a cohort's clients sent their vectors to has its sum.
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


def _admit_of_producer(plan: Plan, entry: DeltaEntry, appended_ms: int | None) -> DeltaEntry | RefusedEntry:
    """Checks a producer's delta as a gateway would, but by the log's clock and the directory's authentication."""
    if appended_ms is None:
        return RefusedEntry(Reason.UNSIGNED, "producer's delta in a log without timestamps")
    if flaw := flaw_of(entry.client_id):
        return RefusedEntry(Reason.MALFORMED, f"expected {CLIENT_ID_FORM}, got {flaw}")
    if len(entry.delta) > plan.delta_bytes_max:
        detail = f"{len(entry.delta)} bytes, expected at most {plan.delta_bytes_max}"
        return RefusedEntry(Reason.TOO_LARGE, detail)
    try:
        window = read_header(entry.delta).window
    except DeltaError:
        pass  # the fold refuses it with the reason and its client
    else:
        refused = _untimely(plan, window, appended_ms)
        if refused is not None:
            return refused
    return DeltaEntry(entry.client_id, entry.delta, appended_ms)


def _untimely(plan: Plan, window: int, appended_ms: int) -> RefusedEntry | None:
    newest = plan.window.index_at(appended_ms + PRODUCER_SKEW_MS)
    if window > newest:
        return RefusedEntry(Reason.WINDOW_IN_FUTURE, f"window {window}, expected at most {newest} by the log's clock")
    # A producer cannot make a fold open one old window after another, whatever the times of its records.
    oldest = plan.window.index_at(appended_ms - plan.window.lateness_ms - PRODUCER_SKEW_MS)
    if window < oldest:
        return RefusedEntry(Reason.WINDOW_IN_PAST, f"window {window}, expected {oldest} or later by the log's clock")
    return None
