"""Cuts windows when their time has come, fixes what leaves of them, and sends it until the aggregator has answered.

Each step is durable before the next begins, so that a crash between any two repeats the second: the same bytes are sent
again, and the aggregator counts them once. What was never fixed and may have left is never sent
(:mod:`aggregator.shuffler.pool`).
"""

import asyncio
from collections.abc import Iterator
from typing import Final, Protocol

import grpc
from prometheus_client import CollectorRegistry, Counter, Gauge

from aggregator.errors import AggregatorError, ConfigError
from aggregator.logs import FailureLog, journal
from aggregator.runtime import Backoff, Runtime
from aggregator.shuffler.pool import (
    CutState,
    ForwardResult,
    KeptPlan,
    OutgoingBatch,
    ReportPool,
    ReportsFile,
    check_plan,
    cut_ms,
    is_over,
    newest_cut,
    result_for,
    sizes_of,
    split,
)
from hushsum.delta import DeltaId
from hushsum.entropy import Entropy
from hushsum.labels import SHUFFLED
from hushsum.local.batches import ReportBatch
from hushsum.plan import BUNDLE_BYTES_MAX, Plan
from hushsum.signatures import SigningKey
from hushsum_proto.answers import Answer
from hushsum_proto.convert import answer_from_wire, submission_to_wire
from hushsum_proto.credentials import Credentials
from hushsum_proto.errors import CredentialsError, MalformedMessageError
from hushsum_proto.messages import Authenticity
from hushsum_proto.metadata import CLIENT_ID, client_id_to_metadata
from hushsum_proto.v1 import wire_pb2 as pb
from hushsum_proto.v1 import wire_pb2_grpc as stubs

_CALL_S: Final = 60.0  # above what a gateway waits for a fold's word
_KEEPALIVE_MS: Final = 30_000
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", BUNDLE_BYTES_MAX + 2**10),  # the largest plan, and its envelope
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_retries", 0),  # the forwarder decides what is sent again, and when
    ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 5_000),
)


class UpstreamError(AggregatorError):
    """The aggregator has given no answer: what became of a batch is not known, and it is sent again."""


class Upstream:
    """The aggregator. It connects at the first call.

    Args:
        target: ``host:port`` of a gateway.
        key_id: The shuffler's name in the directory, under which it signs and calls; its token is of that name, too.
        credentials: Who is believed, and what proves who this is. A token's file is read for each call, those of
            certificates once a start.

    Raises:
        ConfigError: A file of the credentials cannot be used.
    """

    def __init__(self, target: str, key_id: str, credentials: Credentials | None = None) -> None:
        self._target = target
        self._key_id = key_id
        self._credentials = credentials or Credentials()
        try:
            self._credentials.metadata()
            self._channel = self._credentials.channel(target, _OPTIONS)
        except CredentialsError as error:
            raise ConfigError(f"upstream_{error}") from error

    async def fetch_plan(self) -> KeptPlan:
        """The plan that is collected there, with its signature.

        Raises:
            UpstreamError: No answer.
        """
        try:
            found = await stubs.CatalogueStub(self._channel).GetPlan(
                pb.GetPlanRequest(), metadata=self._metadata(), timeout=_CALL_S
            )
        except grpc.aio.AioRpcError as error:
            raise self._lost(error) from error
        return KeptPlan(found.plan, found.key_id, found.suite, found.signature)

    async def submit(self, plan_id: bytes, outgoing: OutgoingBatch) -> Answer:
        """What the aggregator says of a batch.

        Raises:
            UpstreamError: No answer.
        """
        request = submission_to_wire(plan_id, outgoing.batch, Authenticity(self._key_id, outgoing.tag))
        try:
            reply = await stubs.CollectionStub(self._channel).SubmitOne(
                request, metadata=self._metadata(), timeout=_CALL_S
            )
            return answer_from_wire(reply)
        except grpc.aio.AioRpcError as error:
            raise self._lost(error) from error
        except MalformedMessageError as error:
            raise UpstreamError(f"upstream {self._target}: {error}") from error

    async def close(self) -> None:
        """Ends the connection."""
        await self._channel.close()

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        try:
            return ((CLIENT_ID, client_id_to_metadata(self._key_id)), *self._credentials.metadata())
        except CredentialsError as error:
            raise UpstreamError(f"upstream_{error}") from error

    def _lost(self, error: grpc.aio.AioRpcError) -> UpstreamError:
        said = self._credentials.explained(self._target, error.details() or "")
        return UpstreamError(f"upstream {self._target}: {error.code().name}: {said}")


