"""Who may put a cohort's sum into a log that others can write to: gateways, and nobody else."""

from collections.abc import Sequence

import pytest

from aggregator.errors import LogError
from aggregator.log.entries import PlainMessages, SignedMessages, admit_all
from aggregator.model import PositionedEntry
from hushsum.errors import Reason
from hushsum.signing import Directory, DirectoryKey, Role, SigningKey
from hushsum_proto.batches import signed_batch
from hushsum_proto.convert import entry_to_bytes
from hushsum_proto.convert_batches import batch_to_bytes
from hushsum_proto.entries import CohortSumEntry, LogEntry, RefusedEntry
from hushsum_proto.v1 import wire_pb2 as pb
from tests.aggregator.deltas import entry, tally, tally_plan

PLAN = tally_plan(counters=200)
W, PARTITION = 100, 2
NOW_MS = PLAN.window.start_ms(W) + 1
KEYS = {role: SigningKey(bytes([number]) * 32) for number, role in enumerate(Role)}
DIRECTORY = Directory({role.value: DirectoryKey(role.value, role, key.verify_key) for role, key in KEYS.items()})
MESSAGES = SignedMessages(PLAN.id, DIRECTORY, KEYS[Role.GATEWAY], KEYS[Role.RELEASER], producers=True)
SUM = CohortSumEntry(PLAN.id, W, b"r" * 32, 3, bytes(500), NOW_MS)
DELTA = entry("alice", tally(PLAN, 3, W, 1, 0))


def signed_by(role: Role, partition: int = PARTITION, plan_id: bytes = PLAN.id) -> bytes:
    """A message with a delta and a sum, as who holds a key of this role could write it."""
    entries = [entry_to_bytes(DELTA), entry_to_bytes(SUM)]
    return batch_to_bytes(
        signed_batch(entries, plan_id=plan_id, partition=partition, key_id=role.value, key=KEYS[role])
    )


def admitted(value: bytes, messages: SignedMessages | PlainMessages = MESSAGES) -> Sequence[LogEntry | RefusedEntry]:
    """What a fold is given of a message."""
    opened = messages.read(PARTITION, value)
    if opened.problem is not None:
        return [RefusedEntry(opened.problem, "")]
    entry_batch = [PositionedEntry(place, data, opened.signer, NOW_MS) for place, data in enumerate(opened.entries)]
    return [item for _, item in admit_all(PLAN, PARTITION, entry_batch)]


def reasons(value: bytes) -> list[Reason | None]:
    return [item.reason if isinstance(item, RefusedEntry) else None for item in admitted(value)]


def test_a_gateway_writes_deltas_and_sums_together() -> None:
    data = [entry_to_bytes(DELTA), entry_to_bytes(SUM)]
    assert admitted(MESSAGES.write(PARTITION, data, seals=False)) == [DELTA, SUM]
    assert admitted(PlainMessages().write(PARTITION, data, seals=False), PlainMessages()) == [DELTA, SUM]


@pytest.mark.parametrize(
    ("role", "delta"),
    (
        (Role.PRODUCER, None),
        (Role.RELEASER, Reason.UNSIGNED),
        (Role.CLIENT, Reason.UNSIGNED),
    ),
)
def test_nobody_else_writes_a_sum(role: Role, delta: Reason | None) -> None:
    assert reasons(signed_by(role)) == [delta, Reason.UNSIGNED]


def test_a_process_without_a_gateways_key_writes_no_sum() -> None:
    messages = SignedMessages(PLAN.id, DIRECTORY, None, KEYS[Role.RELEASER])
    with pytest.raises(LogError, match="no gateway key"):
        messages.write(PARTITION, [entry_to_bytes(SUM)], seals=False)


def test_a_sum_is_good_in_its_own_partition_and_plan_alone() -> None:
    assert reasons(signed_by(Role.GATEWAY)) == [None, None]
    assert reasons(signed_by(Role.GATEWAY, partition=PARTITION + 1)) == [Reason.UNSIGNED]
    assert reasons(signed_by(Role.GATEWAY, plan_id=bytes(32))) == [Reason.UNSIGNED]


def test_a_sum_that_is_none_is_refused_as_malformed() -> None:
    message = pb.Entry.FromString(entry_to_bytes(SUM))
    message.cohort_sum.submissions = 0
    broken = message.SerializeToString()
    (_, given), (_, good) = admit_all(
        PLAN, 0, [PositionedEntry(0, broken, Role.GATEWAY), PositionedEntry(1, entry_to_bytes(SUM), Role.GATEWAY)]
    )
    assert isinstance(given, RefusedEntry)
    assert given.reason is Reason.MALFORMED
    assert good == SUM
