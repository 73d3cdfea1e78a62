"""Straight into the log: for a trusted service whose key the operator's directory names as a producer.

It hashes the records of clients that it vouches for, and gets no answers: what a gateway would say at once, the fold
decides later, and counts in its metrics. A device uses :class:`edge_client.EdgeClient` instead.

What waits for a partition is batched and bounded, with one message of a partition under way at a time. Its order
matters: a fold takes an id that comes 64 or more behind its stream's highest for one that it has seen before.
"""

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from edge_client.errors import ClientStateError, EdgeError, SettingsError, UnreachableError
from edge_client.runtime import BackOff, Runtime, SystemRuntime
from hushsum.delta import read_header
from hushsum.entropy import OsEntropy
from hushsum.errors import DeltaError, Reason
from hushsum.plan import Plan
from hushsum.privacy.guarantee import CENTRAL, LOCAL, SECURE
from hushsum.signing import SigningKey
from hushsum_proto.batches import BATCH_ENTRIES_MAX, signed_batch, topic_of
from hushsum_proto.client_ids import CLIENT_ID_FORM, flaw_of
from hushsum_proto.convert import entry_to_bytes
from hushsum_proto.convert_batches import batch_to_bytes
from hushsum_proto.entries import DeltaEntry, partition_of

if TYPE_CHECKING:
    from aiokafka import AIOKafkaProducer

_BACK_OFF_S: Final = (0.05, 5.0)
_BATCH_BYTES_MAX: Final = 1 << 19


class NotStoredError(Exception):
    """Whether a message is stored is not known, or it is not; sending it again may help."""


@dataclass(frozen=True)
class OutboxSettings:
    """How entries are gathered into messages, and how many may wait; none of it changes what is counted.

    Attributes:
        linger_s: How long the first entry of a message waits for others, where none is under way.
        batch_bytes: Of the entries of one message, 1 to 524,288; a larger entry goes alone.
        waiting_bytes_max: Of all entries that are not stored yet: who submits more waits.
        timeout_s: How long one message is tried.

    Raises:
        SettingsError: A number is out of its range.
    """

    linger_s: float = 0.005
    batch_bytes: int = 1 << 18
    waiting_bytes_max: int = 1 << 24
    timeout_s: float = 120.0

    def __post_init__(self) -> None:
        # Every topic of the service takes messages of 1 MiB, whatever its plan.
        if not 1 <= self.batch_bytes <= _BATCH_BYTES_MAX:
            raise SettingsError(f"batch_bytes: got {self.batch_bytes}, expected 1 to {_BATCH_BYTES_MAX}")
        for name, value in (("linger_s", self.linger_s), ("timeout_s", self.timeout_s)):
            if not 0 <= value < math.inf:
                raise SettingsError(f"{name}: got {value}, expected 0 or more seconds")
        if self.waiting_bytes_max < 1:
            raise SettingsError(f"waiting_bytes_max: got {self.waiting_bytes_max}, expected 1 or more")


class _Ticket:
    """One call's entries: its future is done once each is stored, or one is not."""

    def __init__(self, entries: int) -> None:
        self.left = entries
        self.stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def end_one(self, error: EdgeError | None) -> None:
        self.left -= 1
        if self.stored.done():
            return  # failed already, or cancelled
        if error is not None:
            self.stored.set_exception(error)
        elif not self.left:
            self.stored.set_result(None)

    def close(self) -> None:
        """Cancels the future, or retrieves its error so that asyncio does not report it as never retrieved."""
        if not self.stored.cancel() and not self.stored.cancelled():
            self.stored.exception()


class _Waiting(NamedTuple):
    entry: bytes
    ticket: _Ticket


