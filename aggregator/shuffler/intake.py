"""Takes batches of reports from devices and answers once they are durable. No client name is passed on from here.

The sender's name only serves the rate limits (:mod:`aggregator.rate_limits`). Until the answer, the name is in memory,
so that the client gets its allowance back if the refusal is the shuffler's own doing.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NoReturn

from typing_extensions import override

from aggregator.api.calls import Call, Handler, Methods
from aggregator.errors import (
    FAILED,
    RefusedError,
    check_plan,
    overloaded,
    refused,
    shutting_down,
    unavailable,
    used_before,
)
from aggregator.ingest.group_commit import CommitLimits, GroupWriter
from aggregator.ingest.inflight import OnAnswer, ReceivedDelta, released
from aggregator.ingest.validation import checked_header, id_in, reserve_anonymous
from aggregator.logs import FailureLog, journal
from aggregator.model import Scope
from aggregator.observability.metrics import Metrics
from aggregator.rate_limits import (
    BATCH_COST_MIN,
    QuotaReservation,
    RateLimits,
    SendLimits,
)
from aggregator.release.catalog import NotFoundError
from aggregator.runtime import TRANSIENT, Runtime
from aggregator.shuffler.reports_file import (
    STREAM_BYTES,
    KeptPlan,
    PoolAnswer,
    ReportsFile,
    TakenBatch,
    is_over,
    status_after_close,
    taken_windows,
)
from hushsum.delta import DeltaId
from hushsum.errors import DeltaError, Reason
from hushsum.local.report_batch import unpack
from hushsum.plan import Plan
from hushsum_proto.answers import Answer, Refusal, Status
from hushsum_proto.v1 import wire_pb2 as pb

_UNCERTAIN: Final = "the reports file failed: the batch may or may not be durable"
_HEADER_BYTES_MIN: Final = 44  # of a batch, before its reports

_journal = journal("intake")


class PoolWriter(GroupWriter[TakenBatch, Answer]):
    """Commits groups of batches to the reports file; batches beyond ``limits`` are refused as overload."""

    def __init__(self, plan: Plan, file: ReportsFile, runtime: Runtime, metrics: Metrics, limits: CommitLimits) -> None:
        # A batch that is larger than all that may wait would never be taken.
        bytes_max = max(limits.pending_bytes_max, plan.upload_bytes_max)
        super().__init__(runtime, replace(limits, pending_bytes_max=bytes_max, group_bytes_max=bytes_max), "intake")
        self.file = file
        self._plan = plan
        self._metrics = metrics
        self._failures = FailureLog(_journal)

    def offer(self, taken: TakenBatch, on_answer: OnAnswer) -> None:
        """Takes a batch for the next group.

        Raises:
            RefusedError: Too much waits.
        """
        if not self.enqueue(taken, len(taken.data), on_answer):
            most, bytes_max = self._limits.pending_entries_max, self._limits.pending_bytes_max
            raise overloaded(f"at most {most} batches or {bytes_max} bytes may be pending")

    @override
    async def commit(self, group: Sequence[TakenBatch]) -> list[Answer]:
        began = self._runtime.monotonic()
        try:
            found = await self.file.take(group)
            # Before the next group: each commit alone would show which ids and which reports came together.
            await self.file.tidy()
        except Exception as error:  # noqa: BLE001  whatever the disk reports, every sender gets its answer
            self._metrics.commit_failed()
            passes = isinstance(error, TRANSIENT)
            self._failures.failed(self._runtime.monotonic(), "batches cannot be stored", error, passes=passes)
            return [unavailable(_id_of(taken), _UNCERTAIN) for taken in group]
        now_s = self._runtime.monotonic()
        self._failures.worked(now_s, "batches are stored again")
        self._metrics.committed(len(group), sum(len(taken.data) for taken in group), now_s - began)
        return [self._answer(taken, each) for taken, each in zip(group, found, strict=True)]

    def _answer(self, taken: TakenBatch, found: PoolAnswer | Reason) -> Answer:
        if isinstance(found, Reason):
            return refused(_id_of(taken), used_before(found, _id_of(taken)))
        if found.is_open:
            return Answer(_id_of(taken), Status.ACKNOWLEDGED)
        over = is_over(self._plan.window, taken.window, self._runtime.now_ms())
        return Answer(_id_of(taken), status_after_close(found.state, known=found.known, over=over))


class Intake:
    """Validates batches, charges rate limits for them, and answers once they are durable.

    ``rates`` limits the reports of each client, ``sends`` their bytes; a device's clock may run ``skew_ms`` ahead.
    """

    def __init__(
        self,
        plan: Plan,
        writer: PoolWriter,
        *,
        rates: RateLimits,
        runtime: Runtime,
        metrics: Metrics,
        skew_ms: int,
        sends: SendLimits | None = None,
    ) -> None:
        sizes = plan.report_sizes
        assert sizes is not None, "a plan of reports"
        self._plan = plan
        self._width = sizes.width
        self._writer = writer
        self._rates = rates
        self._sends = sends
        self._runtime = runtime
        self._metrics = metrics
        self._skew_ms = skew_ms
        self._stopping = False

    def start(self) -> None:
        self._writer.start()

    def stop_accepting(self) -> None:
        """Refuses every new batch from now on; those accepted before are still answered."""
        self._stopping = True

    async def finish(self) -> None:
        self._stopping = True
        await self._writer.stop()

    def check_running(self) -> None:
        if self._stopping:
            raise RefusedError(shutting_down())

    async def span(self) -> tuple[int, int]:
        """The oldest window that is not closed, and the newest that reports are taken for."""
        windows = self._windows(await self._writer.file.closed_through())
        return windows.start, max(windows.start, windows.stop - 1)

    async def submit(self, received: ReceivedDelta) -> Answer:
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def on_answer(given: Answer) -> None:
            if not answer.done():  # else the caller has gone away
                answer.set_result(given)

        self.send(received, on_answer)
        return await answer

    def send(self, received: ReceivedDelta, on_answer: OnAnswer) -> None:
        """Takes a batch; ``on_answer`` is called once. Only the rate limits store its sender.

        A signature is not looked at: no shuffler stands before a shuffler.
        """
        data = received.data
        reservation: QuotaReservation | None = None

        def answer(given: Answer) -> None:
            if reservation is not None:
                given = released(reservation, given)
            self._metrics.answered(given)
            on_answer(given)

        try:
            self._check(received.plan_id, data)
            reservation = self._reserve(received)
            batch = unpack(data, self._plan)
            stream = batch.id.stream.to_bytes(STREAM_BYTES, "big")
            self._writer.offer(TakenBatch(batch.window, stream, data, batch.reports), answer)
        except DeltaError as error:
            answer(refused(id_in(data), Refusal.of(error.reason, error.detail)))
        except RefusedError as error:
            answer(refused(id_in(data), error.refusal))
        except Exception as error:  # noqa: BLE001  every sender gets its answer
            _journal.error("report batch not accepted", exc_info=error)
            answer(unavailable(id_in(data), FAILED))

    def _check(self, plan_id: bytes, data: bytes) -> None:
        """Refuses what can be refused without work, at no cost for the sender; closed windows are left to the file."""
        self.check_running()
        window = checked_header(self._plan, plan_id, data).window
        newest = self._windows(None).stop - 1
        if window > newest:
            detail = f"window {window}, expected at most {newest} by this clock"
            raise RefusedError(Refusal.of(Reason.WINDOW_IN_FUTURE, detail))

    def _reserve(self, received: ReceivedDelta) -> QuotaReservation:
        """Charges the client's rates by the batch's size, before it is unpacked: a bad one takes as much time."""
        reports = max(BATCH_COST_MIN, (len(received.data) - _HEADER_BYTES_MIN) // self._width)
        return reserve_anonymous(received, reports, rates=self._rates, sends=self._sends, runtime=self._runtime)

    def _windows(self, closed_through: int | None) -> range:
        now_ms = self._runtime.now_ms()
        return taken_windows(self._plan.window, now_ms, skew_ms=self._skew_ms, closed_through=closed_through)


def _id_of(taken: TakenBatch) -> DeltaId:
    return DeltaId(int.from_bytes(taken.stream, "big"), 0)


class PlanService:
    """The service Catalogue of a shuffler, which has a plan and no releases."""

    def __init__(self, plan: Plan, kept: KeptPlan) -> None:
        self._plan = plan
        self._kept = kept

    def add_to(self, methods: Methods) -> Handler:
        read = (Scope.READ,)
        methods.unary("GetPlan", pb.GetPlanRequest, self.get_plan)
        methods.unary("ListReleases", pb.ListReleasesRequest, _no_releases, scopes=read)
        methods.replies("GetRelease", pb.GetReleaseRequest, _no_releases, scopes=read)
        methods.replies("WatchReleases", pb.ListReleasesRequest, _no_releases, scopes=read)
        return methods.handler(pb.DESCRIPTOR.services_by_name["Catalogue"].methods_by_name)

    async def get_plan(self, call: Call, request: pb.GetPlanRequest) -> pb.SignedPlan:
        """The plan with the signature that it came with; for every authenticated caller."""
        call.admit(*Scope)
        check_plan(request.plan_id, self._plan)
        kept = self._kept
        return pb.SignedPlan(plan=kept.bundle, key_id=kept.key_id, suite=kept.suite, signature=kept.signature)


def _no_releases(_call: Call, _request: object) -> NoReturn:
    raise NotFoundError("a shuffler has no releases: send the request to the aggregator")
