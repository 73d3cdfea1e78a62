"""Streams of one client in one window are bounded: a hostile client stops there, and nobody else notices it."""

import asyncio
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from aggregator.app import Service
from aggregator.errors import LogUnavailableError, StoreUnavailableError, too_many_streams
from aggregator.fold.state import StreamUse
from aggregator.ingest.inflight import ReceivedDelta
from aggregator.ingest.window_tracker import WindowTracker
from aggregator.interfaces import Log
from aggregator.rate_limits import DeltaStreamQuota
from aggregator.windows import WindowState
from edge_client import EdgeClient, NotCountedError, SystemRuntime
from hushsum.delta import DeltaId, renumbered
from hushsum.plan import Plan
from hushsum_proto.answers import Answer, Fault, ServiceReason, Status
from tests.aggregator.local_clients import batch_of, noised, report_plan, silo_plan
from tests.doubles import ManualRuntime, MemoryStore
from tests.edge_client.clocks import until
from tests.plans import small_plan
from tests.services import (
    HOUR_MS,
    NOW_MS,
    WINDOW,
    Contributor,
    HeldLog,
    RawClient,
    SetRuntime,
    config_of,
    counted,
    ends_of,
    folded_all,
    service_of,
)

PLAN, SILO, REPORTS = small_plan(), silo_plan(), report_plan()
BOUNDED = small_plan(privacy={"unit": "client", "records_per_client": 3})
MOST = 3
FEW = {"client_streams_max": MOST}


def delta_of(plan: Plan, stream: int, sequence: int = 0, window: int = WINDOW) -> bytes:
    """A delta of a stream, in whatever form the plan's clients send it."""
    if plan is REPORTS:
        return batch_of(plan, stream, window=window)
    if plan is SILO:
        return noised(plan, DeltaId(stream, sequence), window=window)
    return Contributor(plan, stream).delta(window=window, sequence=sequence)[1]


def why(answer: Answer) -> object:
    return answer.status if answer.refusal is None else answer.refusal.reason


async def told(client: RawClient, plan: Plan, *deltas: bytes) -> list[object]:
    """What becomes of deltas, one after the other."""
    return [why((await client.submit(plan.id, [delta]))[0]) for delta in deltas]


def remembered(service: Service) -> Counter[str]:
    """How many streams the folds remember, by client."""
    return Counter(use.client_id for use in service.workers.stream_uses())


def held_in(held: list[HeldLog]) -> Callable[[Log], Log]:
    def wrap(log: Log) -> Log:
        held.append(HeldLog(log))
        return held[-1]

    return wrap


class DeviceRuntime(SystemRuntime):
    """Its clock stands where the service's does."""

    def now_ms(self) -> int:
        return NOW_MS


TAKEN, TOO_MANY = Status.ACKNOWLEDGED, ServiceReason.TOO_MANY_STREAMS


async def test_a_client_with_a_new_stream_for_each_delta_stops_at_the_bound_and_others_go_on(tmp_path: Path) -> None:
    async with (
        service_of(config_of(tmp_path, PLAN, **FEW)) as service,
        RawClient(service.grpc, "mallory") as mallory,
        RawClient(service.grpc, "alice") as alice,
    ):
        streams = [delta_of(PLAN, stream) for stream in range(10)]
        assert await told(mallory, PLAN, *streams) == [TAKEN] * MOST + [TOO_MANY] * 7
        assert await told(alice, PLAN, *streams[:2]) == [TAKEN] * 2
        more = [delta_of(PLAN, stream, sequence) for stream in range(MOST) for sequence in (1, 2)]
        assert await told(mallory, PLAN, *more) == [TAKEN] * 6, "streams that it has used already go on"
        assert await told(mallory, PLAN, *streams[:MOST]) == [TAKEN] * MOST, "what is resent is answered again"
        assert await told(mallory, PLAN, delta_of(PLAN, 99)) == [TOO_MANY]
        assert counted(service, "hushsum_refusals_total", reason="too_many_streams") == 8
        await folded_all(service)
        assert remembered(service) == {"mallory": MOST, "alice": 2}


async def test_a_refusal_says_what_to_do_and_not_to_try_again(tmp_path: Path) -> None:
    async with service_of(config_of(tmp_path, PLAN, **FEW)) as service, RawClient(service.grpc) as client:
        answers = await client.submit(PLAN.id, [delta_of(PLAN, stream) for stream in range(MOST + 1)])
    (refusal,) = [answer.refusal for answer in answers if answer.refusal is not None]
    assert refusal == too_many_streams(MOST)
    assert (refusal.fault, refusal.retry, refusal.retry_after_ms) == (Fault.SENDER, False, 0)
    assert "this client has used 3 streams in this window" in refusal.detail
    assert "reuse the spool file of each process" in refusal.detail


