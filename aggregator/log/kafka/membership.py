"""Group membership: a Kafka consumer group decides which partitions this process folds, and nothing else.

The members fetch nothing and commit nothing: they have no position (``auto_offset_reset`` is ``none`` and the group has
no offsets), and their partitions are paused. The log reads, from the position in the store.

The assignor is ``range``, which keeps no state. aiokafka's ``sticky`` keeps its state in a class that all members of a
process share, and would gain nothing: in this protocol every partition is revoked before each rebalance anyway.
"""

import asyncio
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.errors import InvalidSessionTimeoutError

from aggregator.errors import AggregatorError, LogUnavailableError
from aggregator.interfaces import Observer, PartitionOwner
from aggregator.log.kafka.client import KafkaSettings, translated_errors, via_reachable_broker
from aggregator.log.kafka.internals import end_client, has_lost_session, on_heartbeat
from aggregator.logs import journal
from aggregator.runtime import Backoff, Runtime
from hushsum.plan import Plan
from hushsum_proto.batches import topic_of

_WATCH_S: Final = 1.0
_REBALANCE_S: Final = 30.0  # how long others wait for a member that stores its folds
_REQUEST_S: Final = _REBALANCE_S + 10.0  # joining is one request that takes as long as a rebalance
_BEAT_S: Final = 3.0  # at most, so that a member of a long session learns of a rebalance in time
_NEVER_MS: Final = 10**12  # a member that reads nothing is not idle

_journal = journal("kafka")


class _Member(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka ships no types
    """One consumer's membership, from joining to the first error that it does not recover from.

    A callback of a consumer that was given up may still come when its successor holds partitions. So each consumer has
    a listener and a state of its own, and after :meth:`give_up` its callbacks change nothing.

    Attributes:
        held: The partitions that the group has assigned to it, and that the owner folds.
        heard_s: When the group answered it last.
    """

    def __init__(self, consumer: AIOKafkaConsumer, partitions: int, owner: PartitionOwner, runtime: Runtime) -> None:
        self.consumer = consumer
        self.held: frozenset[int] = frozenset()
        self._partitions, self._owner, self._runtime = partitions, owner, runtime
        self._turn = asyncio.Lock()  # one call of the owner at a time
        self._is_over = False
        self.heard()

    def heard(self) -> None:
        self.heard_s = self._runtime.monotonic()

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        """A rebalance has ended; this member had no partition before."""
        self.heard()
        self.consumer.pause(*assigned)
        async with self._turn:
            if self._is_over:
                return
            # A plan's number of partitions never changes, even if an operator adds some to its topic.
            self.held = frozenset(where.partition for where in assigned if where.partition < self._partitions)
            _journal.info("partitions assigned", partitions=sorted(self.held))
            await self._owner.assigned(self.held)

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        """A rebalance begins: no member gets a partition before this returns, unless the session has expired."""
        del revoked
        await self._let_go(lost=has_lost_session(self.consumer))

    async def give_up(self, *, lost: bool) -> None:
        """Lets the partitions go for good; ``lost``: the group may have assigned them to others already."""
        self._is_over = True
        await self._let_go(lost=lost)

    async def _let_go(self, *, lost: bool) -> None:
        async with self._turn:
            held, self.held = self.held, frozenset()
            if not held:
                return
            _journal.info("partitions lost" if lost else "partitions revoked", partitions=sorted(held))
            try:
                await (self._owner.lost(held) if lost else self._owner.revoked(held))
            except Exception as error:  # noqa: BLE001  the group goes on whatever the owner does; fences keep the store safe
                _journal.error("partition release failed", error=str(error), kind=type(error).__name__)


class KafkaMembership:
    """See :class:`aggregator.interfaces.Membership`."""

    def __init__(
        self, settings: KafkaSettings, plan: Plan, partitions: int, runtime: Runtime, observer: Observer
    ) -> None:
        self._settings, self._runtime, self._observer = settings, runtime, observer
        self._topic, self._partitions = topic_of(settings.prefix, plan.id), partitions
        self._stopping = False
        self._running: asyncio.Task[None] | None = None
        self._member: _Member | None = None  # the latest

    async def start(self, owner: PartitionOwner) -> None:
        """Joins in the background as soon as a broker answers."""
        self._running = self._runtime.spawn(self._run(owner), "membership")

    async def stop(self) -> None:
        self._stopping = True
        if self._member is not None:
            await self._member.give_up(lost=False)
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])
            if not self._running.cancelled():
                self._running.exception()  # ``ended`` raises it

    async def ended(self) -> None:
        """Returns once the membership has been stopped.

        Raises:
            Exception: Any unexpected error: nothing is folded here from then on.
        """
        if self._running is not None:
            await asyncio.wait([self._running])
            if not self._running.cancelled():
                self._running.result()

    async def _run(self, owner: PartitionOwner) -> None:
        backoff = Backoff()
        while True:
            try:
                arguments = await via_reachable_broker(self._settings.client("member"))
                if self._stopping:
                    return
                member = _Member(self._new_consumer(arguments), self._partitions, owner, self._runtime)
                self._member = member
                try:
                    await self._stay(member, backoff)
                finally:
                    # The group may give the partitions to others from here on.
                    await member.give_up(lost=True)
                    # Leaves the group, so that others need not wait for the session to expire.
                    await end_client(member.consumer, self._runtime)
            except AggregatorError as error:
                self._observer.retried("kafka-group", str(error))
                if not isinstance(error, LogUnavailableError):
                    _journal.error("not a member of the consumer group, retrying", why=_advice(error))
            await self._runtime.sleep(backoff.next_s())

    def _new_consumer(self, arguments: dict[str, Any]) -> AIOKafkaConsumer:
        session_ms = round(1000 * self._settings.session_s)
        return AIOKafkaConsumer(
            **{**arguments, "request_timeout_ms": round(1000 * _REQUEST_S)},
            group_id=self._topic,
            partition_assignment_strategy=[RangePartitionAssignor],
            enable_auto_commit=False,
            auto_offset_reset="none",
            session_timeout_ms=session_ms,
            heartbeat_interval_ms=min(round(1000 * _BEAT_S), session_ms // 3),
            rebalance_timeout_ms=round(1000 * _REBALANCE_S),
            max_poll_interval_ms=_NEVER_MS,
            consumer_timeout_ms=5000,  # how often it checks for partitions to fetch
        )

    async def _stay(self, member: _Member, backoff: Backoff) -> None:
        """Joins and stays; ends only with an error.

        Raises:
            LogUnavailableError: No broker answers, or the session has expired.
            LogError: The group refuses this member.
        """
        session_s, consumer = self._settings.session_s, member.consumer
        with translated_errors("group"):
            await consumer.start()
            on_heartbeat(consumer, member.heard)
            consumer.subscribe([self._topic], listener=member)
            nothing = TopicPartition(self._topic, -1)
            while True:
                await consumer.getmany(nothing, timeout_ms=0)  # raises the errors of its background tasks
                if member.held and self._runtime.monotonic() - member.heard_s > session_s:
                    # The group may have given the partitions to others: it measures the same time.
                    raise LogUnavailableError(f"kafka: no heartbeat was answered for {session_s:g} s")
                if member.held:
                    backoff.reset()
                await self._runtime.sleep(min(_WATCH_S, session_s / 3))


def _advice(error: AggregatorError) -> str:
    if isinstance(error.__cause__, InvalidSessionTimeoutError):
        return f"{error}: kafka_session_s is outside group.min.session.timeout.ms and group.max.session.timeout.ms"
    return str(error)
