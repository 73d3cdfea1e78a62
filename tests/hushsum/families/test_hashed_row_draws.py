"""How rows are drawn, and the error bars that go with it: independent, Sobol sets, orthogonal, given; medians."""

import warnings
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import kstest

from hushsum.errors import PlanError
from hushsum.families import Answer, Hashed
from hushsum.families.estimators import SparseMedianWarning, median_of_means
from hushsum.families.lsh.codes.joined import Joined
from hushsum.families.lsh.codes.projection import Projection
from hushsum.families.lsh.row_sources import orthogonal_normals
from hushsum.parameters import Parameters, digest
from hushsum.public_random import PublicSeed
from tests.hushsum.families.lsh import hash_checks, reference

EUCLIDEAN: dict[str, object] = {"kernel": "euclidean", "bandwidth": 3}
KERNELS: dict[str, dict[str, object]] = {
    "euclidean": EUCLIDEAN,
    "manhattan": {"kernel": "manhattan", "bandwidth": 3},
    "laplacian": {"kernel": "laplacian", "bandwidth": 4},
    "angular": {"kernel": "angular"},
}
Floats = npt.NDArray[np.float64]


def counters_of(family: Hashed, records: npt.ArrayLike) -> npt.NDArray[np.int64]:
    counters = np.zeros(family.shape, np.int64)
    family.add(counters, family.accept(records)[0])
    return counters


def assert_unbiased(
    make: Callable[[int], Floats], exact: Floats, records: Floats, queries: Floats, seed: int, draws: int
) -> Floats:
    """(draws, m) answers over seeds; their means are exact by Student's t at 1e-6 over the queries."""
    from scipy.stats import t

    values = np.array([make((seed + i) % 2**53) for i in range(draws)])
    reach = t.isf(1e-6 / (2 * len(exact)), draws - 1) * values.std(axis=0, ddof=1) / np.sqrt(draws)
    assert np.all(np.abs(values.mean(axis=0) - exact) <= reach), (values.mean(axis=0), exact)
    return values


# ----------------------------------------------------------------------------------------------------------- sobol
@pytest.mark.statistical
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("power", (1, 2))
def test_sobol_rows_are_unbiased_and_vary_less(kernel: str, power: int, seed: int) -> None:
    """60 seeds of 256 rows: false alarm 1e-6 for the mean. Sobol answers must vary less than independent ones in the
    geometric mean over 6 queries, which independent draws do in place of Sobol with probability 1/2 at most."""
    rng = np.random.default_rng(seed)
    records, queries = rng.uniform(-4, 4, (60, 2)), rng.uniform(-4, 4, (6, 2))
    keys = {**KERNELS[kernel], "rows": 256, "buckets": 256, "power": power}
    exact = hash_checks.build(2, -5, 5, **keys).kernel(records, queries).sum(axis=0)

    def answers(draws: str) -> Callable[[int], Floats]:
        def one(number: int) -> Floats:
            family = hash_checks.build(2, -5, 5, **keys, draws=draws, **({"sobol_sets": 4} if draws == "sobol" else {}))
            family = hash_checks.build(2, -5, 5, **{**family.to_fields(), "seed": number})
            return family.answer(counters_of(family, records), queries).value

        return one

    even = assert_unbiased(answers("sobol"), exact, records, queries, seed, 60)
    usual = assert_unbiased(answers("independent"), exact, records, queries, seed, 60)
    assert np.log(even.var(axis=0) / usual.var(axis=0)).mean() < -0.1


@pytest.mark.statistical
def test_the_error_bar_of_sobol_sets_is_that_of_the_mean_of_all_rows(seed: int) -> None:
    """Over 400 seeds the mean of std_error² is the variance of the answers within 40 %: with 7 degrees of freedom a
    seed both have a relative error of about 7 %, so 40 % is 5 σ: false alarm 1e-6."""
    rng = np.random.default_rng(seed)
    records, queries = rng.uniform(-4, 4, (60, 2)), [[0.0, 0.0], [2.0, -1.0]]
    found = []
    for number in range(400):
        family = hash_checks.build(2, -5, 5, **EUCLIDEAN, rows=64, draws="sobol", seed=(seed + number) % 2**53)
        answer = family.answer(counters_of(family, records), queries)
        found.append((answer.value, answer.std_error))
    values, errors = np.array(found).transpose(1, 0, 2)
    ratio = np.square(errors).mean(axis=0) / values.var(axis=0, ddof=1)
    assert np.all(np.abs(ratio - 1) < 0.4), ratio
    family = hash_checks.build(2, -5, 5, **EUCLIDEAN, rows=64, draws="sobol")
    answer = family.answer(np.zeros(family.shape, np.int64), queries)
    assert (answer.spread, answer.degrees) == ("sets", 7)


