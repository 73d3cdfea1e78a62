"""Transforms give the same bytes however records come, stay within their bounds, and follow their formulas."""

import copy
import pickle
from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt
import pytest

from hushsum import PlanError
from hushsum.canonical import real
from hushsum.families import VectorRecords
from hushsum.families.transforms import Float32, Linear, Transforms
from hushsum.families.vectors import VectorSpace
from hushsum.parameters import Parameters, digest
from hushsum.schema import Table

Floats = npt.NDArray[np.float64]
Steps = list[dict[str, object]]

LOWER, UPPER = [-3.0, 0.0, 1.0], [4.0, 1e-3, 1e6]
WIDE = np.array([[0.5, -100.0, 1e-6], [1.0, 1.0, 1.0], [-2.0, 3.0, 1e-7], [0.1, 0.0, 0.0]])
BACK = np.array([[1.0, 0.5, 0.0, -1.0], [0.0, 1.0, 1.0, 1.0]])

CHAINS: dict[str, Steps] = {
    "scale": [{"kind": "scale", "factor": ["0.1", -300, "1/3"]}],
    "clip": [{"kind": "clip", "lower": ["-0.1", 0, 2], "upper": ["1.7", "0.0005", 1000]}],
    "unit-norm": [{"kind": "unit-norm"}],
    "linear": [{"kind": "linear", "matrix": digest(WIDE)}],
    "all": [
        {"kind": "scale", "factor": [2, 1000, "0.000001"]},
        {"kind": "clip", "lower": [-5, 0, 0], "upper": [7, "0.9", "0.5"]},
        {"kind": "linear", "matrix": digest(WIDE)},
        {"kind": "unit-norm"},
        {"kind": "linear", "matrix": digest(BACK)},
        {"kind": "scale", "factor": [-7, "0.3"]},
    ],
}
chains = pytest.mark.parametrize("steps", CHAINS.values(), ids=CHAINS)


def records_of(lower: list[float], upper: list[float]) -> VectorRecords:
    return VectorRecords(len(lower), tuple(map(real, lower)), tuple(map(real, upper)))


def space_of(
    steps: object,
    *,
    lower: list[float] = LOWER,
    upper: list[float] = UPPER,
    centred: bool = True,
    arrays: Iterable[npt.ArrayLike] | None = None,
) -> VectorSpace:
    parameters = Parameters.of([WIDE, BACK] if arrays is None else arrays)
    table = Table({} if steps is None else {"transforms": steps}, "sketch")
    space = VectorSpace.from_table(table, records_of(lower, upper), parameters, family="the tests", centred=centred)
    table.finish()
    return space


def extremes(rng: np.random.Generator) -> Floats:
    """Records within the bounds, at them and far beyond, and zeroes."""
    inside = rng.uniform(LOWER, UPPER, (1000, 3))
    corners = np.array(np.meshgrid(*zip(LOWER, UPPER, strict=True))).reshape(3, -1).T
    far = np.array([[1e300, -1e300, 1e300], [-1e300, 1e300, -1e300], [5e-324, -5e-324, 1e39], [0, 0, 0], [-0.0, 1, -1]])
    return np.concatenate(
        [inside, corners, far, rng.standard_cauchy((200, 3)) * 10.0 ** rng.integers(-40, 40, (200, 3))]
    )


@chains
@pytest.mark.parametrize("centred", [True, False])
def test_records_give_the_same_bytes_in_batches_of_one_and_of_a_thousand(
    steps: Steps, centred: bool, rng: np.random.Generator
) -> None:
    space, records = space_of(steps, centred=centred), extremes(rng)
    whole, kept = space.accept(records)
    assert kept.all()
    one_by_one = np.concatenate([space.accept(record[None])[0] for record in records])
    assert one_by_one.tobytes() == whole.tobytes()
    assert space.accept(np.asfortranarray(records))[0].tobytes() == whole.tobytes()
    assert (
        space.queries(records[:1000]).tobytes()
        == np.concatenate([space.queries(record[None]) for record in records[:1000]]).tobytes()
    )


@chains
@pytest.mark.parametrize("centred", [True, False])
def test_every_record_ends_within_the_inner_bounds(steps: Steps, centred: bool, rng: np.random.Generator) -> None:
    space = space_of(steps, centred=centred)
    accepted, _ = space.accept(extremes(rng))
    lower, upper = space.ends
    assert accepted.dtype == np.float32
    assert accepted.shape[1] == space.dim == len(lower)
    assert (lower <= accepted).all()
    assert (accepted <= upper).all()
    assert (np.abs(accepted) <= space.sizes).all()
    assert space.accepted(accepted) is not None


