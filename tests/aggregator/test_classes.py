"""Labelled records through the real service: every class has the counters of its own records, over a restart."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typing_extensions import override

import hushsum as hs
from aggregator.config import Config as ServiceConfig
from edge_client import Config, DroppedRecordsWarning, EdgeClient, SystemRuntime
from hushsum.delta import DeltaId, encode
from hushsum.errors import Reason, RecordError
from hushsum.parameters import digest
from hushsum.plan import plan_id_of
from hushsum.query import count_std_error
from hushsum_proto.answers import Status
from hushsum_proto.v1 import wire_pb2 as pb
from tests.plans import classed_plan
from tests.services import NOW_MS, WINDOW, RawClient, config_of, folded_all, service_of

CONFIG = Config(backoff_first_s=0.02, backoff_longest_s=0.2, close_flush_s=0.0)
TURN = np.array([[0.6, -0.8], [0.8, 0.6], [1.0, 1.0]])
LABELS = np.array(["a", "b", "c"])


class DeviceRuntime(SystemRuntime):
    """A device whose clock agrees with the service's."""

    @override
    def now_ms(self) -> int:
        return NOW_MS


@pytest.fixture
def device() -> Iterator[DeviceRuntime]:
    runtime = DeviceRuntime()
    yield runtime
    runtime.close()


def turned_plan() -> hs.Plan:
    """A plan of three classes whose records are first put through a fixed linear map."""
    template = classed_plan()
    fields = {key: value for key, value in template.to_fields().items() if key not in {"format", "privacy"}}
    sketch = dict(template.family.to_fields())
    sketch |= {"family": "hashed", "transforms": [{"kind": "linear", "matrix": digest(TURN)}]}
    return hs.Plan.from_fields({**fields, "sketch": sketch, "privacy": {"epsilon": 1, "total_epsilon": 100}}, [TURN])


