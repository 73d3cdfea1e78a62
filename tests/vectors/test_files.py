"""Files of version 1 open for ever: a service and a device go on from where they were left."""

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aggregator.store.store import read_sealed
from edge_client.spool.spool import Spool
from hushsum import Release, Sketch
from hushsum.delta import Delta, DeltaId
from hushsum.entropy import OsEntropy
from hushsum_proto.v1 import wire_pb2 as pb
from tests.services import HOUR_MS, NOW_MS, RawClient, SetRuntime, config_of, service_of
from tests.vectors.generate_files import ARCHIVE, FILES, PLAN


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with zipfile.ZipFile(ARCHIVE) as archive:
        archive.extractall(tmp_path)
    (tmp_path / "data").mkdir(mode=0o700)
    for file in FILES:
        (tmp_path / file).rename(tmp_path / "data" / file)
    return tmp_path


@pytest.fixture
def said(folder: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((folder / "said.json").read_text(encoding="utf-8"))
    return loaded


async def test_a_service_goes_on_from_files_of_version_1(folder: Path, said: dict[str, Any]) -> None:
    runtime = SetRuntime(NOW_MS + HOUR_MS)
    config = config_of(folder, PLAN, partitions=2)
    async with service_of(config, runtime) as service, RawClient(service.grpc, "alice") as client:
        (info,) = (await client.catalog.ListReleases(pb.ListReleasesRequest())).releases
        assert (info.window, info.sha256.hex()) == (said["released_window"], said["release_sha256"])
        request = pb.GetReleaseRequest(plan_id=PLAN.id, kind=info.kind, window=info.window)
        data = b"".join([chunk.data async for chunk in client.catalog.GetRelease(request)])
        assert Release.from_bytes(data).accounted
        assert await client.seal() == said["open_window"]
        sealed = read_sealed(folder / "data" / "store.db", PLAN, said["open_window"])
    expected = Sketch(PLAN)
    expected.add(said["open_records"])
    assert sealed is not None
    assert np.array_equal(sealed.counters, expected.counters)
    assert np.array_equal(sealed.counts, expected.counts)


def test_a_spool_of_version_1_still_holds_its_delta(folder: Path, said: dict[str, Any]) -> None:
    spool = Spool(folder / "spool.db", client_id=None, entropy=OsEntropy(), bytes_max=2**30)
    assert (spool.client_id, spool.stream, spool.plan) == ("device", said["stream"], PLAN.to_bytes())
    (number,) = spool.unanswered()
    (bound,) = spool.load(number, 10, 2**20)
    spool.close()
    delta = Delta.unpack(bound.data, PLAN)
    assert (delta.id, delta.window, delta.records) == (DeltaId(said["stream"], number), said["released_window"], 1)
