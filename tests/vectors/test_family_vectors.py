"""The frozen bytes of every family, hash and way to draw: plans, increments, deltas, releases as they always were."""

import json
from typing import Any

import numpy as np
import pytest

import hushsum as hs
from hushsum.bitpacking import Encoding, Reader
from hushsum.delta import Delta
from hushsum.errors import DeltaError
from hushsum.families import FAMILIES
from tests.vectors.family_plans import PLANS
from tests.vectors.generate_families import ID, PATH, given, packed, plan_of

FROZEN: dict[str, dict[str, Any]] = json.loads(PATH.read_text(encoding="utf-8"))


@pytest.fixture(params=sorted(FROZEN))
def name(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


def records_of(name: str) -> list[Any]:
    return [
        [value if isinstance(value, int) else float.fromhex(value) for value in record]
        for record in FROZEN[name]["records"]
    ]


def test_every_family_and_every_plan_of_the_list_is_frozen() -> None:
    assert set(FROZEN) == set(PLANS)
    assert {json.loads(frozen["plan"])["sketch"]["family"] for frozen in FROZEN.values()} == set(FAMILIES)


def test_the_plan_is_made_and_read_as_it_always_was(name: str) -> None:
    frozen, back = FROZEN[name], hs.Plan.from_bytes(bytes.fromhex(FROZEN[name]["bundle"]))
    for plan in (plan_of(name), back):
        assert plan.to_bytes().decode() == frozen["plan"]
        assert plan.bundle.hex() == frozen["bundle"]
        assert plan.hex_id == frozen["plan_id"]
        stated = plan.family.sensitivity
        assert [stated.l0, stated.l1, stated.l2_squared, stated.linf] == frozen["sensitivity"]


@pytest.mark.parametrize("kernels", ("plain", "fast"))
def test_records_change_the_counters_that_they_always_changed(
    name: str, kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HUSHSUM_KERNELS", kernels)
    plan = plan_of(name)
    increments = plan.family.encode(plan.family.accept(given(plan, records_of(name)))[0])
    assert increments.indices.tolist() == FROZEN[name]["indices"]
    assert increments.values.tolist() == FROZEN[name]["values"]


def test_deltas_have_their_bytes_and_are_read_back(name: str) -> None:
    plan, records = plan_of(name), records_of(name)
    for part, frozen in zip((records[:1], records), FROZEN[name]["deltas"], strict=True):
        assert packed(plan, part).hex() == frozen
        back = Delta.unpack(bytes.fromhex(frozen), plan)
        assert (back.window, back.id, back.records) == (-3, ID, len(part))


def test_a_delta_that_was_cut_or_grew_is_refused(name: str) -> None:
    plan = plan_of(name)
    for frozen in FROZEN[name]["deltas"]:
        data = bytes.fromhex(frozen)
        for spoilt in (data[:-1], data + b"\0", data[: len(data) // 2]):
            with pytest.raises(DeltaError):
                Delta.unpack(spoilt, plan)


def test_the_release_is_read_as_it_always_was(name: str) -> None:
    frozen = FROZEN[name]
    release = hs.Release.from_bytes(bytes.fromhex(frozen["release"]))
    assert release.plan.hex_id == frozen["plan_id"]
    assert int(release.counters.sum()) == frozen["release_sum"]
    assert release.counts.tolist() == frozen["release_counts"]
    assert release.to_bytes().hex() == frozen["release"]


def test_both_signed_encodings_are_frozen() -> None:
    seen = set()
    for name, frozen in FROZEN.items():
        for delta in frozen["deltas"]:
            reader = Reader(bytes.fromhex(delta)[43:])
            assert reader.varint() == 5  # the window −3, zigzag
            for _ in ("runs", "class", "records", "rows", "width"):
                reader.varint()
            seen.add(reader.byte())
        assert np.all(np.diff(frozen["indices"]) > 0), name
    assert seen >= {Encoding.SIGNED_DENSE, Encoding.SIGNED_SPARSE}