def test_sobol_sets_are_a_key_of_sobol_alone_and_always_written() -> None:
    family = hash_checks.build(2, -5, 5, **EUCLIDEAN, draws="sobol")
    assert family.to_fields()["sobol_sets"] == 8
    assert "sobol_sets" not in hash_checks.build(2, -5, 5, **EUCLIDEAN).to_fields()
    hash_checks.refused(r"sketch\.sobol_sets: .*expected a known key", **EUCLIDEAN, sobol_sets=8)
    hash_checks.refused(r"sketch\.rows: .*multiple of sobol_sets = 7", **EUCLIDEAN, draws="sobol", sobol_sets=7)
    hash_checks.refused(r"sketch\.sobol_sets", **EUCLIDEAN, draws="sobol", sobol_sets=1)
    hash_checks.refused(r"sketch\.draws: .*600 draws", 200, **KERNELS["laplacian"], draws="sobol")


def test_groups_take_coordinates_of_one_sobol_point_each_its_own() -> None:
    groups = [{"columns": [j], "kernel": "euclidean", "bandwidth": 1} for j in range(2)]
    code = hash_checks.build(2, -3, 3, groups=groups, draws="sobol", rows=512)._tables.code
    assert isinstance(code, Joined)
    first, second = (part.directions[:, 0] for part in code.codes if isinstance(part, Projection))
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.2
    assert len({*first.tolist(), *second.tolist()}) > 1000


