"""The whole service from outside: limits, stop and start, releases, administration, health, metrics."""

import asyncio
import errno
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]  # it ships no types
from grpc_reflection.v1alpha import (  # type: ignore[import-untyped]  # it ships no types
    reflection_pb2,
    reflection_pb2_grpc,
)

from aggregator.app import Service
from aggregator.config import Config
from aggregator.errors import AggregatorError, ConfigError, PartitionStoppedError
from aggregator.interfaces import Log
from aggregator.model import NewEntry
from aggregator.store.store import open_sqlite_store
from hushsum import Plan
from hushsum.entropy import OsEntropy
from hushsum.releases import Release, draw
from hushsum_proto import convert, convert_admin
from hushsum_proto.answers import Answer, ServiceReason, Status
from hushsum_proto.messages import ServiceStatus
from hushsum_proto.v1 import wire_pb2 as pb
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
    page_of,
    service_of,
    trailing,
)

PLAN = small_plan()


async def test_a_plan_of_more_counters_than_the_service_may_hold_is_refused_before_it_is_registered(
    tmp_path: Path,
) -> None:
    counters = 20 * 64
    config = config_of(tmp_path, PLAN, counters_max=counters - 1)
    with pytest.raises(ConfigError, match=f"has {counters} counters .* at most counters_max = {counters - 1}"):
        async with service_of(config):
            pass
    store = await open_sqlite_store(tmp_path / "data" / "store.db", SetRuntime())
    assert await store.plan_named(PLAN.name) is None
    await store.close()
    async with service_of(config_of(tmp_path, PLAN, counters_max=counters)) as service:
        assert service.plan == PLAN


def holding(held: list[HeldLog]) -> Callable[[Log], Log]:
    def wrap(log: Log) -> Log:
        held.append(HeldLog(log))
        return held[-1]

    return wrap


def reasons(answers: list[Answer]) -> list[object]:
    return [None if answer.refusal is None else answer.refusal.reason for answer in answers]


# ------------------------------------------------------------------------------------------------------------- limits


async def test_a_session_with_too_much_unanswered_is_refused_as_overload_and_goes_on(tmp_path: Path) -> None:
    held: list[HeldLog] = []
    config = config_of(tmp_path, PLAN, in_flight_max=4)
    async with service_of(config, wrap_log=holding(held)) as service, RawClient(service.grpc) as client:
        contributor = Contributor(PLAN, 3)
        deltas = [contributor.delta()[1] for _ in range(7)]
        held[0].hold()
        call = asyncio.create_task(client.submit(PLAN.id, deltas))
        await held[0].arrived()
        while counted(service, "hushsum_refusals_total", reason="overloaded") < 3:
            await client.hello()
        held[0].free()
        answers = await call

        refused = [answer for answer in answers if answer.refusal is not None]
        assert [answer.id for answer in refused] == [Contributor(PLAN, 3).delta(sequence=n)[0] for n in (4, 5, 6)]
        assert reasons(refused) == [ServiceReason.OVERLOADED] * 3
        assert all(answer.refusal.retry and answer.refusal.retry_after_ms for answer in refused if answer.refusal)
        assert len(answers) - len(refused) == 4
        assert await ends_of(service) == [4]


async def test_answers_that_are_ready_together_are_one_message_of_64_at_most(tmp_path: Path) -> None:
    held: list[HeldLog] = []
    config = config_of(tmp_path, PLAN, in_flight_max=100)
    async with service_of(config, wrap_log=holding(held)) as service, RawClient(service.grpc) as client:
        contributor = Contributor(PLAN, 3)
        sent = [contributor.delta() for _ in range(81)]
        call = client.collection.Submit(None, metadata=client.metadata)
        held[0].hold()
        await call.write(convert.submission_to_wire(PLAN.id, sent[0][1]))
        await held[0].arrived()  # the first alone, the others together
        for _, data in sent[1:]:
            await call.write(convert.submission_to_wire(PLAN.id, data))
        while service.gateway.waiting < 81:
            await client.hello()
        held[0].free()
        messages = [convert.answers_from_wire(await answer_of(call)) for _ in range(3)]
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF

    assert [len(answers) for answers in messages] == [1, 64, 16]
    assert [answer.id for answers in messages for answer in answers] == [id for id, _ in sent]
    assert {answer.status for answers in messages for answer in answers} == {Status.ACKNOWLEDGED}


