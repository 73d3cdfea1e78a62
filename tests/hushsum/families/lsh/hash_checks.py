"""What every hash of vectors must do, as functions that raise: used by each hash's tests and by planted mistakes."""

from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import binomtest

from hushsum.errors import PlanError
from hushsum.families import Hashed, VectorRecords
from hushsum.families.lsh import numpy_engine
from hushsum.parameters import NO_PARAMETERS, Parameters
from hushsum.schema import Table
from tests.hushsum.families.lsh import reference

FALSE_ALARM = 1e-6
Floats = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]


def build(dim: int, low: float, high: float, brought: Parameters = NO_PARAMETERS, /, **keys: object) -> Hashed:
    record = VectorRecords(dim, (Fraction(low),) * dim, (Fraction(high),) * dim)
    return Hashed.from_table(Table({"rows": 40, "buckets": 64, "seed": 3, **keys}, "sketch"), record, brought)


def code_vectors(family: Hashed, points: npt.ArrayLike) -> Int64:
    """(R, p, n): codes in NumPy."""
    tables = family._tables
    coder = numpy_engine.coder(tables.code)
    found = coder.codes(slice(0, len(tables.code)), coder.prepare(family._space.queries(points)))
    return found.copy().reshape(family.rows, tables.power, -1)


def shared(family: Hashed, x: npt.ArrayLike, y: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    """(R, n): whether rows give x_i and y_i the same codes."""
    return np.asarray((code_vectors(family, x) == code_vectors(family, y)).all(axis=1), np.bool_)


def assert_collisions(family: Hashed, expected: Floats, x: Floats, y: Floats, error: float = 0.0) -> None:
    """Independent rows share codes with the expected probabilities: exact binomial, 1e-6 over all pairs."""
    counts = shared(family, x, y).sum(axis=0)
    for count, probability in zip(counts.tolist(), expected.tolist(), strict=True):
        around = np.clip([probability - error, probability + error], 0.0, 1.0)
        p_value = max(binomtest(count, family.rows, p).pvalue for p in (*around.tolist(), probability))
        assert p_value > FALSE_ALARM / len(expected), (count / family.rows, probability)


def pairwise_kernel(family: Hashed, x: Floats, y: Floats) -> Floats:
    """(n,): k(x_i, y_i)."""
    return np.array([family.kernel(x[i : i + 1], y[i : i + 1])[0, 0] for i in range(len(x))])


def assert_engines_agree_with_the_definition(family: Hashed, points: npt.ArrayLike) -> None:
    """Counters, encodings and reads of both engines are those of the definition in tests/.../reference.py."""
    tables, records = family._tables, family.accept(points)[0]
    expected, chosen = reference.counters(tables, records), reference.buckets(tables, records)
    weights = np.random.default_rng(1).integers(0, 2**20, expected.shape)
    read = np.take_along_axis(weights, chosen, axis=1)
    for name, engine in reference.ENGINES.items():
        total = np.zeros_like(expected)
        engine.add(tables, total, records)
        assert np.array_equal(total, expected), name
        split = np.zeros_like(expected)
        for part in np.split(records, [1, 8]):
            engine.add(tables, split, np.ascontiguousarray(part))
        assert np.array_equal(split, expected), name
        for n in (1, 3, len(records)):
            wanted = reference.counters(tables, records[:n]).reshape(-1)
            indices, values = engine.encode(tables, records[:n])
            assert np.array_equal(indices, np.flatnonzero(wanted)), name
            assert np.array_equal(values, wanted[indices]), name
        for which in (slice(0, len(tables)), slice(4, 13)):
            first, sums, squares = engine.sums(tables, weights, np.zeros(len(tables)), records, which)
            assert np.array_equal(first, read[which.start]), name
            assert np.array_equal(sums, (read[which] - first).sum(axis=0)), name
            assert np.array_equal(squares, ((read[which] - first) ** 2).sum(axis=0)), name


def assert_direct_and_rehash_agree(dim: int, low: float, high: float, rng: np.random.Generator, **keys: object) -> None:
    """Where codes fit they are not rehashed; records share direct buckets where they share codes.

    And rehashed ones too, but for collisions, which 2^24 buckets make rare.
    """
    direct, points = build(dim, low, high, **{"buckets": 4096, **keys}), rng.uniform(low, high, (30, dim))
    assert not direct.rehashed
    tables, accepted = direct._tables, direct.accept(points)[0]
    vectors = code_vectors(direct, points)
    same_codes = (vectors[:, :, :, None] == vectors[:, :, None, :]).all(axis=1)
    for engine in reference.ENGINES.values():
        for rows in (tables, reference.rehashed_rows(tables.code, 2**24, tables.power)):
            each = [engine.encode(rows, accepted[i : i + 1])[0] % rows.buckets for i in range(len(points))]
            buckets = np.stack(each, axis=1)
            assert np.array_equal(buckets[:, :, None] == buckets[:, None, :], same_codes)


def refused(match: str, dim: int = 2, /, **keys: object) -> None:
    """The keys are refused by a PlanError that matches."""
    with pytest.raises(PlanError, match=match):
        build(dim, 0, 10, **keys)
