"""Who may put what a local plan collects into a log that others can write to: gateways, which charge the ledger."""

from collections.abc import Sequence

import pytest

from aggregator.errors import LogError
from aggregator.log.entries import LogMessages, PlainMessages, SignedMessages, admit, admit_all
from aggregator.log.kafka.client import KafkaSettings
from aggregator.log.kafka.topic import entries_topic
from aggregator.model import PositionedEntry, entry_bytes_max
from hushsum.errors import Reason
from hushsum.plan import Plan
from hushsum.signing import Directory, DirectoryKey, Role, SigningKey
from hushsum_proto.batches import signed_batch
from hushsum_proto.convert import entry_to_bytes
from hushsum_proto.convert_batches import batch_to_bytes, is_seal
from hushsum_proto.entries import DeltaEntry, LogEntry, RefusedEntry, ReportsEntry, SealEntry
from tests.aggregator.deltas import client_of, tally_plan
from tests.aggregator.reports import SHUFFLE_MIN, report_plan, reports_of, silo_of, silo_plan

W = 100
REPORTS, SILOS = report_plan(), silo_plan()
NOW_MS = REPORTS.window.start_ms(W) + 1
KEYS = {role: SigningKey(bytes([number]) * 32) for number, role in enumerate(Role)}
DIRECTORY = Directory({role.value: DirectoryKey(role.value, role, key.verify_key) for role, key in KEYS.items()})
BATCH = reports_of(REPORTS, W, [1, 2, 3], stream=5, shuffled=True)
SILO = silo_of(SILOS, client_of(0, 1), W, {1: 2})


def reason_of(plan: Plan, item: LogEntry, signer: Role | None) -> Reason | None:
    given = admit(plan, 0, PositionedEntry(0, entry_to_bytes(item), signer, NOW_MS))
    if isinstance(given, RefusedEntry):
        return given.reason
    assert given == item
    return None


@pytest.mark.parametrize(("plan", "item"), ((REPORTS, BATCH), (SILOS, SILO)), ids=("reports", "silos"))
def test_gateways_alone_write_what_a_local_plan_collects(plan: Plan, item: LogEntry) -> None:
    refused = {signer: reason_of(plan, item, signer) for signer in (None, *Role)}
    assert refused == {signer: None if signer in {None, Role.GATEWAY} else Reason.UNSIGNED for signer in (None, *Role)}


@pytest.mark.parametrize(
    ("plan", "item", "what"),
    (
        (REPORTS, BATCH, "a producer's batch of reports: "),
        (REPORTS, SILO, "a producer's delta: "),
        (SILOS, SILO, "a producer's delta: "),
        (tally_plan(), BATCH, "a producer's batch of reports: "),
    ),
)
def test_a_producer_is_told_that_the_ledger_is_charged_at_gateways(plan: Plan, item: LogEntry, what: str) -> None:
    given = admit(plan, 0, PositionedEntry(0, entry_to_bytes(item), Role.PRODUCER, NOW_MS))
    assert isinstance(given, RefusedEntry)
    assert given.reason is Reason.UNSIGNED
    assert given.detail.startswith(what)
    assert "accept submissions only from gateways, which charge the ledger first" in given.detail


@pytest.mark.parametrize("count", (1, 30))
@pytest.mark.parametrize("signer", (None, Role.GATEWAY, Role.PRODUCER))
def test_many_are_admitted_as_each_alone_would_be(count: int, signer: Role | None) -> None:
    items: Sequence[LogEntry] = [BATCH, SILO, SealEntry(REPORTS.id, W, 0)] * count
    entry_batch = [PositionedEntry(at, entry_to_bytes(item), signer, NOW_MS) for at, item in enumerate(items)]
    expected = [(each.position, admit(REPORTS, 0, each)) for each in entry_batch]
    assert admit_all(REPORTS, 0, entry_batch) == expected


@pytest.mark.parametrize(
    "messages", (PlainMessages(), SignedMessages(REPORTS.id, DIRECTORY, KEYS[Role.GATEWAY], producers=True))
)
def test_batches_of_reports_travel_together_in_one_message(messages: LogMessages) -> None:
    batches = [reports_of(REPORTS, W, [number], stream=number) for number in range(50)]
    value = messages.write(0, [entry_to_bytes(batch) for batch in batches], seals=False)
    opened = messages.read(0, value)
    entry_batch = [PositionedEntry(at, data, opened.signer, NOW_MS) for at, data in enumerate(opened.entries)]
    assert [item for _, item in admit_all(REPORTS, 0, entry_batch)] == batches
    assert not any(map(is_seal, opened.entries))


def test_a_process_without_a_gateways_key_writes_no_reports() -> None:
    messages = SignedMessages(REPORTS.id, DIRECTORY, None, KEYS[Role.RELEASER])
    with pytest.raises(LogError, match="no gateway key"):
        messages.write(0, [entry_to_bytes(BATCH)], seals=False)


def test_what_a_producer_put_beside_its_deltas_does_not_count_either() -> None:
    data = [entry_to_bytes(BATCH), entry_to_bytes(SILO)]
    value = batch_to_bytes(
        signed_batch(data, plan_id=REPORTS.id, partition=0, key_id=Role.PRODUCER.value, key=KEYS[Role.PRODUCER])
    )
    opened = SignedMessages(REPORTS.id, DIRECTORY, producers=True).read(0, value)
    entry_batch = [PositionedEntry(at, each, opened.signer, NOW_MS) for at, each in enumerate(opened.entries)]
    assert all(isinstance(item, RefusedEntry) for _, item in admit_all(REPORTS, 0, entry_batch))
    assert len(entry_batch) == 2


def largest_reports(plan: Plan) -> LogEntry:
    return reports_of(plan, W, [plan.counters_shape[1] * plan.counters_shape[2] - 1] * plan.delta_records_max, stream=1)


@pytest.mark.parametrize(
    ("plan", "largest"),
    (
        (report_plan(rows=1000), largest_reports),
        (report_plan(shuffle_min=SHUFFLE_MIN), largest_reports),
        (report_plan(shuffle_min=300_000), largest_reports),
        (silo_plan(counters=2_000_000), lambda plan: silo_of(plan, "a" * 128, 2**40, {}, stream=2**63, sequence=2**62)),
    ),
    ids=("reports", "shuffled", "many shuffled", "silos"),
)
def test_the_largest_submission_of_a_local_plan_fits_an_entry_and_a_message(plan: Plan, largest: object) -> None:
    assert callable(largest)
    made = largest(plan)
    assert isinstance(made, DeltaEntry | ReportsEntry)
    needs = entries_topic(KafkaSettings("localhost:1"), plan, 1)
    assert len(entry_to_bytes(made)) <= entry_bytes_max(plan) < needs.message_bytes
    assert entry_bytes_max(plan) == plan.upload_bytes_max + 1024
