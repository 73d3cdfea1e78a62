"""Which partitions this process folds, as a consumer group of Kafka decides: it decides that, and nothing else.

The members fetch nothing and commit nothing: they have no position (``auto_offset_reset`` is ``none`` and the group has
no offsets), and their partitions are paused all the same. What is read, and
from where on, is the log's and the store's.

The assignor is ``range``: it keeps no state. aiokafka's ``sticky`` keeps its own in a class that all members of a
process share, and would gain nothing: in this protocol every partition is revoked before each rebalance anyway.
"""

import asyncio
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.errors import InvalidSessionTimeoutError

from aggregator.errors import AggregatorError, LogUnavailableError
from aggregator.interfaces import Observer, PartitionOwner
from aggregator.log.kafka.client import KafkaSettings, answering, end_client, quieten, told_as_ours
from aggregator.logs import journal
from aggregator.runtime import Backoff, Runtime
from hushsum.plan import Plan
from hushsum_proto.batches import topic_of

_WATCH_S: Final = 1.0
_REBALANCE_S: Final = 30.0  # how long the others wait for a member that stores its folds
_REQUEST_S: Final = _REBALANCE_S + 10.0  # joining is one request, as long as that
_BEAT_S: Final = 3.0  # a longer session is no reason to hear later of a rebalance
_NEVER_MS: Final = 10**12  # a member that reads nothing is not idle

_journal = journal("kafka")


class KafkaMembership:
    """See :class:`aggregator.interfaces.Membership`.

    Args:
        settings: How Kafka is reached; how long a member may be silent.
        plan: Whose partitions.
        partitions: P.
        runtime: Time and tasks.
        observer: Is told of what is tried again.
    """

    def __init__(
        self, settings: KafkaSettings, plan: Plan, partitions: int, runtime: Runtime, observer: Observer
    ) -> None:
        self._settings, self._runtime, self._observer = settings, runtime, observer
        self._topic, self._partitions = topic_of(settings.prefix, plan.id), partitions
        self._owner: PartitionOwner | None = None
        self._held: frozenset[int] = frozenset()
        self._turn = asyncio.Lock()  # the owner is told one thing at a time
        self._stopping = False
        self._running: asyncio.Task[None] | None = None
        self._member: _Member | None = None

    async def start(self, owner: PartitionOwner) -> None:
        """Joins in the background, as soon as a broker answers."""
        self._owner = owner
        self._running = self._runtime.spawn(self._run(), "membership")

    async def stop(self) -> None:
        """Revokes what is held, and leaves."""
        self._stopping = True
        await self.let_go(lost=False)
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])
            if not self._running.cancelled():
                self._running.exception()  # who asks is told by ``ended``

    async def ended(self) -> None:
        """Returns once the membership has been stopped.

        Raises:
            Exception: As soon as it has met what nobody foresaw: nothing is folded here any longer.
        """
        if self._running is not None:
            await asyncio.wait([self._running])
            if not self._running.cancelled():
                self._running.result()

    @property
    def holds(self) -> bool:
        """Whether any partition is this process's now."""
        return bool(self._held)

    async def take(self, partitions: frozenset[int]) -> None:
        """The group has given these to this process; it had none before."""
        async with self._turn:
            if self._stopping or self._owner is None:
                return
            # A plan's number of partitions never changes, whatever somebody does to its topic.
            self._held = frozenset(partition for partition in partitions if partition < self._partitions)
            _journal.info("partitions are ours", partitions=sorted(self._held))
            await self._owner.assigned(self._held)

    async def let_go(self, *, lost: bool) -> None:
        """The group takes back what this process holds, or has given it away already."""
        async with self._turn:
            held, self._held = self._held, frozenset()
            if not held or self._owner is None:
                return
            _journal.info("partitions are lost" if lost else "partitions go", partitions=sorted(held))
            try:
                await (self._owner.lost(held) if lost else self._owner.revoked(held))
            except Exception as error:  # noqa: BLE001  the group goes on whatever the owner does: fences keep it safe
                _journal.error("letting partitions go failed", error=str(error), kind=type(error).__name__)

    async def _run(self) -> None:
        backoff = Backoff()
        while not self._stopping:
            try:
                arguments = await answering(self._settings.client("member"))
                self._member = _Member(self, self._settings, arguments, self._topic, self._runtime)
                await self._belong(self._member, backoff)
            except AggregatorError as error:
                self._observer.retried("kafka-group", str(error))
                if not isinstance(error, LogUnavailableError):
                    _journal.error("not in the group, trying again", why=_advice(error))
            await self._runtime.sleep(backoff.next_s())

    async def _belong(self, member: "_Member", backoff: Backoff) -> None:
        try:
            await member.run(backoff)
        finally:
            # Nobody keeps them for this process from here on.
            await self.let_go(lost=True)
            await member.close()


