"""Clients without the SDK, for runs with faults: they resend to any gateway, and check every answer.

An :class:`edge_client.EdgeClient` keeps to one gateway and ignores a second answer to the same delta. Here a delta that
has no answer is sent again to a random gateway, and an answer that contradicts an earlier one is counted.
"""

import asyncio
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Final, Self, TypeAlias

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
from hushsum_simulator.demo.evaluation import SentDelta
from hushsum_simulator.deployment.journal import DROPPED, KEPT, Account, Added, FleetJournal
from hushsum_simulator.errors import JourneyError

_AHEAD_MAX: Final = 60  # of the lowest unanswered number; the protocol allows 63
_PATIENCE_S: Final = 2.0  # without any answer; then another gateway is tried
_PAUSE_S: Final = 0.1
_LOOK_S: Final = 0.05
_OPTIONS: Final = (("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1))

Call: TypeAlias = "grpc.aio.StreamStreamCall[pb.SubmitRequest, pb.SubmitReply]"


class Sender:
    """One client with one stream, whose deltas have one record each.

    Args:
        number: Determines its client id and its stream.
        gateways: ``host:port`` each.
        rate: Deltas per second.

    Attributes:
        account: Its deltas, each with its first definitive answer.
        cells: Of each delta the counters that it adds 1 to.
        window: The window that it sends deltas for now, if any.
        contradicted: Answers that contradict the first one to the same delta.
    """

    def __init__(self, plan: Plan, number: int, gateways: Sequence[str], rate: float, seed: int) -> None:
        self.client_id = f"client-{number}"
        self.account = Account(stream=1000 + number)
        self.cells: dict[DeltaId, npt.NDArray[np.int64]] = {}
        self.window: int | None = None
        self.resent = self.contradicted = 0
        self._plan, self._gateways, self._interval_s = plan, list(gateways), 1.0 / rate
        self._values = np.random.default_rng([seed, number])
        self._choice = random.Random(f"{seed}/{number}")
        self._unanswered: dict[DeltaId, bytes] = {}
        self._answered_s = 0.0

    @property
    def idle(self) -> bool:
        """Whether every delta has a definitive answer."""
        return not self._unanswered

    async def run(self) -> None:
        """Sends until cancelled."""
        while True:
            if self.window is None and self.idle:
                await asyncio.sleep(_PAUSE_S)
                continue
            with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.UsageError):
                await self._session(self._choice.choice(self._gateways))
            await asyncio.sleep(_PAUSE_S * self._choice.random())

    def note(self, id: DeltaId, status: Status) -> None:
        first = self.account.answers.setdefault(id, status.value)
        given = {first, status.value}
        self.contradicted += bool(given & KEPT and given & DROPPED)

    async def _session(self, gateway: str) -> None:
        async with grpc.aio.insecure_channel(gateway, options=_OPTIONS) as channel:
            call = stubs.CollectionStub(channel).Submit(metadata=((metadata.CLIENT_ID, self.client_id),))
            reading = asyncio.create_task(self._read(call))
            self._answered_s = time.monotonic()
            try:
                for data in list(self._unanswered.values()):
                    self.resent += 1
                    await self._write(call, data)
                while not reading.done() and not (self.window is None and self.idle):
                    if self._unanswered and time.monotonic() - self._answered_s > _PATIENCE_S:
                        return
                    if self.window is not None and self._may_send():
                        await self._write(call, self._make(self.window))
                    await asyncio.sleep(self._interval_s)
            except TimeoutError:
                return
            finally:
                call.cancel()
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)

    async def _write(self, call: Call, data: bytes) -> None:
        await asyncio.wait_for(call.write(convert.submission_to_wire(self._plan.id, data)), _PATIENCE_S)

    async def _read(self, call: Call) -> None:
        while isinstance(reply := await call.read(), pb.SubmitReply):
            for answer in convert.answers_from_wire(reply):
                if answer.refusal is not None and answer.refusal.retry:
                    await asyncio.sleep(min(answer.refusal.retry_after_ms / 1000, _PATIENCE_S))
                    return  # the next session sends all unanswered deltas again
                self._answered_s = time.monotonic()
                self._settle(answer)

    def _settle(self, answer: Answer) -> None:
        assert answer.id is not None, "every delta was well-formed"
        assert answer.id in self.cells, "an answer to a delta that was never sent"
        self._unanswered.pop(answer.id, None)
        self.note(answer.id, answer.status)

    def _may_send(self) -> bool:
        following = len(self.cells)
        return following - min((id.sequence for id in self._unanswered), default=following) < _AHEAD_MAX

    def _make(self, window: int) -> bytes:
        number = len(self.cells)
        id = DeltaId(self.account.stream, number)
        values = self._values.uniform(0, 10, (1, self._plan.vectors.dim))
        delta, _ = encode(self._plan, values, window=window, id=id)
        assert delta is not None, "its record is finite"
        self.account.added.append(Added(window, number, number, deltas=1, records=1))
        self.cells[id] = np.asarray(delta.runs[0].increments.indices, np.int64)
        self._unanswered[id] = delta.pack(self._plan)
        return self._unanswered[id]


class SenderFleet:
    """Senders that run until the end of the ``with`` block.

    Args:
        gateways: ``host:port`` each.
        rate: Deltas per second of each.
    """

    def __init__(self, plan: Plan, gateways: Sequence[str], *, clients: int, rate: float, seed: int) -> None:
        self._plan = plan
        self._senders = [Sender(plan, number, gateways, rate, seed) for number in range(clients)]
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(sender.run()) for sender in self._senders]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def resent(self) -> int:
        return sum(sender.resent for sender in self._senders)

    @property
    def contradicted(self) -> int:
        return sum(sender.contradicted for sender in self._senders)

    def fill(self, window: int | None) -> None:
        """Sends deltas for this window from now on; None: no new ones."""
        for sender in self._senders:
            sender.window = window

    async def answered(self, patience_s: float) -> None:
        """Returns once every delta has a definitive answer.

        Raises:
            JourneyError: Not within this time.
        """
        deadline = time.monotonic() + patience_s
        while not all(sender.idle for sender in self._senders):
            for task in self._tasks:
                if task.done():
                    task.result()
            if time.monotonic() > deadline:
                raise JourneyError(f"deltas without an answer {patience_s:.0f} s after everything was running again")
            await asyncio.sleep(_LOOK_S)

    def journal(self, window: int) -> FleetJournal:
        """The deltas of one window, and their answers."""
        accounts = {}
        for sender in self._senders:
            account = sender.account
            added = [each for each in account.added if each.window == window]
            accounts[sender.client_id] = Account(account.stream, added, answers=account.answers)
        return FleetJournal(self._plan.hex_id, window, 1, 0.0, accounts)

    def cells(self) -> dict[SentDelta, npt.NDArray[np.int64]]:
        """Of every delta the counters that it adds 1 to."""
        return {SentDelta(each.client_id, id): cells for each in self._senders for id, cells in each.cells.items()}
