"""Hashes learned on public data: right directions, and collisions where they are wanted."""

import numpy as np
import numpy.typing as npt
import pytest
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

import hushsum as hs
from hushsum.learned_hashes import given_hash, lda, pca
from hushsum.parameters import digest

Floats = npt.NDArray[np.float64]


def two_classes(rng: np.random.Generator, n: int, dim: int = 12) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Classes 3 standard deviations apart along one column, under wide noise in all others."""
    labels = rng.random(n) < 0.5
    records = rng.normal(0, 5, (n, dim))
    records[:, 4] = rng.normal(0, 1, n) + 3 * labels
    return records, labels


def test_pca_finds_the_directions_that_scikit_learn_finds(rng: np.random.Generator) -> None:
    records = rng.normal(size=(500, 6)) @ rng.normal(size=(6, 6))
    found, theirs = pca(records, 3), PCA(3).fit(records)
    assert found.dtype == np.float32
    assert np.allclose(np.abs((found * theirs.components_).sum(axis=1)), 1, atol=1e-5)
    assert np.allclose(np.std(records @ pca(records, 3, whiten=True).T, axis=0, ddof=1), 1, rtol=1e-4)


def test_lda_finds_the_directions_that_scikit_learn_finds(rng: np.random.Generator) -> None:
    labels = rng.integers(0, 3, 600)
    records = rng.normal(size=(600, 5)) + rng.normal(size=(3, 5))[labels]
    found, theirs = lda(records, labels), LinearDiscriminantAnalysis(solver="eigen").fit(records, labels)
    for mine, other in zip(found.astype(np.float64), theirs.scalings_.T, strict=False):
        cosine = mine @ other / np.linalg.norm(mine) / np.linalg.norm(other)
        assert abs(cosine) == pytest.approx(1, abs=1e-3)
    within = np.concatenate([records[labels == k] - records[labels == k].mean(axis=0) for k in range(3)])
    assert np.allclose(np.std(within @ found.T, axis=0), 1, rtol=0.02)


def plan(records: Floats, sketch: dict[str, object], arrays: list[npt.ArrayLike]) -> hs.Plan:
    dim = records.shape[1]
    return hs.Plan(
        name="learned",
        record={"dim": dim, "lower": [-30] * dim, "upper": [30] * dim},
        sketch={"family": "hashed", "kernel": "euclidean", "rows": 200, "buckets": 64, **sketch},
        privacy={"epsilon": 1, "total_epsilon": 10},
        parameters=arrays,
    )


def contrast(collection: hs.Plan, records: Floats, labels: npt.NDArray[np.bool_]) -> float:
    """How many times as often records of one class collide as records of different ones."""
    sketches = [hs.Sketch(collection), hs.Sketch(collection)]
    for sketch, mine in zip(sketches, (labels, ~labels), strict=True):
        sketch.add(records[mine])
    queries = records[labels][:100]
    same, other = (collection.family.answer(s.counters[0], queries).value.mean() for s in sketches)
    return float(same / max(other, 1.0) * (~labels).sum() / labels.sum())


def test_a_learned_hash_makes_classes_collide_more_among_themselves(rng: np.random.Generator) -> None:
    public, private = two_classes(rng, 2000), two_classes(rng, 2000)
    matrix = lda(*public)
    table = given_hash(matrix, rows=200, bandwidth=2)
    transform: dict[str, object] = {"bandwidth": 2, "transforms": [{"kind": "linear", "matrix": digest(matrix)}]}
    given: dict[str, object] = {"draws": "given", "parameters": digest(table)}
    plain = contrast(plan(private[0], {"bandwidth": 2, "buckets": 1024}, []), *private)
    hashes = ((transform, matrix), (given, table))
    learned = [contrast(plan(private[0], keys, [array]), *private) for keys, array in hashes]
    assert plain < 1.2
    assert min(learned) > 1.5


def test_a_plan_with_a_learned_hash_travels_with_it(rng: np.random.Generator) -> None:
    table = given_hash(pca(rng.normal(size=(50, 3)), 2), rows=200, bandwidth=1, seed=5)
    made = plan(rng.normal(size=(9, 3)), {"draws": "given", "parameters": digest(table)}, [table])
    back = hs.Plan.from_bytes(made.bundle)
    assert back.id == made.id
    assert np.array_equal(back.parameters.arrays[digest(table)], table)
    with pytest.raises(hs.PlanError, match=r"in parameters=\.\.\."):
        hs.Plan.from_bytes(made.to_bytes())


@pytest.mark.parametrize("components", (0, 5))
def test_a_number_of_components_that_there_cannot_be_is_refused(components: int, rng: np.random.Generator) -> None:
    with pytest.raises(ValueError, match="components"):
        pca(rng.normal(size=(9, 4)), components)
    with pytest.raises(ValueError, match="components"):
        lda(rng.normal(size=(9, 4)), [0, 1, 2] * 3, components)


def test_what_cannot_be_learned_from_is_refused(rng: np.random.Generator) -> None:
    for bad in ([[1.0, np.nan]] * 3, [1.0, 2.0], [[1.0, 2.0]]):
        with pytest.raises(ValueError, match="finite rows"):
            pca(bad, 1)
    with pytest.raises(ValueError, match="labels"):
        lda(rng.normal(size=(4, 2)), [0, 0, 0, 0])
    with pytest.raises(ValueError, match="labels"):
        lda(rng.normal(size=(4, 2)), [0, 1])
    with pytest.raises(ValueError, match="above 0"):
        given_hash(np.eye(2), rows=1, bandwidth=0)
