"""Copies of published releases in a Kafka topic: one message a window, the bytes of its ``.hush`` file.

Messages are in the order of the windows. A process that starts goes on after the last message, so that a window may be
in the topic twice only where two processes release at the same moment, or one ends between a write and its answer:
readers take the first message of a window.
"""

from typing import Final, Self

from aiokafka import TopicPartition

from aggregator.errors import LogError, LogUnavailableError
from aggregator.interfaces import Observer
from aggregator.log.kafka.client import KafkaSettings
from aggregator.log.kafka.log import OutgoingMessage, TopicWriter, offset_reader
from aggregator.log.kafka.topic import TopicNeeds, prepare_topic, releases_topic
from aggregator.release.copies import CopyError
from aggregator.runtime import Runtime
from hushsum.errors import ReleaseError
from hushsum.plan import Plan
from hushsum.releases import Release

_WAIT_MS: Final = 5000


class ReleasesTopic:
    """See :class:`aggregator.release.copies.Destination`. Made by :meth:`open`.

    Attributes:
        warnings: The promises that the topic cannot keep, for the operator; a sentence each.
    """

    def __init__(self, settings: KafkaSettings, needs: TopicNeeds, plan: Plan, runtime: Runtime) -> None:
        self._settings, self._topic, self._plan, self._runtime = settings, needs.name, plan, runtime
        self._writer = TopicWriter(settings, needs.name, needs.message_bytes, runtime)
        self.warnings: tuple[str, ...] = ()

    @classmethod
    async def open(cls, settings: KafkaSettings, plan: Plan, runtime: Runtime, observer: Observer) -> Self:
        """Creates or checks the topic; waits for brokers that are not up yet.

        Raises:
            ConfigError: The topic's settings break a promise.
            LogError: Kafka refuses this client.
        """
        needs = releases_topic(settings, plan)
        prepared = await prepare_topic(settings, needs, runtime, observer)
        topic = cls(settings, needs, plan, runtime)
        topic.warnings = prepared.warnings
        return topic

    @property
    def where(self) -> str:
        return f"topic {self._topic}"

    async def has(self, window: int, size: int) -> bool:  # noqa: ARG002  a message is whole
        try:
            last = await self._last_window()  # each time: another process may have written
        except (LogUnavailableError, LogError) as error:
            raise CopyError(str(error)) from error
        return last is not None and window <= last

    async def write(self, window: int, data: bytes) -> None:  # noqa: ARG002  the bytes say their window
        try:
            await self._writer.write([OutgoingMessage(0, data)])
        except (LogUnavailableError, LogError) as error:
            raise CopyError(str(error)) from error

    async def close(self) -> None:
        await self._writer.close()

    async def _last_window(self) -> int | None:
        where = TopicPartition(self._topic, 0)
        async with offset_reader(self._settings.client("releases"), "releases", self._runtime) as consumer:
            first: int = (await consumer.beginning_offsets([where]))[where]
            end: int = (await consumer.end_offsets([where]))[where]
            if first == end:
                return None
            consumer.assign([where])
            consumer.seek(where, end - 1)
            records = (await consumer.getmany(where, timeout_ms=_WAIT_MS)).get(where, ())
        if not records:
            raise LogUnavailableError(f"topic {self._topic}: its last message cannot be read now")
        try:
            last = Release.from_bytes(records[0].value or b"")
        except ReleaseError as error:
            raise LogError(f"topic {self._topic}: message {end - 1} is no release: {error}") from error
        if last.plan.id != self._plan.id:
            raise LogError(f"topic {self._topic}: message {end - 1} is of another plan")
        return last.window
