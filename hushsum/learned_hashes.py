"""Hashes learned on public data: directions by PCA or LDA, carried in the plan (RACE, section 7.1).

A hash that looks along the directions in which records differ, or in which classes do, wastes no row on the others.
What is learned is public: **never learn on data that the plan protects**. Two ways to use it, both by digest:

>>> matrix = lda(public, labels)                       # a linear transform: euclidean distances of what comes out
>>> {"transforms": [{"kind": "linear", "matrix": digest(matrix)}]}
>>> table = given_hash(matrix, rows=1000, bandwidth=1.0)   # or the whole hash, drawn along these directions
>>> {"draws": "given", "parameters": digest(table)}

In both cases the array itself goes to ``Plan(..., parameters=[array])``.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from hushsum.parameters import Float32
from hushsum.public_random import PublicSeed, PublicStream

Floats = npt.NDArray[np.float64]
_RIDGE: Final = 1e-6  # of the mean within-class variance, so that constant columns do no harm


def pca(public: npt.ArrayLike, components: int, *, whiten: bool = False) -> Float32:
    """The directions of largest variance, a row each, by falling variance.

    Args:
        public: (n, d) public records, n ≥ 2.
        components: How many, from 1 to d.
        whiten: Divide each by its standard deviation, so that all count alike.

    Returns:
        (components, d) float32; each row's largest entry is positive, so that equal data gives equal signs.

    Raises:
        ValueError: The array or the number is out of range.
    """
    records = _matrix(public)
    dim = records.shape[1]
    if not 1 <= components <= dim:
        raise ValueError(f"components: got {components}, expected 1 to {dim}")
    values, vectors = np.linalg.eigh(np.cov(records, rowvar=False).reshape(dim, dim))
    order = np.argsort(values)[::-1][:components]
    directions = vectors[:, order].T
    if whiten:
        directions = directions / np.sqrt(np.maximum(values[order], np.finfo(np.float64).tiny))[:, None]
    return _signed(directions)


def lda(public: npt.ArrayLike, labels: npt.ArrayLike, components: int | None = None) -> Float32:
    """Fisher's discriminant directions, in units of the standard deviation within classes.

    Args:
        public: (n, d) public records.
        labels: n of them, of at least two classes.
        components: How many; by default one less than classes, and at most d.

    Returns:
        (components, d) float32, by falling separation of the classes.

    Raises:
        ValueError: The arrays or the number are out of range.
    """
    records, names = _matrix(public), np.asarray(labels)
    if names.shape != (len(records),):
        raise ValueError(f"labels: got shape {names.shape} for {len(records)} records")
    classes, members = np.unique(names, return_inverse=True)
    if len(classes) < 2:
        raise ValueError(f"labels: got {len(classes)} class, expected at least 2")
    most = min(len(classes) - 1, records.shape[1])
    wanted = most if components is None else components
    if not 1 <= wanted <= most:
        raise ValueError(f"components: got {wanted}, expected 1 to {most} for {len(classes)} classes")
    means = np.stack([records[members == index].mean(axis=0) for index in range(len(classes))])
    inner = records - means[members]
    within = inner.T @ inner / max(1, len(records) - len(classes))
    within += np.eye(len(within)) * max(_RIDGE * float(np.trace(within)) / len(within), np.finfo(np.float64).tiny)
    values, vectors = np.linalg.eigh(within)
    whitening = vectors / np.sqrt(values)
    spread = (means[members] - records.mean(axis=0)) @ whitening
    _, _, rotation = np.linalg.svd(spread, full_matrices=False)
    return _signed((whitening @ rotation[:wanted].T).T)


def given_hash(directions: npt.ArrayLike, *, rows: int, bandwidth: float, power: int = 1, seed: int = 0) -> Float32:
    """The table of a whole p-stable hash that looks along some directions alone, for ``draws = "given"``.

    Row r's hash is ⌊(a·x)/w + b⌋ with a = Σ_k z_k v_k, z standard normal: the euclidean kernel of distances between
    projections on the directions v.

    Args:
        directions: (k, d), such as :func:`pca` or :func:`lda` return.
        rows: R of the plan.
        bandwidth: w, in the unit of what the directions give.
        power: p of the plan.
        seed: Of z and b; public.

    Returns:
        (rows·power, d + 1) float32: a/w, then b, a multiple of 2⁻²⁴ in [0, 1).

    Raises:
        ValueError: An argument is out of range.
    """
    matrix = _matrix(directions, least=1)
    if rows < 1 or power < 1 or not bandwidth > 0:
        raise ValueError(f"got rows {rows}, power {power}, bandwidth {bandwidth}, expected each above 0")
    count, source = rows * power, PublicSeed(seed)
    mixing = PublicStream(source, "learned/mixing").normal(count * len(matrix)).reshape(count, len(matrix))
    offsets = (PublicStream(source, "learned/offsets").words(count) >> np.uint64(40)).astype(np.float64) * 2.0**-24
    return np.column_stack([mixing @ matrix / bandwidth, offsets]).astype(np.float32)


def _matrix(points: npt.ArrayLike, *, least: int = 2) -> Floats:
    matrix = np.asarray(points, np.float64)
    if matrix.ndim != 2 or len(matrix) < least or not np.isfinite(matrix).all():
        raise ValueError(f"got shape {matrix.shape}, expected at least {least} finite rows (n, d)")
    return matrix


def _signed(directions: Floats) -> Float32:
    largest = np.take_along_axis(directions, np.abs(directions).argmax(axis=1)[:, None], axis=1)
    return (directions * np.where(largest < 0, -1.0, 1.0)).astype(np.float32)
