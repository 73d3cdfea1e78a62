"""The encoder and decoder that were written from the page, on the frozen edge cases: one test for each kind of them."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from .codes import Sketch
from .delta import RefusedError, most_bytes, most_records, read_delta, write_delta
from .hush_file import ReleaseError, read_release
from .plan import Plan, PlanError, read_bundle

VECTORS = Path(__file__).parents[1] / "vectors" / "v1" / "edge_cases" / "edge_cases.json"
FROZEN = json.loads(VECTORS.read_text(encoding="utf-8"))
RELEASED = FROZEN["one-record-of-a-client"]
IDENTITY = (2**63 + 9, 300)

each_plan = pytest.mark.parametrize("name", FROZEN)


def cases(key: str) -> list[Any]:
    """Return each case of a kind, with the name of its plan."""
    return [
        pytest.param(name, case, id=f"{name}: {case}")
        for name, frozen in FROZEN.items()
        for case in frozen.get(key, ())
    ]


@cache
def sketch_of(name: str) -> Sketch:
    """Return the draws of a plan."""
    return Sketch(plan_of(name))


@cache
def plan_of(name: str) -> Plan:
    """Return a plan."""
    return read_bundle(bytes.fromhex(FROZEN[name]["bundle"]))


def points_of(name: str) -> list[list[float]]:
    """Return the records of a plan."""
    return [[float.fromhex(value) for value in point] for point in FROZEN[name]["records"]]


@each_plan
def test_a_plan_has_its_id_and_its_limits(name: str) -> None:
    plan = plan_of(name)
    assert plan.identity.hex() == FROZEN[name]["plan_id"]
    assert most_records(plan) == FROZEN[name]["records_max"]
    assert most_bytes(most_records(plan), plan) == FROZEN[name]["bytes_max"]


def test_codes_of_several_parts_are_placed_without_a_rehash() -> None:
    plans = {(plan_of(name).power, sketch_of(name).direct) for name in FROZEN}
    assert plans >= {(2, True), (3, True), (1, True), (1, False)}


@each_plan
def test_records_fall_into_their_buckets(name: str) -> None:
    assert [sketch_of(name).buckets(point) for point in points_of(name)] == FROZEN[name]["buckets"]


@each_plan
def test_the_delta_is_written_byte_for_byte(name: str) -> None:
    records = points_of(name)[: FROZEN[name]["delta_records"]]
    classes = [i % plan_of(name).classes_or_one for i in range(len(records))]
    assert write_delta(sketch_of(name), records, IDENTITY, -3, classes).hex() == FROZEN[name]["delta"]


@pytest.mark.parametrize(("name", "case"), cases("accepted_deltas"))
def test_a_delta_that_a_writer_would_pack_otherwise_is_read(name: str, case: str) -> None:
    plan = plan_of(name)
    delta = read_delta(plan, bytes.fromhex(FROZEN[name]["accepted_deltas"][case]))
    (run,) = delta.runs
    assert [len(row) for row in run.rows] == [run.records] * plan.rows


@pytest.mark.parametrize(("name", "case"), cases("malformed_deltas"))
def test_a_malformed_delta_is_refused_for_its_reason(name: str, case: str) -> None:
    malformed = FROZEN[name]["malformed_deltas"][case]
    with pytest.raises(RefusedError) as caught:
        read_delta(plan_of(name), bytes.fromhex(malformed["delta"]))
    assert caught.value.reason == malformed["reason"]


@pytest.mark.parametrize(("name", "case"), cases("accepted_bundles"))
def test_a_plan_with_another_key_is_read(name: str, case: str) -> None:
    Sketch(read_bundle(bytes.fromhex(FROZEN[name]["accepted_bundles"][case])))


@pytest.mark.parametrize(("name", "case"), cases("malformed_bundles"))
def test_a_malformed_plan_is_refused(name: str, case: str) -> None:
    with pytest.raises(PlanError):
        Sketch(read_bundle(bytes.fromhex(FROZEN[name]["malformed_bundles"][case])))


def test_the_release_is_read() -> None:
    release = read_release(bytes.fromhex(RELEASED["release"]))
    assert list(release.counters) == RELEASED["release_counters"]
    assert list(release.counts) == RELEASED["release_counts"]


@pytest.mark.parametrize("case", RELEASED["accepted_releases"])
def test_a_release_with_another_frame_is_read(case: str) -> None:
    release = read_release(bytes.fromhex(RELEASED["accepted_releases"][case]))
    assert list(release.counters) == RELEASED["release_counters"]


@pytest.mark.parametrize("case", RELEASED["malformed_releases"])
def test_a_malformed_release_is_refused(case: str) -> None:
    with pytest.raises(ReleaseError):
        read_release(bytes.fromhex(RELEASED["malformed_releases"][case]))