@chains
def test_records_within_the_bounds_follow_the_closed_form_to_the_precision_of_float32(
    steps: Steps, rng: np.random.Generator
) -> None:
    space = space_of(steps, centred=False)
    records = rng.uniform(LOWER, UPPER, (500, 3)).astype(np.float32).astype(np.float64)
    assert space.accept(records)[1].all()
    reach = np.maximum(np.abs(space.inner.lower), np.abs(space.inner.upper))
    assert (np.abs(space.exact(records) - space.accept(records)[0]) <= 1e-5 * reach).all()


@chains
def test_a_query_within_the_bounds_is_what_a_record_there_is(steps: Steps, rng: np.random.Generator) -> None:
    space = space_of(steps)
    points = rng.uniform(LOWER, UPPER, (500, 3))
    assert np.allclose(space.queries(points), space.accept(points)[0], rtol=1e-6, atol=1e-6 * float(space.sizes.max()))


def test_the_steps_do_what_their_names_say() -> None:
    x = np.array([[3.0, 0.0, 4.0], [0.0, 0.0, 0.0], [-1.0, 2.0, 2.0]], np.float32)

    def applied(*steps: dict[str, object]) -> object:
        parameters = Parameters.of([WIDE])
        return Transforms.from_table(Table({"transforms": list(steps)}, "sketch"), parameters, 3).apply(x).tolist()

    assert applied() == x.tolist()
    assert applied({"kind": "scale", "factor": [2, -1, "0.5"]}) == [[6, 0, 2], [0, 0, 0], [-2, -2, 1]]
    clipped = applied({"kind": "clip", "lower": [0, 1, 0], "upper": [2, 2, 3]})
    assert clipped == [[2, 1, 3], [0, 1, 0], [0, 2, 2]]
    unit = applied({"kind": "unit-norm"})
    assert unit == np.array([[0.6, 0, 0.8], [0, 0, 0], [-1 / 3, 2 / 3, 2 / 3]], np.float32).tolist()
    mapped = applied({"kind": "linear", "matrix": digest(WIDE)})
    assert np.allclose(mapped, x @ WIDE.T, rtol=1e-6)  # type: ignore[arg-type]  # a list of lists


def test_a_linear_map_sums_in_the_order_of_the_coordinates() -> None:
    # In this order 2^60 + 1 loses the 1, which another order would keep.
    matrix = np.array([[2.0**60, 1.0, -(2.0**60)]])
    space = space_of([{"kind": "linear", "matrix": digest(matrix)}], lower=[0, 0, 0], upper=[1, 1, 1],
                     centred=False, arrays=[matrix])  # fmt: skip
    assert space.queries([[1.0, 1.0, 1.0]]).tolist() == [[0.0]]
    assert space.queries([[1.0, 1.0, 0.0]]).tolist() == [[2.0**60]]


@pytest.mark.parametrize("n", [1, 1000])
def test_a_long_sum_is_the_plain_one_from_the_first_coordinate_to_the_last(n: int, rng: np.random.Generator) -> None:
    matrix = (rng.standard_normal((3, 80)) * 10.0 ** rng.integers(-4, 5, (3, 80))).astype(np.float32)
    steps = [{"kind": "linear", "matrix": digest(matrix)}]
    space = space_of(steps, lower=[-1.0] * 80, upper=[1.0] * 80, centred=False, arrays=[matrix])
    points = rng.uniform(-1, 1, (n, 80)).astype(np.float32)
    expected = np.zeros((n, 3))
    for row, column in np.ndindex(n, 3):
        total = 0.0
        for weight, coordinate in zip(matrix[column].tolist(), points[row].tolist(), strict=True):
            total += weight * coordinate
        expected[row, column] = total
    assert space.exact(points).tobytes() == expected.tobytes()
    assert space.queries(points).tobytes() == expected.astype(np.float32).tobytes()


