"""Arrays beside a plan: named by their digests, kept in one form, and refused in any other."""

import copy
import hashlib
import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hushsum as hs
from hushsum.parameters import ARRAYS_MAX, NO_PARAMETERS, NUMBERS_MAX, Parameters, decode, digest, encode
from hushsum.plan import BUNDLE_BYTES_MAX, plan_id_of
from hushsum.sketch import Sketch
from tests.plans import small_plan, tables

TURN = np.array([[0.6, -0.8], [0.8, 0.6], [1.0, 1.0]])
OTHER = np.arange(6.0).reshape(2, 3) + 1


def linear_tables(*matrices: npt.ArrayLike) -> dict[str, object]:
    """The tables of a small plan with these fixed linear maps, one after the other."""
    steps = [{"kind": "linear", "matrix": digest(matrix)} for matrix in matrices]
    return tables(sketch={"transforms": steps})


def linear_plan() -> hs.Plan:
    return hs.Plan.from_fields(linear_tables(TURN, OTHER), [TURN, OTHER])


def small_plan_with(parameters: Any) -> hs.Plan:
    return hs.Plan.from_fields(tables(), parameters)


finite = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(st.one_of(st.lists(finite, min_size=1, max_size=9), st.lists(st.tuples(finite, finite, finite), min_size=1)))
def test_an_array_comes_back_from_its_bytes(array: object) -> None:
    given_array = np.array(array, np.float32)
    back = decode(encode(given_array))
    assert back.dtype == np.float32
    assert back.tobytes() == given_array.tobytes()
    assert back.shape == given_array.shape
    assert not back.flags.writeable


def test_the_bytes_are_as_they_are_written_down() -> None:
    data = encode([[1.0, 2.0, -0.5]])
    floats = bytes.fromhex("0000803f" + "00000040" + "000000bf")
    assert data == b"HSPA" + b"\x01\x02" + bytes([0, 0, 0, 1, 0, 0, 0, 3]) + floats
    assert digest([[1.0, 2.0, -0.5]]) == hashlib.sha256(b"hushsum/v1/parameters\0" + data).hexdigest()


def test_arrays_of_the_same_numbers_have_one_digest_whatever_they_are_kept_in() -> None:
    for same in (TURN.tolist(), TURN.astype(">f8"), np.asfortranarray(TURN), TURN.astype(np.float32)):
        assert digest(same) == digest(TURN)
    assert digest([[1, 2]]) == digest([[True, 2.0]])
    assert len({digest(TURN), digest(TURN.T), digest(TURN.reshape(-1)), digest(-TURN)}) == 4


def test_what_the_caller_does_to_its_array_afterwards_changes_nothing() -> None:
    mine = TURN.astype(np.float32)
    parameters = Parameters.of([mine])
    mine[:] = 0
    assert digest(parameters.take("key", digest(TURN), columns=2)) == digest(TURN)


@pytest.mark.parametrize(
    "array",
    [
        5.0, [], [[]], np.zeros((2, 2, 2)), np.zeros((0, 3)), ["a"], [[1.0, 2.0], [3.0]], [1j], [None], [np.nan],
        [1.0, np.inf], [1e39], np.array([{}]), {}, None, "text", b"bytes", np.array(["2026"], "M8[Y]"),
    ],
    ids=repr,
)  # fmt: skip
def test_what_is_no_array_of_finite_numbers_is_refused(array: object) -> None:
    for made in (lambda: Parameters.of([array]), lambda: digest(array), lambda: encode(array)):  # type: ignore[list-item, arg-type]  # that is the point
        with pytest.raises(hs.PlanError, match="parameters: "):
            made()


def test_a_subnormal_number_and_the_largest_are_kept_as_they_are() -> None:
    extremes = np.array([1e-45, -1e-45, 3.4028234e38, -0.0], np.float32)
    assert decode(encode(extremes)).tobytes() == extremes.tobytes()


GOOD = encode(TURN)


@pytest.mark.parametrize(
    "data",
    [
        b"", b"H", GOOD[:4], GOOD[:5], GOOD[:6], GOOD[:13], GOOD[:-1], GOOD + b"\0", b"HSPB" + GOOD[4:],
        GOOD[:4] + b"\x02" + GOOD[5:], GOOD[:5] + b"\x00" + GOOD[6:], GOOD[:5] + b"\x03" + GOOD[6:],
        GOOD[:5] + b"\x01" + GOOD[6:], GOOD[:6] + bytes(4) + GOOD[10:], GOOD[:6] + b"\xff" * 8 + GOOD[14:],
        GOOD[:6] + bytes(8), GOOD[:-4] + bytes.fromhex("0000c07f"), GOOD[:-4] + bytes.fromhex("000080ff"),
    ],
    ids=lambda data: data.hex()[:40],
)  # fmt: skip
def test_bytes_that_are_no_array_are_refused(data: bytes) -> None:
    with pytest.raises(hs.PlanError, match="parameters: "):
        decode(data)


