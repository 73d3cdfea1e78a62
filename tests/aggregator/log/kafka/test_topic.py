import asyncio
from collections.abc import Mapping

import pytest

from aggregator.errors import ConfigError
from aggregator.log.kafka.client import KafkaSettings
from aggregator.log.kafka.topic import (
    TopicNeeds,
    entries_topic,
    mismatches,
    prepare_topic,
    promises_lost,
    receipts_topic,
)
from aggregator.model import entry_bytes_max
from aggregator.runtime import SystemRuntime
from hushsum_proto.convert import entry_to_bytes
from hushsum_proto.entries import CohortSumEntry
from hushsum_simulator.testbed.kafka import KafkaBroker
from tests.aggregator.sums import secure_plan
from tests.brokers import fresh_prefix
from tests.doubles import RecordingObserver
from tests.plans import small_plan

PLAN = small_plan(window={"length": "2h", "lateness": "10m"})
SETTINGS = KafkaSettings("localhost:9092", recovery_s=3600.0)
NEEDS = entries_topic(SETTINGS, PLAN, 4)
REPORT_PLAN = small_plan(window={"length": "2h", "lateness": "10m"}, privacy={"mode": "local"})
REPORTS = entries_topic(SETTINGS, REPORT_PLAN, 4)


def as_needed(needs: TopicNeeds, **other: str) -> dict[str, str]:
    """A topic's settings, of which some are others: ``retention_ms="5"``."""
    there = {name: needed.value for name, needed in needs.settings.items()}
    return there | {name.replace("_", "."): value for name, value in other.items()}


def values(needs: TopicNeeds) -> Mapping[str, str]:
    return as_needed(needs)


def test_the_settings_of_a_topic_follow_from_its_plan() -> None:
    assert NEEDS.name == f"hushsum.{PLAN.hex_id[:16]}"
    assert NEEDS.partitions == 4
    assert values(NEEDS) == {
        "cleanup.policy": "delete",
        "compression.type": "uncompressed",
        "max.message.bytes": str(2**20 + 2048),
        "message.timestamp.type": "LogAppendTime",
        "retention.bytes": "-1",
        "retention.ms": str((2 * 3600 + 600 + 3600) * 1000),
        "segment.bytes": str(64 * 2**20),
        "segment.ms": str(2 * 3600 * 1000),
        "unclean.leader.election.enable": "false",
    }


def test_the_largest_message_fits_the_largest_delta_of_the_plan() -> None:
    large = small_plan(sketch={"rows": 20_000, "buckets": 1024})
    needs = entries_topic(SETTINGS, large, 1)
    assert needs.message_bytes == int(values(needs)["max.message.bytes"]) == large.delta_bytes_max + 3072
    assert int(values(needs)["segment.bytes"]) >= 4 * needs.message_bytes


def test_the_largest_message_fits_the_sum_of_a_cohort_of_a_secure_plan() -> None:
    plan = secure_plan(counters=2_000_000)
    needs = entries_topic(SETTINGS, plan, 1)
    largest = CohortSumEntry(plan.id, -(2**63), b"r" * 32, 2**32 - 1, bytes(plan.words.bytes), -(2**63))
    assert needs.message_bytes == int(values(needs)["max.message.bytes"]) == plan.words.bytes + 3072
    assert len(entry_to_bytes(largest)) <= entry_bytes_max(plan) < needs.message_bytes
    assert int(values(needs)["segment.bytes"]) >= 4 * needs.message_bytes


def test_a_topic_of_anonymous_reports_has_no_time_but_their_windows_and_none_that_anything_goes_by() -> None:
    assert REPORTS.stamps == REPORT_PLAN.window
    assert NEEDS.stamps is None
    assert {name: value for name, value in values(REPORTS).items() if values(NEEDS).get(name) != value} == {
        "message.timestamp.after.max.ms": str(2 * 86_400_000),
        "message.timestamp.before.max.ms": str(2**63 - 1),
        "message.timestamp.type": "CreateTime",
        "retention.ms": "-1",
        "segment.ms": str(2 * 3600 * 1000 - 1),
    }
    assert values(REPORTS).keys() >= values(NEEDS).keys()


