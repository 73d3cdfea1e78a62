"""Closes windows on time, fixes the bytes of their batches, and sends these until the aggregator has answered.

Each step is durable before the next begins, so a crash between two steps repeats the second: the same bytes are sent
again, and the aggregator counts them once. A pool whose bytes were not fixed is not sent if it may have been sent
before (:mod:`aggregator.shuffler.reports_file`).
"""

import asyncio
from collections.abc import Iterator
from typing import Final

import grpc
from prometheus_client import CollectorRegistry, Counter, Gauge

from aggregator.errors import AggregatorError, ConfigError
from aggregator.logs import FailureLog, journal
from aggregator.runtime import Backoff, Runtime
from aggregator.shuffler.reports_file import (
    STREAM_BYTES,
    ClosedState,
    ForwardResult,
    KeptPlan,
    OutgoingBatch,
    ReportPool,
    ReportsFile,
    check_plan,
    close_ms,
    is_over,
    newest_due,
    result_for,
    sizes_of,
    split,
)
from hushsum.delta import DeltaId
from hushsum.entropy import Entropy
from hushsum.labels import SHUFFLED
from hushsum.local.report_batch import ReportBatch
from hushsum.plan import BUNDLE_BYTES_MAX, Plan
from hushsum.signing import SigningKey
from hushsum_proto.answers import Answer
from hushsum_proto.convert import answer_from_wire, submission_to_wire
from hushsum_proto.credentials import Credentials
from hushsum_proto.errors import CredentialsError, MalformedMessageError
from hushsum_proto.messages import Authenticity
from hushsum_proto.metadata import CLIENT_ID, client_id_to_metadata
from hushsum_proto.v1 import wire_pb2 as pb
from hushsum_proto.v1 import wire_pb2_grpc as stubs

_CALL_S: Final = 60.0  # longer than a gateway waits for a fold's verdict
_KEEPALIVE_MS: Final = 30_000
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", BUNDLE_BYTES_MAX + 2**10),  # the largest plan, and its envelope
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_retries", 0),  # the forwarder decides on retries
    ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 5_000),
)


class UpstreamError(AggregatorError):
    """The aggregator gave no answer: whether it has the batch is unknown, and the batch is sent again."""


class Upstream:
    """A client of the aggregator at ``host:port``. It connects at the first call.

    ``key_id`` is the shuffler's name in the directory, under which it signs and calls; its token has this name, too.
    The token file is read for each call, certificate files once at the start.

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
        """The plan that the aggregator collects, with its signature; UpstreamError if there is no answer."""
        try:
            found = await stubs.CatalogueStub(self._channel).GetPlan(
                pb.GetPlanRequest(), metadata=self._metadata(), timeout=_CALL_S
            )
        except grpc.aio.AioRpcError as error:
            raise self._lost(error) from error
        return KeptPlan(found.plan, found.key_id, found.suite, found.signature)

    async def submit(self, plan_id: bytes, outgoing: OutgoingBatch) -> Answer:
        """Sends a batch; returns the aggregator's answer, or raises UpstreamError if there is none."""
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
        await self._channel.close()

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        try:
            return ((CLIENT_ID, client_id_to_metadata(self._key_id)), *self._credentials.metadata())
        except CredentialsError as error:
            raise UpstreamError(f"upstream_{error}") from error

    def _lost(self, error: grpc.aio.AioRpcError) -> UpstreamError:
        details = self._credentials.explained(self._target, error.details() or "")
        return UpstreamError(f"upstream {self._target}: {error.code().name}: {details}")