def labelled(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    return rng.uniform(0, 10, (n, 2)), LABELS[rng.choice(3, n, p=[0.6, 0.3, 0.1])]


async def sealed_and_released(settings: ServiceConfig, plan: hs.Plan) -> tuple[hs.Sketch, hs.Release]:
    """Seals the window, starts again, releases, and fetches."""
    async with service_of(settings) as service, RawClient(service.grpc) as analyst:
        assert await analyst.seal() == WINDOW
        sealed = await service.store.sealed_window(plan, WINDOW)
    assert sealed is not None
    async with service_of(settings) as service, RawClient(service.grpc) as analyst:
        await analyst.release()
        (info,) = (await analyst.catalog.ListReleases(pb.ListReleasesRequest())).releases
        request = pb.GetReleaseRequest(plan_id=info.plan_id, window=info.window, kind=info.kind)
        chunks = [chunk.data async for chunk in analyst.catalog.GetRelease(request)]
    return sealed.sketch, hs.Release.from_bytes(b"".join(chunks))


CELLS: dict[str, object] = {"family": "partition", "kernel": ..., "bandwidth": 1, "rows": 1, "buckets": 128}


@pytest.mark.parametrize(
    ("partitions", "sketch"),
    [(1, {"rows": 40, "buckets": 512}), (3, {"rows": 40, "buckets": 512}), (3, CELLS), (1, {"rows": 2, "buckets": 4})],
    ids=["1", "3", "3, cells without count counters", "1, rows without count counters"],
)
async def test_every_class_holds_its_own_records_over_a_restart_and_is_released(
    tmp_path: Path, device: DeviceRuntime, rng: np.random.Generator, partitions: int, sketch: dict[str, object]
) -> None:
    plan = classed_plan(sketch=sketch)  # the first two: five blocks a class
    settings = config_of(tmp_path, plan, partitions=partitions)
    expected = hs.Sketch(plan)
    for _ in range(2):
        async with service_of(settings) as service:
            for name in ("alice", "bob", "carol"):
                records, labels = labelled(rng, 100)
                spool = tmp_path / f"{name}.db"
                async with EdgeClient(
                    service.grpc, spool=spool, client_id=name, config=CONFIG, runtime=device
                ) as client:
                    await client.add(records, labels=labels)
                    await client.add(records[0], labels="c")
                    with pytest.warns(DroppedRecordsWarning, match="2 of 3 records were left out"):
                        await client.add(records[:3], labels=["a", None, "unheard of"])
                    await client.flush(timeout_s=120)
                expected.add(np.concatenate([records, records[[0, 0]]]), labels=[*labels, "c", "a"])
            await folded_all(service)
    sealed, released = await sealed_and_released(settings, plan)
    assert np.array_equal(sealed.counters, expected.counters)
    assert np.array_equal(sealed.counts, expected.counts)
    assert (released.plan, released.window, released.plan.classes) == (plan, WINDOW, ("a", "b", "c"))
    assert released.counts.shape == (plan.count_counters,)
    error = count_std_error(plan, label="a")
    for index, label in enumerate(LABELS.tolist()):  # 28 deviations of Laplace noise are rarer than one in 10^17
        assert abs(released.count_of(label) - expected.class_records[index]) < 28 * error


async def test_the_bound_of_a_client_covers_all_its_classes(tmp_path: Path, rng: np.random.Generator) -> None:
    plan = classed_plan(privacy={"unit": "client", "records_per_client": 3})
    records = rng.uniform(0, 10, (4, 2))
    expected = hs.Sketch(plan)
    async with service_of(config_of(tmp_path, plan)) as service, RawClient(service.grpc) as client:

        async def refusal(sequence: int, *labels: str) -> object:
            id = DeltaId(1, sequence)
            delta, _ = encode(plan, records[: len(labels)], window=WINDOW, id=id, labels=labels)
            assert delta is not None
            answer = await client.submit_one(plan.id, delta.pack(plan))
            await folded_all(service)
            return answer.refusal and answer.refusal.reason

        assert await refusal(0, "a", "b") is None
        assert await refusal(1, "a", "c") is Reason.TOO_MANY_RECORDS  # four records of one client
        assert await refusal(2, "c") is None
        assert await client.seal() == WINDOW
        sealed = await service.store.sealed_window(plan, WINDOW)
    expected.add(records[[0, 1, 0]], clients=["x"] * 3, labels=["a", "b", "c"])
    assert sealed is not None
    assert np.array_equal(sealed.sketch.counters, expected.counters)
    assert np.array_equal(sealed.sketch.counts, expected.counts)


async def test_classes_twice_in_a_delta_are_refused_at_the_door(tmp_path: Path, rng: np.random.Generator) -> None:
    plan = classed_plan()
    records, labels = labelled(rng, 20)
    delta, _ = encode(plan, records, window=WINDOW, id=DeltaId(1, 0), labels=labels)
    assert delta is not None
    doubled = replace(delta, runs=(delta.runs[0], delta.runs[0]))
    async with service_of(config_of(tmp_path, plan)) as service, RawClient(service.grpc) as client:
        answer = await client.submit_one(plan.id, doubled.pack(plan))
        assert answer.status is Status.REFUSED
        assert answer.refusal is not None
        assert answer.refusal.reason is Reason.MALFORMED
        assert await service.log.end(0) == 0


async def test_a_plan_with_arrays_travels_whole_to_a_device_and_to_the_next_start(
    tmp_path: Path, device: DeviceRuntime, rng: np.random.Generator
) -> None:
    plan, spool = turned_plan(), tmp_path / "spool.db"
    settings = config_of(tmp_path, plan)
    expected = hs.Sketch(plan)
    for _ in range(2):
        async with service_of(settings) as service:
            async with RawClient(service.grpc) as raw:
                data = (await raw.catalog.GetPlan(pb.GetPlanRequest(plan_id=plan.id))).plan
                assert (data, plan_id_of(data)) == (plan.bundle, plan.id)
            async with EdgeClient(service.grpc, spool=spool, client_id="a", config=CONFIG, runtime=device) as client:
                assert client.plan.bundle == plan.bundle  # at the second time from its spool
                records, labels = labelled(rng, 50)
                await client.add(records, labels=labels)
                await client.flush(timeout_s=120)
                expected.add(records, labels=labels)
            stored = await service.store.plan_named(plan.name)
            assert stored is not None
            assert stored.bundle == plan.bundle
    sealed, released = await sealed_and_released(settings, plan)
    assert np.array_equal(sealed.counters, expected.counters)
    assert released.plan.bundle == plan.bundle


async def test_a_device_takes_its_plan_with_arrays_from_its_spool_while_nobody_answers(
    tmp_path: Path, device: DeviceRuntime
) -> None:
    plan, spool = turned_plan(), tmp_path / "spool.db"
    async with (
        service_of(config_of(tmp_path, plan)) as service,
        EdgeClient(service.grpc, spool=spool, config=CONFIG, runtime=device),
    ):
        target = service.grpc
    async with EdgeClient(target, spool=spool, config=CONFIG, runtime=device) as client:
        await client.add([1.0, 2.0], labels="a")
        assert client.plan == plan
        assert client.status().queued == 1


async def test_labelled_sets_arrive_like_vectors_do(
    tmp_path: Path, device: DeviceRuntime, rng: np.random.Generator
) -> None:
    record = {"kind": "set", "universe": 1000, "classes": ["a", "b"]}
    sketch = {"family": "hashed", "kernel": "jaccard", "rows": 24, "buckets": 64}
    plan = hs.Plan(name="visits", record=record, sketch=sketch, privacy={"epsilon": 1, "total_epsilon": 100})
    sets = [np.sort(rng.choice(1000, rng.integers(1, 40), replace=False)) for _ in range(30)]
    labels = ["a", "b", "b"] * 10
    settings = config_of(tmp_path, plan)
    async with service_of(settings) as service:
        spool = tmp_path / "spool.db"
        async with EdgeClient(service.grpc, spool=spool, client_id="a", config=CONFIG, runtime=device) as client:
            await client.add(sets, labels=labels)
            await client.add(sets[0], labels="b")
            with pytest.warns(DroppedRecordsWarning, match="2 of 4 records were left out"):
                await client.add([[], [5, 4, 5], [7, 8], [1000]], labels=["a"] * 4)
            with pytest.raises(RecordError):
                await client.add([1.5, 2.5], labels="a")
            with pytest.raises(RecordError, match="29 labels for 30 records"):
                await client.add(sets, labels=labels[1:])
            await client.flush(timeout_s=120)
        await folded_all(service)
    sealed, released = await sealed_and_released(settings, plan)
    expected = hs.Sketch(plan)
    expected.add([*sets, sets[0], {4, 5}, np.array([7, 8])], labels=[*labels, "b", "a", "a"])
    assert np.array_equal(sealed.counters, expected.counters)
    assert np.array_equal(sealed.counts, expected.counts)
    assert released.kernel_sum(sets[:3], label="b").value.shape == (3,)