def test_the_deltas_of_silos_have_names_and_the_brokers_time() -> None:
    plan = small_plan(privacy={"mode": "local", "local": {"form": "silo"}})
    assert entries_topic(SETTINGS, plan, 4).settings["message.timestamp.type"].value == "LogAppendTime"


def test_no_retention_can_be_set_for_reports_which_would_be_judged_by_their_windows_age() -> None:
    with pytest.raises(ConfigError, match=r"kafka_retention_s: got 9e\+06, expected none with a plan of reports: late"):
        entries_topic(KafkaSettings("", retention_s=9e6), REPORT_PLAN, 1)


@pytest.mark.parametrize(
    "other",
    [
        {"message_timestamp_type": "LogAppendTime"},
        {"message_timestamp_before_max_ms": "3600000"},
        {"message_timestamp_after_max_ms": "3600000"},
        {"retention_ms": str(10**15)},
        {"segment_ms": str(2 * 3600 * 1000)},
    ],
    ids=lambda other: next(iter(other)),
)
def test_each_setting_that_tells_when_reports_came_or_drops_them_is_named(other: dict[str, str]) -> None:
    ((name, value),) = ((name.replace("_", "."), value) for name, value in other.items())
    (found,) = mismatches(REPORTS, 4, as_needed(REPORTS, **other))
    assert found.startswith(f"{name} is {value}, expected ")


@pytest.mark.parametrize(("length", "segment_ms"), [("1s", 60_000), ("1h", 3_600_000), ("7d", 86_400_000)])
def test_segments_are_closed_as_often_as_windows_end_within_a_minute_and_a_day(length: str, segment_ms: int) -> None:
    needs = entries_topic(SETTINGS, small_plan(window={"length": length}), 1)
    assert values(needs)["segment.ms"] == str(segment_ms)


def test_a_retention_that_is_too_short_is_refused_with_what_is_needed() -> None:
    enough_s = 2 * 3600 + 600 + 3600
    with pytest.raises(
        ConfigError, match=rf"kafka_retention_s: got {enough_s - 1}, expected at least {enough_s}: it must cover"
    ):
        entries_topic(KafkaSettings("", recovery_s=3600.0, retention_s=enough_s - 1), PLAN, 1)
    longer = entries_topic(KafkaSettings("", recovery_s=3600.0, retention_s=10 * enough_s), PLAN, 1)
    assert values(longer)["retention.ms"] == str(10_000 * enough_s)


@pytest.mark.parametrize(
    "other",
    [
        {"cleanup_policy": "compact"},
        {"compression_type": "producer"},
        {"cleanup_policy": "compact,delete"},
        {"unclean_leader_election_enable": "true"},
        {"retention_bytes": "1000000000"},
        {"message_timestamp_type": "CreateTime"},
        {"max_message_bytes": str(2**20)},
        {"retention_ms": str((2 * 3600 + 600 + 3600) * 1000 - 1)},
        {"segment_ms": "604800000"},
        {"segment_bytes": str(2**30)},
    ],
    ids=lambda other: next(iter(other)),
)
def test_each_setting_that_breaks_a_promise_is_named_with_what_it_is_and_has_to_be(other: dict[str, str]) -> None:
    there = as_needed(NEEDS, **other)
    ((name, value),) = ((name, value) for name, value in there.items() if value != values(NEEDS)[name])
    (found,) = mismatches(NEEDS, 4, there)
    assert found.startswith(f"{name} is {value}, expected ")
    assert values(NEEDS)[name] in found