async def test_twenty_thousand_streams_leave_the_bound_in_fold_and_gateway(tmp_path: Path) -> None:
    async with service_of(config_of(tmp_path, PLAN)) as service:
        assert service.config.client_streams_max == 1024
        first = delta_of(PLAN, 0)
        outcomes: Counter[object] = Counter()
        for begin in range(0, 20_000, 1000):
            sent = [renumbered(first, DeltaId(stream, 63)) for stream in range(begin, begin + 1000)]
            answers = await asyncio.gather(
                *(service.gateway.submit(ReceivedDelta("mallory", PLAN.id, data)) for data in sent)
            )
            outcomes.update(map(why, answers))
        await folded_all(service)
        assert outcomes == {TAKEN: 1024, TOO_MANY: 20_000 - 1024}
        assert remembered(service) == {"mallory": 1024}
        assert service.gateway.streams.of("mallory", WINDOW) == 1024
        assert sum(await ends_of(service)) == 1024, "nothing that is refused is appended"


@pytest.mark.parametrize("plan", [PLAN, SILO], ids=["central", "silo"])
async def test_a_restart_gives_no_fresh_allowance(tmp_path: Path, plan: Plan) -> None:
    config = config_of(tmp_path, plan, **FEW)
    for number in range(4):
        async with service_of(config) as service, RawClient(service.grpc, "mallory") as mallory:
            assert service.gateway.streams.of("mallory", WINDOW) == min(number, MOST if plan is PLAN else 1)
            await told(mallory, plan, delta_of(plan, number))
            await folded_all(service)
            if plan is SILO:
                assert remembered(service) == {"mallory": 1}, "its fold is here, and refuses a second delta sooner"
                continue
            assert remembered(service) == {"mallory": min(number + 1, MOST)}
            old = [delta_of(plan, stream, 1 + number) for stream in range(min(number + 1, MOST))]
            assert await told(mallory, plan, *old) == [TAKEN] * len(old)
    if plan is PLAN:
        async with service_of(config) as service, RawClient(service.grpc, "mallory") as mallory:
            assert await told(mallory, plan, delta_of(plan, 99), delta_of(plan, 0)) == [TOO_MANY, TAKEN]


async def test_after_a_crash_the_entries_of_the_log_count(tmp_path: Path) -> None:
    """What was appended and not checkpointed is folded again before anybody is answered."""
    config = config_of(tmp_path, PLAN, **FEW, checkpoint_entries=10**6, checkpoint_s=3600.0)
    async with service_of(config) as service, RawClient(service.grpc) as client:
        assert await told(client, PLAN, *(delta_of(PLAN, stream) for stream in range(MOST))) == [TAKEN] * MOST
        for held in service.workers._held.values():
            held.drop()  # as a kill does: nothing of it is stored
    async with service_of(config) as service, RawClient(service.grpc) as client:
        assert service.gateway.streams.of("alice", WINDOW) == MOST
        assert await told(client, PLAN, delta_of(PLAN, 99)) == [TOO_MANY]


async def test_each_window_has_its_own_streams_and_frees_them_once_it_is_over(tmp_path: Path) -> None:
    runtime = SetRuntime()
    async with (
        service_of(config_of(tmp_path, PLAN, **FEW), runtime) as service,
        RawClient(service.grpc) as client,
    ):
        full = [delta_of(PLAN, stream) for stream in range(MOST + 1)]
        assert await told(client, PLAN, *full) == [TAKEN] * MOST + [TOO_MANY]
        runtime.set_ms += HOUR_MS
        await client.hello()
        # Other streams, and those of the window before, take places in the new window, too.
        sent = [delta_of(PLAN, stream, 1, WINDOW + 1) for stream in (50, 0, 51, 1)]
        assert await told(client, PLAN, *sent) == [TAKEN] * MOST + [TOO_MANY]
        streams = service.gateway.streams
        assert (streams.of("alice", WINDOW), streams.of("alice", WINDOW + 1)) == (MOST, MOST)
        assert await client.seal() == WINDOW
        await client.submit(PLAN.id, [delta_of(PLAN, 50, 2, WINDOW + 1)])  # its commit reads the windows' states
        async with RawClient(service.grpc, "bob") as bob:
            assert await told(bob, PLAN, delta_of(PLAN, 7, 0, WINDOW + 1)) == [TAKEN]
        assert (streams.clients(WINDOW), streams.clients(WINDOW + 1)) == (0, 2)
        await client.release()
        assert await told(client, PLAN, delta_of(PLAN, 99, 0, WINDOW)) == [Status.UNKNOWN]
        assert streams.clients(WINDOW) == 0, "what comes for a window that is over takes nothing"