@pytest.mark.parametrize("limit", [{"pending_entries_max": 2}, {"pending_bytes_max": 200}])
async def test_a_service_with_too_much_unanswered_refuses_every_session(tmp_path: Path, limit: dict[str, int]) -> None:
    held: list[HeldLog] = []
    config = config_of(tmp_path, PLAN, **limit)
    async with (
        service_of(config, wrap_log=holding(held)) as service,
        RawClient(service.grpc) as client,
        RawClient(service.grpc, "carol") as carol,
    ):
        contributor = Contributor(PLAN, 3)
        held[0].hold()
        one, other = [[contributor.delta()[1]] for _ in range(2)]  # a single client gets a share of the places alone
        calls = asyncio.gather(client.submit(PLAN.id, one), carol.submit(PLAN.id, other))
        await held[0].arrived()
        while service.gateway.waiting < 2:
            await client.hello()

        async with RawClient(service.grpc, "bob") as bob:
            (streamed,) = await bob.submit(PLAN.id, [Contributor(PLAN, 4).delta()[1]])
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await bob.submit_one(PLAN.id, Contributor(PLAN, 4).delta()[1])

        assert reasons([streamed]) == [ServiceReason.OVERLOADED]
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert trailing(caught.value)["hushsum-reason"] == "overloaded"
        assert int(trailing(caught.value)["hushsum-retry-after-ms"]) > 0
        assert counted(service, "hushsum_refusals_total", reason="overloaded") == 2
        held[0].free()
        assert [answer.status for (answer,) in await calls] == [Status.ACKNOWLEDGED] * 2


async def test_a_session_beyond_the_limit_is_refused_with_its_status(tmp_path: Path) -> None:
    async with service_of(config_of(tmp_path, PLAN, sessions_max=1)) as service, RawClient(service.grpc) as client:
        contributor = Contributor(PLAN, 3)
        first = client.collection.Submit(None, metadata=client.metadata)
        await first.write(convert.submission_to_wire(PLAN.id, contributor.delta()[1]))
        await first.read()
        assert counted(service, "hushsum_sessions") == 1

        # Nothing is written to it: gRPC forgets the status of a call that ends while a message is on its way.
        second = client.collection.Submit(None, metadata=client.metadata)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await second.read()
        await first.done_writing()
        await first.code()

        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert trailing(caught.value)["hushsum-reason"] == "overloaded"
        assert len(await client.submit(PLAN.id, [contributor.delta()[1]])) == 1


async def test_a_client_that_vanishes_gives_its_session_back(tmp_path: Path) -> None:
    async with service_of(config_of(tmp_path, PLAN, sessions_max=1)) as service:
        async with RawClient(service.grpc) as client:
            call = client.collection.Submit(None, metadata=client.metadata)
            await call.write(convert.submission_to_wire(PLAN.id, Contributor(PLAN, 3).delta()[1]))
            await call.read()
        async with RawClient(service.grpc) as client:
            while counted(service, "hushsum_sessions"):
                await client.hello()
            assert len(await client.submit(PLAN.id, [Contributor(PLAN, 4).delta()[1]])) == 1


# ------------------------------------------------------------------------------------------------------ stop and start


async def test_a_stop_answers_what_was_accepted_and_refuses_the_rest(tmp_path: Path) -> None:
    held: list[HeldLog] = []
    config = config_of(tmp_path, PLAN)
    contributor = Contributor(PLAN, 3)
    async with service_of(config, wrap_log=holding(held)) as service:
        client = RawClient(service.grpc)
        held[0].hold()
        call = client.collection.Submit(None, metadata=client.metadata)
        for _ in range(5):
            await call.write(convert.submission_to_wire(PLAN.id, contributor.delta()[1]))
        await held[0].arrived()
        while service.gateway.waiting < 5:
            await client.hello()
        service.gateway.stop_accepting()
        await call.write(convert.submission_to_wire(PLAN.id, contributor.delta()[1]))
        refused = convert.answer_from_wire(await answer_of(call))
        with pytest.raises(grpc.aio.AioRpcError) as hello:
            await client.hello()
        asyncio.get_running_loop().call_soon(held[0].free)
    answers: list[Answer] = []
    while len(answers) < 5:
        answers += convert.answers_from_wire(await answer_of(call))
    end = await call.code()
    await client.channel.close(None)

    assert reasons([refused]) == [ServiceReason.SHUTTING_DOWN]
    assert hello.value.code() is grpc.StatusCode.UNAVAILABLE
    assert trailing(hello.value)["hushsum-reason"] == "shutting_down"
    assert [answer.status for answer in answers] == [Status.ACKNOWLEDGED] * 5
    assert end is grpc.StatusCode.UNAVAILABLE
    async with service_of(config) as service:
        assert await ends_of(service) == [5]
        marks = await service.store.fold_marks(PLAN.id)
        assert [mark.position for mark in marks.values()] == [5], "the last checkpoint holds all of it"


