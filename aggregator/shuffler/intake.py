"""Takes batches of reports from devices, and answers once they are durable: one group at a time, no name beyond here.

Who sends is asked for one thing, how much it may send (:mod:`aggregator.rate_limits`). Until the answer, memory
alone knows to whom that is given back where the refusal is the shuffler's own.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeVar

from aggregator.api.calls import Call, Handler, Methods
from aggregator.errors import (
    RefusedError,
    check_plan,
    common_version,
    overloaded,
    refused,
    shutting_down,
    unavailable,
    used_before,
    wrong_plan,
)
from aggregator.ingest.validation import id_in
from aggregator.logs import FailureLog, journal
from aggregator.model import Scope
from aggregator.observability.metrics import Metrics
from aggregator.rate_limits import BATCH_COST_MIN, QuotaReservation, RateLimits, SendLimits, anonymous
from aggregator.release.catalog import NotFoundError
from aggregator.runtime import TRANSIENT, Runtime
from aggregator.shuffler.pool import ClosedWindowAnswer, KeptPlan, ReportsFile, TakenBatch, is_over, taken_windows, word
from hushsum.delta import DeltaId, read_header
from hushsum.errors import DeltaError, Reason
from hushsum.local.batches import unpack
from hushsum.plan import Plan
from hushsum_proto.answers import Answer, Refusal, Status
from hushsum_proto.messages import Authenticity, Hello, Welcome
from hushsum_proto.v1 import wire_pb2 as pb

_FATE_OPEN: Final = "the file of reports failed: whether it is durable is not known"
_STREAM_BYTES: Final = 8
_HEADER_BYTES_MIN: Final = 44  # of a batch: what is before its reports

_journal = journal("intake")
Told = Callable[[Answer], None]


class IntakeLimits(NamedTuple):
    """How much may wait, and how much goes into one group."""

    pending_entries_max: int
    pending_bytes_max: int
    group_entries_max: int
    skew_ms: int


class _Pending(NamedTuple):
    taken: TakenBatch
    tell: Told


class Intake:
    """One shuffler's way in.

    Args:
        plan: What is collected.
        file: Where it is kept.
        rates: How many reports each client may send,
        sends: and how many bytes; None: any.
        runtime: Tasks and clocks.
        metrics: Counts every answer.
        limits: Beyond them batches are refused as overload.
    """

    def __init__(
        self,
        plan: Plan,
        file: ReportsFile,
        *,
        rates: RateLimits,
        runtime: Runtime,
        metrics: Metrics,
        limits: IntakeLimits,
        sends: SendLimits | None = None,
    ) -> None:
        sizes = plan.report_sizes
        assert sizes is not None, "a plan of reports"
        self._plan = plan
        self._width = sizes.width
        self._file = file
        self._rates = rates
        self._sends = sends
        self._runtime = runtime
        self._metrics = metrics
        self._limits = limits
        self._pending: list[_Pending] = []
        self._entries = self._bytes = 0  # waiting, or in the group that is under way
        self._wake = asyncio.Event()
        self._stopping = False
        self._writer: asyncio.Task[None] | None = None
        self._trouble = FailureLog(_journal)

    def start(self) -> None:
        """Starts the writer."""
        self._writer = self._runtime.spawn(self._run(), "intake")

    def stop_accepting(self) -> None:
        """From here on every new batch is refused; what was accepted is still answered."""
        self._stopping = True

    async def finish(self) -> None:
        """Commits and answers what was accepted, and ends."""
        self._stopping = True
        self._wake.set()
        if self._writer is not None:
            await self._writer

    def check_running(self) -> None:
        """Refuses new work once this process is stopping.

        Raises:
            RefusedError: It is.
        """
        if self._stopping:
            raise RefusedError(shutting_down())

    async def submit(self, client_id: str, plan_id: bytes, data: bytes, shuffled: Authenticity | None = None) -> Answer:
        """The answer to one batch."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def tell(told: Answer) -> None:
            if not answer.done():  # else the caller has gone away
                answer.set_result(told)

        self.send(client_id, plan_id, data, tell, shuffled)
        return await answer

    def send(
        self,
        client_id: str,
        plan_id: bytes,
        data: bytes,
        tell: Told,
        shuffled: Authenticity | None = None,  # noqa: ARG002  a gateway's form; nobody shuffles before a shuffler
    ) -> None:
        """Takes one of many.

        Args:
            client_id: From the authenticator; nothing keeps it but the rate limits.
            plan_id: As the envelope names it.
            data: The packed batch.
            tell: Called once with the answer; it must not raise.
            shuffled: Not looked at.
        """
        tell = partial(self._tell, tell)
        try:
            self._check(plan_id, data)
            sender = self._paid(client_id, data)
        except DeltaError as error:
            tell(refused(id_in(data), Refusal.of(error.reason, error.detail)))
            return
        except RefusedError as error:
            tell(refused(id_in(data), error.refusal))
            return
        self._take(data, sender, tell)

    def _take(self, data: bytes, sender: QuotaReservation, tell: Told) -> None:
        """Takes a batch that is paid for."""

        def answer(told: Answer) -> None:
            sender.answered(told)
            tell(told)

        try:
            taken = self._taken(data)
        except DeltaError as error:
            answer(refused(id_in(data), Refusal.of(error.reason, error.detail)))
            return
        if not self._offer(taken, answer):
            answer(refused(id_in(data), self._overloaded().refusal))

    def _check(self, plan_id: bytes, data: bytes) -> None:
        """Refuses what costs nothing to be looked at, and costs its sender nothing."""
        self.check_running()
        most = self._plan.upload_bytes_max
        if len(data) > most:
            raise DeltaError(Reason.TOO_LARGE, f"{len(data)} bytes, expected at most {most}")
        header = read_header(data)
        for named in (plan_id, header.plan_id):
            if named != self._plan.id:
                raise RefusedError(wrong_plan(named, self._plan))
        self._check_window(header.window)

    def _paid(self, client_id: str, data: bytes) -> QuotaReservation:
        """Nobody, once it is paid for: before it is unpacked, which takes a time whether it is good or not."""
        cost = max(BATCH_COST_MIN, (len(data) - _HEADER_BYTES_MIN) // self._width)
        return anonymous(client_id, len(data), cost, rates=self._rates, sends=self._sends, runtime=self._runtime)

    def _taken(self, data: bytes) -> TakenBatch:
        """What is kept of a batch."""
        batch = unpack(data, self._plan)
        return TakenBatch(batch.window, batch.id.stream.to_bytes(_STREAM_BYTES, "big"), data, batch.reports)

    def _check_window(self, window: int) -> None:
        """Refuses what is ahead of the clock; what is behind it has a word of its own, which the file gives."""
        windows = taken_windows(
            self._plan.window, self._runtime.now_ms(), skew_ms=self._limits.skew_ms, closed_through=None
        )
        if window >= windows.stop:
            detail = f"window {window}, expected at most {windows.stop - 1} by this clock"
            raise RefusedError(Refusal.of(Reason.WINDOW_IN_FUTURE, detail))

    def _offer(self, taken: TakenBatch, tell: Told) -> bool:
        """Whether there was room for it."""
        limits = self._limits
        too_many = self._entries >= limits.pending_entries_max
        if too_many or self._bytes + len(taken.data) > max(limits.pending_bytes_max, self._plan.upload_bytes_max):
            return False
        self._pending.append(_Pending(taken, tell))
        self._entries += 1
        self._bytes += len(taken.data)
        self._wake.set()
        return True

    def _overloaded(self) -> RefusedError:
        limits = self._limits
        return overloaded(f"at most {limits.pending_entries_max} batches or {limits.pending_bytes_max} bytes may wait")

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            while self._pending:
                most = self._limits.group_entries_max
                group, self._pending = self._pending[:most], self._pending[most:]
                await self._commit(group)
            if self._stopping:
                return
            self._wake.clear()

    async def _commit(self, group: Sequence[_Pending]) -> None:
        answers = await self._answers([pending.taken for pending in group])
        self._entries -= len(group)
        self._bytes -= sum(len(pending.taken.data) for pending in group)
        for pending, answer in zip(group, answers, strict=True):
            pending.tell(answer)

    async def _answers(self, group: Sequence[TakenBatch]) -> list[Answer]:
        """What is said of each; never an exception."""
        began = self._runtime.monotonic()
        try:
            cuts = await self._file.take(group)
            # Before the next group is taken: each commit alone would tell which ids and which reports came together.
            await self._file.tidy()
        except Exception as error:  # noqa: BLE001  whatever the disk says, every sender gets its answer
            self._metrics.commit_failed()
            passes = isinstance(error, TRANSIENT)
            self._trouble.failed(self._runtime.monotonic(), "batches cannot be kept", error, passes=passes)
            return [unavailable(_id_of(taken), _FATE_OPEN) for taken in group]
        now_s = self._runtime.monotonic()
        self._trouble.worked(now_s, "batches are kept again")
        self._metrics.committed(len(group), sum(len(taken.data) for taken in group), now_s - began)
        return [self._answer(taken, cut) for taken, cut in zip(group, cuts, strict=True)]

    def _answer(self, taken: TakenBatch, cut: ClosedWindowAnswer | Reason) -> Answer:
        if isinstance(cut, Reason):
            return refused(_id_of(taken), used_before(cut, _id_of(taken)))
        if cut.is_open:
            return Answer(_id_of(taken), Status.ACKNOWLEDGED)
        over = is_over(self._plan.window, taken.window, self._runtime.now_ms())
        return Answer(_id_of(taken), word(cut.state, known=cut.known, over=over))

    def _tell(self, tell: Told, answer: Answer) -> None:
        self._metrics.answered(answer)
        tell(answer)


def _id_of(taken: TakenBatch) -> DeltaId:
    return DeltaId(int.from_bytes(taken.stream, "big"), 0)


class ShufflerHandshake:
    """Opens sessions of one plan.

    Args:
        plan: What is collected.
        file: Knows which windows were cut.
        runtime: The clock.
        skew_ms: How far ahead of it a device's may be.
        in_flight_max: Unanswered batches that a session may have.
    """

    def __init__(self, plan: Plan, file: ReportsFile, *, runtime: Runtime, skew_ms: int, in_flight_max: int) -> None:
        self.in_flight_max = in_flight_max
        self._plan = plan
        self._file = file
        self._runtime = runtime
        self._skew_ms = skew_ms

    async def welcome(self, hello: Hello) -> Welcome:
        """Opens a session; the oldest window is the oldest that is not cut.

        Raises:
            RefusedError: No protocol version in common, or another plan.
        """
        version = common_version(hello.protocol_versions)
        check_plan(hello.plan_id, self._plan)
        now_ms, schedule = self._runtime.now_ms(), self._plan.window
        closed = await self._file.closed_through()
        windows = taken_windows(schedule, now_ms, skew_ms=self._skew_ms, closed_through=closed)
        return Welcome(
            protocol_version=version,
            plan_id=self._plan.id,
            window=schedule.index_at(now_ms),
            now_ms=now_ms,
            oldest_window=windows.start,
            newest_window=max(windows.start, windows.stop - 1),
            in_flight_max=self.in_flight_max,
            delta_bytes_max=self._plan.upload_bytes_max,
        )


T = TypeVar("T")

_ELSEWHERE: Final = "this is a shuffler, which holds no release: ask the aggregator that publishes them"


class PlanService:
    """The service Catalogue, of which a shuffler has the plan alone."""

    def __init__(self, plan: Plan, kept: KeptPlan) -> None:
        self._plan = plan
        self._kept = kept

    def add_to(self, methods: Methods) -> Handler:
        """The handlers of every method."""
        methods.unary("GetPlan", pb.GetPlanRequest, self.get_plan)
        methods.unary("ListReleases", pb.ListReleasesRequest, self.list_releases)
        methods.replies("GetRelease", pb.GetReleaseRequest, self.get_release)
        methods.replies("WatchReleases", pb.ListReleasesRequest, self.watch_releases)
        return methods.handler(pb.DESCRIPTOR.services_by_name["Catalogue"].methods_by_name)

    async def get_plan(self, call: Call, request: pb.GetPlanRequest) -> pb.SignedPlan:
        """The plan, with the signature that it came with; for whoever may do anything here."""
        call.admit(*Scope)
        check_plan(request.plan_id, self._plan)
        kept = self._kept
        return pb.SignedPlan(plan=kept.bundle, key_id=kept.key_id, suite=kept.suite, signature=kept.signature)

    async def list_releases(self, call: Call, _request: pb.ListReleasesRequest) -> pb.ListReleasesReply:
        """Refused."""
        call.admit(Scope.READ)
        raise NotFoundError(_ELSEWHERE)

    async def get_release(self, call: Call, _request: pb.GetReleaseRequest) -> AsyncIterator[pb.ReleaseChunk]:
        """Refused."""
        call.admit(Scope.READ)
        for chunk in _refused(pb.ReleaseChunk):
            yield chunk

    async def watch_releases(self, call: Call, _request: pb.ListReleasesRequest) -> AsyncIterator[pb.ReleaseInfo]:
        """Refused."""
        call.admit(Scope.READ)
        for info in _refused(pb.ReleaseInfo):
            yield info


def _refused(_: type[T]) -> tuple[T, ...]:
    raise NotFoundError(_ELSEWHERE)
