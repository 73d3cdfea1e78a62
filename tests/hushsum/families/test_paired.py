"""The paired family: its loss, its two forms, what it refuses, and the same bytes on every way."""

import math
import pickle
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import binom, chi2

from hushsum.errors import DeltaError, NotBuiltError, PlanError, Reason, RecordError
from hushsum.families.base import Increments, SetRecords, VectorRecords
from hushsum.families.lsh import numpy_engine
from hushsum.families.paired import Paired
from hushsum.families.paired.parameters import AUXILIARY, Lift
from hushsum.families.paired.rows import PairedRows
from hushsum.schema import Table

Floats = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
FALSE_ALARM = 1e-6
INNER: dict[str, Any] = {"form": "inner", "radius": 4}
ORTHOGONAL: dict[str, Any] = {"form": "orthogonal"}
MARGIN: dict[str, Any] = {"loss": "margin", "radius": 3}
FORMS = (INNER, {**INNER, "radius": 1}, ORTHOGONAL, MARGIN, {"loss": "margin", **ORTHOGONAL})


def family(dim: int = 3, bound: float = 2, **changes: Any) -> Paired:
    radius = {"radius": 4} if changes.get("form") != "orthogonal" else {}
    keys = {key: value for key, value in {"rows": 20, "seed": 3, **radius, **changes}.items() if value is not ...}
    record = VectorRecords(dim, (Fraction(-bound),) * dim, (Fraction(bound),) * dim)
    return Paired.from_table(Table(keys, "sketch"), record)


def counters_of(sketched: Paired, records: npt.ArrayLike) -> Int64:
    counters = np.zeros(sketched.shape, np.int64)
    sketched.add(counters, sketched.accept(records)[0])
    return counters


def cloud(rng: np.random.Generator, n: int, dim: int = 3) -> Floats:
    """Records that lie anywhere within the bounds and beyond, on corners, and at zero."""
    return np.concatenate([rng.uniform(-2.2, 2.2, (n, dim)), np.full((1, dim), 2.0), np.zeros((1, dim))])


def thetas(rng: np.random.Generator, m: int, dim: int = 2) -> Floats:
    points = rng.standard_normal((m, dim))
    points *= rng.uniform(0.1, 0.95, (m, 1)) / np.linalg.norm(points, axis=1, keepdims=True)
    points[-1] = 0
    return points


# -------------------------------------------------------------------------------------------------- keys
REFUSED: tuple[tuple[str, object], ...] = (
    ("loss", "squared"),
    ("form", "outer"),
    ("power", 1),
    ("power", 9),
    ("power", 2.0),
    ("rows", 0),
    ("rows", 2**17 + 1),
    ("rows", ...),
    ("radius", 0),
    ("radius", ...),
    ("radius", "long"),
    ("radius", 2**65),
    ("norm_bound", 1),
    ("norm_bound", Fraction(1, 2)),
    ("norm_bound", 2**65),
    ("draws", "halton"),
    ("seed", -1),
    ("buckets", 16),
    ("bandwidth", 1),
)


@pytest.mark.parametrize("key, value", REFUSED)
def test_a_wrong_key_is_refused_by_its_name(key: str, value: Any) -> None:
    with pytest.raises(PlanError) as caught:
        family(**{key: value})
    assert caught.value.key == f"sketch.{key}"


@pytest.mark.parametrize("key", ("radius", "norm_bound"))
def test_the_orthogonal_form_has_no_constants_of_the_inner_one(key: str) -> None:
    with pytest.raises(PlanError, match=rf"sketch\.{key}.*expected a known key"):
        family(form="orthogonal", **{key: 3})


def test_power_1_is_refused_with_the_reason() -> None:
    with pytest.raises(PlanError, match="from 2 to 8: 1 makes the regression loss constant"):
        family(power=1)
    with pytest.raises(PlanError, match="not convex"):
        family(power=1, loss="margin")


def test_what_the_design_knows_is_refused_as_not_built_yet() -> None:
    with pytest.raises(NotBuiltError, match=r"sketch\.draws.*not supported by this version"):
        family(draws="sobol")