async def test_streams_that_the_next_window_holds_cannot_be_carried_on_beyond_the_bound(tmp_path: Path) -> None:
    """Else a client could bring a bound's worth of new streams to each window, and keep all of them alive."""
    runtime = SetRuntime()
    async with service_of(config_of(tmp_path, PLAN, **FEW), runtime) as service, RawClient(service.grpc) as client:
        for later in range(4):
            window, new = WINDOW + later, range(MOST * later, MOST * (later + 1))
            await client.hello()
            sent = [delta_of(PLAN, stream, later, window) for stream in [*new, *range(MOST * later)]]
            assert await told(client, PLAN, *sent) == [TAKEN] * MOST + [TOO_MANY] * MOST * later
            runtime.set_ms += HOUR_MS
            assert await client.seal() == window
            await client.release()
        await folded_all(service)
        assert remembered(service)["alice"] <= MOST


@pytest.mark.parametrize("plan", [SILO, BOUNDED], ids=["second-delta", "beyond-the-bound"])
async def test_what_only_the_fold_refuses_uses_streams_up_too(tmp_path: Path, plan: Plan) -> None:
    """The fold remembers the ids of such deltas; while the first is on its way, the gateway cannot refuse them."""
    held: list[HeldLog] = []
    async with service_of(config_of(tmp_path, plan, **FEW), wrap_log=held_in(held)) as service:
        held[0].hold()
        sent = [delta_of(plan, stream) if plan is SILO else records(plan, stream) for stream in range(10)]
        answers = asyncio.gather(*(service.gateway.submit(ReceivedDelta("mallory", plan.id, data)) for data in sent))
        await held[0].arrived()
        held[0].free()
        assert [why(answer) for answer in await answers] == [TAKEN] * MOST + [TOO_MANY] * 7
        await folded_all(service)
        assert remembered(service) == {"mallory": MOST}
        kinds = [
            counted(service, "hushsum_folded_total", partition="0", verdict=each) for each in ("counted", "refused")
        ]
        assert kinds == [1, MOST - 1]


def records(plan: Plan, stream: int) -> bytes:
    return Contributor(plan, stream).delta(3)[1]


async def test_what_is_refused_for_another_reason_uses_nothing_up(tmp_path: Path) -> None:
    held: list[HeldLog] = []
    config = config_of(tmp_path, PLAN, **FEW, pending_entries_max=1)
    async with service_of(config, wrap_log=held_in(held)) as service, RawClient(service.grpc) as client:
        first = delta_of(PLAN, 0)
        refused = [
            *(renumbered(first, DeltaId(stream, 0))[:-1] for stream in range(10, 20)),  # malformed
            *(delta_of(PLAN, stream, window=WINDOW + 9) for stream in range(20, 30)),
            *(delta_of(PLAN, stream, window=-5) for stream in range(30, 40)),
        ]
        assert TAKEN not in await told(client, PLAN, *refused)
        held[0].hold()
        waiting = asyncio.ensure_future(service.gateway.submit(ReceivedDelta("alice", PLAN.id, first)))
        await held[0].arrived()
        full = [
            why(await service.gateway.submit(ReceivedDelta("alice", PLAN.id, delta_of(PLAN, stream))))
            for stream in range(40, 50)
        ]
        assert set(full) == {ServiceReason.OVERLOADED}
        held[0].free()
        assert why(await waiting) is TAKEN
        await until(lambda: service.gateway.waiting == 0, "the fold does not pass it")
        assert service.gateway.streams.of("alice", WINDOW) == 1


async def test_a_window_that_cannot_be_paid_for_uses_no_stream_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with service_of(config_of(tmp_path, SILO, **FEW)) as service, RawClient(service.grpc) as client:

        async def unpaid(*_: object) -> None:
            raise StoreUnavailableError("not now")

        monkeypatch.setattr(service.store, "charge_collection", unpaid)
        sent = [delta_of(SILO, stream) for stream in range(10)]
        assert set(await told(client, SILO, *sent)) == {ServiceReason.UNAVAILABLE}
        assert service.gateway.streams.of("alice", WINDOW) == 0


