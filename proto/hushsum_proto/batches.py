"""Batches of entries, as they travel through a log that others can write to: their layout, their tag, their topic."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from hushsum.labels import LOG_MESSAGE
from hushsum.signing import ED25519, SigningKey, VerifyKey
from hushsum_proto.entries import ENTRY_FORMAT

#: Of one message: an entry's place in it takes 16 bits of its position.
BATCH_ENTRIES_MAX: Final = 1 << 16
#: How far a producer's clock may be ahead of the broker's, or behind: of the format, so that every replay agrees.
PRODUCER_SKEW_MS: Final = 300_000
UNSIGNED: Final = 0  # the suite of a batch without a tag
_TOPIC_DIGITS: Final = 16


@dataclass(frozen=True)
class Batch:
    """The value of one message of the log.

    Attributes:
        entries: The bytes of each.
        key_id: Whose key signed it, as the message says; empty without a tag.
        suite: 0: no tag; 1: Ed25519.
        format_version: Of the message.
    """

    entries: tuple[bytes, ...]
    key_id: str = ""
    suite: int = UNSIGNED
    tag: bytes = b""
    format_version: int = ENTRY_FORMAT


def topic_of(prefix: str, plan_id: bytes) -> str:
    """The topic of a plan's entries."""
    return f"{prefix}.{plan_id.hex()[:_TOPIC_DIGITS]}"


def signed_batch(entries: Sequence[bytes], *, plan_id: bytes, partition: int, key_id: str, key: SigningKey) -> Batch:
    """A batch that is good in this partition of this plan's log, and nowhere else."""
    held = tuple(entries)
    tag = key.sign(LOG_MESSAGE, *_parts(held, ENTRY_FORMAT, plan_id, partition))
    return Batch(held, key_id, ED25519, tag)


def is_signed(batch: Batch, key: VerifyKey, *, plan_id: bytes, partition: int) -> bool:
    """Whether the key's owner signed this batch for this partition of this plan's log."""
    if batch.suite != ED25519:
        return False
    parts = _parts(batch.entries, batch.format_version, plan_id, partition)
    return key.verifies(batch.tag, LOG_MESSAGE, *parts)


def _parts(entries: tuple[bytes, ...], format_version: int, plan_id: bytes, partition: int) -> tuple[bytes, ...]:
    return (plan_id, partition.to_bytes(4, "big"), format_version.to_bytes(4, "big"), *entries)