def test_parameters_come_back_from_their_bytes_in_the_order_of_their_digests() -> None:
    parameters = Parameters.of([TURN, OTHER, [1.0]])
    assert Parameters.of([[1.0], OTHER, TURN, TURN]) == parameters
    assert hash(Parameters.of([[1.0], OTHER, TURN])) == hash(parameters)
    data = parameters.to_bytes()
    assert Parameters.from_bytes(data) == parameters
    assert Parameters.from_bytes(data).to_bytes() == data
    assert list(Parameters.from_bytes(data).arrays) == sorted(parameters.arrays)
    assert Parameters.from_bytes(b"") == NO_PARAMETERS
    assert NO_PARAMETERS.to_bytes() == b""
    assert parameters != NO_PARAMETERS


def prefixed(*arrays: bytes) -> bytes:
    return b"".join(len(array).to_bytes(8, "big") + array for array in arrays)


def test_arrays_in_another_order_or_twice_are_refused() -> None:
    first, second = sorted([encode(TURN), encode(OTHER)], key=lambda data: digest(decode(data)))
    assert len(Parameters.from_bytes(prefixed(first, second))) == 2
    for data in (prefixed(second, first), prefixed(first, first), prefixed(first, second, second)):
        with pytest.raises(hs.PlanError, match="each array once"):
            Parameters.from_bytes(data)


def test_every_truncation_of_parameters_is_refused() -> None:
    data = Parameters.of([TURN, OTHER]).to_bytes()
    boundary = 8 + int.from_bytes(data[:8], "big")
    for end in range(1, len(data)):
        if end == boundary:
            assert len(Parameters.from_bytes(data[:end])) == 1
        else:
            with pytest.raises(hs.PlanError):
                Parameters.from_bytes(data[:end])


def test_sizes_are_checked_before_anything_of_that_size_is_made() -> None:
    tracemalloc.start()
    try:
        for lengths in (b"\xff" * 8, b"\x00\x01\x00\x00" * 2, b"\x7f\xff\xff\xff\x00\x00\x00\x01"):
            with pytest.raises(hs.PlanError):
                decode(GOOD[:6] + lengths + GOOD[14:])
        for size in (b"\xff" * 8, b"\0\0\0\x01" + bytes(4)):
            with pytest.raises(hs.PlanError):
                Parameters.from_bytes(size + GOOD)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_more_numbers_than_travel_in_one_message_are_refused() -> None:
    most = np.zeros(NUMBERS_MAX - 1, np.float32)
    assert len(Parameters.of([most, [1.0]])) == 2
    assert len(Parameters.of([most, [1.0]]).to_bytes()) < BUNDLE_BYTES_MAX
    with pytest.raises(hs.PlanError, match="at most 4194304 in all"):
        Parameters.of([most, [1.0, 2.0]])


def test_an_array_of_another_shape_or_that_is_not_there_is_refused_by_its_key() -> None:
    parameters = Parameters.of([TURN, [1.0, 2.0]])
    for wanted, columns in ((digest(TURN), 3), (digest([1.0, 2.0]), 2), (digest(OTHER), 3), ("", 2), ("x" * 64, 2)):
        with pytest.raises(hs.PlanError) as caught:
            parameters.take("sketch.somewhere", wanted, columns=columns)
        assert caught.value.key == "sketch.somewhere"


def test_a_plan_carries_its_arrays_in_its_bundle_and_its_id_names_them_by_digest() -> None:
    plan = linear_plan()
    assert plan.id == hashlib.sha256(plan.to_bytes()).digest() == plan_id_of(plan.bundle) == plan_id_of(plan.to_bytes())
    assert digest(TURN).encode() in plan.to_bytes()
    assert plan.bundle == plan.to_bytes() + b"\n" + plan.parameters.to_bytes()
    again = hs.Plan.from_bytes(plan.bundle)
    assert (again, again.id, again.bundle) == (plan, plan.id, plan.bundle)
    other = hs.Plan.from_fields(linear_tables(TURN, -OTHER), [TURN, -OTHER])
    assert other.id != plan.id


def test_a_plan_without_arrays_is_its_canonical_bytes() -> None:
    plan = small_plan()
    assert plan.bundle == plan.to_bytes()
    with pytest.raises(hs.PlanError):
        hs.Plan.from_bytes(plan.bundle + b"\n")


def test_an_array_that_a_plan_does_not_name_is_refused_by_its_digest() -> None:
    with pytest.raises(hs.PlanError, match=f"parameters: got '{digest([9.0])}'") as caught:
        hs.Plan.from_fields(linear_tables(TURN, OTHER), [[9.0], OTHER, TURN])
    assert digest(TURN) in str(caught.value)
    with pytest.raises(hs.PlanError, match="by digest: none"):
        small_plan_with([TURN])
    assert hs.Plan.from_fields(linear_tables(TURN, OTHER), [OTHER, TURN, TURN]) == linear_plan()


def test_of_made_parameters_a_plan_takes_what_it_names() -> None:
    plan = hs.Plan.from_fields(linear_tables(TURN, OTHER), Parameters.of([[9.0], OTHER, TURN]))
    assert plan.bundle == linear_plan().bundle


