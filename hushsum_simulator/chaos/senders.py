"""Clients of the bare wire, what each was told, and what a release says of it.

A sender sends again, to whichever gateway, until every delta has a definitive answer. The journal then says which
deltas are lost, and which count twice.
"""

import asyncio
import random
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import grpc
import grpc.aio
import numpy as np
import numpy.typing as npt

from hushsum.delta import DeltaId, encode
from hushsum.plan import Plan
from hushsum_proto import convert, metadata
from hushsum_proto.answers import Answer, Status
from hushsum_proto.v1 import wire_pb2 as pb
from hushsum_proto.v1 import wire_pb2_grpc as stubs

Counters = npt.NDArray[np.int64]
#: Whoever is told this may rely on the delta being in the release, once.
KEPT: Final = frozenset({Status.ACKNOWLEDGED, Status.COUNTED})
#: Whoever is told this may rely on the delta being in no release.
DROPPED: Final = frozenset({Status.LATE, Status.REFUSED})


@dataclass(eq=False)
class SentRecord:
    """One delta of one record.

    Attributes:
        client_id: Whose.
        data: Its packed bytes.
        cells: The counters that it adds 1 to; where others are is as good as random, so it is known by them.
        status: The first definitive answer; None: none yet.
    """

    client_id: str
    id: DeltaId
    data: bytes
    cells: npt.NDArray[np.int64]
    status: Status | None = None


@dataclass(frozen=True)
class Verdict:
    """What a release says of the deltas of its window.

    Attributes:
        acknowledged: Deltas whose sender was told that they count.
        lost: Acknowledged, and not in the release.
        doubled: More than once in it; or once, although the sender was told that it is not.
        unexplained: Whether the release is no sum of what was sent at all.
    """

    acknowledged: int
    lost: int
    doubled: int
    unexplained: bool


class SenderJournal:
    """All deltas that were sent for one window."""

    def __init__(self, plan: Plan, window: int) -> None:
        self._plan = plan
        self.window = window
        self.sent: list[SentRecord] = []
        self.contradicted = 0

    @property
    def unanswered(self) -> int:
        """Deltas whose sender was told nothing definitive yet."""
        return sum(sent.status is None for sent in self.sent)

    def count(self, *statuses: Status) -> int:
        """Deltas with one of these answers."""
        return sum(sent.status in statuses for sent in self.sent)

    def answered(self, sent: SentRecord, status: Status) -> None:
        """Notes an answer; one that takes back an earlier one is a fault of its own."""
        if sent.status is None:
            sent.status = status
        elif {sent.status, status} & KEPT and {sent.status, status} & DROPPED:
            self.contradicted += 1

    def judge(self, counters: Counters, counts: Counters) -> Verdict:
        """Compares with the release of the window, whose noise has rounded away."""
        kept = [sent for sent in self.sent if sent.status in KEPT]
        open_ends = any(sent.status is Status.UNKNOWN for sent in self.sent)
        scale = self._plan.privacy.mechanism.count_scale
        if (
            not open_ends
            and int(counts.sum()) == len(kept) * scale
            and np.array_equal(self._sum(kept), counters.ravel())
        ):
            return Verdict(len(kept), 0, 0, unexplained=False)
        return self._decompose(counters.ravel(), len(kept))

    def _sum(self, deltas: Iterable[SentRecord]) -> Counters:
        total = np.zeros(np.prod(self._plan.counters_shape), np.int64)
        for sent in deltas:
            total[sent.cells] += 1
        return total

    def _decompose(self, counters: Counters, acknowledged: int) -> Verdict:
        """How often each delta is in a sum: the least squares of a sparse system whose columns are all but random."""
        from scipy.sparse import csc_array
        from scipy.sparse.linalg import lsqr

        rows = np.concatenate([sent.cells for sent in self.sent])
        columns = np.repeat(np.arange(len(self.sent)), [len(sent.cells) for sent in self.sent])
        matrix = csc_array((np.ones(len(rows)), (rows, columns)), shape=(len(counters), len(self.sent)))
        times = np.rint(lsqr(matrix, counters.astype(np.float64), atol=1e-12, btol=1e-12, iter_lim=5000)[0])
        lost = doubled = 0
        for sent, found in zip(self.sent, times.astype(int).tolist(), strict=True):
            most = 0 if sent.status in DROPPED else 1
            lost += sent.status in KEPT and found < 1
            doubled += max(0, found - most)
        return Verdict(acknowledged, lost, doubled, unexplained=not np.array_equal(matrix @ times, counters))


