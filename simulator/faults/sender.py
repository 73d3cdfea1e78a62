"""A client of the bare wire: it sends again, to whichever gateway, until every delta has a definitive answer."""

import asyncio
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import grpc
import grpc.aio
import numpy as np

from hushsum.delta import DeltaId, encode
from hushsum.plan import Plan
from hushsum_proto import convert, metadata
from hushsum_proto.answers import Answer
from hushsum_proto.v1 import wire_pb2 as pb
from hushsum_proto.v1 import wire_pb2_grpc as stubs
from simulator.faults.journal import Journal, Sent

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
        self._waiting: dict[DeltaId, tuple[Journal, Sent]] = {}
        self._answered: dict[DeltaId, tuple[Journal, Sent]] = {}
        self._next = 0
        self._heard_s = 0.0
        self.resent = 0
        self.journal: Journal | None = None  # the window that is contributed to now, if any

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

    async def _write(self, call: "grpc.aio.StreamStreamCall[pb.SubmitRequest, pb.SubmitReply]", sent: Sent) -> None:
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

    def _make(self, journal: Journal) -> Sent:
        id, self._next = DeltaId(self._stream, self._next), self._next + 1
        values = self._values.uniform(0, 10, (1, self._plan.vectors.dim))
        delta, _ = encode(self._plan, values, window=journal.window, id=id)
        assert delta is not None, "its record is finite"
        cells = np.asarray(delta.runs[0].increments.indices, np.int64)
        sent = Sent(self._client_id, id, delta.pack(self._plan), cells)
        journal.sent.append(sent)
        self._waiting[id] = (journal, sent)
        return sent
