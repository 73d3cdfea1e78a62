"""Deltas in chunks: whole or not at all, within a bound on memory, and then a delta like any other."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import islice
from pathlib import Path
from unittest.mock import ANY

import grpc.aio
import pytest

from aggregator.api import collection
from aggregator.api.admission_control import BYTES_S_MIN, GRACE_S, Malformed
from aggregator.api.collection import LargeDeltas
from aggregator.errors import RefusedError
from aggregator.ingest.inflight import ReceivedDelta
from aggregator.observability.metrics import Metrics
from aggregator.rate_limits import SendLimits
from hushsum.delta import DeltaId
from hushsum.errors import Reason
from hushsum_proto import convert
from hushsum_proto.answers import Answer, ServiceReason, Status
from hushsum_proto.convert_chunks import delta_chunk_to_wire
from hushsum_proto.messages import CHUNK_BYTES, DeltaChunk, chunks_of
from hushsum_proto.v1 import wire_pb2 as pb
from tests.aggregator.local_clients import batch_of, large_call, noised, report_plan, silo_plan, submit_large
from tests.doubles import ManualRuntime
from tests.services import RawClient, config_of, counted, ends_of, folded_all, service_of, trailing

SILO = silo_plan()
WIDE = silo_plan(rows=400, buckets=512)  # several chunks
PLAN_ID = bytes(range(32))


class Sink:
    """Takes what is whole."""

    def __init__(self) -> None:
        self.took: list[ReceivedDelta] = []
        self.free = asyncio.Event()
        self.free.set()

    def check_running(self) -> None:
        return

    async def submit(self, received: ReceivedDelta) -> Answer:
        await self.free.wait()
        self.took.append(received)
        return Answer(None, Status.ACKNOWLEDGED)

    def send(self, *_: object) -> None:
        raise AssertionError("one at a time")


class Sender:
    """A client that sends when the test says so."""

    def __init__(self) -> None:
        self._messages: asyncio.Queue[pb.DeltaChunk | Malformed | None] = asyncio.Queue()

    def says(self, *chunks: DeltaChunk) -> "Sender":
        for chunk in chunks:
            self._messages.put_nowait(delta_chunk_to_wire(chunk))
        return self

    def ends(self) -> "Sender":
        self._messages.put_nowait(None)
        return self

    def babbles(self) -> "Sender":
        self._messages.put_nowait(Malformed(2))
        return self

    async def chunks(self) -> AsyncIterator[pb.DeltaChunk | Malformed]:
        while (message := await self._messages.get()) is not None:
            yield message


class Site:
    """What takes chunks, over a double of the gateway."""

    def __init__(self, *, delta_bytes_max: int = 10**6, held_bytes_max: int = 2 * 10**6) -> None:
        self.runtime, self.sink, self.metrics = ManualRuntime(), Sink(), Metrics()
        sends = SendLimits(1e12, 10**12, 10**12, self.runtime)
        self.large = LargeDeltas(
            self.sink,
            self.runtime,
            self.metrics,
            sends,
            delta_bytes_max=delta_bytes_max,
            held_bytes_max=held_bytes_max,
        )

    def call(self, sender: Sender, client_id: str = "alice") -> "asyncio.Task[Answer]":
        return asyncio.create_task(self.large.submit(client_id, sender.chunks()))


def first(size: int, data: bytes = b"x") -> DeltaChunk:
    return DeltaChunk(0, data, PLAN_ID, size)


def reason_of(answer: Answer) -> object:
    assert answer.refusal is not None
    assert (answer.status, answer.refusal.retry) == (Status.REFUSED, False)
    return answer.refusal.reason


def counted_of(metrics: Metrics, reason: str) -> float | None:
    return metrics.registry.get_sample_value("hushsum_refusals_total", {"reason": reason})


async def test_chunks_become_the_delta_that_they_are_of_and_its_memory_is_free_again() -> None:
    site, data = Site(), bytes(range(256)) * 3000
    sender = Sender().says(*chunks_of(PLAN_ID, data))
    assert (await site.call(sender)).status is Status.ACKNOWLEDGED
    assert site.sink.took == [ReceivedDelta("alice", PLAN_ID, data, prepaid=ANY)]
    assert site.large.held_bytes == 0


@pytest.mark.parametrize(
    "sender",
    [
        lambda: Sender().ends(),
        lambda: Sender().babbles(),
        lambda: Sender().says(DeltaChunk(5, b"x")),
        lambda: Sender().says(first(10), first(10)),
        lambda: Sender().says(first(10), DeltaChunk(2, b"x")),
        lambda: Sender().says(first(10), DeltaChunk(1, bytes(10))),
        lambda: Sender().says(first(10), DeltaChunk(1, b"x")).ends(),
        lambda: Sender().says(first(10)).babbles(),
    ],
)
async def test_chunks_that_do_not_make_the_delta_are_refused_and_free_their_memory(sender: object) -> None:
    assert callable(sender)
    site = Site()
    assert reason_of(await site.call(sender())) is Reason.MALFORMED
    assert (site.sink.took, site.large.held_bytes) == ([], 0)
    assert (await site.call(Sender().says(first(1)))).status is Status.ACKNOWLEDGED, "the client may begin again"


async def test_a_delta_beyond_the_plans_size_is_refused_by_its_first_chunk() -> None:
    site, data = Site(), noised(SILO, DeltaId(7, 0))
    answer = await site.call(Sender().says(first(10**6 + 1, data[:200])))
    assert reason_of(answer) is Reason.TOO_LARGE
    assert answer.id == DeltaId(7, 0), "its device knows which one is refused"
    assert (site.large.held_bytes, counted_of(site.metrics, "too_large")) == (0, 1)


async def test_all_such_calls_together_hold_no_more_than_their_bound_and_the_next_is_refused() -> None:
    site, quarter = Site(), bytes(250_000)
    senders = [Sender().says(first(10**6, quarter), DeltaChunk(250_000, quarter)) for _ in range(4)]
    calls = [site.call(sender, f"client-{n}") for n, sender in enumerate(senders)]
    await site.runtime.settle()
    assert site.large.held_bytes == 2 * 10**6
    with pytest.raises(RefusedError) as refused:
        await site.call(Sender().says(first(2)), "bob")
    assert (refused.value.refusal.reason, refused.value.refusal.retry) == (ServiceReason.OVERLOADED, True)
    senders[0].says(DeltaChunk(500_000, quarter))
    with pytest.raises(RefusedError) as refused:
        await calls[0]
    assert refused.value.refusal.reason is ServiceReason.OVERLOADED
    assert site.large.held_bytes == 1_500_000, "who needs more than is left gives up its own"
    senders[1].says(DeltaChunk(500_000, quarter), DeltaChunk(750_000, quarter))
    assert (await calls[1]).status is Status.ACKNOWLEDGED, "and so another one ends"
    calls[2].cancel()  # its client has gone
    await asyncio.wait(calls[2:3])
    assert site.large.held_bytes == 500_000
    assert (await site.call(Sender().says(first(1)), "bob")).status is Status.ACKNOWLEDGED
    calls[3].cancel()
    await asyncio.wait(calls)
    assert site.large.held_bytes == 0


async def test_a_size_that_is_only_named_holds_no_room() -> None:
    site = Site()
    calls = [site.call(Sender().says(first(10**6)), f"liar-{n}") for n in range(100)]
    await site.runtime.settle()
    assert site.large.held_bytes == 100
    assert (await site.call(Sender().says(*chunks_of(PLAN_ID, bytes(10**6))))).status is Status.ACKNOWLEDGED
    await site.runtime.advance(GRACE_S + 0.01)
    assert all(call.done() for call in calls)
    assert {type(call.exception()) for call in calls} == {RefusedError}
    assert site.large.held_bytes == 0


async def test_what_was_sent_fast_buys_no_long_silence() -> None:
    site = Site(delta_bytes_max=10**8, held_bytes_max=10**8)
    call = site.call(Sender().says(*islice(chunks_of(PLAN_ID, bytes(10**8)), 8)))  # 32 s at the least rate
    await site.runtime.settle(2000)
    assert site.large.held_bytes == 8 * CHUNK_BYTES
    await site.runtime.advance(GRACE_S - 0.1)
    assert not call.done()
    await site.runtime.advance(0.2)
    with pytest.raises(RefusedError):
        await call
    assert site.large.held_bytes == 0


async def test_a_bound_below_one_delta_still_lets_one_in() -> None:
    site = Site(held_bytes_max=1)
    assert (await site.call(Sender().says(*chunks_of(PLAN_ID, bytes(10**6))))).status is Status.ACKNOWLEDGED


async def test_a_client_has_one_such_call_at_a_time_and_keeps_its_room_until_it_is_answered() -> None:
    site = Site()
    site.sink.free.clear()
    call = site.call(Sender().says(first(1)))
    await site.runtime.settle()
    assert site.large.held_bytes == 1
    with pytest.raises(RefusedError) as refused:
        await site.call(Sender().says(first(1)))
    assert refused.value.refusal.reason is ServiceReason.OVERLOADED
    site.sink.free.set()
    assert (await call).status is Status.ACKNOWLEDGED


async def test_a_client_that_is_slower_than_the_rate_frees_its_memory() -> None:
    site, sender = Site(), Sender()
    call = site.call(sender.says(DeltaChunk(0, bytes(BYTES_S_MIN), PLAN_ID, 10**6)))
    for n in range(1, int(GRACE_S) + 1):  # a byte a second is no rate
        await site.runtime.advance(1.0)
        sender.says(DeltaChunk(BYTES_S_MIN + n - 1, b"x"))
    await site.runtime.settle()
    assert not call.done()
    await site.runtime.advance(1.01)
    with pytest.raises(RefusedError) as refused:
        await call
    assert (refused.value.refusal.reason, site.large.held_bytes) == (ServiceReason.UNAVAILABLE, 0)


async def test_a_client_that_says_nothing_holds_nothing_and_is_let_go() -> None:
    site = Site()
    call = site.call(Sender())
    await site.runtime.advance(GRACE_S + 0.01)
    with pytest.raises(RefusedError):
        await call


async def test_clients_that_fill_the_room_and_stall_give_way_to_one_that_sends() -> None:
    site, most = Site(), bytes(10**6)
    evil = [site.call(Sender().says(*islice(chunks_of(PLAN_ID, most), 3)), f"evil-{n}") for n in range(3)]
    await site.runtime.settle()
    assert site.large.held_bytes == 6 * CHUNK_BYTES, "two hold the room"
    await site.runtime.advance(1.1)
    assert (await site.call(Sender().says(*chunks_of(PLAN_ID, most)))).status is Status.ACKNOWLEDGED
    assert site.large.held_bytes <= 3 * CHUNK_BYTES
    for call in evil:
        call.cancel()
    await asyncio.wait(evil)
    assert site.large.held_bytes == 0


async def test_each_chunk_is_paid_for_as_it_comes_and_the_whole_is_not_paid_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site, data = Site(), bytes(10**6)
    sends = SendLimits(1.0, 1, 10**7, site.runtime)
    site.large = LargeDeltas(
        site.sink, site.runtime, site.metrics, sends, delta_bytes_max=10**6, held_bytes_max=2 * 10**6
    )

    async def submit(received: ReceivedDelta) -> Answer:
        assert received.plan_id == PLAN_ID
        assert received.prepaid is not None
        sends.take(received.client_id, len(received.data), prepaid=received.prepaid).release()
        return Answer(None, Status.ACKNOWLEDGED)

    monkeypatch.setattr(site.sink, "submit", submit)  # it takes what a gateway takes
    assert (await site.call(Sender().says(*chunks_of(PLAN_ID, data)), "honest")).status is Status.ACKNOWLEDGED
    broken = Sender().says(*islice(chunks_of(PLAN_ID, data), 2)).ends()
    assert reason_of(await site.call(broken, "evil")) is Reason.MALFORMED
    for client_id, paid in (("honest", 10**6), ("evil", 2 * CHUNK_BYTES)):
        with pytest.raises(RefusedError) as refused:
            sends.check(client_id)
        assert refused.value.refusal.retry_after_ms == pytest.approx(1000 * (paid - 1), abs=2000), client_id


# ---------------------------------------------------------------------------------------------- over the real wire


async def test_a_noised_whole_delta_in_chunks_counts_once_and_a_second_one_of_its_client_is_refused(
    tmp_path: Path,
) -> None:
    async with service_of(config_of(tmp_path, WIDE)) as service, RawClient(service.grpc) as client:
        data = noised(WIDE, DeltaId(7, 0))
        assert CHUNK_BYTES < len(data) <= WIDE.upload_bytes_max == (await client.hello()).delta_bytes_max
        assert (await submit_large(client, WIDE, data)).status is Status.ACKNOWLEDGED
        assert (await client.submit_one(WIDE.id, data)).status is Status.ACKNOWLEDGED
        await folded_all(service)
        answer = await submit_large(client, WIDE, noised(WIDE, DeltaId(8, 0)))
        assert answer.refusal is not None
        assert (answer.refusal.reason, answer.refusal.retry) == (Reason.SECOND_DELTA, False)
        assert (await submit_large(client, WIDE, data)).status is Status.ACKNOWLEDGED
        await folded_all(service)
        assert counted(service, "hushsum_folded_total", partition="0", verdict="counted") == 1
        assert counted(service, "hushsum_refusals_total", reason="second_delta") == 1


async def test_silos_are_charged_once_a_window_and_counted_by_their_clients(tmp_path: Path) -> None:
    async with service_of(config_of(tmp_path, SILO)) as service:
        for n in range(3):
            async with RawClient(service.grpc, f"client-{n}") as client:
                assert (await client.submit_one(SILO.id, noised(SILO, DeltaId(n, 0)))).status is Status.ACKNOWLEDGED
        await folded_all(service)
        assert counted(service, "hushsum_folded_total", partition="0", verdict="counted") == 3
        assert len((await service.store.account("")).spends) == 1


async def test_a_batch_of_reports_may_come_in_chunks_as_well(tmp_path: Path) -> None:
    plan = report_plan()
    async with service_of(config_of(tmp_path, plan)) as service, RawClient(service.grpc) as client:
        assert (await submit_large(client, plan, batch_of(plan, 3, 1000))).status is Status.ACKNOWLEDGED


async def test_what_is_refused_for_good_is_answered_in_the_reply(tmp_path: Path) -> None:
    async with service_of(config_of(tmp_path, WIDE)) as service, RawClient(service.grpc) as client:
        data = noised(WIDE, DeltaId(7, 0))
        beyond = data + bytes(WIDE.upload_bytes_max)
        cases: dict[Reason, Iterator[DeltaChunk]] = {
            Reason.TOO_LARGE: islice(chunks_of(WIDE.id, beyond), 1),
            Reason.MALFORMED: islice(chunks_of(WIDE.id, data), 1),
            Reason.WRONG_PLAN: chunks_of(bytes(32), data),
        }
        for reason, chunks in cases.items():
            answer = convert.answer_from_wire(await large_call(client, chunks))
            assert (answer.id, reason_of(answer)) == (DeltaId(7, 0), reason)
        assert await ends_of(service) == [0]


async def test_no_noised_whole_delta_comes_round_the_bound_as_one_message(tmp_path: Path) -> None:
    plan = silo_plan(rows=1500, buckets=512)
    async with service_of(config_of(tmp_path, plan)) as service, RawClient(service.grpc) as client:
        data = noised(plan, DeltaId(7, 0))
        assert len(data) > 6 * CHUNK_BYTES
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await client.submit_one(plan.id, data)
        assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await ends_of(service) == [0]
        assert (await submit_large(client, plan, data)).status is Status.ACKNOWLEDGED


async def test_what_is_about_the_moment_ends_the_call_with_a_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collection, "GRACE_S", 0.05)
    async with service_of(config_of(tmp_path, SILO)) as service, RawClient(service.grpc) as client:

        async def silent() -> AsyncIterator[pb.DeltaChunk]:
            yield delta_chunk_to_wire(DeltaChunk(0, b"x", SILO.id, 10))
            await asyncio.Event().wait()

        with pytest.raises(grpc.aio.AioRpcError) as error:
            await client.collection.SubmitLarge(silent(), metadata=client.metadata)
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE
        assert trailing(error.value)["hushsum-reason"] == "unavailable"
        assert await ends_of(service) == [0]
