"""The topics of the service: what each setting has to be, making a topic, and checking one that is there.

A topic that is there is never changed: its settings are the operator's, and one that breaks a promise is refused with
the setting, what it is, and what it has to be.

The brokers keep a time of every message. Where reports are anonymous it is the start of its window, which its bytes
tell anyway, and never the time at which it came. Brokers would judge by it how old a message is, however late it came,
so nothing of such a topic is deleted for its age: what has its outcome is deleted by its offset.

What is appended to a topic that was made anew is folded by nobody, since the folds stand further on: it must not be
acknowledged. So the id of the topic is looked at.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Final, Literal, NamedTuple

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import (
    InvalidReplicationFactorError,
    NodeNotReadyError,
    NoError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
    for_code,
)
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import Boolean, CompactArray, CompactString, Int16, Int32, Schema, TaggedFields

from aggregator.errors import AggregatorError, ConfigError, LogError, LogUnavailableError
from aggregator.interfaces import Observer
from aggregator.log.kafka.client import KafkaSettings, administration
from aggregator.model import entry_bytes_max
from aggregator.runtime import Runtime, retry
from hushsum.plan import Plan
from hushsum.schedule import Schedule
from hushsum_proto.batches import topic_of

#: What a message may need around its entries: its envelope, its signature, the record and the batch that carry it.
SPARE_BYTES: Final = 2048
MESSAGE_BYTES_MIN: Final = 2**20
_SEGMENT_BYTES_MIN: Final = 64 * 2**20
_DAY_MS: Final = 86_400_000
_MINUTE_MS: Final = 60_000
_FOR_EVER: Final = -1
_LONGEST_MS: Final = 2**63 - 1
_AHEAD_MS: Final = 2 * _DAY_MS  # skew_s is a day at the most, and brokers have clocks of their own
_SAFE_COPIES: Final = 3
_SAFE_IN_SYNC: Final = 2


@dataclass(frozen=True)
class RequiredSetting:
    """What one setting of a topic has to be.

    Attributes:
        value: As a new topic gets it.
        rule: Whether others will do: none, larger ones, smaller ones. -1 is the largest of all.
        why: Half a sentence.
    """

    value: str
    rule: Literal["equal", "least", "most"]
    why: str

    def allows(self, there: str) -> bool:
        """Whether a topic may hold this value."""
        if self.rule == "equal" or there in {self.value, ""}:
            return there == self.value
        if int(there) == _FOR_EVER:
            return self.rule == "least"
        return int(there) >= int(self.value) if self.rule == "least" else int(there) <= int(self.value)


@dataclass(frozen=True)
class TopicNeeds:
    """What a topic has to be.

    Attributes:
        name: Of the topic.
        partitions: At least so many; others are not used.
        settings: By Kafka's names of them.
        message_bytes: The largest message that anybody writes; every process that writes comes to the same.
        stamps: The windows whose starts every message is stamped with, each with that of its own; None: the brokers
            stamp it as it comes.
    """

    name: str
    partitions: int
    settings: Mapping[str, RequiredSetting]
    message_bytes: int = MESSAGE_BYTES_MIN
    stamps: Schedule | None = None


_CLOSED: Final = "forgotten bytes go when their segment is closed"
_ALWAYS: Final = {
    "cleanup.policy": RequiredSetting("delete", "equal", "compaction would drop entries"),
    "unclean.leader.election.enable": RequiredSetting(
        "false", "equal", "a broker that is behind would lose what is durable"
    ),
    "retention.bytes": RequiredSetting("-1", "equal", "entries would go for their size, before they are folded"),
    # Whoever may write could else stop a reader by a codec that it lacks, or fill its memory with a small message.
    "compression.type": RequiredSetting("uncompressed", "equal", "a message's size has to be what it takes"),
}


def entries_topic(settings: KafkaSettings, plan: Plan, partitions: int) -> TopicNeeds:
    """The topic of a plan's entries.

    Raises:
        ConfigError: The retention that is set is too short, or one is set where nothing may be deleted for its age.
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
            "max.message.bytes": RequiredSetting(str(largest), "least", "the plan's largest entry has to fit"),
            "segment.bytes": RequiredSetting(str(max(_SEGMENT_BYTES_MIN, 4 * largest)), "most", "as segment.ms"),
        },
        largest,
        plan.window if anonymous else None,
    )