@pytest.mark.parametrize("name", sorted(REPORTS.settings))
def test_a_setting_that_the_broker_does_not_tell_is_not_taken_for_granted(name: str) -> None:
    for needs in (NEEDS, REPORTS):
        there = as_needed(needs)
        told = there.pop(name, None)
        assert len(mismatches(needs, 4, there)) == (told is not None)


@pytest.mark.parametrize(
    "other", [{"max_message_bytes": "9999999"}, {"retention_ms": "-1"}, {"segment_ms": "60000"}, {"segment_bytes": "1"}]
)
def test_settings_that_keep_the_promise_in_their_own_way_are_the_operators(other: dict[str, str]) -> None:
    assert mismatches(NEEDS, 4, as_needed(NEEDS, **other)) == []


def test_every_mismatch_is_told_at_once() -> None:
    found = mismatches(NEEDS, 3, as_needed(NEEDS, cleanup_policy="compact", retention_ms="1"))
    assert [text.split(" ")[:3] for text in found] == [
        ["it", "has", "3"],
        ["cleanup.policy", "is", "compact,"],
        ["retention.ms", "is", "1,"],
    ]


def test_receipts_are_kept_for_ever_in_one_partition() -> None:
    needs = receipts_topic(SETTINGS)
    assert (needs.name, needs.partitions) == ("hushsum.receipts", 1)
    assert mismatches(needs, 1, as_needed(needs)) == []
    (found,) = mismatches(needs, 1, as_needed(needs, retention_ms="999999999999"))
    assert "expected -1: receipts are never deleted" in found


def test_few_copies_are_a_warning_that_names_the_promise() -> None:
    assert promises_lost("t", 3, 2) == []
    assert len(promises_lost("t", 2, 2)) == len(promises_lost("t", 3, 1)) == 1
    copies, in_sync = promises_lost("t", 1, 1)
    assert "1 of 3 copies: acknowledged data may be lost with a machine" in copies
    assert "kafka_replication" in copies
    assert "min.insync.replicas 1 of 2: acknowledged data may be on one machine only" in in_sync


async def test_a_topic_is_made_as_it_has_to_be_and_found_so_again(kafka: KafkaBroker) -> None:
    settings = KafkaSettings(kafka.bootstrap, fresh_prefix())
    for needs in (entries_topic(settings, PLAN, 4), entries_topic(settings, REPORT_PLAN, 4), receipts_topic(settings)):
        told = [await prepare_topic(settings, needs, SystemRuntime(threads=1), RecordingObserver()) for _ in range(2)]
        assert told[0].warnings == told[1].warnings == tuple(promises_lost(needs.name, 1, 1))
        assert told[0].topic_id == told[1].topic_id is not None


async def test_partitions_that_a_plan_does_not_have_are_a_warning_and_missing_ones_are_refused(
    kafka: KafkaBroker,
) -> None:
    settings = KafkaSettings(kafka.bootstrap, fresh_prefix())
    observer, runtime = RecordingObserver(), SystemRuntime(threads=1)
    await prepare_topic(settings, entries_topic(settings, PLAN, 3), runtime, observer)
    *_, warning = (await prepare_topic(settings, entries_topic(settings, PLAN, 2), runtime, observer)).warnings
    assert "has 3 partitions: only the first 2, the number at the plan's first start, are folded" in warning
    with pytest.raises(ConfigError, match="it has 3 partitions, expected 4, the number at the plan's first start"):
        await prepare_topic(settings, entries_topic(settings, PLAN, 4), runtime, observer)


async def test_more_copies_than_brokers_are_waited_for_with_the_key_that_asks_for_them(kafka: KafkaBroker) -> None:
    settings = KafkaSettings(kafka.bootstrap, fresh_prefix(), replication=3)
    observer = RecordingObserver()
    preparing = prepare_topic(settings, entries_topic(settings, PLAN, 1), SystemRuntime(threads=1), observer)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(preparing, 0.5)
    assert "kafka_replication is 3, but there are 1 brokers" in observer.retries[0][1]