# ------------------------------------------------------------------------------------------------------ orthogonal
@pytest.mark.parametrize("n, d", ((1, 1), (5, 1), (7, 3), (50, 20), (10, 40)))
def test_directions_of_a_block_are_orthogonal_and_as_long_as_normal_vectors(
    n: int, d: int, rng: np.random.Generator
) -> None:
    raw, lengths = rng.normal(size=(n, d)), rng.normal(size=(n, d))
    found = orthogonal_normals(raw, lengths)
    assert np.allclose(np.linalg.norm(found, axis=1), np.linalg.norm(lengths, axis=1), rtol=1e-12)
    for start in range(0, n, d):
        units = found[start : start + d] / np.linalg.norm(found[start : start + d], axis=1)[:, None]
        assert np.allclose(units @ units.T, np.eye(len(units)), atol=1e-9)
    assert np.allclose(
        found[::d] / np.linalg.norm(found[::d], axis=1)[:, None], raw[::d] / np.linalg.norm(raw[::d], axis=1)[:, None]
    )
    assert np.array_equal(orthogonal_normals(raw[: n // 2], lengths[: n // 2]), found[: n // 2])


@pytest.mark.statistical
def test_each_orthogonal_entry_is_standard_normal(seed: int) -> None:
    """Kolmogorov–Smirnov over the entries at one place of each block, which are independent: false alarm 1e-6."""
    rng = np.random.default_rng(seed)
    found = orthogonal_normals(rng.normal(size=(30_000, 3)), rng.normal(size=(30_000, 3))).reshape(-1, 3, 3)
    for row in range(3):
        assert kstest(found[:, row, 1], "norm").pvalue > 1e-6 / 3
        assert kstest(2 * found[:, row, 1], "norm").pvalue < 1e-6


@pytest.mark.statistical
@pytest.mark.parametrize("kernel", ("euclidean", "angular"))
@pytest.mark.parametrize("power", (1, 2))
def test_orthogonal_rows_are_unbiased(kernel: str, power: int, seed: int) -> None:
    """60 seeds of 200 rows; false alarm 1e-6. Parts of one row must stay independent: orthogonal ones would fail."""
    rng = np.random.default_rng(seed)
    records, queries = rng.uniform(-4, 4, (40, 3)), rng.uniform(-4, 4, (4, 3))
    keys = {**KERNELS[kernel], "rows": 200, "buckets": 256, "power": power, "draws": "orthogonal"}
    exact = hash_checks.build(3, -5, 5, **keys).kernel(records, queries).sum(axis=0)

    def one(number: int) -> Floats:
        family = hash_checks.build(3, -5, 5, **keys, seed=number)
        return family.answer(counters_of(family, records), queries).value

    assert_unbiased(one, exact, records, queries, seed, 60)


def test_orthogonal_is_for_normal_directions_alone() -> None:
    for kernel in ("manhattan", "laplacian"):
        hash_checks.refused(r"sketch\.draws: .*euclidean and angular", **KERNELS[kernel], draws="orthogonal")


# ----------------------------------------------------------------------------------------------------------- given
def given(matrix: npt.ArrayLike, dim: int = 2, /, **keys: object) -> Hashed:
    array = np.asarray(matrix, np.float32)
    keys = {"kernel": "euclidean", "draws": "given", "rows": len(array), "parameters": digest(array), **keys}
    return hash_checks.build(dim, -5, 5, Parameters.of([array]), **keys)


def matrix_of(rng: np.random.Generator, rows: int, dim: int) -> npt.NDArray[np.float32]:
    directions = rng.normal(size=(rows, dim)).astype(np.float32)
    return np.concatenate([directions, (rng.integers(0, 2**24, (rows, 1)) * 2.0**-24).astype(np.float32)], axis=1)


@pytest.mark.parametrize("kernel", ("euclidean", "angular"))
@pytest.mark.parametrize("power", (1, 2))
def test_the_kernel_of_given_rows_is_exact(kernel: str, power: int, rng: np.random.Generator) -> None:
    matrix = matrix_of(rng, 30 * power, 2)
    matrix[:, 2] *= kernel == "euclidean"
    family = given(matrix, kernel=kernel, power=power, rows=30, buckets=2000)
    assert not family.rehashed
    records, queries = rng.uniform(-5, 5, (25, 2)), rng.uniform(-5, 5, (6, 2))
    k = family.kernel(records, queries)
    same = [[hash_checks.shared(family, x[None], q[None]).mean() for q in queries] for x in records]
    assert np.allclose(k, same, rtol=1e-12)
    assert 0 < k.mean() < 1
    answer = family.answer(counters_of(family, records), queries, noise_variance=12.0)
    assert np.allclose(answer.value, k.sum(axis=0), rtol=1e-12)
    assert np.allclose(answer.std_error, np.sqrt(12 / 30))
    assert (answer.spread, family.kernel_error, family.digests) == ("noise", 0, (digest(matrix),))


def test_given_rows_have_the_codes_of_the_definition(rng: np.random.Generator) -> None:
    hash_checks.assert_engines_agree_with_the_definition(given(matrix_of(rng, 40, 2)), rng.uniform(-5, 5, (60, 2)))


def test_a_wrong_matrix_is_refused(rng: np.random.Generator) -> None:
    good = matrix_of(rng, 4, 2)
    given(good)
    for offset in (1.0, -(2.0**-24), 2.0**-25, 0.1 + 2.0**-26):
        bad = good.copy()
        bad[2, 2] = offset
        with pytest.raises(PlanError, match=r"sketch\.parameters: .*row 2.*multiples of 2\^-24"):
            given(bad)
    with pytest.raises(PlanError, match=r"sketch\.parameters: .*row 0.*expected offsets 0"):
        given(good, kernel="angular")
    far = good.copy()
    far[3, 0] = 2.0**31
    with pytest.raises(PlanError, match=r"sketch\.parameters: .*row 3.*32 bits"):
        given(far)
    with pytest.raises(PlanError, match=r"sketch\.parameters: .*rows x power = 5"):
        given(good, rows=5)
    with pytest.raises(PlanError, match=r"columns"):
        given(good, 3)
    for key, value in (("bandwidth", 1), ("sobol_sets", 2), ("groups", [])):
        with pytest.raises(PlanError, match=rf"sketch\.{key}: .*expected a known key"):
            given(good, **{key: value})
    with pytest.raises(PlanError, match=r"sketch\.kernel"):
        given(good, kernel="laplacian")
    with pytest.raises(PlanError, match=r"sketch\.parameters: .*expected a known key"):
        hash_checks.build(2, -5, 5, **EUCLIDEAN, parameters=digest(good))


# --------------------------------------------------------------------------------------------------------- medians
def test_the_median_is_that_of_the_means_of_contiguous_groups(rng: np.random.Generator) -> None:
    family = hash_checks.build(2, -5, 5, **EUCLIDEAN, rows=22, buckets=4)
    assert family.rehashed
    counters = rng.integers(0, 500, family.shape)
    queries = rng.uniform(-5, 5, (9, 2))
    chosen = reference.buckets(family._tables, family.accept(queries)[0])
    read = (np.take_along_axis(counters, chosen, axis=1) - counters.sum(axis=1, keepdims=True) / 4) * 4 / 3
    means = np.stack([part.mean(axis=0) for part in np.array_split(read, 5)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SparseMedianWarning)
        answer = family.answer(counters, queries, groups=5)
        one = family.answer(counters, queries, groups=1)
    assert np.allclose(answer.value, np.median(means, axis=0))
    assert np.allclose(answer.std_error, means.std(axis=0, ddof=1) / np.sqrt(5) * np.sqrt(np.pi / 2))
    assert (answer.spread, answer.degrees) == ("groups", 4)
    assert np.allclose(one.value, family.answer(counters, queries).value)
    assert np.isnan(one.std_error).all()


def test_few_collisions_in_a_group_are_warned_of_and_many_are_not(rng: np.random.Generator) -> None:
    family = hash_checks.build(2, -5, 5, **EUCLIDEAN, rows=400)
    counters = counters_of(family, rng.normal(0, 0.3, (200, 2)))
    family.answer(counters, [[0.0, 0.0]], groups=8)
    with pytest.warns(SparseMedianWarning, match="1 of 2 queries"):
        family.answer(counters, [[0.0, 0.0], [5.0, -5.0]], groups=40)


@pytest.mark.parametrize("draws", ("sobol", "orthogonal"))
def test_dependent_rows_have_no_median(draws: str) -> None:
    family = hash_checks.build(2, -5, 5, **EUCLIDEAN, draws=draws)
    with pytest.raises(ValueError, match="dependent"):
        family.answer(np.zeros(family.shape, np.int64), [[0.0, 0.0]], groups=2)


@pytest.mark.parametrize("groups", (0, -1, 41))
def test_groups_are_at_most_the_rows(groups: int) -> None:
    family = hash_checks.build(2, -5, 5, **EUCLIDEAN)
    with pytest.raises(ValueError, match="1 to the 40 rows"):
        family.answer(np.zeros(family.shape, np.int64), [[0.0, 0.0]], groups=groups)


@pytest.mark.statistical
def test_the_error_bar_of_a_median_is_honest_for_normal_means(seed: int) -> None:
    """20,000 medians of 15 normal means: error² over variance from 1 to 1.12 by theory (1.06), ± 6 σ of 1 %."""
    means = np.random.default_rng(seed).normal(size=(15, 20_000))
    value, error = median_of_means(means, 10)
    assert 1.0 < np.square(error).mean() / value.var() < 1.12


# -------------------------------------------------------------------------------------------------------- all cores
@pytest.mark.parametrize("kernels", ("plain", "fast"))
def test_pieces_of_rows_and_queries_give_the_bytes_of_the_whole(
    kernels: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hushsum.families import threads

    monkeypatch.setenv("HUSHSUM_KERNELS", kernels)
    records, queries = rng.uniform(-5, 5, (500, 2)), rng.uniform(-5, 5, (301, 2))
    for keys in KERNELS.values():
        found: list[tuple[bytes, ...]] = []
        for cores in (1, 3):
            monkeypatch.setattr(threads, "RECORDS_MIN", 100)
            monkeypatch.setattr(threads, "cores", lambda count=cores: count)
            family = hash_checks.build(2, -5, 5, **keys)
            counters = counters_of(family, records)
            increments = family.encode(family.accept(records)[0])
            answer: Answer = family.answer(counters, queries)
            parts = (counters, increments.indices, increments.values, answer.value, answer.std_error)
            found.append(tuple(part.tobytes() for part in parts))
        assert found[0] == found[1]


def test_the_seed_is_the_only_difference_of_two_families() -> None:
    one, other = (hash_checks.build(2, -5, 5, **EUCLIDEAN, seed=number) for number in (1, 2))
    assert one != other
    assert (one.seed, one.product) == (PublicSeed(1), other.product)