async def answer_of(call: "grpc.aio.StreamStreamCall[pb.SubmitRequest, pb.SubmitReply]") -> pb.SubmitReply:
    reply = await call.read()
    assert isinstance(reply, pb.SubmitReply)
    return reply


async def test_a_ready_service_says_where_it_listens_and_a_stopped_one_does_not(tmp_path: Path) -> None:
    config = config_of(tmp_path, PLAN, metrics_listen="127.0.0.1:0")
    async with service_of(config) as service:
        listening = json.loads((config.folder / "listening.json").read_text())
        pages = {"metrics": service.metrics_page, "health": ""}
        assert listening == {"grpc": service.grpc, **pages, "pid": os.getpid()}
        async with RawClient(listening["grpc"]) as client:
            assert (await client.hello()).plan_id == PLAN.id

    assert not (config.folder / "listening.json").exists()


async def test_a_folder_is_held_by_one_service_at_a_time(tmp_path: Path) -> None:
    config = config_of(tmp_path, PLAN)
    async with service_of(config):
        with pytest.raises(ConfigError, match="in use by another process"):
            async with service_of(config):
                pass
    async with service_of(config):
        pass


async def test_a_folder_keeps_its_number_of_partitions(tmp_path: Path) -> None:
    async with service_of(config_of(tmp_path, PLAN)):
        pass
    with pytest.raises(AggregatorError, match="partitions"):
        async with service_of(config_of(tmp_path, PLAN, partitions=4)):
            pass