def test_a_sum_that_rounding_takes_beyond_its_bounds_is_clipped_to_them() -> None:
    # Exactly: at most 2^60·1 − 0.9 − 2^60·1 = −0.9. In float64 the 0.95 is lost beside 2^60, and 0 is left.
    matrix = np.array([[2.0**60, -1.0, -(2.0**60)]])
    space = space_of([{"kind": "linear", "matrix": digest(matrix)}], lower=[0, 0.9, 1], upper=[1, 1, 2],
                     centred=False, arrays=[matrix])  # fmt: skip
    assert space.queries([[1.0, 0.95, 1.0]]).tolist() == [[0.0]]
    assert space.inner.upper == -np.float32(0.9)
    assert space.accept([[1.0, 0.95, 1.0]])[0].tolist() == [[-np.float32(0.9)]]


def test_vectors_that_are_tiny_or_huge_have_norm_one() -> None:
    top = 2.0**63
    space = space_of([{"kind": "unit-norm"}], lower=[-top, -top], upper=[top, top], centred=False)
    tiny = float(np.float32(1e-45))
    accepted, _ = space.accept([[tiny, 0.0], [tiny, tiny], [1e300, -1e300], [top, 0.0], [0.0, 0.0]])
    assert np.allclose(np.sqrt((accepted.astype(np.float64) ** 2).sum(axis=1)), [1, 1, 1, 1, 0])


def test_a_step_in_the_middle_cannot_overflow_unseen() -> None:
    huge: Steps = [{"kind": "scale", "factor": [2**40]}, {"kind": "unit-norm"}]
    with pytest.raises(PlanError, match=r"sketch\.transforms\[0\]: got 'coordinates up to .*within ±2\^64"):
        space_of(huge, lower=[0], upper=[2.0**60])
    enlarging = np.full((2, 3), 3e38)
    steps: Steps = [{"kind": "linear", "matrix": digest(enlarging)}, {"kind": "unit-norm"}]
    with pytest.raises(PlanError, match=r"transforms\[0\]"):
        space_of(steps, arrays=[enlarging])


def test_a_query_beyond_float32_is_infinite_unless_a_clip_brings_it_back() -> None:
    far = [[1e300, 0.0, 1.0], [-1e300, 1e300, 1.0], [1e300, 1e300, 1e300]]
    for steps in ([], CHAINS["scale"], CHAINS["unit-norm"], CHAINS["linear"]):
        assert (~np.isfinite(space_of(steps).queries(far))).any(axis=1).all()
        assert not np.isnan(space_of(steps).queries(far)).any()
    assert np.isfinite(space_of(CHAINS["clip"]).queries(far)).all()


def test_without_transforms_nothing_is_written_and_nothing_changes(rng: np.random.Generator) -> None:
    none, empty = space_of(None), space_of([])
    records = extremes(rng)
    assert none.transforms.to_fields() == empty.transforms.to_fields() == {}
    assert none.inner is none.box
    assert none.accept(records)[0].tobytes() == none.box.read(records)[0].__sub__(none.box.middle).tobytes()


@chains
def test_fields_are_read_back_to_the_same_transforms(steps: Steps) -> None:
    made = space_of(steps).transforms
    again = space_of(made.to_fields()["transforms"]).transforms
    assert again == made
    assert hash(again) == hash(made)
    assert again.to_fields() == made.to_fields()
    assert pickle.loads(pickle.dumps(made)) == made
    assert made.dim(3) == space_of(steps).dim
    assert set(made.digests) == {step["matrix"] for step in steps if "matrix" in step}
    assert len(repr(made)) < 2000