_AHEAD_MAX: Final = 60  # of the lowest unanswered number; the protocol allows 63
_PATIENCE_S: Final = 2.0  # without any answer, then another gateway is asked
_PAUSE_S: Final = 0.1
_OPTIONS: Final = (("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1))


class Sender:
    """One client with one stream.

    Args:
        plan: What is collected.
        number: Names it, and its stream.
        gateways: ``host:port`` each.
        rate: Deltas a second.
        seed: Of its records, and of its choices.
    """

    def __init__(self, plan: Plan, number: int, gateways: Sequence[str], rate: float, seed: int) -> None:
        self._plan, self._gateways, self._interval_s = plan, list(gateways), 1.0 / rate
        self._client_id, self._stream = f"client-{number}", 1000 + number
        self._values = np.random.default_rng([seed, number])
        self._choice = random.Random(f"{seed}/{number}")
        self._waiting: dict[DeltaId, tuple[SenderJournal, SentRecord]] = {}
        self._answered: dict[DeltaId, tuple[SenderJournal, SentRecord]] = {}
        self._next = 0
        self._heard_s = 0.0
        self.resent = 0
        self.journal: SenderJournal | None = None  # the window that is contributed to now, if any

    @property
    def idle(self) -> bool:
        """Whether everything has its answer."""
        return not self._waiting

    async def run(self) -> None:
        """Sends until cancelled."""
        while True:
            if self.journal is None and self.idle:
                await asyncio.sleep(_PAUSE_S)
                continue
            with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.UsageError):
                await self._session(self._choice.choice(self._gateways))
            await asyncio.sleep(_PAUSE_S * self._choice.random())

    async def _session(self, gateway: str) -> None:
        async with grpc.aio.insecure_channel(gateway, options=_OPTIONS) as channel:
            call = stubs.CollectionStub(channel).Submit(metadata=((metadata.CLIENT_ID, self._client_id),))
            reading = asyncio.create_task(self._read(call))
            self._heard_s = time.monotonic()
            try:
                for _, sent in list(self._waiting.values()):
                    self.resent += 1
                    await self._write(call, sent)
                while not reading.done() and not (self.journal is None and self.idle):
                    if self._waiting and time.monotonic() - self._heard_s > _PATIENCE_S:
                        return
                    if self.journal is not None and self._may_send():
                        await self._write(call, self._make(self.journal))
                    await asyncio.sleep(self._interval_s)
            except TimeoutError:
                return
            finally:
                call.cancel()
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)

    async def _write(
        self, call: "grpc.aio.StreamStreamCall[pb.SubmitRequest, pb.SubmitReply]", sent: SentRecord
    ) -> None:
        await asyncio.wait_for(call.write(convert.submission_to_wire(self._plan.id, sent.data)), _PATIENCE_S)

    async def _read(self, call: "grpc.aio.StreamStreamCall[pb.SubmitRequest, pb.SubmitReply]") -> None:
        while isinstance(reply := await call.read(), pb.SubmitReply):
            answer = convert.answer_from_wire(reply)
            if answer.refusal is not None and answer.refusal.retry:
                await asyncio.sleep(min(answer.refusal.retry_after_ms / 1000, _PATIENCE_S))
                return  # and begins anew, with all that has no answer
            self._heard_s = time.monotonic()
            self._hear(answer)

    def _hear(self, answer: Answer) -> None:
        assert answer.id is not None, "every delta was well-formed"
        known = self._waiting.pop(answer.id, None) or self._answered.get(answer.id)
        assert known is not None, "an answer to what was never sent"
        journal, sent = known
        journal.answered(sent, answer.status)
        self._answered[answer.id] = known

    def _may_send(self) -> bool:
        lowest = min((id.sequence for id in self._waiting), default=self._next)
        return self._next - lowest < _AHEAD_MAX

    def _make(self, journal: SenderJournal) -> SentRecord:
        id, self._next = DeltaId(self._stream, self._next), self._next + 1
        values = self._values.uniform(0, 10, (1, self._plan.vectors.dim))
        delta, _ = encode(self._plan, values, window=journal.window, id=id)
        assert delta is not None, "its record is finite"
        cells = np.asarray(delta.runs[0].increments.indices, np.int64)
        sent = SentRecord(self._client_id, id, delta.pack(self._plan), cells)
        journal.sent.append(sent)
        self._waiting[id] = (journal, sent)
        return sent