def _stamped_by_brokers(settings: KafkaSettings, plan: Plan) -> dict[str, RequiredSetting]:
    """Messages have the time at which they came."""
    needed_ms = plan.window.length_ms + plan.window.lateness_ms + round(settings.recovery_s * 1000)
    chosen_ms = needed_ms if settings.retention_s is None else round(settings.retention_s * 1000)
    why = "window + lateness + kafka_recovery_s have to fit in it"
    if chosen_ms < needed_ms:
        raise ConfigError(f"kafka_retention_s: got {chosen_ms / 1000:g}, expected at least {needed_ms / 1000:g}: {why}")
    segment_ms = max(_MINUTE_MS, min(plan.window.length_ms, _DAY_MS))
    return {
        "message.timestamp.type": RequiredSetting("LogAppendTime", "equal", "the brokers' clock alone can be believed"),
        "retention.ms": RequiredSetting(str(chosen_ms), "least", why),
        "segment.ms": RequiredSetting(str(segment_ms), "most", _CLOSED),
    }


def _stamped_by_windows(settings: KafkaSettings, plan: Plan) -> dict[str, RequiredSetting]:
    """Messages have the start of their window, however late they come: until it is sealed, that may be at any time."""
    why = "what comes late has its window's start for a time, and would go for its age before it is folded"
    if settings.retention_s is not None:
        got = f"got {settings.retention_s:g}, expected none with a plan of reports"
        raise ConfigError(f"kafka_retention_s: {got}: {why}")
    # By the messages' own times: the first one of a window closes the segment that the window before began.
    segment_ms = max(_MINUTE_MS, min(plan.window.length_ms - 1, _DAY_MS))
    return {
        "message.timestamp.type": RequiredSetting(
            "CreateTime", "equal", "brokers would note when each anonymous report came"
        ),
        "message.timestamp.before.max.ms": RequiredSetting(
            str(_LONGEST_MS), "least", "what comes late would be refused"
        ),
        "message.timestamp.after.max.ms": RequiredSetting(str(_AHEAD_MS), "least", "windows open early, by skew_s"),
        "retention.ms": RequiredSetting(str(_FOR_EVER), "equal", why),
        "segment.ms": RequiredSetting(str(segment_ms), "most", _CLOSED),
    }


def receipts_topic(settings: KafkaSettings) -> TopicNeeds:
    """The topic of receipts, which are kept for ever."""
    kept = RequiredSetting("-1", "equal", "receipts are kept for ever")
    return TopicNeeds(f"{settings.prefix}.receipts", 1, {**_ALWAYS, "retention.ms": kept})


def mismatches(needs: TopicNeeds, partitions: int, there: Mapping[str, str]) -> list[str]:
    """What of a topic that exists is not as it has to be, a sentence each."""
    found = []
    if partitions < needs.partitions:
        found.append(f"it has {partitions} partitions, expected {needs.partitions}, as its plan began")
    for name, needed in needs.settings.items():
        if not needed.allows(there.get(name, "")):
            form = {"equal": "", "least": "at least ", "most": "at most "}[needed.rule]
            found.append(f"{name} is {there.get(name)}, expected {form}{needed.value}: {needed.why}")
    return found


def promises_lost(name: str, replication: int, in_sync: int) -> list[str]:
    """Which promises a topic of so few copies cannot keep, a sentence each; ``kafka_replication`` makes new ones so."""
    lost = []
    if replication < _SAFE_COPIES:
        lost.append(
            f"topic {name} has {replication} of {_SAFE_COPIES} copies: "
            "what is acknowledged or released may not survive the loss of a machine or a disk "
            "(kafka_replication says how many copies a new topic gets)"
        )
    if in_sync < _SAFE_IN_SYNC:
        lost.append(
            f"topic {name} has min.insync.replicas {in_sync} of {_SAFE_IN_SYNC}: "
            "what is acknowledged may stand on one machine alone, and not survive its loss or its loss of power"
        )
    return lost


