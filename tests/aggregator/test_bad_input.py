"""Each kind of bad input, over a real channel to a real service: its own error, its own count, and nothing changed."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import grpc.aio
import numpy as np
import pytest
import pytest_asyncio

from aggregator.app import Service
from aggregator.store.store import read_sealed
from hushsum import Reason, Sketch
from hushsum.bitpacking import varint
from hushsum.delta import DeltaId
from hushsum_proto.answers import Answer, Fault, ServiceReason, Status
from hushsum_proto.v1 import wire_pb2 as pb
from tests.plans import small_plan
from tests.services import (
    WINDOW,
    Contributor,
    RawClient,
    SetRuntime,
    config_of,
    counted,
    ends_of,
    folded_all,
    service_of,
    trailing,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

# A width that is no power of two: only there can a bucket be out of range.
PLAN = small_plan(
    sketch={"rows": 20, "buckets": 60}, privacy={"unit": "client", "records_per_client": 8, "total_epsilon": 100}
)
HEADER_BYTES = 1 + 32 + 8  # format, plan, stream; sequence and window follow as varints


class World:
    """A service, and a client of it."""

    def __init__(self, service: Service, client: RawClient) -> None:
        self.service = service
        self.client = client

    async def assert_refused(self, delta: bytes, reason: Reason | ServiceReason, *, plan_id: bytes = PLAN.id) -> Answer:
        """Sent both ways, it is refused for this reason both times, counted, and appended never."""
        ends, before = await ends_of(self.service), counted(self.service, "hushsum_refusals_total", reason=reason)

        unary = await self.client.submit_one(plan_id, delta)
        streamed = await self.client.submit(plan_id, [delta])

        assert streamed == [unary]
        assert unary.status is Status.REFUSED
        assert unary.refusal is not None
        assert unary.refusal.reason is reason
        assert unary.refusal.detail
        assert unary.refusal.fault is Fault.SENDER
        assert not unary.refusal.retry
        assert counted(self.service, "hushsum_refusals_total", reason=reason) == before + 2
        assert await ends_of(self.service) == ends
        return unary


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    config = config_of(tmp_path_factory.mktemp("service"), PLAN, partitions=4)
    async with service_of(config) as service, RawClient(service.grpc) as client:
        yield World(service, client)


def good_delta(stream: int = 77) -> bytes:
    return Contributor(PLAN, stream).delta()[1]


def with_run(run: bytes, runs: int = 1) -> bytes:
    """A good header with another body."""
    _, data = Contributor(PLAN, 78).delta()
    header = HEADER_BYTES + len(varint(0)) + len(varint(2 * WINDOW))
    return data[:header] + varint(runs) + run


def run_of(*, records: int = 1, shape: tuple[int, int] = (20, 60), packed: bytes = bytes(15)) -> bytes:
    return b"".join(map(varint, (0, records, *shape))) + b"\x01" + varint(len(packed)) + packed


def impossible_counts() -> bytes:
    """Eight records whose rows hold no bucket at all: Elias–Fano with an empty bitmap of 22 bits a row."""
    packed = bytes(20 * 8 * 2 // 8 + -(-20 * 22 // 8))
    return with_run(b"".join(map(varint, (0, 8, 20, 60))) + b"\x02" + varint(len(packed)) + packed)


CASES: dict[str, tuple[Callable[[], bytes], Reason]] = {
    "a delta that ends too early": (lambda: good_delta()[:60], Reason.MALFORMED),
    "a delta with bytes after its end": (lambda: good_delta() + b"\0", Reason.MALFORMED),
    "no bytes": (lambda: b"", Reason.MALFORMED),
    "a newer format": (lambda: b"\x02" + good_delta()[1:], Reason.NEWER_FORMAT),
    "another plan inside": (lambda: good_delta()[:1] + bytes(32) + good_delta()[33:], Reason.WRONG_PLAN),
    "another dimension": (lambda: with_run(run_of(shape=(21, 60))), Reason.WRONG_SHAPE),
    "no runs": (lambda: with_run(b"", runs=0), Reason.EMPTY),
    "no records": (lambda: with_run(run_of(records=0)), Reason.EMPTY),
    "a bucket out of range": (lambda: with_run(run_of(packed=b"\xff" * 15)), Reason.BUCKET_OUT_OF_RANGE),
    "counts that no records make": (impossible_counts, Reason.IMPOSSIBLE_COUNTS),
    "more records than the bound": (lambda: with_run(run_of(records=9)), Reason.TOO_MANY_RECORDS),
    "more bytes than the plan can need": (lambda: good_delta() + bytes(PLAN.delta_bytes_max), Reason.TOO_LARGE),
    "a window before the first": (lambda: Contributor(PLAN, 80, WINDOW - 1).delta()[1], Reason.WINDOW_IN_PAST),
    "a window of long ago": (lambda: Contributor(PLAN, 80, -(2**62)).delta()[1], Reason.WINDOW_IN_PAST),
    "a window to come": (lambda: Contributor(PLAN, 81, WINDOW + 1).delta()[1], Reason.WINDOW_IN_FUTURE),
    "a window of far ahead": (lambda: Contributor(PLAN, 81, 2**62).delta()[1], Reason.WINDOW_IN_FUTURE),
}


@pytest.mark.parametrize("case", CASES)
async def test_a_bad_delta_is_refused_for_its_own_reason(world: World, case: str) -> None:
    make, reason = CASES[case]

    await world.assert_refused(make(), reason)


async def test_an_envelope_that_names_another_plan_is_refused(world: World) -> None:
    answer = await world.assert_refused(good_delta(), Reason.WRONG_PLAN, plan_id=bytes(32))

    assert answer.id == DeltaId(77, 0)


async def test_a_refusal_names_the_delta_as_soon_as_its_id_can_be_read(world: World) -> None:
    assert (await world.assert_refused(good_delta()[:60], Reason.MALFORMED)).id == DeltaId(77, 0)
    assert (await world.assert_refused(good_delta()[:20], Reason.MALFORMED)).id is None


async def test_the_same_id_with_other_bytes_is_refused_and_with_the_same_bytes_answered_again(world: World) -> None:
    client = world.client
    _, first = Contributor(PLAN, stream=1).delta(2)
    _, other = Contributor(PLAN, stream=1).delta(3)
    assert (await client.submit_one(PLAN.id, first)).status is Status.ACKNOWLEDGED

    # Right after the answer the gateway knows; once the fold has passed the entry, the fold does.
    await world.assert_refused(other, Reason.ID_REUSED)
    await folded_all(world.service)
    await world.assert_refused(other, Reason.ID_REUSED)

    assert (await client.submit_one(PLAN.id, first)).status is Status.ACKNOWLEDGED
    assert [answer.status for answer in await client.submit(PLAN.id, [first, first])] == [Status.ACKNOWLEDGED] * 2


async def test_an_id_of_another_window_is_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    plan = small_plan(window={"length": "10m"})
    window = WINDOW * 6 + 3
    config = config_of(tmp_path_factory.mktemp("windows"), plan, skew_s=1200.0)
    async with service_of(config) as service, RawClient(service.grpc) as client:
        world = World(service, client)
        first, second = Contributor(plan, 5, window), Contributor(plan, 5, window + 1)
        assert (await client.submit_one(plan.id, first.delta()[1])).status is Status.ACKNOWLEDGED
        moved = second.delta()[1]

        await world.assert_refused(moved, Reason.ID_OF_ANOTHER_WINDOW, plan_id=plan.id)
        await folded_all(service)
        await world.assert_refused(moved, Reason.ID_OF_ANOTHER_WINDOW, plan_id=plan.id)


async def test_bytes_that_are_no_protobuf_are_the_senders_fault(world: World) -> None:
    ends, before = await ends_of(world.service), counted(world.service, "hushsum_refusals_total", reason="malformed")
    call = world.client.channel.unary_unary("/hushsum.v1.Collection/SubmitOne", bytes, pb.SubmitReply.FromString)

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(b"\xff\xff\xff\xff", metadata=world.client.metadata)

    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert trailing(caught.value)["hushsum-reason"] == "malformed"
    assert counted(world.service, "hushsum_refusals_total", reason="malformed") == before + 1
    assert await ends_of(world.service) == ends


async def test_bytes_that_are_no_protobuf_do_not_end_a_stream(world: World) -> None:
    ends, before = await ends_of(world.service), counted(world.service, "hushsum_refusals_total", reason="malformed")
    method = world.client.channel.stream_stream("/hushsum.v1.Collection/Submit", bytes, pb.SubmitReply.FromString)
    good = pb.SubmitRequest(plan_id=bytes(32), delta=good_delta()).SerializeToString()

    async def requests() -> AsyncIterator[bytes]:
        for data in (b"\xff\xff\xff\xff", good):
            yield data

    first, second = [reply async for reply in method(requests(), metadata=world.client.metadata)]

    assert (first.HasField("id"), first.refusal.reason) == (False, pb.REASON_MALFORMED)
    assert second.refusal.reason == pb.REASON_WRONG_PLAN
    assert counted(world.service, "hushsum_refusals_total", reason="malformed") == before + 1
    assert await ends_of(world.service) == ends


async def test_a_message_beyond_the_transports_limit_is_refused_by_grpc(world: World) -> None:
    ends = await ends_of(world.service)

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await world.client.submit_one(PLAN.id, bytes(2 * PLAN.delta_bytes_max + 2**21))

    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert await ends_of(world.service) == ends


@pytest.mark.parametrize("client_id", (None, "", "a" * 129, "%00", "e%CC%81", "%FF"))
async def test_nobody_in_particular_is_refused(world: World, client_id: str | None) -> None:
    before = counted(world.service, "hushsum_refusals_total", reason="unauthenticated")
    async with RawClient(world.service.grpc, client_id) as nobody:
        for call in (nobody.hello(), nobody.submit_one(PLAN.id, good_delta()), nobody.submit(PLAN.id, [good_delta()])):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
            assert trailing(caught.value)["hushsum-reason"] == "unauthenticated"

    assert counted(world.service, "hushsum_refusals_total", reason="unauthenticated") == before + 3


async def test_a_hello_with_more_of_anything_than_a_client_needs_is_refused(world: World) -> None:
    for request, what in (
        (pb.HelloRequest(protocol_versions=[1] * 65), "65 protocol versions"),
        (pb.HelloRequest(protocol_versions=[1], features=["x"] * 65), "65 features"),
    ):
        with pytest.raises(grpc.aio.AioRpcError, match=what) as caught:
            await world.client.collection.Hello(request, metadata=world.client.metadata)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert trailing(caught.value)["hushsum-reason"] == "too_large"
    most = pb.HelloRequest(protocol_versions=[1] * 64, features=["x"] * 64)
    assert (await world.client.collection.Hello(most, metadata=world.client.metadata)).plan_id == PLAN.id


async def test_a_client_of_another_protocol_or_plan_is_refused_at_hello(world: World) -> None:
    for call, reason in (
        (world.client.hello(versions=(2, 3)), "protocol_version"),
        (world.client.hello(versions=()), "protocol_version"),
        (world.client.hello(plan_id=bytes(32)), "wrong_plan"),
    ):
        before = counted(world.service, "hushsum_refusals_total", reason=reason)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert trailing(caught.value)["hushsum-reason"] == reason
        assert counted(world.service, "hushsum_refusals_total", reason=reason) == before + 1


async def test_a_delta_that_would_pass_a_clients_bound_is_refused_once_the_fold_knows(world: World) -> None:
    async with RawClient(world.service.grpc, "greedy") as greedy:
        contributor = Contributor(PLAN, stream=6)
        _, first = contributor.delta(8)
        assert (await greedy.submit_one(PLAN.id, first)).status is Status.ACKNOWLEDGED
        await folded_all(world.service)

        own = World(world.service, greedy)
        await own.assert_refused(contributor.delta(1)[1], Reason.TOO_MANY_RECORDS)
        # Another spool of the same client, which knows nothing of the first.
        await own.assert_refused(Contributor(PLAN, stream=7).delta(1)[1], Reason.TOO_MANY_RECORDS)
        # What is counted already is no new contribution.
        assert (await greedy.submit_one(PLAN.id, first)).status is Status.ACKNOWLEDGED


async def test_a_client_that_is_in_as_many_windows_as_one_may_is_refused_in_others(tmp_path: Path) -> None:
    privacy = {"unit": "client", "records_per_client": 8, "total_epsilon": 100}
    window = {"release": "cumulative", "horizon": 2, "windows_per_client": 1, "lateness": "1h"}
    plan = small_plan(privacy=privacy, window=window)
    runtime = SetRuntime()
    async with service_of(config_of(tmp_path, plan), runtime) as service, RawClient(service.grpc, "often") as often:
        contributor = Contributor(plan, stream=6)
        assert (await often.submit_one(plan.id, contributor.delta()[1])).status is Status.ACKNOWLEDGED
        await folded_all(service)
        runtime.set_ms += 3_600_000  # this window's deltas are still taken
        own, later = World(service, often), Contributor(plan, stream=7, window=WINDOW + 1)
        refused = await own.assert_refused(later.delta()[1], Reason.TOO_MANY_WINDOWS, plan_id=plan.id)
        assert refused.refusal is not None
        assert not refused.refusal.retry
        assert (await often.submit_one(plan.id, contributor.delta()[1])).status is Status.ACKNOWLEDGED
        runtime.set_ms += 3_600_000
        await often.hello()  # the gateway looks at its clock
        beyond = Contributor(plan, stream=8, window=WINDOW + 2).delta()[1]
        await own.assert_refused(beyond, Reason.WINDOW_BEYOND_HORIZON, plan_id=plan.id)


async def test_after_all_of_these_the_counters_hold_the_good_deltas_alone(tmp_path: Path) -> None:
    good, expected = Contributor(PLAN, stream=1), Sketch(PLAN)
    async with service_of(config_of(tmp_path, PLAN, partitions=4)) as service, RawClient(service.grpc) as client:
        world = World(service, client)
        (_, first), (_, second) = good.delta(2), good.delta()
        for delta in (first, second):
            assert (await client.submit_one(PLAN.id, delta)).status is Status.ACKNOWLEDGED
            for make, reason in CASES.values():
                await world.assert_refused(make(), reason)
            await world.assert_refused(Contributor(PLAN, stream=1).delta(3)[1], Reason.ID_REUSED)
            await folded_all(service)
        await client.seal()
        sketch = read_sealed(service.config.folder / "store.db", PLAN, WINDOW)

    for number, records in enumerate(good.records):
        expected.add(records, clients=[f"{number}/{index}" for index in range(len(records))])
    assert sketch is not None
    assert np.array_equal(sketch.counters, expected.counters)
    assert np.array_equal(sketch.counts, expected.counts)
