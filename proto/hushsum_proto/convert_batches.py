"""Between batches of entries and the bytes of a log's message: no signature is looked at here."""

from google.protobuf.message import DecodeError

from hushsum_proto.batches import BATCH_ENTRIES_MAX, UNSIGNED, Batch
from hushsum_proto.errors import MalformedEntryError
from hushsum_proto.v1 import wire_pb2 as pb


def batch_to_bytes(batch: Batch) -> bytes:
    """The bytes of a message."""
    assert 1 <= len(batch.entries) <= BATCH_ENTRIES_MAX, f"a batch of {len(batch.entries)} entries"
    message = pb.Entry(format_version=batch.format_version, batch=pb.EntryBatch(entries=batch.entries))
    if batch.suite != UNSIGNED:
        message.authenticity.suite = batch.suite
        message.authenticity.key_id = batch.key_id
        message.authenticity.tag = batch.tag
    return message.SerializeToString()


def batch_from_bytes(data: bytes) -> Batch:
    """Reads a message's bytes. Whatever else it holds, entries or not, is for who has looked at its tag.

    Raises:
        MalformedEntryError: It is no entry at all.
    """
    try:
        message = pb.Entry.FromString(data)
    except DecodeError as error:
        raise MalformedEntryError("log message: expected the message Entry, got other bytes") from error
    claim = message.authenticity
    return Batch(tuple(message.batch.entries), claim.key_id, claim.suite, claim.tag, message.format_version)


def is_seal(data: bytes) -> bool:
    """Whether the bytes of an entry are those of a seal: of what a releaser signs."""
    try:
        return pb.Entry.FromString(data).WhichOneof("body") == "seal"
    except DecodeError:
        return False