@pytest.mark.parametrize("given_arrays", (5, None, "text", b"bytes", TURN, {"a": TURN}), ids=repr)
def test_what_is_no_list_of_arrays_is_refused(given_arrays: Any) -> None:
    with pytest.raises(hs.PlanError, match=r"(?s)parameters: got .*, expected a list of arrays"):
        small_plan_with(given_arrays)


def test_more_arrays_than_a_plan_may_have_are_refused_when_one_too_many_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    some = {digest([number]): encode([number]) for number in range(ARRAYS_MAX + 100)}
    data = [some[name] for name in sorted(some)]
    assert len(Parameters.from_bytes(prefixed(*data[:ARRAYS_MAX]))) == ARRAYS_MAX
    read: list[bytes] = []

    def counted(array: bytes) -> npt.NDArray[np.float32]:
        read.append(array)
        return decode(array)

    monkeypatch.setattr("hushsum.parameters.decode", counted)
    with pytest.raises(hs.PlanError, match="65 arrays or more', expected at most 64"):
        Parameters.from_bytes(prefixed(*data))
    assert len(read) == ARRAYS_MAX + 1
    with pytest.raises(hs.PlanError, match="at most 64"):
        Parameters.of([number] for number in range(ARRAYS_MAX + 1))


def copies(plan: hs.Plan) -> list[hs.Plan]:
    return [copy.copy(plan), copy.deepcopy(plan), pickle.loads(pickle.dumps(plan))]


def test_nobody_changes_the_arrays_of_a_plan_or_of_its_copies() -> None:
    plan = linear_plan()
    for each in (plan, *copies(plan)):
        assert each == plan
        assert each.bundle == plan.bundle
        with pytest.raises(TypeError):
            each.parameters.arrays["a"] = TURN  # type: ignore[index]  # that is the point
        kept = [*each.parameters.arrays.values(), *(step.matrix for step in each.family.transforms.steps)]  # type: ignore[attr-defined]  # of a hashed one
        assert len(kept) == 4
        assert not any(array.flags.writeable for array in kept)


def test_nobody_changes_the_arrays_of_copied_parameters() -> None:
    parameters = Parameters.of([TURN, OTHER])
    for twin in (copy.deepcopy(parameters), pickle.loads(pickle.dumps(parameters))):
        assert twin.to_bytes() == parameters.to_bytes()
        assert not any(array.flags.writeable for array in twin.arrays.values())
    mine = dict(parameters.arrays)
    other = Parameters(mine)
    mine.clear()
    assert len(other) == 2


def test_a_bundle_with_an_array_missing_altered_or_too_many_is_refused() -> None:
    plan = linear_plan()
    data = plan.to_bytes()
    altered = bytearray(plan.bundle)
    altered[-1] ^= 1
    some: list[list[npt.ArrayLike]] = [[], [TURN], [OTHER], [TURN, -OTHER], [TURN, OTHER, [1.0]]]
    for arrays in some:
        with pytest.raises(hs.PlanError):
            hs.Plan.from_bytes(data + b"\n" + Parameters.of(arrays).to_bytes())
    for bundle in (
        data,
        bytes(altered),
        plan.bundle[:-1],
        plan.bundle + b"\0",
        plan.bundle + b"\n",
        b"\n" + plan.bundle,
    ):
        with pytest.raises(hs.PlanError):
            hs.Plan.from_bytes(bundle)


def test_a_bundle_beyond_its_largest_size_is_refused_unread() -> None:
    with pytest.raises(hs.PlanError, match="with arrays"):
        hs.Plan.from_bytes(small_plan().to_bytes() + b"\n" + bytes(BUNDLE_BYTES_MAX))


def test_a_plan_with_another_epsilon_keeps_its_arrays() -> None:
    changed = linear_plan().replace_privacy(epsilon="0.5")
    assert changed.parameters == linear_plan().parameters
    assert changed.id != linear_plan().id


def test_a_release_file_holds_the_arrays_and_answers_without_the_plan(tmp_path: Path, rng: np.random.Generator) -> None:
    sketch = Sketch(linear_plan())
    sketch.add(rng.uniform(0, 10, (50, 2)))
    release = hs.release(sketch)
    release.save(tmp_path / "a.hush")
    loaded = hs.load(tmp_path / "a.hush")
    assert loaded.plan.bundle == linear_plan().bundle
    queries = rng.uniform(0, 10, (5, 2))
    assert np.array_equal(loaded.kernel_sum(queries).value, release.kernel_sum(queries).value)


def test_a_release_file_with_another_array_is_refused() -> None:
    data = hs.release(Sketch(linear_plan())).to_bytes()
    place = data.index(b"HSPA") + 20
    broken = bytearray(data)
    broken[place] ^= 1
    with pytest.raises(hs.ReleaseError, match="checksum"):
        hs.Release.from_bytes(bytes(broken))
    resealed = bytes(broken[:-32]) + hashlib.sha256(broken[:-32]).digest()
    with pytest.raises(hs.ReleaseError, match="not readable by this version"):
        hs.Release.from_bytes(resealed)
