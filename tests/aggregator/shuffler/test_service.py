"""A shuffler as a service, between real connections: devices on the one side, a real aggregator on the other."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc.aio
import numpy as np
import pytest

from aggregator.app import Service
from aggregator.config import Config
from aggregator.errors import ConfigError
from aggregator.shuffler.app import Shuffler, running
from hushsum import Release
from hushsum.entropy import OsEntropy
from hushsum.errors import PlanError, Reason
from hushsum.plan import Plan
from hushsum.signed_plan import SignedPlan, signature_file
from hushsum.signing import DirectoryKey, Role, SigningKey, toml_of
from hushsum_proto.answers import Status
from hushsum_proto.v1 import wire_pb2 as pb
from tests.aggregator.debts import Debts
from tests.aggregator.shuffler.shuffled import KEY, LEAST, packed, shuffled_plan
from tests.pages import QuickRuntime
from tests.plans import small_plan
from tests.services import HOUR_MS, NOW_MS, WINDOW, RawClient, SetRuntime, config_of, service_of, trailing

PLAN = shuffled_plan(window={"length": "1h", "lateness": "10m"})
LARGE = shuffled_plan(2000, window={"length": "1h", "lateness": "10m"})  # enough for the theorem to say something
CUT_MS = (WINDOW + 1) * HOUR_MS + 5 * 60_000


@dataclass
class Both:
    """An aggregator and its shuffler, with one clock."""

    runtime: SetRuntime
    aggregator: Service
    shuffler: Shuffler

    async def release(self) -> Release:
        self.runtime.set_ms = (WINDOW + 1) * HOUR_MS + 10 * 60_000
        async with RawClient(self.aggregator.grpc) as client:
            assert await client.seal() == WINDOW
            info = (await client.release()).release
            chunks = client.catalog.GetRelease(pb.GetReleaseRequest(kind=info.kind, window=info.window))
            return Release.from_bytes(b"".join([chunk.data async for chunk in chunks]))


def shuffler_config(folder: Path, upstream: str, **settings: object) -> Config:
    folder.mkdir(exist_ok=True)
    key, directory = folder / "shuffler.pem", folder / "shufflers.toml"
    if not key.exists():
        KEY.save(key)
        directory.write_text(toml_of(DirectoryKey("sh-1", Role.SHUFFLER, KEY.verify_key)))
    return Config.of(
        **{
            "role": "shuffler",
            "data": str(folder / "shuffled"),
            "upstream": upstream,
            "shuffler_key": str(key),
            "shufflers": str(directory),
            "listen": "127.0.0.1:0",
            "metrics_listen": "",
            "stop_s": 5.0,
            "start_s": 120.0,
            **settings,
        }
    )


@asynccontextmanager
async def both(folder: Path, clock: SetRuntime | None = None, plan: Plan = PLAN) -> AsyncIterator[Both]:
    runtime = clock or SetRuntime()
    directory = shuffler_config(folder, "127.0.0.1:1").shufflers
    config = config_of(folder, plan, shufflers=str(directory))
    async with (
        service_of(config, runtime) as aggregator,
        running(shuffler_config(folder, aggregator.grpc), runtime) as shuffler,
    ):
        yield Both(runtime, aggregator, shuffler)


async def forwarded(shuffler: Shuffler, window: int = WINDOW) -> None:
    """Returns once the window is closed, and nothing of it waits."""
    async with asyncio.timeout(120):
        while True:
            is_closed = (await shuffler.file.closed_through() or 0) >= window and not await shuffler.file.closed_pools()
            if is_closed and not await shuffler.file.outgoing():
                return
            await asyncio.sleep(0.02)


async def test_reports_go_through_and_their_release_alone_says_what_that_is_worth(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    reports = rng.integers(0, 1280, 3000)
    batches = [packed(part, window=WINDOW, stream=n, plan=LARGE) for n, part in enumerate(np.array_split(reports, 40))]
    async with both(tmp_path, plan=LARGE) as site:
        async with RawClient(site.shuffler.grpc) as device:
            welcome = await device.hello(LARGE.id)
            assert welcome.newest_window == WINDOW
            answers = await device.submit(LARGE.id, batches + batches[:5])
            assert {answer.status for answer in answers} == {Status.ACKNOWLEDGED}
            site.runtime.set_ms = CUT_MS
            await forwarded(site.shuffler)
            assert (await device.hello(LARGE.id)).oldest_window == WINDOW + 1
            late = packed([1], window=WINDOW, stream=99, plan=LARGE)
            assert (await device.submit_one(LARGE.id, late)).status is Status.LATE
            assert (await device.submit_one(LARGE.id, batches[0])).status is Status.COUNTED
        release = await site.release()
        assert release.count == 3000
        assert release.shuffled
        assert release.amplified is not None
        assert release.amplified.epsilon < LARGE.privacy.epsilon


async def test_the_aggregator_takes_nothing_of_such_a_plan_from_a_device(tmp_path: Path) -> None:
    async with both(tmp_path) as site, RawClient(site.aggregator.grpc) as device:
        answer = await device.submit_one(PLAN.id, packed(range(LEAST), window=WINDOW, stream=1, plan=PLAN))
        assert answer.status is Status.REFUSED
        assert answer.refusal is not None
        assert answer.refusal.reason is Reason.UNSHUFFLED


async def test_too_few_reports_never_reach_the_aggregator(tmp_path: Path) -> None:
    async with both(tmp_path) as site:
        async with RawClient(site.shuffler.grpc) as device:
            data = packed(range(LEAST - 1), window=WINDOW, stream=1, plan=PLAN)
            assert (await device.submit_one(PLAN.id, data)).status is Status.ACKNOWLEDGED
            site.runtime.set_ms = CUT_MS
            await forwarded(site.shuffler)
            assert (await device.submit_one(PLAN.id, data)).status is Status.UNKNOWN
        assert (await site.release()).count == 0


async def test_a_plan_comes_with_its_signature_and_stays_after_a_restart_without_the_aggregator(tmp_path: Path) -> None:
    planner = SigningKey.generate(OsEntropy())
    signed = SignedPlan.sign(PLAN.bundle, planner, "planner")
    config = config_of(tmp_path, PLAN, shufflers=str(shuffler_config(tmp_path, "127.0.0.1:1").shufflers))
    assert config.plan is not None
    signature_file(config.plan).write_bytes(signed.to_bytes())
    async with (
        service_of(config) as aggregator,
        running(shuffler_config(tmp_path, aggregator.grpc), SetRuntime()) as first,
    ):
        assert first.plan == PLAN
    async with (
        running(shuffler_config(tmp_path, "127.0.0.1:1"), SetRuntime()) as shuffler,
        RawClient(shuffler.grpc) as device,
    ):
        reply = await device.catalog.GetPlan(pb.GetPlanRequest())
        assert SignedPlan.received(reply.plan, reply.key_id, reply.suite, reply.signature) == signed
        with pytest.raises(grpc.aio.AioRpcError, match="send the request to the aggregator"):
            await device.catalog.ListReleases(pb.ListReleasesRequest())
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            async for _ in device.catalog.WatchReleases(pb.ListReleasesRequest()):
                pass
        assert trailing(refused.value)["hushsum-reason"] == "not_found"


async def test_what_was_acknowledged_outlasts_a_stop(tmp_path: Path) -> None:
    async with both(tmp_path) as site, RawClient(site.shuffler.grpc) as device:
        await device.submit_one(PLAN.id, packed(range(LEAST), window=WINDOW, stream=1, plan=PLAN))
    runtime = SetRuntime(CUT_MS)
    async with both(tmp_path, runtime) as site:
        await forwarded(site.shuffler)
        assert (await site.release()).count == LEAST


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        ("open key", r"^shuffler_key: .*chmod 600"),
        ("unlisted key", r"^shufflers: .*is not in the key registry"),
        ("other role", r"^shufflers: .*is a gateway key"),
        ("nobody upstream", r"^upstream 127\.0\.0\.1:1: .*first start"),
        ("a plan.toml", r"^plan: .*plan\.json"),
        ("an aggregator's folder", r"^data: .*its own data directory"),
    ],
)
async def test_what_is_set_wrong_is_said_by_its_key(mistake: str, said: str, tmp_path: Path) -> None:
    settings: dict[str, object] = {"start_s": 0.0}
    config = shuffler_config(tmp_path, "127.0.0.1:1")
    if mistake == "open key":
        (tmp_path / "shuffler.pem").chmod(0o644)
    elif mistake == "unlisted key":
        other = SigningKey.generate(OsEntropy()).verify_key
        (tmp_path / "shufflers.toml").write_text(toml_of(DirectoryKey("sh-1", Role.SHUFFLER, other)))
    elif mistake == "other role":
        (tmp_path / "shufflers.toml").write_text(toml_of(DirectoryKey("gw-1", Role.GATEWAY, KEY.verify_key)))
    elif mistake == "a plan.toml":
        (tmp_path / "plan.toml").write_text('name = "x"')
        settings["plan"] = str(tmp_path / "plan.toml")
    elif mistake == "an aggregator's folder":
        assert config.data is not None
        config.data.mkdir()
        (config.data / "store.db").touch()
    with pytest.raises(ConfigError, match=said):
        async with running(shuffler_config(tmp_path, "127.0.0.1:1", **settings), SetRuntime()):
            pass


async def test_a_plan_that_has_no_shuffler_or_is_another_one_is_refused(tmp_path: Path) -> None:
    paths = {}
    for name, plan in {"mine": PLAN, "other": shuffled_plan(LEAST + 1), "central": small_plan()}.items():
        paths[name] = tmp_path / f"{name}.json"
        paths[name].write_bytes(plan.bundle)
    with pytest.raises(PlanError, match=r"^privacy\.local\.shuffle_min"):
        async with running(shuffler_config(tmp_path, "127.0.0.1:1", plan=str(paths["central"])), SetRuntime()):
            pass
    for _ in range(2):
        async with running(shuffler_config(tmp_path, "127.0.0.1:1", plan=str(paths["mine"])), SetRuntime(NOW_MS)):
            pass
    with pytest.raises(ConfigError, match=r"^plan: .*use another data directory for another plan"):
        async with running(shuffler_config(tmp_path, "127.0.0.1:1", plan=str(paths["other"])), SetRuntime()):
            pass


async def test_a_shuffler_forgets_who_owes_it_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = QuickRuntime()
    directory = shuffler_config(tmp_path, "127.0.0.1:1").shufflers
    async with service_of(config_of(tmp_path, PLAN, shufflers=str(directory)), runtime) as service:
        debts, config = Debts(monkeypatch), shuffler_config(tmp_path, service.grpc)
        async with running(config, runtime) as shuffler, RawClient(shuffler.grpc) as device:
            await device.hello(PLAN.id)
            await device.submit_one(PLAN.id, packed([1], window=WINDOW, stream=1, plan=PLAN))
            await debts.forgotten()