class Outbox:
    """The queues of all partitions.

    ``send`` stores one message of (partition, entries) durably, or raises :class:`NotStoredError`; any other
    :class:`EdgeError` is final.
    """

    def __init__(
        self, send: Callable[[int, Sequence[bytes]], Awaitable[None]], runtime: Runtime, settings: OutboxSettings
    ) -> None:
        self._send = send
        self._runtime = runtime
        self._settings = settings
        self._queues: dict[int, deque[_Waiting]] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._turn = asyncio.Lock()  # first come, first served
        self._freed = asyncio.Event()
        self._bytes = 0
        self._dropped = False

    async def store(self, entries: Sequence[tuple[int, bytes]]) -> None:
        """Takes entries, each for its partition, in the order of the calls; returns once all of them are stored.

        Raises:
            EdgeError: One is not known to be; what becomes of the others is open.
        """
        ticket = _Ticket(len(entries))
        try:
            async with self._turn:
                for partition, entry in entries:
                    await self._take(partition, entry, ticket)
            if entries:
                await ticket.stored
        finally:
            ticket.close()

    async def flush(self) -> None:
        """Returns once all queues are empty."""
        while self._tasks:
            await asyncio.wait([*self._tasks.values()])

    async def drop(self) -> None:
        """Stops at once; what is not stored yet ends with an error."""
        self._dropped = True
        tasks = [*self._tasks.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for partition in self._queues:
            self._fail(partition, _dropped())

    async def _take(self, partition: int, entry: bytes, ticket: _Ticket) -> None:
        while self._bytes and self._bytes + len(entry) > self._settings.waiting_bytes_max:
            self._freed.clear()
            await self._freed.wait()
        if ticket.stored.done():
            return  # one has failed: what comes after it must not be stored first
        if self._dropped:
            raise _dropped()
        self._bytes += len(entry)
        self._queues.setdefault(partition, deque()).append(_Waiting(entry, ticket))
        if partition not in self._tasks:
            self._tasks[partition] = self._runtime.spawn(self._drain(partition), f"produce-{partition}")

    async def _drain(self, partition: int) -> None:
        queue = self._queues[partition]
        try:
            await self._runtime.sleep(self._settings.linger_s)
            while queue:
                await self._deliver(partition, self._next_entries(queue))
        except EdgeError as error:
            # Later entries fail, too: were they stored first, what failed would come out of order when sent again.
            self._fail(partition, error)
        except Exception as error:  # noqa: BLE001  whatever it is, the waiting calls raise it
            self._fail(partition, UnreachableError(f"partition {partition}: {type(error).__name__}: {error}"))
        finally:
            del self._tasks[partition]

    async def _deliver(self, partition: int, entries: Sequence[bytes]) -> None:
        """Stores the head of the queue, and takes it out."""
        began_s, back_off = self._runtime.monotonic(), BackOff(*_BACK_OFF_S, OsEntropy())
        while True:
            try:
                await self._send(partition, entries)
                break
            except NotStoredError as error:
                if self._runtime.monotonic() - began_s >= self._settings.timeout_s:
                    tried = f"not known to be stored after {self._settings.timeout_s:g} s ({error})"
                    advice = "send the same deltas again: each counts once"
                    raise UnreachableError(f"partition {partition}: {tried}; {advice}") from error
                await self._runtime.sleep(back_off.next_s())
        for _ in entries:
            self._end(self._queues[partition].popleft(), None)

    def _next_entries(self, queue: deque[_Waiting]) -> list[bytes]:
        taken: list[bytes] = []
        size = 0
        for waiting in queue:
            size += len(waiting.entry)
            if taken and (size > self._settings.batch_bytes or len(taken) == BATCH_ENTRIES_MAX):
                break
            taken.append(waiting.entry)
        return taken

    def _fail(self, partition: int, error: EdgeError) -> None:
        queue = self._queues[partition]
        while queue:
            self._end(queue.popleft(), error)

    def _end(self, waiting: _Waiting, error: EdgeError | None) -> None:
        self._bytes -= len(waiting.entry)
        self._freed.set()
        waiting.ticket.end_one(error)


def _dropped() -> UnreachableError:
    return UnreachableError("the producer was closed before the delta was stored")


_REQUEST_TIMEOUT_MS: Final = 10_000
_WHY: Final = {
    SECURE: "the counters of a single client do not leave the device",
    LOCAL: "a gateway must charge its windows and remove the sender's id from reports",
}
_ENVELOPE_BYTES: Final = 1 << 16  # of a message around its entries, generously


@dataclass(frozen=True)
class KafkaSecurity:
    """How to reach the brokers.

    Attributes:
        protocol: ``PLAINTEXT``, ``SSL``, ``SASL_PLAINTEXT`` or ``SASL_SSL``.
        ca_file: Trusted CA certificates, in PEM; None: those of the system.
        cert_file: This producer's own certificate, where brokers ask for one,
        key_file: and its private key.
        mechanism: ``PLAIN``, ``SCRAM-SHA-256`` or ``SCRAM-SHA-512``.
        user: With SASL,
        password: as this one.
    """

    protocol: str = "PLAINTEXT"
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    mechanism: str = "PLAIN"
    user: str | None = None
    password: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class ProducerConfig:
    """Where the log is, and how to send.

    Attributes:
        prefix: Of the topic's name, as the service has it.
        security: How to reach the brokers.
        outbox: How entries are gathered, and how many may wait.
    """

    prefix: str = "hushsum"
    security: KafkaSecurity = field(default_factory=KafkaSecurity)
    outbox: OutboxSettings = field(default_factory=OutboxSettings)


class DirectProducer:
    """Writes signed deltas into the log of one plan. It starts with ``async with``.

    Args:
        bootstrap: ``host:port`` of some brokers, separated by commas.
        plan: What is collected.
        key_id: The name of the key in the directory, where its role is ``producer``.
        key: Its private half.
        partitions: P, where it is known; the topic must have as many. None: as many as the topic has.
        config: Where the log is, and how to send.
        runtime: Time and tasks; None: the system's.

    Raises:
        DeltaError: The plan's mode is not ``central`` (WRONG_MODE): its log may hold neither counters of one client nor
            the name of the sender of a report; and a gateway charges what a device submits in local mode first.
    """

    def __init__(
        self,
        bootstrap: str,
        plan: Plan,
        key_id: str,
        key: SigningKey,
        *,
        partitions: int | None = None,
        config: ProducerConfig | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        if plan.privacy.mode != CENTRAL:
            raise DeltaError(
                Reason.WRONG_MODE,
                f"a plan of mode {plan.privacy.mode!r}, expected {CENTRAL!r}: {_WHY.get(plan.privacy.mode, '')}",
            )
        self._bootstrap = bootstrap
        self._plan = plan
        self._key_id = key_id
        self._key = key
        self._config = config or ProducerConfig()
        self._runtime = runtime or SystemRuntime()
        self._expected_partitions = partitions
        self._partitions = 0
        self._topic = topic_of(self._config.prefix, plan.id)
        self._producer: AIOKafkaProducer | None = None
        self._outbox: Outbox | None = None

    async def __aenter__(self) -> Self:
        """Connects, and checks the topic.

        Raises:
            SettingsError: aiokafka is not installed, the topic does not exist, or it has another P.
            UnreachableError: No broker answers.
        """
        if self._producer is not None:
            raise ClientStateError("this producer was already started: create another one")
        self._producer = self._made()
        try:
            await self._connect(self._producer)
        except BaseException:
            await self._producer.stop()
            raise
        self._outbox = Outbox(self._store, self._runtime, self._config.outbox)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Waits until all that was submitted is stored; after an error, drops what is not."""
        outbox, self._outbox = self._outbox, None
        assert outbox is not None
        assert self._producer is not None
        try:
            if error is None:
                await outbox.flush()
        finally:
            await outbox.drop()
            await self._producer.stop()

    @property
    def partitions(self) -> int:
        """P, once started."""
        return self._partitions

    async def submit(self, client_id: str, delta: bytes) -> None:
        """Returns once the brokers have stored a packed delta (``acks=all``).

        **That is no acknowledgement.** It is durable, and will be folded. Whether it counts, the fold decides from what
        stands in the log: it is late where its window's seal came first, refused where its window is too far from the
        brokers' clock, where the client's bound is reached, or where the directory does not know the key. This producer
        is not told: such deltas are in the service's metrics, by reason. Submit early in a window's lateness.

        The same delta can be submitted again, after any error and any number of times: an id counts once. Ids of one
        stream go in order, and an id is never given up before later ones of its stream are submitted: one that comes
        64 or more behind them does not count.

        Args:
            client_id: Whose records these are: 1 to 128 printable characters in NFC, as a gateway would have
                authenticated them; this producer vouches for it.
            delta: As :meth:`hushsum.delta.Delta.pack` gives it.

        Raises:
            DeltaError: It is no delta of this plan; nothing was sent.
            SettingsError: That is no client id; nothing was sent.
            UnreachableError: It is not known to be stored.
        """
        await self.submit_many([(client_id, delta)])

    async def submit_many(self, deltas: Iterable[tuple[str, bytes]]) -> None:
        """As :meth:`submit`, for several (client id, packed delta) at once: in their order within each client.

        All are checked before the first is sent. After an error any of them may be stored: submit them all again.
        """
        if self._outbox is None:
            raise ClientStateError("a producer is used inside `async with`")
        await self._outbox.store([self._entry(client_id, delta) for client_id, delta in deltas])

    def _entry(self, client_id: str, delta: bytes) -> tuple[int, bytes]:
        flaw = flaw_of(client_id)
        if flaw is not None:
            raise SettingsError(f"expected {CLIENT_ID_FORM}, got {flaw}")
        if len(delta) > self._plan.delta_bytes_max:
            raise DeltaError(Reason.TOO_LARGE, f"{len(delta)} bytes, expected at most {self._plan.delta_bytes_max}")
        came = read_header(delta).plan_id
        if came != self._plan.id:
            raise DeltaError(Reason.WRONG_PLAN, f"plan {came.hex()[:12]}, expected {self._plan.hex_id[:12]}")
        # When it arrived, the brokers say: the fold takes their clock for this one.
        entry = DeltaEntry(client_id, delta, self._runtime.now_ms())
        return partition_of(client_id, self._partitions), entry_to_bytes(entry)

    async def _store(self, partition: int, entries: Sequence[bytes]) -> None:
        from aiokafka.errors import KafkaError, KafkaTimeoutError, ProducerClosed

        assert self._producer is not None
        batch = signed_batch(entries, plan_id=self._plan.id, partition=partition, key_id=self._key_id, key=self._key)
        try:
            await self._producer.send_and_wait(self._topic, batch_to_bytes(batch), partition=partition)
        except KafkaError as error:
            if error.retriable or isinstance(error, KafkaTimeoutError | ProducerClosed):
                raise NotStoredError(_text(error)) from error
            raise UnreachableError(f"{self._topic}: rejected by the brokers: {_text(error)}") from error

    def _made(self) -> "AIOKafkaProducer":
        try:
            from aiokafka import AIOKafkaProducer
        except ModuleNotFoundError as error:
            raise SettingsError("direct production needs aiokafka: pip install 'hushsum[server]'") from error
        message_max = max(self._config.outbox.batch_bytes, self._plan.delta_bytes_max) + _ENVELOPE_BYTES
        return AIOKafkaProducer(
            bootstrap_servers=self._bootstrap,
            client_id=f"hushsum-producer-{self._key_id}",
            acks="all",
            # Ids count once and one message of a partition is under way at a time: there is nothing for Kafka's own
            # idempotence to add, and it would tie this producer to a state that brokers forget.
            enable_idempotence=False,
            max_batch_size=message_max,
            max_request_size=message_max,
            request_timeout_ms=_REQUEST_TIMEOUT_MS,
            **_security_options(self._config.security),
        )

    async def _connect(self, producer: "AIOKafkaProducer") -> None:
        from aiokafka.errors import KafkaError

        try:
            await producer.start()
            # All topics are asked for: a question for one by name may make it, with default settings.
            found = (await producer.client.fetch_all_metadata()).partitions_for_topic(self._topic)
        except KafkaError as error:
            raise UnreachableError(f"{self._bootstrap}: {_text(error)}") from error
        if not found:
            raise SettingsError(
                f"topic {self._topic} does not exist: the service creates it when it starts with this plan"
            )
        if self._expected_partitions not in {None, len(found)}:
            raise SettingsError(f"topic {self._topic}: {len(found)} partitions, expected {self._expected_partitions}")
        self._partitions = len(found)


def _security_options(security: KafkaSecurity) -> dict[str, Any]:
    from aiokafka.helpers import create_ssl_context

    options: dict[str, Any] = {"security_protocol": security.protocol}
    if security.protocol.endswith("SSL"):
        options["ssl_context"] = create_ssl_context(
            cafile=security.ca_file, certfile=security.cert_file, keyfile=security.key_file
        )
    if security.protocol.startswith("SASL"):
        options["sasl_mechanism"] = security.mechanism
        options["sasl_plain_username"] = security.user
        options["sasl_plain_password"] = security.password
    return options


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__
