"""kill -9 in mid-stream, twice: what was acknowledged is there, what was resent counts once, nothing else is there."""

import asyncio
import json
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio
import numpy as np
import pytest

from aggregator.fold.verdicts import VerdictKind
from aggregator.runtime import SystemRuntime
from aggregator.store.store import read_sealed, read_verdicts
from hushsum import Plan, Sketch
from hushsum.delta import DeltaId
from hushsum_proto import convert
from hushsum_proto.answers import Answer, Status
from hushsum_proto.v1 import wire_pb2 as pb
from tests.plans import small_plan
from tests.services import Contributor, RawClient

ROOT = Path(__file__).resolve().parent.parent.parent
PLAN = small_plan(sketch={"rows": 40, "buckets": 512}, window={"length": "3650d"})
PLAN_WINDOW = PLAN.window.index_at(SystemRuntime().now_ms())  # ten years long: it does not end meanwhile
CLIENTS = 4
DELTAS = 250  # of each client
UNANSWERED_MAX = 40  # of each client; far below the 64 that the protocol allows
KILLS = 2


class Aggregator:
    """``python -m aggregator`` as a process of its own, which can be killed and started again."""

    def __init__(self, folder: Path, partitions: int) -> None:
        self.data = folder / "data"
        plan = folder / "plan.json"
        plan.write_bytes(PLAN.to_bytes())
        self._arguments = [
            *("--plan", str(plan), "--data", str(self.data), "--listen", "127.0.0.1:0", "--metrics-listen", ""),
            *("--partitions", str(partitions), "--manual", "--retain-verdicts", "--log-format", "json"),
            *("--checkpoint-entries", "100"),
        ]
        self.address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._process: asyncio.subprocess.Process | None = None
        self._drain: asyncio.Task[None] | None = None

    async def start(self) -> None:
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'proto'}"}
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "aggregator", *self._arguments, env=environment, stderr=asyncio.subprocess.PIPE
        )
        assert self._process.stderr is not None
        async for line in self._process.stderr:
            if line.startswith(b"{") and json.loads(line)["event"] == "listening":
                self.address.set_result(json.loads(line)["grpc"])
                self._drain = asyncio.create_task(self._read_on(self._process.stderr))
                return
        pytest.fail(f"the aggregator did not start: {await self._process.wait()}")

    async def _read_on(self, stream: asyncio.StreamReader) -> None:
        while await stream.readline():
            pass

    async def end(self, number: signal.Signals) -> int:
        assert self._process is not None
        assert self._drain is not None
        self.address = asyncio.get_running_loop().create_future()
        self._process.send_signal(number)
        code = await self._process.wait()
        await self._drain
        return code


@asynccontextmanager
async def aggregator_of(folder: Path, partitions: int) -> AsyncIterator[Aggregator]:
    aggregator = Aggregator(folder, partitions)
    await aggregator.start()
    try:
        yield aggregator
    finally:
        if aggregator.address.done():
            await aggregator.end(signal.SIGKILL)


class Fleet:
    """Raw clients that each send their deltas once, and again whatever got no answer."""

    def __init__(self, aggregator: Aggregator) -> None:
        self.aggregator = aggregator
        self.contributors = {f"client-{n}": Contributor(PLAN, 100 + n, PLAN_WINDOW) for n in range(CLIENTS)}
        self.sent: Counter[tuple[str, DeltaId]] = Counter()
        self.answers: list[Answer] = []
        self._waiting: list[tuple[int, asyncio.Event]] = []

    async def contribute(self, client_id: str) -> None:
        contributor = self.contributors[client_id]
        unanswered: dict[DeltaId, bytes] = {}
        made = 0
        while made < DELTAS or unanswered:
            address = await asyncio.shield(self.aggregator.address)
            async with RawClient(address, client_id) as client:
                call = client.collection.Submit(None, metadata=client.metadata)
                try:
                    for delta_id, data in unanswered.items():
                        await self._write(call, client_id, delta_id, data)
                    while made < DELTAS or unanswered:
                        while made < DELTAS and len(unanswered) < UNANSWERED_MAX:
                            delta_id, data = contributor.delta()
                            unanswered[delta_id] = data
                            made += 1
                            await self._write(call, client_id, delta_id, data)
                        self._answered(unanswered, await call.read())
                    await call.done_writing()
                except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    continue

    async def _write(
        self,
        call: "grpc.aio.StreamStreamCall[pb.SubmitRequest, pb.SubmitReply]",
        client_id: str,
        delta_id: DeltaId,
        data: bytes,
    ) -> None:
        self.sent[client_id, delta_id] += 1
        await call.write(convert.submission_to_wire(PLAN.id, data))

    def _answered(self, unanswered: dict[DeltaId, bytes], reply: object) -> None:
        if not isinstance(reply, pb.SubmitReply):
            raise asyncio.InvalidStateError("the stream has ended")
        for answer in convert.answers_from_wire(reply):
            assert answer.id is not None
            unanswered.pop(answer.id, None)
            self.answers.append(answer)
        for count, event in self._waiting:
            if len(self.answers) >= count:
                event.set()

    async def answered(self, count: int) -> None:
        """Returns at the moment at which so many answers have come."""
        event = asyncio.Event()
        self._waiting.append((count, event))
        await event.wait()


@pytest.mark.slow
@pytest.mark.parametrize("partitions", (pytest.param(1, marks=pytest.mark.long), 4))
async def test_after_kills_in_mid_stream_every_delta_is_counted_exactly_once(
    tmp_path: Path, partitions: int, seed: int
) -> None:
    choice = random.Random(seed)
    async with aggregator_of(tmp_path, partitions) as aggregator:
        fleet = Fleet(aggregator)
        running = asyncio.gather(*(fleet.contribute(client_id) for client_id in fleet.contributors))
        for kill in range(KILLS):
            third = CLIENTS * DELTAS // (KILLS + 1)
            await fleet.answered(kill * third + choice.randrange(third // 4, third))
            assert not running.done()
            assert await aggregator.end(signal.SIGKILL) == -signal.SIGKILL
            await aggregator.start()
        await running
        async with RawClient(await aggregator.address) as client:
            assert await client.seal() == PLAN_WINDOW

        assert {answer.status for answer in fleet.answers} == {Status.ACKNOWLEDGED}
        assert max(fleet.sent.values()) > 1, "something was resent"
        assert_counted_exactly_once(fleet, aggregator.data / "store.db")
        assert await aggregator.end(signal.SIGTERM) == 0
    assert not (aggregator.data / "listening.json").exists()


def assert_counted_exactly_once(fleet: Fleet, store: Path) -> None:
    expected = bulk_sketch(PLAN, fleet)
    sketch = read_sealed(store, PLAN, PLAN_WINDOW)
    assert sketch is not None
    assert np.array_equal(sketch.counters, expected.counters)
    assert np.array_equal(sketch.counts, expected.counts)
    verdicts = [verdict for _, verdict in read_verdicts(store, PLAN)]
    counted = Counter((each.client_id, each.id) for each in verdicts if each.kind is VerdictKind.COUNTED)
    assert counted == Counter(fleet.sent.keys())
    assert {each.kind for each in verdicts} <= {VerdictKind.COUNTED, VerdictKind.DUPLICATE}


def bulk_sketch(plan: Plan, fleet: Fleet) -> Sketch:
    sketch = Sketch(plan)
    for contributor in fleet.contributors.values():
        sketch.add(np.concatenate(contributor.records))
    return sketch
