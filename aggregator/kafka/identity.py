"""Whether a topic is still the one that was opened: not one made anew under its name, and no older copy of it.

What is appended to another topic is folded by nobody, since the folds stand further on: it must not be acknowledged.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from io import BytesIO
from typing import Any, Final

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import NodeNotReadyError, NoError, for_code
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import Boolean, CompactArray, CompactString, Int16, Int32, Schema, TaggedFields

from aggregator.errors import LogError, LogUnavailableError
from aggregator.ports import Runtime

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