class _Member(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka ships no types
    """One membership, from joining to the first error that the library does not get over by itself."""

    def __init__(
        self,
        membership: KafkaMembership,
        settings: KafkaSettings,
        arguments: dict[str, Any],
        topic: str,
        runtime: Runtime,
    ) -> None:
        quieten()
        self._membership, self._runtime, self._topic = membership, runtime, topic
        self._session_s = settings.session_s
        self._heard_s = runtime.monotonic()
        session_ms = round(1000 * settings.session_s)
        self._consumer = AIOKafkaConsumer(
            **{**arguments, "request_timeout_ms": round(1000 * _REQUEST_S)},
            group_id=topic,
            partition_assignment_strategy=[RangePartitionAssignor],
            enable_auto_commit=False,
            auto_offset_reset="none",
            session_timeout_ms=session_ms,
            heartbeat_interval_ms=min(round(1000 * _BEAT_S), session_ms // 3),
            rebalance_timeout_ms=round(1000 * _REBALANCE_S),
            max_poll_interval_ms=_NEVER_MS,
            consumer_timeout_ms=5000,  # how often it looks for something to fetch
        )

    async def run(self, backoff: Backoff) -> None:
        """Joins and stays; returns only by an error.

        Raises:
            LogUnavailableError: No broker answers, or the session has expired.
            LogError: The group refuses us.
        """
        with told_as_ours("group"):
            await self._consumer.start()
            self._listen_to_heartbeats()
            self._consumer.subscribe([self._topic], listener=self)
            nothing = TopicPartition(self._topic, -1)
            while True:
                await self._consumer.getmany(nothing, timeout_ms=0)  # raises what its background tasks have met
                if self._membership.holds and self._silent_s() > self._session_s:
                    # Brokers may have given our partitions away: they measure the same time.
                    raise LogUnavailableError(f"kafka, group: no heartbeat was answered for {self._session_s:g} s")
                if self._membership.holds:
                    backoff.reset()
                await self._runtime.sleep(min(_WATCH_S, self._session_s / 3))

    async def close(self) -> None:
        """Leaves the group, so that others need not wait for the end of the session."""
        await end_client(self._consumer, self._runtime)

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        """A rebalance has come to its end."""
        self._heard_s = self._runtime.monotonic()
        self._consumer.pause(*assigned)
        await self._membership.take(frozenset(where.partition for where in assigned))

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        """A rebalance begins: nobody gets a partition before this returns, unless our session has expired."""
        del revoked
        await self._membership.let_go(lost=self._coordinator.member_id == "")

    @property
    def _coordinator(self) -> Any:
        # Nothing public tells that a session was lost, or when a heartbeat was answered last.
        return self._consumer._coordinator  # noqa: SLF001  no other way

    def _silent_s(self) -> float:
        return self._runtime.monotonic() - self._heard_s

    def _listen_to_heartbeats(self) -> None:
        coordinator = self._coordinator
        beat = coordinator._do_heartbeat  # noqa: SLF001  no other way, as above

        async def heard() -> bool:
            answered: bool = await beat()
            if answered:
                self._heard_s = self._runtime.monotonic()
            return answered

        coordinator._do_heartbeat = heard  # noqa: SLF001  no other way, as above


def _advice(error: AggregatorError) -> str:
    if isinstance(error.__cause__, InvalidSessionTimeoutError):
        return f"{error}: kafka_session_s is outside group.min.session.timeout.ms and group.max.session.timeout.ms"
    return str(error)