@pytest.mark.parametrize(
    ("step", "key", "expected"),
    [
        ({}, "kind", "is missing, expected one of 'scale', 'clip'"),
        ({"kind": "rotate"}, "kind", "one of 'scale', 'clip', 'unit-norm', 'linear'"),
        ({"kind": "scale"}, "factor", "is missing"),
        ({"kind": "scale", "factor": 2}, "factor", "a list of 3 numbers"),
        ({"kind": "scale", "factor": [1, 2]}, "factor", "a list of 3 numbers"),
        ({"kind": "scale", "factor": [1, 0, 2]}, "factor[1]", "2^-64 to 2^64"),
        ({"kind": "scale", "factor": [1, 2**65, 2]}, "factor[1]", "2^-64 to 2^64"),
        ({"kind": "scale", "factor": [1, 1e-20, 2]}, "factor[1]", "2^-64 to 2^64"),
        ({"kind": "scale", "factor": [1, float("nan"), 2]}, "factor[1]", "not finite"),
        ({"kind": "scale", "factor": [1, 2, 3], "by": 2}, "by", "a known key"),
        ({"kind": "clip", "lower": [0, 0, 0], "upper": [1, 0, 1]}, "upper[1]", "above lower[1] = 0"),
        ({"kind": "clip", "lower": [0, 0, 0], "upper": [1, 1]}, "upper", "a list of 3 numbers"),
        ({"kind": "clip", "lower": [0, -(10**50), 0], "upper": [1, 1, 2]}, "lower[1]", "within ±2^64"),
        ({"kind": "clip", "lower": [0, 0, 0], "upper": [1, 1, 10**50]}, "upper[2]", "within ±2^64"),
        ({"kind": "unit-norm", "p": 1}, "p", "a known key"),
        ({"kind": "linear"}, "matrix", "is missing"),
        ({"kind": "linear", "matrix": "abc"}, "matrix", "the digest of an array in parameters=..."),
        ({"kind": "linear", "matrix": digest(BACK)}, "matrix", "a matrix of 3 columns"),
        ({"kind": "linear", "matrix": [[1, 2, 3]]}, "matrix", "a string"),
    ],
)  # fmt: skip
def test_a_wrong_table_is_refused_with_its_key(step: dict[str, object], key: str, expected: str) -> None:
    with pytest.raises(PlanError) as caught:
        space_of([{"kind": "unit-norm"}, step])
    assert caught.value.key == f"sketch.transforms[1].{key}"
    assert expected in str(caught.value)


@pytest.mark.parametrize("steps", ["unit-norm", {"kind": "unit-norm"}, 5, ["unit-norm"], [[]]])
def test_what_is_no_list_of_tables_is_refused(steps: object) -> None:
    with pytest.raises(PlanError, match=r"sketch\.transforms"):
        space_of(steps)


@pytest.mark.parametrize(
    "step",
    [
        {"kind": "clip", "lower": [5, 0, 1], "upper": [6, 1, 2]},  # all records are at the lower bound then
        {"kind": "scale", "factor": ["0.00000000000000001", "0.0000000000000000001", 1]},
        {"kind": "linear", "matrix": digest([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])},
    ],
)
def test_a_coordinate_that_is_always_the_same_is_refused(step: dict[str, object]) -> None:
    flat = [[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    if step["kind"] == "scale":
        assert space_of([step]).dim == 3  # small, but not flat
        return
    with pytest.raises(PlanError, match=r"sketch\.transforms\[0\].*can differ within the bounds"):
        space_of([step], arrays=[flat])


def test_a_map_to_more_coordinates_than_a_record_may_have_is_refused() -> None:
    tall = np.ones((2**16 + 1, 1))
    with pytest.raises(PlanError, match=r"transforms\[0\]\.matrix.*at most 65536"):
        space_of([{"kind": "linear", "matrix": digest(tall)}], lower=[0], upper=[1], arrays=[tall])


def test_more_steps_than_a_plan_may_have_are_refused() -> None:
    step: Steps = [{"kind": "unit-norm"}]
    assert len(space_of(step * 16).transforms.steps) == 16
    with pytest.raises(PlanError, match=r"sketch.transforms: got '17 steps', expected at most 16"):
        space_of(step * 17)


def test_a_matrix_that_several_steps_name_counts_each_time_and_before_any_bounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    matrix = np.eye(1024, dtype=np.float32)
    step: Steps = [{"kind": "linear", "matrix": digest(matrix)}]
    table, parameters = Table({"transforms": step * 4}, "sketch"), Parameters.of([matrix])
    assert len(Transforms.from_table(table, parameters, 1024).steps) == 4

    def bounds(self: Linear, lower: Float32, upper: Float32) -> None:
        raise AssertionError("computed before the steps were counted")

    monkeypatch.setattr(Linear, "bounds", bounds)
    with pytest.raises(PlanError, match="5242880 numbers over all steps"):
        space_of(step * 5, lower=[0.0] * 1024, upper=[1.0] * 1024, arrays=[matrix])


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda step: pickle.loads(pickle.dumps(step))])
def test_the_matrix_of_a_copy_is_as_read_only(copied: Callable[[Linear], Linear]) -> None:
    matrix = np.eye(3, dtype=np.float32)
    step = copied(Linear(digest(matrix), Parameters.of([matrix]).arrays[digest(matrix)]))
    assert np.array_equal(step.matrix, matrix)
    with pytest.raises(ValueError, match="read-only"):
        step.matrix[0, 0] = 7