class ShufflerMetrics:
    """Metrics of one shuffler."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._windows = Counter(
            "hushsum_shuffler_windows", "Windows closed by the shuffler, by result", ["outcome"], registry=registry
        )
        self._waiting = Gauge(
            "hushsum_shuffler_batches_waiting", "Batches not yet answered by the aggregator", registry=registry
        )
        # Every outcome is exported from the start: an alert needs the 0 before the first one.
        for outcome in (ClosedState.FORWARDED, ClosedState.DROPPED, ClosedState.LOST):
            self._windows.labels(outcome.value)

    def finished(self, outcome: ClosedState) -> None:
        self._windows.labels(outcome.value).inc()

    def waiting(self, batches: int) -> None:
        self._waiting.set(batches)


_SLEEP_S_MAX: Final = 1.0  # the wall clock may be set: a window is closed at most this late then

_journal = journal("forwarder")


class Forwarder:
    """Closes windows, signs and forwards their reports; ``entropy`` assigns reports to batches and draws batch ids."""

    def __init__(
        self,
        plan: Plan,
        file: ReportsFile,
        upstream: Upstream,
        *,
        key: SigningKey,
        entropy: Entropy,
        runtime: Runtime,
        metrics: ShufflerMetrics,
    ) -> None:
        self._plan = plan
        self._least = check_plan(plan)
        self._file = file
        self._upstream = upstream
        self._key = key
        self._entropy = entropy
        self._runtime = runtime
        self._metrics = metrics
        self._more = asyncio.Event()
        self._failures = FailureLog(_journal)

    async def run_closing(self) -> None:
        """Closes windows and erases those that are over, until cancelled."""
        schedule = self._plan.window
        while True:
            await self.close_windows()
            await self.erase()
            now_ms = self._runtime.now_ms()
            wait_s = (close_ms(schedule, newest_due(schedule, now_ms) + 1) - now_ms) / 1000
            await self._runtime.sleep(min(max(wait_s, 0.001), _SLEEP_S_MAX))

    async def run_sending(self) -> None:
        """Sends the waiting batches until each has its answer, until cancelled."""
        backoff = Backoff()
        while True:
            self._more.clear()
            if not await self.send():
                await self._runtime.sleep(backoff.next_s())
                continue
            backoff.reset()
            await self._more.wait()

    async def close_windows(self) -> None:
        """Closes every window that is due, and fixes the bytes of its batches."""
        due = newest_due(self._plan.window, self._runtime.now_ms())
        if not self._file.sent.known:
            _journal.warning("reports restored without shuffler.left: windows already due are not sent")
            await self._file.mark_sent(due)
        through = due if self._file.sent.through is None else max(due, self._file.sent.through)
        closed = await self._file.closed_through()
        if closed is None or closed < through:
            await self._file.close_through(through)
        for window in await self._file.closed_pools():
            pool = await self._file.pool(window)
            if loss := self._loss(window):
                await self._file.drop(window)
                self._metrics.finished(ClosedState.LOST)
                _journal.error(f"reports are lost: {loss}", window=window)
            elif pool.size < self._least:
                await self._file.drop(window)
                self._metrics.finished(ClosedState.DROPPED)
                _journal.info("fewer reports than shuffle_min: window discarded", window=window)
            else:
                batches = await self._runtime.blocking(lambda pool=pool, window=window: [*self._batches(window, pool)])
                await self._file.fix(window, batches)
                _journal.info("closed", window=window, batches=len(batches))
        self._more.set()

    def _loss(self, window: int) -> str:
        """Why a window that is still a pool must not be sent; empty if it may be.

        All batches of a window are fixed at once before any is sent, and older windows before newer ones. So a pool of
        a window up to the sent mark comes from a restored file, and the difference of two pools reveals single devices.
        """
        if self._file.sent.through is not None and window <= self._file.sent.through:
            return "the file is older than a closed window, so they may already have been sent"
        if is_over(self._plan.window, window, self._runtime.now_ms()):
            return "the aggregator no longer accepts their window"  # sending could only disclose them
        return ""

    def _batches(self, window: int, pool: ReportPool) -> Iterator[OutgoingBatch]:
        """Assigns the reports of a window to signed batches, uniformly at random."""
        sizes = sizes_of(pool.size, self._least, self._plan.delta_records_max)
        for reports in split(pool, sizes, self._entropy):
            stream = self._entropy.read(STREAM_BYTES)
            id = DeltaId(int.from_bytes(stream, "big"), 0)
            batch = ReportBatch(self._plan.id, window, id, reports).pack(self._plan)
            yield OutgoingBatch(window, stream, batch, self._key.sign(SHUFFLED, batch))

    async def send(self) -> bool:
        """Sends each waiting batch once; returns whether all have their answers."""
        waiting = await self._file.outgoing()
        if waiting:
            await self._file.mark_sent(max(window for window, _ in waiting))
        left = len(waiting)
        for window, stream in waiting:
            self._metrics.waiting(left)
            left -= await self._sent(window, stream)
        self._metrics.waiting(left)
        return not left

    async def _sent(self, window: int, stream: bytes) -> bool:
        outgoing, now_s = await self._file.batch(stream), self._runtime.monotonic()
        try:
            answer = await self._upstream.submit(self._plan.id, outgoing)
        except UpstreamError as error:
            self._failures.failed(now_s, "aggregator does not respond, retrying", error, passes=True)
            return False
        detail = answer.status.value if answer.refusal is None else answer.refusal.detail
        result = result_for(answer, over=is_over(self._plan.window, window, self._runtime.now_ms()))
        if result is ForwardResult.AGAIN:
            self._failures.failed(now_s, "aggregator rejected a batch, retrying", AggregatorError(detail))
            return False
        if result is ForwardResult.DELIVERED:
            self._failures.worked(now_s, "aggregator accepts batches again")
        else:
            _journal.error("reports lost: aggregator rejected a batch", window=window, said=detail)
        state = await self._file.answered(window, stream, lost=result is ForwardResult.LOST)
        if state is ClosedState.FORWARDED:
            self._metrics.finished(state)
            _journal.info("forwarded", window=window)
        return True

    async def erase(self) -> None:
        """Erases the data of windows that are over."""
        now_ms = self._runtime.now_ms()
        for window, state in await self._file.finished():
            if is_over(self._plan.window, window, now_ms):
                if state is ClosedState.LOST:
                    self._metrics.finished(state)
                await self._file.erase(window)