class PreparedTopic(NamedTuple):
    """A topic that is there, and as it has to be.

    Attributes:
        warnings: The promises that it cannot keep and what else is odd, for the operator; a sentence each.
        topic_id: What the brokers call it; None where they are too old to.
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
    """Makes the topic where there is none, and checks it where there is; waits for brokers that are not there yet.

    Args:
        settings: How Kafka is reached.
        needs: What it has to be.
        runtime: Time.
        observer: Is told of what is tried again.
        gone: What is raised where there is none, although there was one before; None: it is made.

    Raises:
        ConfigError: It is not what it has to be: every setting that is not, with what it is and has to be.
        LogError: Kafka refuses us.
        AggregatorError: ``gone``.
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
            raise LogUnavailableError(f"kafka, topic {needs.name}: made, and not there yet")
    there = await _settings_of(admin, needs.name)
    if found := mismatches(needs, len(copies), there):
        raise ConfigError(f"topic {needs.name}: {'; '.join(found)}")
    warnings = promises_lost(needs.name, min(copies), int(there["min.insync.replicas"]))
    if len(copies) > needs.partitions:
        warnings.append(
            f"topic {needs.name} has {len(copies)} partitions: what stands beyond the first {needs.partitions}, "
            "as its plan began, is folded by nobody"
        )
    connections = admin._client  # noqa: SLF001  what the library gives access to hides the id
    return PreparedTopic(tuple(warnings), await topic_id(connections, connections.get_random_node(), needs.name))


async def _copies(admin: AIOKafkaAdminClient, name: str) -> list[int] | None:
    """How many copies each partition has; None where there is no such topic."""
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
    if for_code(code) is InvalidReplicationFactorError:  # a cluster that starts has fewer brokers than it will have
        raise InvalidReplicationFactorError(f"kafka_replication is {copies}, and {brokers} brokers are there")
    if for_code(code) is not TopicAlreadyExistsError:  # another process was faster: it is checked like any other
        _raise_refusal(needs.name, code, message)


async def _settings_of(admin: AIOKafkaAdminClient, name: str) -> dict[str, str]:
    (answer,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name)])
    code, message, _, _, entries = answer.resources[0]
    _raise_refusal(name, code, message)
    return {entry[0]: entry[1] for entry in entries}


def _raise_refusal(name: str, code: int, message: str | None) -> None:
    """Raises what a broker answered."""
    error = for_code(code)
    if code == 0:
        return
    if error.retriable or error.invalid_metadata:
        raise error(message or name)
    raise LogError(f"kafka, topic {name}: {error.__name__}: {message or 'refused'}")


_CONFIRM_S: Final = 1.0  # a topic is not deleted, made anew and filled in less
_SUSPECT_S: Final = 1.0  # an end that is lower for so long is no leader that has just begun
_ID_BYTES: Final = 16
_NAMELESS: Final = bytes(_ID_BYTES)
_NEITHER: Final = (False, False, False)  # make it, or tell who may do what