def test_sets_one_column_and_labels_of_one_sign_are_refused() -> None:
    with pytest.raises(PlanError, match="'vector' for the paired family"):
        Paired.from_table(Table({"rows": 9}, "sketch"), SetRecords(100))
    with pytest.raises(PlanError, match="at least 2 columns"):
        family(dim=1)
    positive = VectorRecords(2, (Fraction(0), Fraction(1)), (Fraction(1), Fraction(2)))
    with pytest.raises(PlanError, match=r"record\.lower.*labels"):
        Paired.from_table(Table({"rows": 9, "loss": "margin", "form": "orthogonal"}, "sketch"), positive)


def test_more_parameters_than_memory_are_refused_with_the_rows_that_would_do() -> None:
    with pytest.raises(PlanError, match=r"sketch\.rows: .*at most 1024\b"):
        family(dim=4096, rows=1025, power=8, form="orthogonal")
    assert family(dim=4096, rows=1024, power=8, form="orthogonal").rows == 1024


@pytest.mark.parametrize("keys", FORMS)
def test_fields_are_read_back_as_the_same_family(keys: dict[str, Any]) -> None:
    sketched = family(**keys)
    again = Paired.from_table(Table(sketched.to_fields(), "sketch"), sketched.record)
    assert again == sketched == pickle.loads(pickle.dumps(sketched))
    assert again.to_fields() == sketched.to_fields()


def test_the_defaults_are_those_that_were_measured() -> None:
    regression = {"loss": "regression", "form": "inner", "radius": "4", "norm_bound": "2", "power": 4}
    assert family(seed=...).to_fields() == {**regression, "rows": 20, "draws": "independent", "seed": 0}
    assert family(loss="margin").to_fields()["norm_bound"] == "1"


# -------------------------------------------------------------------------------------------------- the mathematics
def closed_form(keys: dict[str, Any], power: int, records: Floats, coefficients: Floats) -> Floats:
    """The loss by the formulas of the family's text, in plain float64, for records within the bounds."""
    margin = keys.get("loss") == "margin"
    labels = np.where(records[:, -1:] > 0, 1.0, -1.0)
    z = records[:, :-1] * labels if margin else records
    q = coefficients if margin else np.column_stack([coefficients, -np.ones(len(coefficients))])
    lengths, bounds = np.linalg.norm(z, axis=1), np.linalg.norm(q, axis=1)
    if keys.get("form") != "orthogonal":
        lengths = np.maximum(lengths, float(keys["radius"]))
        bounds = np.full(len(q), 1.0 if margin else 2.0)
    u = np.clip(z @ q.T / (np.where(lengths == 0, 1, lengths)[:, None] * bounds), -1, 1)
    v = np.arcsin(u) / np.pi
    return np.asarray((0.5 - v) ** power + (0 if margin else (0.5 + v) ** power))


@pytest.mark.parametrize("keys", FORMS)
@pytest.mark.parametrize("power", (2, 3, 5))
def test_the_kernel_is_the_loss_in_closed_form(keys: dict[str, Any], power: int, rng: np.random.Generator) -> None:
    records = np.clip(cloud(rng, 20), -2, 2)
    coefficients = thetas(rng, 10)[:-1]
    # float32 coordinates; near u = ±1 the arc sine makes 1e-7 of them 1e-4
    kernel = family(power=power, **keys).kernel(records, coefficients)
    assert np.allclose(kernel, closed_form(keys, power, records, coefficients), rtol=0, atol=2e-4)


def assert_rows_read_the_loss(sketched: Paired, records: Floats, coefficients: Floats, losses: Floats) -> None:
    """Of independent rows, each reads one record or none: the binomial's tails at the false alarm over all pairs."""
    for record, theta, loss in zip(records, coefficients, losses, strict=True):
        answer = sketched.answer(counters_of(sketched, record[None]), theta[None])
        count = round(answer.value[0] * sketched.rows)
        tail = min(binom.cdf(count, sketched.rows, loss), binom.sf(count - 1, sketched.rows, loss))
        assert tail > FALSE_ALARM / (2 * len(records)), (record, theta, count, loss)


def pairs(keys: dict[str, Any], seed: int) -> tuple[Paired, Floats, Floats, Floats]:
    """A family of many rows; records, one of them along its [θ, −1], with coefficients; and their losses."""
    rng, sketched = np.random.default_rng(seed), family(rows=2000, power=3, seed=seed % 2**53, **keys)
    records, coefficients = np.clip(cloud(rng, 5), -2, 2), thetas(rng, 7)
    records[0] = [*coefficients[0], -1]
    return sketched, records, coefficients, np.diag(sketched.kernel(records, coefficients))


