"""Between the entries of one partition and the messages of a log that carries many in each: signed, or plain.

Pure. What the directory does not authenticate is refused before anything else of it is believed, its version included.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from aggregator.errors import LogError
from hushsum.directory import Directory, Role
from hushsum.errors import Reason
from hushsum.signatures import SigningKey
from hushsum_proto.batches import BATCH_ENTRIES_MAX, UNSIGNED, Batch, is_signed, signed_batch
from hushsum_proto.convert_batches import batch_from_bytes, batch_to_bytes
from hushsum_proto.entries import ENTRY_FORMAT
from hushsum_proto.errors import MalformedEntryError, NewerEntryError
from hushsum_proto.many_entries import batch_entries, single_entries


class Opened(NamedTuple):
    """What a message holds.

    Attributes:
        entries: The bytes of each; none where there is a ``problem``.
        signer: The role of the key that signed it; None where nothing is signed.
        problem: Why it is refused whole.
    """

    entries: tuple[bytes, ...]
    signer: Role | None = None
    problem: Reason | None = None


_MALFORMED: Final = Opened((), None, Reason.MALFORMED)
_UNSIGNED: Final = Opened((), None, Reason.UNSIGNED)


class LogMessages(Protocol):
    """How messages are written and read."""

    def write(self, partition: int, entries: Sequence[bytes], *, seals: bool) -> bytes:
        """The bytes of one message.

        Args:
            partition: The one that all of them belong to.
            entries: 1 to 65,536; deltas, cohort sums and batches of reports, or seals, never both.
            seals: Which.
        """

    def read(self, partition: int, value: bytes) -> Opened:
        """What a message holds.

        Raises:
            NewerEntryError: A newer format, of somebody whom this log believes: nothing may be passed over.
            LogError: It cannot be told whether it is to be believed.
        """

    def single(self, values: Sequence[bytes]) -> Sequence[bytes] | None:
        """The one entry of each of many messages, where :meth:`read` finds one in each, signed by nobody; or None.

        Speed alone: None says nothing of them.
        """


class PlainMessages:
    """Messages of a log that nobody else can write to."""

    def write(self, partition: int, entries: Sequence[bytes], *, seals: bool) -> bytes:
        """The bytes of one message."""
        del partition, seals
        return batch_to_bytes(Batch(tuple(entries)))

    def read(self, partition: int, value: bytes) -> Opened:
        """What a message holds.

        Raises:
            NewerEntryError: A newer format.
            LogError: It is signed: somebody has meant this log to be checked.
        """
        if (entries := batch_entries(value)) is not None:
            return Opened(entries)
        try:
            batch = batch_from_bytes(value)
        except MalformedEntryError:
            return _MALFORMED
        if batch.suite != UNSIGNED:
            raise LogError(f"partition {partition}: a signed message, and no directory to check it: set `directory`")
        return _opened(batch, None)

    def single(self, values: Sequence[bytes]) -> Sequence[bytes] | None:
        """The one entry of each of many messages, or None."""
        return single_entries(values)


class SignedMessages:
    """Messages of a log that others can write to: each signed by a key of the directory.

    Args:
        plan_id: Whose log it is: a message of another plan's is refused.
        directory: Which keys are believed, and for what.
        gateway: This process's key for all but seals; None where it writes none.
        releaser: Its key for seals; None where it writes none.
        producers: Whether the directory's producers may write here; what they sign is unsigned where they may not.

    Raises:
        DirectoryError: A key is not in the directory, or not for this.
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
        """The bytes of one message, signed with the key for what it holds.

        Raises:
            LogError: This process has no such key.
        """
        signer = self._signers.get(seals)
        if signer is None:
            raise LogError(f"this process has no {'releaser' if seals else 'gateway'} key to sign with")
        key_id, key = signer
        batch = signed_batch(entries, plan_id=self._plan_id, partition=partition, key_id=key_id, key=key)
        return batch_to_bytes(batch)

    def read(self, partition: int, value: bytes) -> Opened:
        """What a message holds.

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

    def single(self, values: Sequence[bytes]) -> Sequence[bytes] | None:  # noqa: ARG002  the form of LogMessages
        """None: each has a tag of its own."""
        return None


def _opened(batch: Batch, signer: Role | None) -> Opened:
    if batch.format_version > ENTRY_FORMAT:
        raise NewerEntryError(batch.format_version, ENTRY_FORMAT)
    if batch.format_version < ENTRY_FORMAT or not 1 <= len(batch.entries) <= BATCH_ENTRIES_MAX:
        return _MALFORMED
    return Opened(batch.entries, signer)