async def test_what_may_be_in_the_log_is_counted(tmp_path: Path) -> None:
    held: list[HeldLog] = []
    async with (
        service_of(config_of(tmp_path, PLAN, **FEW), wrap_log=held_in(held)) as service,
        RawClient(service.grpc) as client,
    ):
        for stream in range(MOST):
            held[0].failures.append(LogUnavailableError("not now"))
            assert await told(client, PLAN, delta_of(PLAN, stream)) == [ServiceReason.UNAVAILABLE]
        again = [delta_of(PLAN, stream) for stream in range(MOST + 1)]
        assert await told(client, PLAN, *again) == [TAKEN] * MOST + [TOO_MANY]


async def test_a_window_that_closes_is_read_again_until_it_is_over_and_one_that_never_opened_goes_with_its_time() -> (
    None
):
    store, runtime = MemoryStore(), ManualRuntime(NOW_MS)
    await store.register(PLAN, 1, WINDOW)
    window_tracker = WindowTracker(PLAN, store, runtime, skew_ms=0, first_window=WINDOW)
    assert not window_tracker.is_over(WINDOW), "its time is there, and the store was not asked yet"
    await window_tracker.open_accepted()
    told = []
    for state in WindowState:
        store.states_by_window[WINDOW] = state
        await window_tracker.refresh()
        told.append(window_tracker.is_over(WINDOW))
    assert told == [False, False, *[True] * (len(WindowState) - 2)]
    runtime._now_ms += 9 * HOUR_MS
    assert window_tracker.is_over(WINDOW + 1)
    assert not window_tracker.is_over(WINDOW + 9)


async def test_reports_are_nobodys_and_have_a_rate_in_place_of_a_bound(tmp_path: Path) -> None:
    async with service_of(config_of(tmp_path, REPORTS, **FEW)) as service, RawClient(service.grpc) as client:
        sent = [delta_of(REPORTS, stream) for stream in range(1, 11)]
        assert await told(client, REPORTS, *sent) == [TAKEN] * 10
        assert service.gateway.streams.clients(WINDOW) == 0, "who sent them is remembered nowhere"


async def test_a_device_with_a_new_spool_at_each_start_tells_its_user(tmp_path: Path) -> None:
    async with service_of(config_of(tmp_path, PLAN, **FEW)) as service:
        for start in range(MOST + 1):
            spool = tmp_path / f"spool-{start}.db"
            async with EdgeClient(service.grpc, spool=spool, client_id="till", runtime=DeviceRuntime()) as client:
                await client.add([1.0, 2.0])
                if start < MOST:
                    await client.flush()
                    continue
                with pytest.raises(
                    NotCountedError, match=r"has used 3 streams in this window.* reuse the spool"
                ) as caught:
                    await client.flush()
                assert caught.value.refused == {"too_many_streams": 1}
                assert client.status().queued == 0, "it is given up, and not sent again and again"


# ------------------------------------------------------------------------------------------------------ the count alone


def test_the_count_is_by_client_and_window() -> None:
    streams = DeltaStreamQuota(2)
    for use in (("a", 1, 7), ("a", 1, 7), ("a", 2, 7), ("a", 1, 8), ("b", 1, 7)):
        assert streams.is_known(*use) or streams.has_room(use[0], use[2])
        streams.add(*use)
        assert streams.is_known(*use)
    assert [streams.of(*where) for where in (("a", 7), ("a", 8), ("b", 7), ("b", 8), ("c", 7))] == [2, 1, 1, 0, 0]
    assert not streams.has_room("a", 7)
    assert streams.has_room("a", 8)
    streams.forget(lambda window: window == 7)
    assert (streams.of("a", 7), streams.of("a", 8)) == (0, 1)


def test_what_is_loaded_is_counted_beyond_the_bound_and_not_of_windows_that_are_over() -> None:
    streams = DeltaStreamQuota(2)
    uses = [StreamUse("a", stream, window) for stream in range(5) for window in (6, 7)]
    streams.restore(uses, lambda window: window == 6)
    assert (streams.of("a", 6), streams.of("a", 7)) == (0, 5)
    assert not streams.has_room("a", 7)


def test_nobody_and_a_gateway_without_a_bound_are_not_counted() -> None:
    for streams, use in ((DeltaStreamQuota(2), ("", 1, 7)), (DeltaStreamQuota(), ("a", 1, 7))):
        streams.add(*use)
        assert streams.is_known(*use)
        assert streams.clients(7) == 0


def test_a_client_of_one_stream_takes_150_bytes_a_window_at_most() -> None:
    clients = 100_000
    uses = [(f"client-{number:06d}", 2**63 + number) for number in range(clients)]
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        streams = DeltaStreamQuota(1024)
        for client_id, stream in uses:
            streams.add(client_id[:1] + client_id[1:], stream + 1, WINDOW)  # of its own, as from the wire
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (after - before) / clients <= 150
