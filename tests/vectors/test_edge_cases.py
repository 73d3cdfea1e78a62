"""The frozen edge cases of ``hashed``/``euclidean`` plans: good ones are read, the others refused."""

import json
from typing import Any

import numpy as np
import pytest

import hushsum as hs
from hushsum.delta import Delta, encode
from hushsum.errors import DeltaError
from hushsum.families import Hashed
from hushsum.families.lsh.placement import Direct
from tests.vectors.generate_edge_cases import ID, PATH, PLANS, WINDOW, labels_of, plan_of

FROZEN: dict[str, dict[str, Any]] = json.loads(PATH.read_text(encoding="utf-8"))
RELEASED = FROZEN["one-record-of-a-client"]


def cases(key: str) -> list[Any]:
    """Each case of a kind, with the name of its plan."""
    return [
        pytest.param(name, case, id=f"{name}: {case}")
        for name, frozen in FROZEN.items()
        for case in frozen.get(key, ())
    ]


def read(name: str) -> hs.Plan:
    return hs.Plan.from_bytes(bytes.fromhex(FROZEN[name]["bundle"]))


def points_of(name: str) -> list[list[float]]:
    return [[float.fromhex(value) for value in point] for point in FROZEN[name]["records"]]


def test_each_plan_is_frozen() -> None:
    assert set(FROZEN) == set(PLANS)


@pytest.mark.parametrize("name", FROZEN)
def test_the_plan_is_made_and_read_as_it_always_was(name: str) -> None:
    for plan in (plan_of(name), read(name)):
        assert plan.bundle.hex() == FROZEN[name]["bundle"]
        assert plan.hex_id == FROZEN[name]["plan_id"]
        assert (plan.delta_records_max, plan.delta_bytes_max) == (
            FROZEN[name]["records_max"],
            FROZEN[name]["bytes_max"],
        )


@pytest.mark.parametrize("name", ["two-parts-direct", "three-parts-direct"])
def test_codes_of_several_parts_are_placed_without_a_rehash(name: str) -> None:
    family = read(name).family
    assert isinstance(family, Hashed)
    assert isinstance(family._tables.placement, Direct)
    assert family._tables.power > 1


@pytest.mark.parametrize("kernels", ("plain", "fast"))
@pytest.mark.parametrize("name", FROZEN)
def test_each_record_has_its_buckets(name: str, kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUSHSUM_KERNELS", kernels)
    family = read(name).family
    for point, buckets in zip(points_of(name), FROZEN[name]["buckets"], strict=True):
        accepted, _ = family.accept([point])
        assert (family.encode(accepted).indices % family.shape[1]).tolist() == buckets


@pytest.mark.parametrize("name", FROZEN)
def test_the_delta_has_its_bytes_and_is_read_back(name: str) -> None:
    plan, records = read(name), points_of(name)[: FROZEN[name]["delta_records"]]
    delta, _ = encode(plan, records, window=WINDOW, id=ID, labels=labels_of(plan, len(records)))
    assert delta is not None
    assert delta.pack(plan).hex() == FROZEN[name]["delta"]
    back = Delta.unpack(bytes.fromhex(FROZEN[name]["delta"]), plan)
    assert (back.window, back.id, back.records) == (WINDOW, ID, len(records))


@pytest.mark.parametrize(("name", "case"), cases("accepted_deltas"))
def test_a_delta_that_a_writer_would_pack_otherwise_is_read(name: str, case: str) -> None:
    plan = read(name)
    delta = Delta.unpack(bytes.fromhex(FROZEN[name]["accepted_deltas"][case]), plan)
    assert [int(run.increments.values.sum()) for run in delta.runs] == [plan.family.shape[0] * delta.records]


@pytest.mark.parametrize(("name", "case"), cases("malformed_deltas"))
def test_a_malformed_delta_is_refused_for_its_reason(name: str, case: str) -> None:
    malformed = FROZEN[name]["malformed_deltas"][case]
    with pytest.raises(DeltaError) as caught:
        Delta.unpack(bytes.fromhex(malformed["delta"]), read(name))
    assert caught.value.reason.value == malformed["reason"]


@pytest.mark.parametrize(("name", "case"), cases("accepted_bundles"))
def test_a_plan_with_another_key_is_read(name: str, case: str) -> None:
    bundle = bytes.fromhex(FROZEN[name]["accepted_bundles"][case])
    assert hs.Plan.from_bytes(bundle).bundle == bundle


@pytest.mark.parametrize(("name", "case"), cases("malformed_bundles"))
def test_a_malformed_plan_is_refused(name: str, case: str) -> None:
    with pytest.raises(hs.PlanError):
        hs.Plan.from_bytes(bytes.fromhex(FROZEN[name]["malformed_bundles"][case]))


def test_the_release_is_read_as_it_always_was() -> None:
    release = hs.Release.from_bytes(bytes.fromhex(RELEASED["release"]))
    assert (release.kind, release.window, release.accounted) == ("tumbling", WINDOW, True)
    assert release.counters.reshape(-1).tolist() == RELEASED["release_counters"]
    assert release.counts.tolist() == RELEASED["release_counts"]


@pytest.mark.parametrize("case", RELEASED["accepted_releases"])
def test_a_release_with_another_frame_is_read(case: str) -> None:
    release = hs.Release.from_bytes(bytes.fromhex(RELEASED["accepted_releases"][case]))
    assert release.counters.reshape(-1).tolist() == RELEASED["release_counters"]
    assert np.array_equal(release.counts, RELEASED["release_counts"])


@pytest.mark.parametrize("case", RELEASED["malformed_releases"])
def test_a_malformed_release_is_refused(case: str) -> None:
    with pytest.raises(hs.ReleaseError):
        hs.Release.from_bytes(bytes.fromhex(RELEASED["malformed_releases"][case]))
