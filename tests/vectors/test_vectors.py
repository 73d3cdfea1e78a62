"""The frozen bytes of version 1: plans, buckets, deltas, releases, good and malformed, read as they always were."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hushsum as hs
from hushsum.bitpacking import Encoding, Reader
from hushsum.delta import Delta, DeltaId, encode
from hushsum.errors import DeltaError

ID = DeltaId(2**63 + 9, 300)
FILES = sorted(path for path in (Path(__file__).parent / "v1").glob("*.json") if path.stem != "draws")


@pytest.fixture(params=FILES, ids=lambda path: path.stem)
def frozen(request: pytest.FixtureRequest) -> dict[str, Any]:
    """One file of vectors."""
    loaded: dict[str, Any] = json.loads(request.param.read_text(encoding="utf-8"))
    return loaded


def plan_of(frozen: dict[str, Any]) -> hs.Plan:
    return hs.Plan.from_bytes(frozen["plan"].encode())


def records_of(frozen: dict[str, Any]) -> np.ndarray:
    return np.array([[float.fromhex(value) for value in record] for record in frozen["records"]])


def test_there_are_vectors() -> None:
    assert len(FILES) >= 4


def test_the_plan_has_its_bytes_and_its_id(frozen: dict[str, Any]) -> None:
    plan = plan_of(frozen)
    assert plan.to_bytes() == frozen["plan"].encode()
    assert plan.hex_id == frozen["plan_id"] == hashlib.sha256(frozen["plan"].encode()).hexdigest()


def test_each_record_has_its_buckets(frozen: dict[str, Any]) -> None:
    plan = plan_of(frozen)
    for record, buckets in zip(records_of(frozen), frozen["buckets"], strict=True):
        accepted, _ = plan.family.accept([record])
        assert [int(index) for index in plan.family.encode(accepted).indices % plan.family.shape[1]] == buckets


def test_the_delta_has_its_bytes_and_is_read_back(frozen: dict[str, Any]) -> None:
    plan = plan_of(frozen)
    delta, _ = encode(plan, records_of(frozen), window=-3, id=ID)
    assert delta is not None
    assert delta.pack(plan).hex() == frozen["delta"]
    back = Delta.unpack(bytes.fromhex(frozen["delta"]), plan)
    assert (back.window, back.id, back.records) == (-3, ID, len(frozen["records"]))


def test_a_delta_of_any_size_has_its_bytes(frozen: dict[str, Any]) -> None:
    plan = plan_of(frozen)
    for repeats, packed in frozen["deltas"].items():
        delta, _ = encode(plan, records_of(frozen)[:1].repeat(int(repeats), axis=0), window=-3, id=ID)
        assert delta is not None
        assert delta.pack(plan).hex() == packed
        assert Delta.unpack(bytes.fromhex(packed), plan).records == int(repeats)


def test_every_encoding_of_rows_is_frozen_somewhere() -> None:
    all_of = [json.loads(path.read_text(encoding="utf-8")) for path in FILES]
    first = len("01") + 64 + 16 + len("ac02") + len("05") + len("01") + len("00")
    seen = {bytes.fromhex(packed)[first // 2 :] for frozen in all_of for packed in frozen["deltas"].values()}
    assert {encoding_of(run) for run in seen} == {Encoding.LIST, Encoding.ELIAS_FANO, Encoding.DENSE}


def encoding_of(run: bytes) -> int:
    reader = Reader(run)
    for _ in ("records", "rows", "buckets"):
        reader.varint()
    return reader.byte()


def test_malformed_plans_are_refused(frozen: dict[str, Any]) -> None:
    assert len(frozen["malformed_plans"]) >= 10
    for malformed in frozen["malformed_plans"]:
        with pytest.raises(hs.PlanError):
            hs.Plan.from_bytes(malformed.encode())


def test_malformed_deltas_are_refused_for_their_reason(frozen: dict[str, Any]) -> None:
    plan = plan_of(frozen)
    for malformed in frozen["malformed_deltas"]:
        with pytest.raises(DeltaError) as caught:
            Delta.unpack(bytes.fromhex(malformed["delta"]), plan)
        assert caught.value.reason.value == malformed["reason"]


def test_the_release_is_read_as_it_always_was(frozen: dict[str, Any]) -> None:
    release = hs.Release.from_bytes(bytes.fromhex(frozen["release"]))
    assert release.plan.hex_id == frozen["plan_id"]
    assert (release.kind, release.window, release.accounted) == ("tumbling", -3, True)
    assert release.counters.reshape(-1)[:50].tolist() == frozen["release_counters"]
    assert int(release.counters.sum()) == frozen["release_sum"]
    assert release.counts.tolist() == frozen["release_counts"]


def test_malformed_releases_are_refused(frozen: dict[str, Any]) -> None:
    assert len(frozen["malformed_releases"]) >= 7
    for malformed in frozen["malformed_releases"]:
        with pytest.raises(hs.ReleaseError):
            hs.Release.from_bytes(bytes.fromhex(malformed))