class TopicIdentity:
    """What this process knows of a topic; shared by all who read or append.

    Args:
        topic: Its name.
        topic_id: As of opening; None where the brokers give topics none.
        ends: By partition, the offset that followed the last message then.
        runtime: Time.
    """

    def __init__(self, topic: str, topic_id: bytes | None, ends: Mapping[int, int], runtime: Runtime) -> None:
        self._topic, self._id, self._runtime = topic, topic_id, runtime
        self._floors = dict(ends)
        self._suspect_s: dict[int, float] = {}
        self._confirmed_s = runtime.monotonic()
        self._why: str | None = None

    def check(self) -> None:
        """Raises what was found, for ever.

        Raises:
            LogError: The topic is another one.
        """
        if self._why is not None:
            raise LogError(self._why)

    def floors(self, partitions: Iterable[int]) -> list[int]:
        """The lowest offset that an append to each of these may get, if it begins now."""
        return [self._floors.get(partition, 0) for partition in partitions]

    def appended(self, partition: int, offset: int, floor: int) -> None:
        """Takes the offset of an append that began when ``floor`` was the lowest.

        Raises:
            LogError: It stands below.
        """
        if offset < floor:
            raise self._replaced(f"partition {partition} appended at {offset}, although it had reached {floor}")
        self._rise(partition, offset + 1)

    def ended(self, partition: int, end: int) -> None:
        """Takes the end that a leader tells.

        Raises:
            LogUnavailableError: It is lower than before; a leader that has just begun may not know better.
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
        """Has the brokers tell the topic's id, at most once a second.

        Args:
            ask: As :func:`topic_id`.

        Raises:
            LogError: It is another one, now or before.
            LogUnavailableError: As ``ask``.
        """
        self.check()
        began_s = self._runtime.monotonic()
        if self._id is not None and began_s - self._confirmed_s >= _CONFIRM_S:
            found = await ask()
            if found is not None and found != self._id:
                raise self._replaced("it was deleted, and made anew")
            self._confirmed_s = began_s
        self.check()

    def _rise(self, partition: int, offset: int) -> None:
        self._floors[partition] = max(offset, self._floors.get(partition, 0))

    def _replaced(self, what: str) -> LogError:
        text = f"kafka, topic {self._topic}: {what}: another topic, or an older copy; restore it, then start again"
        self._why = self._why or text
        return LogError(text)


async def topic_id(client: AIOKafkaClient, node: int | None, topic: str) -> bytes | None:
    """The id that brokers gave to a topic when it was made; None where they are too old to.

    Args:
        client: Is connected.
        node: The broker that is asked.
        topic: Its name.

    Raises:
        KafkaError: There is no such topic now, or the broker does not answer.
    """
    if node is None or node < 0:
        raise NodeNotReadyError(f"topic {topic} has no leader")
    try:
        response = await client.send(node, _TopicIdRequest(topic))
    except NotImplementedError:  # of the library, where no version is known to both sides
        return None
    ((code, _, found, *_),) = response.topics
    error = for_code(code)
    if error is not NoError:
        raise error(f"topic {topic}")
    return None if found == _NAMELESS else bytes(found)


class _Uuid:
    @classmethod
    def encode(cls, value: bytes) -> bytes:
        return value

    @classmethod
    def decode(cls, data: BytesIO) -> bytes:
        return data.read(_ID_BYTES)


# Metadata in the first version that tells ids; the library's own end at version 5.
class _Metadata(Response):  # type: ignore[misc]  # aiokafka ships no types
    API_KEY, API_VERSION = 3, 10
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "brokers",
            CompactArray(
                ("node_id", Int32),
                ("host", CompactString("utf-8")),
                ("port", Int32),
                ("rack", CompactString("utf-8")),
                ("tags", TaggedFields),
            ),
        ),
        ("cluster_id", CompactString("utf-8")),
        ("controller_id", Int32),
        (
            "topics",
            CompactArray(
                ("error_code", Int16),
                ("topic", CompactString("utf-8")),
                ("topic_id", _Uuid),
                ("is_internal", Boolean),
                (
                    "partitions",
                    CompactArray(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", CompactArray(Int32)),
                        ("isr", CompactArray(Int32)),
                        ("offline_replicas", CompactArray(Int32)),
                        ("tags", TaggedFields),
                    ),
                ),
                ("authorized_operations", Int32),
                ("tags", TaggedFields),
            ),
        ),
        ("cluster_authorized_operations", Int32),
        ("tags", TaggedFields),
    )


class _MetadataRequest(RequestStruct):  # type: ignore[misc]  # aiokafka ships no types
    API_KEY, API_VERSION = 3, 10
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = _Metadata
    SCHEMA = Schema(
        ("topics", CompactArray(("topic_id", _Uuid), ("topic", CompactString("utf-8")), ("tags", TaggedFields))),
        ("allow_auto_topic_creation", Boolean),
        ("include_cluster_authorized_operations", Boolean),
        ("include_topic_authorized_operations", Boolean),
        ("tags", TaggedFields),
    )


class _TopicIdRequest(Request[_MetadataRequest]):  # type: ignore[misc]  # aiokafka ships no types
    API_KEY = 3

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def build(self, request_struct_class: Any) -> Any:
        return request_struct_class([(_NAMELESS, self._topic, {})], *_NEITHER, {})