class ShufflerMetrics:
    """Counters of one shuffler.

    Args:
        registry: Where they stand.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._windows = Counter(
            "hushsum_shuffler_windows", "Windows that were cut, by what became of them", ["outcome"], registry=registry
        )
        self._waiting = Gauge(
            "hushsum_shuffler_batches_waiting", "Batches that the aggregator has not answered yet", registry=registry
        )
        # Each outcome is there from the start: an alert needs the 0 before the first one.
        for outcome in (CutState.FORWARDED, CutState.DROPPED, CutState.LOST):
            self._windows.labels(outcome.value)

    def came_to(self, outcome: CutState) -> None:
        """A window was forwarded, dropped or lost."""
        self._windows.labels(outcome.value).inc()

    def waiting(self, batches: int) -> None:
        """So many batches wait for an answer."""
        self._waiting.set(batches)


_LOOK_S_MAX: Final = 1.0  # a wall clock may be set; this is how late a cut may be by that
_STREAM_BYTES: Final = 8

_journal = journal("forwarder")


class Receiver(Protocol):
    """Where batches go."""

    async def submit(self, plan_id: bytes, outgoing: OutgoingBatch) -> Answer:
        """What is said of a batch.

        Raises:
            UpstreamError: Nothing.
        """


class Forwarder:
    """One shuffler's way out.

    Args:
        plan: What is collected; it has a shuffler.
        file: What waits.
        receiver: The aggregator.
        key: Signs what leaves.
        entropy: Decides which report stands in which batch, and under which number a batch goes.
        runtime: Time.
        counters: Counts windows.
    """

    def __init__(
        self,
        plan: Plan,
        file: ReportsFile,
        receiver: Receiver,
        *,
        key: SigningKey,
        entropy: Entropy,
        runtime: Runtime,
        counters: ShufflerMetrics,
    ) -> None:
        self._plan = plan
        self._least = check_plan(plan)
        self._file = file
        self._receiver = receiver
        self._key = key
        self._entropy = entropy
        self._runtime = runtime
        self._counters = counters
        self._more = asyncio.Event()
        self._trouble = FailureLog(_journal)

    async def run_cuts(self) -> None:
        """Cuts windows and erases what is over, until cancelled."""
        while True:
            await self.cut()
            await self.erase()
            next_ms = cut_ms(self._plan.window, newest_cut(self._plan.window, self._runtime.now_ms()) + 1)
            wait_s = (next_ms - self._runtime.now_ms()) / 1000
            await self._runtime.sleep(min(max(wait_s, 0.001), _LOOK_S_MAX))

    async def run_sends(self) -> None:
        """Sends what waits, again and again until it is answered, until cancelled."""
        backoff = Backoff()
        while True:
            self._more.clear()
            if not await self.send():
                await self._runtime.sleep(backoff.next_s())
                continue
            backoff.reset()
            await self._more.wait()

    async def cut(self) -> None:
        """Cuts every window whose time has come, and fixes the bytes of what leaves of it."""
        due = newest_cut(self._plan.window, self._runtime.now_ms())
        if not self._file.knows_departed:
            _journal.warning("the reports were put back without shuffler.left: no window leaves whose cut had come")
            await self._file.depart(due)
        through = due if self._file.departed is None else max(due, self._file.departed)
        closed = await self._file.closed_through()
        if closed is None or closed < through:
            await self._file.close_through(through)
        for window in await self._file.cut_pools():
            pool = await self._file.pool(window)
            if loss := self._loss(window):
                await self._file.drop(window)
                self._counters.came_to(CutState.LOST)
                _journal.error(f"reports are lost: {loss}", window=window)
            elif pool.size < self._least:
                await self._file.drop(window)
                self._counters.came_to(CutState.DROPPED)
                _journal.info("fewer reports than shuffle_min: none of them leaves", window=window)
            else:
                batches = await self._runtime.blocking(lambda pool=pool, window=window: [*self._batches(window, pool)])
                await self._file.fix(window, batches)
                _journal.info("cut", window=window, batches=len(batches))
        self._more.set()

    def _loss(self, window: int) -> str:
        """Why a window that is still a pool must not leave, whatever is in it; empty where it may.

        What has left of a window was fixed before, all at once, and so was every older one: one that is still a pool is
        of a file that was put back, and the difference of two pools tells of single devices.
        """
        if self._file.departed is not None and window <= self._file.departed:
            return "the file is from before a cut after which they have left already, or may have"
        if is_over(self._plan.window, window, self._runtime.now_ms()):
            return "the aggregator takes nothing for their window any more"  # to send them could only tell
        return ""

    def _batches(self, window: int, pool: ReportPool) -> Iterator[OutgoingBatch]:
        """The batches of a window: which report stands in which is uniformly random."""
        sizes = sizes_of(pool.size, self._least, self._plan.delta_records_max)
        for reports in split(pool, sizes, self._entropy):
            stream = self._entropy.read(_STREAM_BYTES)
            id = DeltaId(int.from_bytes(stream, "big"), 0)
            batch = ReportBatch(self._plan.id, window, id, reports).pack(self._plan)
            yield OutgoingBatch(window, stream, batch, self._key.sign(SHUFFLED, batch))

    async def send(self) -> bool:
        """Sends each batch that waits once; whether all have their answers."""
        waiting = await self._file.outgoing()
        if waiting:
            await self._file.depart(max(window for window, _ in waiting))
        left = len(waiting)
        for window, stream in waiting:
            self._counters.waiting(left)
            left -= await self._sent(window, stream)
        self._counters.waiting(left)
        return not left

    async def _sent(self, window: int, stream: bytes) -> bool:
        """Whether a batch has its answer."""
        outgoing, now_s = await self._file.batch(stream), self._runtime.monotonic()
        try:
            answer = await self._receiver.submit(self._plan.id, outgoing)
        except UpstreamError as error:
            self._trouble.failed(now_s, "the aggregator does not answer, sending again", error, passes=True)
            return False
        said = answer.status.value if answer.refusal is None else answer.refusal.detail
        result = result_for(answer, over=is_over(self._plan.window, window, self._runtime.now_ms()))
        if result is ForwardResult.AGAIN:
            self._trouble.failed(now_s, "the aggregator refuses a batch, sending again", AggregatorError(said))
            return False
        if result is ForwardResult.DELIVERED:
            self._trouble.worked(now_s, "the aggregator takes batches again")
        else:
            _journal.error("reports are lost: the aggregator did not take a batch", window=window, said=said)
        state = await self._file.answered(window, stream, lost=result is ForwardResult.LOST)
        if state is CutState.FORWARDED:
            self._counters.came_to(state)
            _journal.info("forwarded", window=window)
        return True

    async def erase(self) -> None:
        """Erases what is known of windows that are over."""
        now_ms = self._runtime.now_ms()
        for window, state in await self._file.finished():
            if is_over(self._plan.window, window, now_ms):
                if state is CutState.LOST:
                    self._counters.came_to(state)
                await self._file.erase(window)