async def test_a_port_is_held_by_one_service_at_a_time(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    async with service_of(config_of(tmp_path, PLAN)) as service:
        with pytest.raises(ConfigError, match="is the port in use"):
            async with service_of(config_of(tmp_path / "other", PLAN, listen=service.grpc)):
                pass


async def test_a_fold_that_stops_ends_the_service(tmp_path: Path) -> None:
    config = config_of(tmp_path, PLAN)
    newer = pb.Entry(format_version=2).SerializeToString()

    async def run() -> None:
        async with service_of(config) as service:
            await service.log.append([NewEntry(0, WINDOW, newer)])
            await service.failed()

    with pytest.raises(PartitionStoppedError, match="format version 2"):
        await run()


# ------------------------------------------------------------------------------------------------------------ the plan


TOML = """
name = "till"
[record]
dim = 2
lower = [0, 0]
upper = [10, 10]
[sketch]
family = "hashed"
kernel = "euclidean"
bandwidth = 2.5
rows = 20
buckets = 64
seed = 3
[privacy]
epsilon = 1.0
total_epsilon = 100
"""


def toml_config(folder: Path, text: str) -> Config:
    (folder / "plan.toml").write_text(text)
    return Config.of(
        plan=str(folder / "plan.toml"), data=str(folder / "data"), listen="127.0.0.1:0", metrics_listen="", manual=True
    )


async def plan_served(config: Config) -> Plan:
    async with service_of(config) as service, RawClient(service.grpc) as client:
        return Plan.from_bytes((await client.catalog.GetPlan(pb.GetPlanRequest())).plan)


async def test_a_plan_file_is_made_once_and_served_as_its_canonical_bytes(tmp_path: Path) -> None:
    made = await plan_served(toml_config(tmp_path, TOML))

    assert made == Plan.from_toml(TOML)
    # Another way to write the same plan is the same plan.
    rewritten = TOML.replace("epsilon = 1.0", "epsilon = 1\ndelta = 0").replace("2.5", "2.50")
    assert (await plan_served(toml_config(tmp_path, rewritten))).id == made.id


async def test_a_plan_file_that_was_changed_is_refused_with_what_differs(tmp_path: Path) -> None:
    await plan_served(toml_config(tmp_path, TOML))
    changed = toml_config(tmp_path, TOML.replace("rows = 20", "rows = 21").replace("epsilon = 1.0", "epsilon = 0.5"))

    with pytest.raises(ConfigError, match=r"sketch\.rows is 20, the file says 21") as caught:
        await plan_served(changed)

    assert "privacy.epsilon is '1', the file says '0.5'" in str(caught.value)
    assert "mechanism" not in str(caught.value)


async def test_a_plan_that_is_not_there_is_the_operators_mistake(tmp_path: Path) -> None:
    config = toml_config(tmp_path, TOML)
    assert config.plan is not None
    config.plan.unlink()

    with pytest.raises(ConfigError, match="cannot be read"):
        await plan_served(config)


# ------------------------------------------------------------------------------------------------------------ releases


async def test_releases_are_listed_given_and_watched_once_they_are_published(tmp_path: Path) -> None:
    plan = small_plan(sketch={"rows": 300, "buckets": 256})  # more than one chunk
    async with service_of(config_of(tmp_path, plan)) as service, RawClient(service.grpc) as client:
        catalog = client.catalog
        watch = catalog.WatchReleases(pb.ListReleasesRequest())
        await client.submit_one(plan.id, Contributor(plan, 3).delta(5)[1])
        assert not (await catalog.ListReleases(pb.ListReleasesRequest())).releases
        await client.seal()

        released = await client.release()
        (info,) = (await catalog.ListReleases(pb.ListReleasesRequest(plan_id=plan.id))).releases
        request = pb.GetReleaseRequest(plan_id=plan.id, kind=info.kind, window=info.window)
        chunks = [chunk async for chunk in catalog.GetRelease(request)]
        async for watched in watch:
            assert watched == info
            break

        data = b"".join(chunk.data for chunk in chunks)
        assert [chunk.offset for chunk in chunks] == [n * 262144 for n in range(len(chunks))]
        assert released.release == info
        assert (info.kind, info.window, info.size_bytes) == ("tumbling", WINDOW, len(data))
        assert info.sha256 == hashlib.sha256(data).digest()
        assert Release.from_bytes(data).plan == plan
        assert not (
            await catalog.ListReleases(pb.ListReleasesRequest(first_window=WINDOW + 1, from_first=True))
        ).releases


async def test_a_withheld_window_is_told_to_analysts_who_find_nothing_to_fetch(tmp_path: Path) -> None:
    plan = small_plan(window={"min_clients": 10**6})
    config = config_of(tmp_path, plan, metrics_listen="127.0.0.1:0")
    told = pb.ReleaseInfo(plan_id=plan.id, kind="tumbling", window=WINDOW, withheld=True)  # no size, and no sum
    async with service_of(config) as service, RawClient(service.grpc) as client:
        catalog = client.catalog
        watch = catalog.WatchReleases(pb.ListReleasesRequest())
        await client.submit_one(plan.id, Contributor(plan, 3).delta(5)[1])
        await client.seal()
        replied = await client.release()
        assert (replied.release, replied.epsilon_spent) == (told, "0.05")
        async for watched in watch:
            assert watched == told
            break
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            _ = [chunk async for chunk in catalog.GetRelease(pb.GetReleaseRequest(kind="tumbling", window=WINDOW))]
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        assert f"window {WINDOW} is withheld" in str(caught.value.details())
        assert (await status_of(client)).windows == ((WINDOW, "withheld"),)
        again = await client.administration.ReleaseWindow(pb.ReleaseWindowRequest(window=WINDOW))
        assert again == replied
        page = await asyncio.to_thread(page_of, service.metrics_page)
        assert 'hushsum_outcomes_total{kind="tumbling"} 1.0' in page.splitlines()
        assert 'hushsum_outcomes_withheld_total{kind="tumbling"} 1.0' in page.splitlines()
        # Who resends hears what it would hear of a released window: that its ids are forgotten.
        late = await client.submit_one(plan.id, Contributor(plan, 3).delta(5)[1])
        assert late.status is Status.UNKNOWN
    async with service_of(config) as service, RawClient(service.grpc) as client:
        assert [*(await client.catalog.ListReleases(pb.ListReleasesRequest())).releases] == [told]


async def test_a_release_that_is_committed_and_not_published_is_seen_by_nobody(tmp_path: Path) -> None:
    config = config_of(tmp_path, PLAN)
    get = pb.GetReleaseRequest(kind="tumbling", window=WINDOW)
    async with service_of(config) as service, RawClient(service.grpc) as client:
        await client.seal()
        await commit_unpublished(service)

        assert not (await client.catalog.ListReleases(pb.ListReleasesRequest())).releases
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            _ = [chunk async for chunk in client.catalog.GetRelease(get)]
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    # The next start writes its receipt and publishes that very draw.
    async with service_of(config) as service, RawClient(service.grpc) as client:
        assert len((await client.catalog.ListReleases(pb.ListReleasesRequest())).releases) == 1


async def commit_unpublished(service: Service) -> None:
    sealed = await service.store.sealed_window(PLAN, WINDOW)
    assert sealed is not None
    release = draw(sealed.sketch, kind="tumbling", window=WINDOW, entropy=OsEntropy(), accounted=True)
    fence = await service.store.acquire_lease(PLAN.id, "test", "", 10.0)
    assert fence is not None
    await service.store.reserve_outcome(PLAN, "tumbling", WINDOW, sealed.digest(), OsEntropy(), fence=fence)
    await service.store.commit_outcome(PLAN, "tumbling", WINDOW, release.to_bytes(), fence=fence)


async def test_another_plans_releases_are_not_here(tmp_path: Path) -> None:
    async with service_of(config_of(tmp_path, PLAN)) as service, RawClient(service.grpc) as client:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.catalog.ListReleases(pb.ListReleasesRequest(plan_id=bytes(32)))

        assert trailing(caught.value)["hushsum-reason"] == "wrong_plan"


# ------------------------------------------------------------------------------- administration, health, metrics


async def test_the_status_shows_windows_and_ledger(tmp_path: Path) -> None:
    config = config_of(tmp_path, PLAN, partitions=3, skew_s=2 * 3600.0)
    async with service_of(config) as service, RawClient(service.grpc) as client:
        await client.seal()
        released = await client.release()
        status = convert_admin.status_from_wire(await client.administration.GetStatus(pb.StatusRequest()))

        assert (status.plan_id, status.plan_name, status.partitions) == (PLAN.id, "test", 3)
        assert status.windows == ((WINDOW, "released"), (WINDOW + 1, "open"), (WINDOW + 2, "open"))
        assert (status.epsilon_total, status.epsilon_spent, status.epsilon_left) == ("100", "1", "99")
        assert (released.epsilon_spent, released.epsilon_left) == ("1", "99")
        assert not status.releasing_stopped
        assert (status.role, status.releaser_address) == ("all", service.grpc)
        assert [(fold.partition, fold.lag, fold.stopped) for fold in status.folds] == [(n, 0, "") for n in range(3)]


async def status_of(client: RawClient) -> ServiceStatus:
    return convert_admin.status_from_wire(await client.administration.GetStatus(pb.StatusRequest()))


async def test_damaged_receipts_stop_releasing_and_nothing_else(tmp_path: Path) -> None:
    config, runtime = config_of(tmp_path, PLAN, skew_s=3600.0), SetRuntime()
    receipts = config.folder / "receipts.jsonl"
    async with service_of(config, runtime) as service, RawClient(service.grpc) as client:
        await client.seal()
        await client.release()
    whole = receipts.read_bytes()
    receipts.write_bytes(whole[:20] + b"x" + whole[21:])
    async with service_of(config, runtime) as service, RawClient(service.grpc) as client:
        contributor = Contributor(PLAN, 3, window=WINDOW + 1)
        assert (await client.submit_one(PLAN.id, contributor.delta()[1])).status is Status.ACKNOWLEDGED
        assert await client.seal() == WINDOW + 1
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.release()
        status = await status_of(client)

        assert trailing(caught.value)["hushsum-reason"] == "releasing_stopped"
        assert "line 1: not a receipt" in status.releasing_stopped
        assert "1 sealed window is waiting for release; accepted data is kept" in status.releasing_stopped
        assert counted(service, "hushsum_releasing_stopped") == 1
    receipts.write_bytes(whole)
    async with service_of(config, runtime) as service, RawClient(service.grpc) as client:
        assert (await client.release()).release.window == WINDOW + 1
        assert not (await status_of(client)).releasing_stopped


async def test_a_full_disk_at_the_start_stops_releasing_until_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(tmp_path, PLAN)
    async with service_of(config) as service, RawClient(service.grpc) as client:
        await client.seal()
        await commit_unpublished(service)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("aggregator.release.receipts._append", full)
    async with service_of(config) as service, RawClient(service.grpc) as client:
        stopped = (await status_of(client)).releasing_stopped
        assert f"window {WINDOW} is charged and drawn but not published yet" in stopped
        assert "No space left" in stopped
        assert counted(service, "hushsum_releasing_stopped") == 1
        monkeypatch.undo()
        assert (await client.release()).release.window == WINDOW
        assert not (await status_of(client)).releasing_stopped
        assert counted(service, "hushsum_releasing_stopped") == 0


@pytest.mark.parametrize(("method", "reason"), [("SealWindow", "window_order"), ("ReleaseWindow", "window_order")])
async def test_a_window_out_of_its_order_is_refused_to_the_operator(tmp_path: Path, method: str, reason: str) -> None:
    async with service_of(config_of(tmp_path, PLAN)) as service, RawClient(service.grpc) as client:
        request = {"SealWindow": pb.SealWindowRequest, "ReleaseWindow": pb.ReleaseWindowRequest}[method]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await getattr(client.administration, method)(request(window=WINDOW + 7))

        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert trailing(caught.value)["hushsum-reason"] == reason


async def test_a_spent_budget_is_told_to_the_operator(tmp_path: Path) -> None:
    plan = small_plan(privacy={"unit": "client", "records_per_client": 1, "total_epsilon": 1})
    runtime = SetRuntime()
    async with (
        service_of(config_of(tmp_path, plan, skew_s=3600.0), runtime) as service,
        RawClient(service.grpc) as client,
    ):
        for _ in range(2):
            await client.seal()
        await client.release()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.release()
        status = await client.administration.GetStatus(pb.StatusRequest())

        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert trailing(caught.value)["hushsum-reason"] == "releasing_stopped"
        assert status.releasing_stopped
        assert counted(service, "hushsum_releasing_stopped") == 1


async def test_health_and_reflection_answer(tmp_path: Path) -> None:
    async with service_of(config_of(tmp_path, PLAN)) as service, RawClient(service.grpc) as client:
        health = health_pb2_grpc.HealthStub(client.channel)
        for name in ("", "hushsum.v1.Collection", "hushsum.v1.Catalogue", "hushsum.v1.Administration"):
            reply = await health.Check(health_pb2.HealthCheckRequest(service=name))
            assert reply.status == health_pb2.HealthCheckResponse.SERVING

        async def questions() -> object:
            yield reflection_pb2.ServerReflectionRequest(list_services="")

        reflection = reflection_pb2_grpc.ServerReflectionStub(client.channel)
        replies = [reply async for reply in reflection.ServerReflectionInfo(questions())]
        names = {each.name for each in replies[0].list_services_response.service}
        assert {"hushsum.v1.Collection", "hushsum.v1.Catalogue", "hushsum.v1.Administration"} < names
        assert "grpc.health.v1.Health" in names


async def test_the_metrics_page_shows_what_was_counted(tmp_path: Path) -> None:
    config = config_of(tmp_path, PLAN, metrics_listen="127.0.0.1:0")
    async with service_of(config) as service, RawClient(service.grpc) as client:
        await client.submit(PLAN.id, [Contributor(PLAN, 3).delta()[1], b"\0rubbish"])
        await client.seal()
        await client.release()
        page = await asyncio.to_thread(page_of, service.metrics_page)

    for line in (
        'hushsum_deltas_total{status="acknowledged"} 1.0',
        'hushsum_refusals_total{reason="malformed"} 1.0',
        'hushsum_refusals_total{reason="id_reused"} 0.0',
        "hushsum_group_entries_count 1.0",
        'hushsum_folded_total{partition="0",verdict="counted"} 1.0',
        'hushsum_fold_lag{partition="0"} 0.0',
        'hushsum_outcomes_total{kind="tumbling"} 1.0',
    ):
        assert line in page.splitlines()
    assert "alice" not in page


def test_no_window_of_these_tests_lies_in_another_hour() -> None:
    assert PLAN.window.index_at(NOW_MS) == WINDOW
    assert PLAN.window.index_at(NOW_MS + HOUR_MS) == WINDOW + 1
