"""The service's topics: required settings, creation, checks of existing topics, and detection of re-created ones.

An existing topic is never changed: its settings belong to the operator. A topic that breaks a promise is refused with
the setting, its value and the required value.

Brokers keep a timestamp of every message. For anonymous reports it is the start of the window, which the message states
anyway, and never the time of arrival. Brokers would compute a message's age from it, so nothing in such a topic is
deleted by age: the entries of a window that has its outcome are deleted by offset.

Entries that are appended to a re-created topic are never folded, because the folds are at higher positions. They must
not be acknowledged, so the topic's id is checked.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Final, Literal, NamedTuple

from aiokafka import AIOKafkaClient
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import (
    InvalidReplicationFactorError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
    for_code,
)

from aggregator.errors import AggregatorError, ConfigError, LogError, LogUnavailableError
from aggregator.interfaces import Observer
from aggregator.log.kafka.client import KafkaSettings, administration, via_reachable_broker
from aggregator.log.kafka.internals import topic_id
from aggregator.model import entry_bytes_max
from aggregator.runtime import Runtime, retry
from hushsum.plan import Plan
from hushsum.schedule import Schedule
from hushsum_proto.batches import topic_of

#: Bytes around the entries of a message: its envelope, its signature, the record and the batch.
SPARE_BYTES: Final = 2048
MESSAGE_BYTES_MIN: Final = 2**20
_SEGMENT_BYTES_MIN: Final = 64 * 2**20
_DAY_MS: Final = 86_400_000
_MINUTE_MS: Final = 60_000
_FOR_EVER: Final = -1
_LONGEST_MS: Final = 2**63 - 1
_AHEAD_MS: Final = 2 * _DAY_MS  # skew_s is a day at most, and brokers' clocks may differ
_SAFE_COPIES: Final = 3
_SAFE_IN_SYNC: Final = 2


@dataclass(frozen=True)
class RequiredSetting:
    """The requirement on one setting of a topic.

    Attributes:
        rule: The values allowed: only this one, or also larger or smaller ones. -1 is the largest of all.
    """

    value: str
    rule: Literal["equal", "least", "most"]
    why: str

    def allows(self, there: str) -> bool:
        if self.rule == "equal" or there in {self.value, ""}:
            return there == self.value
        if int(there) == _FOR_EVER:
            return self.rule == "least"
        return int(there) >= int(self.value) if self.rule == "least" else int(there) <= int(self.value)


@dataclass(frozen=True)
class TopicNeeds:
    """The requirements on a topic.

    Attributes:
        partitions: The least number; others are not used.
        message_bytes: The largest message; the same in every process that writes.
        stamps: The schedule whose window starts are the messages' timestamps; None: brokers stamp the time of arrival.
    """

    name: str
    partitions: int
    settings: Mapping[str, RequiredSetting]
    message_bytes: int = MESSAGE_BYTES_MIN
    stamps: Schedule | None = None


_CLOSED: Final = "erased data is deleted when its segment is closed"
_ALWAYS: Final = {
    "cleanup.policy": RequiredSetting("delete", "equal", "compaction would drop entries"),
    "unclean.leader.election.enable": RequiredSetting("false", "equal", "a lagging leader would lose durable entries"),
    "retention.bytes": RequiredSetting("-1", "equal", "entries could be deleted by size before they are folded"),
    # Otherwise a writer could stop readers with a codec that they lack, or fill their memory with a small message.
    "compression.type": RequiredSetting("uncompressed", "equal", "the size limit must apply to the stored message"),
}


def entries_topic(settings: KafkaSettings, plan: Plan, partitions: int) -> TopicNeeds:
    """The topic of a plan's entries.

    Raises:
        ConfigError: The configured retention is too short, or one is configured although nothing may be deleted by age.
    """
    local = plan.privacy.local
    anonymous = local is not None and local.reports
    largest = max(MESSAGE_BYTES_MIN, entry_bytes_max(plan)) + SPARE_BYTES
    needed = _stamped_by_windows(settings, plan) if anonymous else _stamped_by_brokers(settings, plan)
    return TopicNeeds(
        topic_of(settings.prefix, plan.id),
        partitions,
        {
            **_ALWAYS,
            **needed,
            "max.message.bytes": RequiredSetting(str(largest), "least", "the plan's largest entry must fit"),
            "segment.bytes": RequiredSetting(str(max(_SEGMENT_BYTES_MIN, 4 * largest)), "most", "same as segment.ms"),
        },
        largest,
        plan.window if anonymous else None,
    )


def _stamped_by_brokers(settings: KafkaSettings, plan: Plan) -> dict[str, RequiredSetting]:
    """Requirements if timestamps are times of arrival."""
    needed_ms = plan.window.length_ms + plan.window.lateness_ms + round(settings.recovery_s * 1000)
    chosen_ms = needed_ms if settings.retention_s is None else round(settings.retention_s * 1000)
    why = "it must cover window + lateness + kafka_recovery_s"
    if chosen_ms < needed_ms:
        raise ConfigError(f"kafka_retention_s: got {chosen_ms / 1000:g}, expected at least {needed_ms / 1000:g}: {why}")
    segment_ms = max(_MINUTE_MS, min(plan.window.length_ms, _DAY_MS))
    return {
        "message.timestamp.type": RequiredSetting("LogAppendTime", "equal", "only the brokers' clock is trusted"),
        "retention.ms": RequiredSetting(str(chosen_ms), "least", why),
        "segment.ms": RequiredSetting(str(segment_ms), "most", _CLOSED),
    }


def _stamped_by_windows(settings: KafkaSettings, plan: Plan) -> dict[str, RequiredSetting]:
    """Requirements if timestamps are starts of windows; messages may come late until their window is sealed."""
    why = "late entries carry the start of their window as timestamp and could be deleted before they are folded"
    if settings.retention_s is not None:
        got = f"got {settings.retention_s:g}, expected none with a plan of reports"
        raise ConfigError(f"kafka_retention_s: {got}: {why}")
    # By the messages' timestamps: the first message of a window closes the segment of the window before.
    segment_ms = max(_MINUTE_MS, min(plan.window.length_ms - 1, _DAY_MS))
    return {
        "message.timestamp.type": RequiredSetting(
            "CreateTime", "equal", "brokers would record when each anonymous report arrived"
        ),
        "message.timestamp.before.max.ms": RequiredSetting(str(_LONGEST_MS), "least", "late entries would be rejected"),
        "message.timestamp.after.max.ms": RequiredSetting(str(_AHEAD_MS), "least", "windows open skew_s early"),
        "retention.ms": RequiredSetting(str(_FOR_EVER), "equal", why),
        "segment.ms": RequiredSetting(str(segment_ms), "most", _CLOSED),
    }


def receipts_topic(settings: KafkaSettings, name: str | None = None) -> TopicNeeds:
    """The topic of receipts, or that of their copy, whose ``name`` is given; neither has a retention."""
    kept = RequiredSetting("-1", "equal", "receipts are never deleted")
    return TopicNeeds(name or f"{settings.prefix}.receipts", 1, {**_ALWAYS, "retention.ms": kept})


def releases_topic(settings: KafkaSettings, plan: Plan) -> TopicNeeds:
    """The topic of copies of a plan's releases; how long they are kept is the operator's to set."""
    counters = prod(plan.counters_shape) + plan.count_counters
    largest = max(MESSAGE_BYTES_MIN, 9 * counters + 2 * len(plan.bundle)) + SPARE_BYTES
    fits = RequiredSetting(str(largest), "least", "the plan's largest release must fit")
    needed = {"cleanup.policy": _ALWAYS["cleanup.policy"], "max.message.bytes": fits}
    return TopicNeeds(f"{topic_of(settings.prefix, plan.id)}.releases", 1, needed, largest)


def mismatches(needs: TopicNeeds, partitions: int, there: Mapping[str, str]) -> list[str]:
    """The requirements that an existing topic does not meet, a sentence each."""
    found = []
    if partitions < needs.partitions:
        found.append(
            f"it has {partitions} partitions, expected {needs.partitions}, the number at the plan's first start"
        )
    for name, needed in needs.settings.items():
        if not needed.allows(there.get(name, "")):
            form = {"equal": "", "least": "at least ", "most": "at most "}[needed.rule]
            found.append(f"{name} is {there.get(name)}, expected {form}{needed.value}: {needed.why}")
    return found


def promises_lost(name: str, replication: int, in_sync: int) -> list[str]:
    """The promises that a topic with so few copies cannot keep, a sentence each."""
    lost = []
    if replication < _SAFE_COPIES:
        lost.append(
            f"topic {name} has {replication} of {_SAFE_COPIES} copies: "
            "acknowledged data may be lost with a machine or a disk "
            "(kafka_replication sets the number of copies of new topics)"
        )
    if in_sync < _SAFE_IN_SYNC:
        lost.append(
            f"topic {name} has min.insync.replicas {in_sync} of {_SAFE_IN_SYNC}: "
            "acknowledged data may be on one machine only, and lost with it or in a power failure"
        )
    return lost


class PreparedTopic(NamedTuple):
    """A topic that exists and meets its requirements.

    Attributes:
        warnings: The promises that it cannot keep, and other oddities, for the operator; a sentence each.
    """

    warnings: tuple[str, ...]
    topic_id: bytes | None


async def prepare_topic(
    settings: KafkaSettings,
    needs: TopicNeeds,
    runtime: Runtime,
    observer: Observer,
    *,
    gone: AggregatorError | None = None,
) -> PreparedTopic:
    """Creates the topic, or checks an existing one; waits for brokers that are not up yet.

    Raises:
        ConfigError: It does not meet its requirements: every such setting, with its value and the required one.
        LogError: Kafka refuses this client.
        AggregatorError: ``gone``, if it is given (the topic existed before) and the topic does not exist.
    """

    async def prepare() -> PreparedTopic:
        async with administration(settings) as admin:
            return await _prepare(admin, settings, needs, gone)

    return await retry("kafka", prepare, runtime=runtime, on_retry=observer.retried)


async def _prepare(
    admin: AIOKafkaAdminClient, settings: KafkaSettings, needs: TopicNeeds, gone: AggregatorError | None
) -> PreparedTopic:
    copies = await _copies(admin, needs.name)
    if copies is None:
        if gone is not None:
            raise gone
        await _make(admin, settings, needs)
        copies = await _copies(admin, needs.name)
        if copies is None:  # a new topic takes a moment to reach every broker
            raise LogUnavailableError(f"kafka, topic {needs.name}: created but not available yet")
    there = await _settings_of(admin, needs.name)
    if found := mismatches(needs, len(copies), there):
        raise ConfigError(f"topic {needs.name}: {'; '.join(found)}")
    warnings = promises_lost(needs.name, min(copies), int(there["min.insync.replicas"]))
    if len(copies) > needs.partitions:
        warnings.append(
            f"topic {needs.name} has {len(copies)} partitions: only the first {needs.partitions}, "
            "the number at the plan's first start, are folded"
        )
    client = AIOKafkaClient(**await via_reachable_broker(settings.client("admin")))
    try:
        await client.bootstrap()
        return PreparedTopic(tuple(warnings), await topic_id(client, client.get_random_node(), needs.name))
    finally:
        await client.close()


async def _copies(admin: AIOKafkaAdminClient, name: str) -> list[int] | None:
    """The number of copies of each partition; None if there is no such topic."""
    topic = (await admin.describe_topics([name]))[0]
    error = for_code(topic["error_code"])
    if error is UnknownTopicOrPartitionError:
        return None
    _raise_refusal(name, topic["error_code"], None)
    return [len(partition["replicas"]) for partition in topic["partitions"]]


async def _make(admin: AIOKafkaAdminClient, settings: KafkaSettings, needs: TopicNeeds) -> None:
    brokers = len((await admin.describe_cluster())["brokers"])
    copies = settings.replication or min(brokers, _SAFE_COPIES)
    chosen = {name: needed.value for name, needed in needs.settings.items()}
    chosen["min.insync.replicas"] = str(_SAFE_IN_SYNC if copies >= _SAFE_COPIES else 1)
    made = await admin.create_topics([NewTopic(needs.name, needs.partitions, copies, topic_configs=chosen)])
    _, code, message = made.topic_errors[0]
    if for_code(code) is InvalidReplicationFactorError:  # a starting cluster may not have all its brokers yet
        raise InvalidReplicationFactorError(f"kafka_replication is {copies}, but there are {brokers} brokers")
    if for_code(code) is not TopicAlreadyExistsError:  # another process was faster: the topic is checked like any other
        _raise_refusal(needs.name, code, message)


async def _settings_of(admin: AIOKafkaAdminClient, name: str) -> dict[str, str]:
    (answer,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name)])
    code, message, _, _, entries = answer.resources[0]
    _raise_refusal(name, code, message)
    return {entry[0]: entry[1] for entry in entries}


def _raise_refusal(name: str, code: int, message: str | None) -> None:
    error = for_code(code)
    if code == 0:
        return
    if error.retriable or error.invalid_metadata:
        raise error(message or name)
    raise LogError(f"kafka, topic {name}: {error.__name__}: {message or 'refused'}")


_CONFIRM_S: Final = 1.0  # a topic is not deleted, re-created and filled in less
_SUSPECT_S: Final = 1.0  # a leader that has just been elected may report a lower end, but not for so long


class TopicIdentity:
    """Detects that a topic was re-created or replaced by an older copy; shared by all readers and writers of a process.

    Args:
        topic_id: Its id at opening; None if brokers give topics none.
        ends: By partition, the offset after the last message at opening.
    """

    def __init__(self, topic: str, topic_id: bytes | None, ends: Mapping[int, int], runtime: Runtime) -> None:
        self._topic, self._id, self._runtime = topic, topic_id, runtime
        self._floors = dict(ends)
        self._suspect_s: dict[int, float] = {}
        self._confirmed_s = runtime.monotonic()
        self._why: str | None = None

    def check(self) -> None:
        """Raises LogError if the topic was found to be another one, from then on always."""
        if self._why is not None:
            raise LogError(self._why)

    def floors(self, partitions: Iterable[int]) -> list[int]:
        """The lowest offsets that appends to these partitions may get, if they begin now."""
        return [self._floors.get(partition, 0) for partition in partitions]

    def appended(self, partition: int, offset: int, floor: int) -> None:
        """Checks the offset of an append: LogError if it is lower than the lowest one allowed, ``floor``."""
        if offset < floor:
            raise self._replaced(f"partition {partition} appended at {offset}, although it had reached {floor}")
        self._rise(partition, offset + 1)

    def ended(self, partition: int, end: int) -> None:
        """Checks the end that a leader reports.

        Raises:
            LogUnavailableError: It is lower than before; a leader that has just been elected may not know better.
            LogError: It has been lower for too long.
        """
        floor = self._floors.get(partition, 0)
        if end >= floor:
            self._suspect_s.pop(partition, None)
            return self._rise(partition, end)
        now_s = self._runtime.monotonic()
        what = f"partition {partition} ends at {end}, although it had reached {floor}"
        if now_s - self._suspect_s.setdefault(partition, now_s) < _SUSPECT_S:
            raise LogUnavailableError(f"kafka, topic {self._topic}: {what}")
        raise self._replaced(what)

    async def confirm(self, ask: Callable[[], Awaitable[bytes | None]]) -> None:
        """Compares the topic's id with that of the brokers, which ``ask`` returns, at most once a second.

        Raises:
            LogError: It is another one, now or before.
            LogUnavailableError: Any that ``ask`` raises.
        """
        self.check()
        began_s = self._runtime.monotonic()
        if self._id is not None and began_s - self._confirmed_s >= _CONFIRM_S:
            found = await ask()
            if found is not None and found != self._id:
                raise self._replaced("it was deleted and recreated")
            self._confirmed_s = began_s
        self.check()

    def _rise(self, partition: int, offset: int) -> None:
        self._floors[partition] = max(offset, self._floors.get(partition, 0))

    def _replaced(self, what: str) -> LogError:
        text = f"kafka, topic {self._topic}: {what}: the topic is another or an older copy; restore it and restart"
        self._why = self._why or text
        return LogError(text)