@pytest.mark.statistical
@pytest.mark.parametrize("keys", FORMS)
def test_rows_read_the_loss_on_average(keys: dict[str, Any], seed: int) -> None:
    assert_rows_read_the_loss(*pairs(keys, seed))


@pytest.mark.statistical
def test_reading_one_sign_alone_is_caught(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    add = PairedRows.add

    def one_sign(self: PairedRows, counters: Int64, records: npt.NDArray[np.float32]) -> None:
        wide = np.zeros((len(self.rows), self.rows.buckets), np.int64)
        add(replace(self, folded=False), wide, records)
        counters += wide[:, : counters.shape[1]]  # the complements are forgotten

    monkeypatch.setattr(PairedRows, "add", one_sign)
    with pytest.raises(AssertionError):
        assert_rows_read_the_loss(*pairs(INNER, seed))


@pytest.mark.statistical
def test_a_record_whose_length_is_not_made_1_is_caught(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found, lifted = pairs({**INNER, "radius": 10}, seed), Lift.records

    def short(self: Lift, records: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        out = lifted(self, records)
        out[:, self.features :] = 0
        return out

    monkeypatch.setattr(Lift, "records", short)
    with pytest.raises(AssertionError):
        assert_rows_read_the_loss(*found)


@pytest.mark.statistical
@pytest.mark.parametrize("keys", FORMS)
def test_error_bars_hold_the_hashing_error(keys: dict[str, Any], seed: int) -> None:
    rng = np.random.default_rng(seed)
    records, coefficients, squares = np.clip(cloud(rng, 100), -2, 2), thetas(rng, 1), []
    for number in range(80):
        sketched = family(rows=50, seed=(seed + number) % 2**53, **keys)
        answer = sketched.answer(counters_of(sketched, records), coefficients)
        exact = sketched.kernel(records, coefficients).sum(axis=0)
        squares.append(float(((answer.value - exact) / answer.std_error)[0] ** 2))
    # 80 squares of about Student's t with 49 degrees: a chi-squared, with a fifth of room for the heavier tails.
    total = sum(squares)
    assert chi2.ppf(FALSE_ALARM / 2, 80) < total < 1.2 * chi2.isf(FALSE_ALARM / 2, 80), total


def test_a_folded_row_reads_what_both_signs_read(rng: np.random.Generator) -> None:
    records, coefficients = cloud(rng, 50), thetas(rng, 8)
    sketched = family(**ORTHOGONAL)
    accepted = sketched.accept(records)[0]
    both = PairedRows.draw(sketched.tables.lift, sketched.seed, rows=20, power=4, folded=False)
    wide = np.zeros((20, 16), np.int64)
    both.add(wide, accepted)
    read = [
        answer_of(both, wide, sign * sketched.tables.lift.queries(coefficients.astype(np.float32))) for sign in (1, -1)
    ]
    assert np.allclose(sketched.answer(counters_of(sketched, records), coefficients).value, read[0] + read[1])


def answer_of(rows: PairedRows, wide: Int64, queries: npt.NDArray[np.float32]) -> Floats:
    first, total, _ = numpy_engine.sums(rows.rows, wide, np.zeros(len(wide)), queries)
    return np.asarray(first + total / len(wide))


def test_records_of_equal_place_share_their_signs_and_others_do_not(rng: np.random.Generator) -> None:
    lift = family().tables.lift
    some = rng.uniform(-1, 1, (200, 3)).astype(np.float32)
    lifted = lift.records(np.concatenate([some, some]))
    assert np.array_equal(lifted[:200], lifted[200:])
    assert np.allclose(np.linalg.norm(lifted, axis=1), 1, atol=1e-6)
    signs = np.sign(lifted[:200, 3 : 3 + AUXILIARY])
    together = (signs @ signs.T)[np.triu_indices(200, 1)] / AUXILIARY
    assert np.abs(together).max() < 0.9
    assert abs(together.mean()) < 0.02
    zeroes = lift.records(np.array([[0.0, 1, 1], [-0.0, 1, 1]], np.float32))
    assert np.array_equal(zeroes[0], zeroes[1])


@pytest.mark.statistical
def test_signs_of_their_own_make_the_hashing_error_several_times_smaller(seed: int, rng: np.random.Generator) -> None:
    x = rng.uniform(-1, 1, (4000, 1))
    records = np.concatenate([x, 0.5 * x + rng.uniform(-0.5, 0.5, x.shape)], axis=1)
    sketched = family(dim=2, rows=200, power=2, seed=seed % 2**53)
    spread = sketched.answer(counters_of(sketched, records), [[0.5]]).std_error[0]
    assert spread < 4000 * 0.5 / math.sqrt(200) / 3  # with one sign for all a row reads all records or none


def test_slopes_are_those_of_least_squares_with_the_inner_form_alone(rng: np.random.Generator) -> None:
    x = rng.uniform(-1, 1, 4000)
    records = np.column_stack([x, 0.5 * x + rng.uniform(-1, 1, 4000) * 0.866])
    grid = np.linspace(-1.5, 1.5, 301)[:, None]
    slope = {}
    for form in ("inner", "orthogonal"):
        losses = family(dim=2, form=form, power=2).kernel(records, grid).sum(axis=0)
        slope[form] = float(grid[losses.argmin(), 0])
    assert abs(slope["inner"] - 0.5) < 0.06
    assert slope["orthogonal"] > 0.62


def test_the_margin_loss_falls_as_the_margin_grows() -> None:
    sketched = family(dim=2, loss="margin", power=3)
    losses = sketched.kernel([[1, 1], [1, 0], [1, -2], [-1, -1]], [[1.0], [0.5], [0.0], [-1.0]])
    assert np.all(np.diff(losses[0]) > 0)
    assert np.allclose(losses[0, 2], 1 / 8)
    assert np.array_equal(losses[1], losses[2])  # labels of 0 and of −2 are the same one
    assert np.allclose(losses[0], losses[3], atol=1e-6)  # both coordinates turned: the same margin


# -------------------------------------------------------------------------------------------------- counters
@pytest.mark.parametrize("keys", FORMS)
def test_ways_and_batches_give_the_same_bytes(
    keys: dict[str, Any], rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    records, coefficients, found = cloud(rng, 1000), thetas(rng, 20), []
    for way in ("plain", "fast"):
        monkeypatch.setenv("HUSHSUM_KERNELS", way)
        sketched = family(rows=9, **keys)
        accepted, counters = sketched.accept(records)[0], np.zeros(sketched.shape, np.int64)
        for i in range(30):
            sketched.add(counters, accepted[i : i + 1])
        sketched.add(counters, accepted[30:])
        encoded, whole = sketched.encode(accepted), np.zeros(sketched.shape, np.int64)
        whole.reshape(-1)[encoded.indices] = encoded.values
        answer = sketched.answer(counters, coefficients)
        one = np.array([sketched.answer(counters, q[None]).value[0] for q in coefficients])
        assert np.array_equal(whole, counters)
        assert np.array_equal(one, answer.value)
        found.append((counters.tobytes(), answer.value.tobytes(), answer.std_error.tobytes()))
    assert found[0] == found[1]


def test_bytes_are_those_of_the_first_version() -> None:
    records = np.array([[1, -1, 0.5], [0.25, 2, -2], [0, 0, 1]])
    frozen = {"inner": "2010 2010 0120 0111", "orthogonal": "0210 0210 1002 2001"}
    for form, expected in frozen.items():
        counters = counters_of(family(form=form, rows=4, power=3), records)
        assert " ".join("".join(map(str, row)) for row in counters.tolist()) == expected


@pytest.mark.parametrize("keys", FORMS)
def test_every_record_changes_one_counter_a_row_by_one(keys: dict[str, Any], rng: np.random.Generator) -> None:
    sketched = family(**keys)
    assert sketched.shape == (20, 16 if keys.get("loss") == "margin" else 8)
    for record in cloud(rng, 10):
        counters = counters_of(sketched, record[None])
        assert np.array_equal(counters.sum(axis=1), np.ones(20))
        assert counters.min() == 0
    assert (sketched.sensitivity.l0, sketched.sensitivity.l1, sketched.sensitivity.linf) == (20, 20, 1)
    assert sketched.sensitivity.l2_squared == 20


def test_packs_are_read_back_and_impossible_counts_refused(rng: np.random.Generator) -> None:
    sketched = family(power=2)
    for n in (1, 7, 300):
        increments = sketched.encode(sketched.accept(rng.uniform(-2, 2, (n, 3)))[0])
        encoding, data = sketched.pack(increments, n)
        again = sketched.unpack(encoding, data, n)
        sketched.check(again, n)
        assert np.array_equal(again.indices, increments.indices)
        assert np.array_equal(again.values, increments.values)
        assert len(data) <= sketched.packed_bytes_max(n)
        for indices, values, records in (
            (increments.indices[1:], increments.values[1:], n),
            (increments.indices, increments.values, n + 1),
            (increments.indices, -increments.values, n),
        ):
            with pytest.raises(DeltaError) as caught:
                sketched.check(Increments(indices, values), records)
            assert caught.value.reason is Reason.IMPOSSIBLE_COUNTS


def test_records_that_cannot_be_used_are_dropped_alone() -> None:
    accepted, kept = family().accept(np.array([[1, 2, np.nan], [9, 0, 1], [np.inf, 0, 0]]))
    assert kept.tolist() == [False, True, False]
    assert accepted.tolist() == [[2, 0, 1]]


BAD_QUERIES: tuple[tuple[Any, str], ...] = (
    ([[1.0, 1.0, 1.0]], r"expected \(m, 2\)"),
    ([0.5, 0.5], r"expected \(m, 2\)"),
    ([[np.nan, 0]], "NaN"),
    ([[1e300, 0]], "2\\^64"),
    ([["a", "b"]], "type"),
    ([[1.5, 1.5]], r"length 2.345, expected at most norm_bound = 2"),
)


@pytest.mark.parametrize("queries, message", BAD_QUERIES)
def test_queries_that_cannot_be_answered_are_refused(queries: Any, message: str) -> None:
    sketched = family()
    with pytest.raises(RecordError, match=message):
        sketched.answer(np.zeros(sketched.shape, np.int64), queries)


def test_a_query_at_its_bound_is_answered() -> None:
    sketched = family()
    assert sketched.query_dim == 2
    assert len(sketched.answer(np.zeros(sketched.shape, np.int64), [[math.sqrt(3), 0], [0, -math.sqrt(3)]]).value) == 2


@pytest.mark.parametrize("form", ({"radius": 3}, ORTHOGONAL))
def test_coefficients_of_zero_have_the_loss_of_a_margin_of_zero(form: dict[str, Any]) -> None:
    assert family(loss="margin", **form).kernel([[1, 1, 1]], [[0, 0]])[0, 0] == pytest.approx(1 / 16)


def test_groups_give_the_median_of_their_means(rng: np.random.Generator) -> None:
    sketched = family()
    counters, coefficients = counters_of(sketched, cloud(rng, 100)), thetas(rng, 3)
    answer = sketched.answer(counters, coefficients, groups=4)
    single = [sketched.tables.sums(counters, coefficients.astype(np.float32), slice(r, r + 1))[0] for r in range(20)]
    means = np.array(single).reshape(4, 5, 3).mean(axis=1)
    assert np.allclose(answer.value, np.median(means, axis=0))
    assert answer.spread == "groups"
    assert np.array_equal(
        sketched.answer(counters, coefficients, groups=1).value, sketched.answer(counters, coefficients).value
    )
    with pytest.raises(ValueError, match="from 1 to the 20 rows"):
        sketched.answer(counters, coefficients, groups=21)


def test_noise_of_an_answer_is_that_of_one_counter_a_row() -> None:
    sketched, rng = family(rows=400), np.random.default_rng(5)
    noise = rng.normal(0, 1000, (300, *sketched.shape)).astype(np.int64)
    values = np.array([sketched.answer(counters, [[0.1, 0.2]]).value[0] for counters in noise])
    assert values.var() == pytest.approx(sketched.answer_variance(1000.0**2), rel=0.5)


def test_transforms_come_before_the_loss() -> None:
    scaled = family(transforms=[{"kind": "scale", "factor": [0.5, 0.25, 0.5]}], radius=1)
    plain = family(bound=1, radius=1)
    records, coefficients = np.array([[1, 1, 1.0], [0.5, -1, 0.25]]), [[0.3, 0.4]]
    assert np.array_equal(scaled.kernel(records, coefficients), plain.kernel(records * [0.5, 0.25, 0.5], coefficients))
