"""What is measured on which data set: kernels, public bandwidths, sizes."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from benchmarks.accuracy.curves import EPSILONS, Curve, keys

RELATIVE: Final = "relative error"
ABSOLUTE: Final = "density error"

_ROWS: Final = (32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
_FEWER: Final = (8, 32, 128, 512, 2048)
_PAIRS: Final = (64, 256, 1024, 4096)
_CELLS: Final = (1, 2, 4, 8, 16, 32)
_ODD: Final = (1, 3, 5, 9, 17, 33)
_LSQ: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


ANGULAR: Final[Mapping[str, object]] = {"family": "hashed", "kernel": "angular", "power": 8, "buckets": 256}


@dataclass(frozen=True)
class Subject:
    """One data set's part of the page.

    Attributes:
        data: Its name.
        metric: The column of the tables and the figure.
        curves: In the order of the figure's panels.
        setting: One line: the public bandwidth, and why.
    """

    data: str
    metric: str
    curves: tuple[Curve, ...]
    setting: str


def hashed(kernel: str, bandwidth: float, sizes: tuple[int, ...] = _FEWER, **more: object) -> Curve:
    """A curve of the hashed family with W = 1024."""
    draws = f", {more['draws']}" if "draws" in more else ""
    sketch = keys("hashed", kernel, bandwidth, **{"buckets": 1024, **more})
    return Curve(f"hashed {kernel}{draws}", sketch, sizes, rows=4096, seeds=(2, 16))


def fourier(bandwidth: float, draws: str, sizes: tuple[int, ...] = _PAIRS) -> Curve:
    """A curve of the fourier family with the gaussian kernel."""
    sketch = keys("fourier", "gaussian", bandwidth, draws=draws)
    return Curve(f"fourier gaussian, {draws}", sketch, sizes, rows=4096, seeds=(3, 16))


def hermite(bandwidth: float, sizes: tuple[int, ...], **more: object) -> Curve:
    """A curve of the hermite family, against its order."""
    label = "hermite gaussian" + (f", {more['weights']} weights" if "weights" in more else "")
    return Curve(label, keys("hermite", "gaussian", bandwidth, **more), sizes, axis="order", seeds=(5, 10))


def partition(bandwidth: float, buckets: int, *, median: bool = False) -> Curve:
    """A curve of cells of a grid."""
    sketch: Mapping[str, object] = {
        "family": "partition",
        "cells": "grid",
        "bandwidth": bandwidth,
        "buckets": buckets,
    }
    label = "partition, median of rows" if median else "partition, grid"
    return Curve(label, sketch, _ODD if median else _CELLS, seeds=(8, 8), median=median)


def jaccard(minhash: str) -> Curve:
    """A curve of MinHash with W = 8192."""
    sketch = {"family": "hashed", "kernel": "jaccard", "buckets": 8192, "minhash": minhash}
    return Curve(f"hashed jaccard, {minhash}", sketch, _FEWER, rows=2048, seeds=(2, 8))


def as_lsq(curve: Curve) -> Curve:
    """100 queries a seed, ten seeds or more, as LSQ has them."""
    return replace(curve, seeds=(10, 20), queries_each=100, epsilons=_LSQ)


SUBJECTS: Final = (
    Subject(
        "skin",
        RELATIVE,
        (
            hashed("euclidean", 5, _ROWS, draws="independent"),
            hashed("euclidean", 5, _ROWS, draws="sobol"),
            hashed("manhattan", 5, draws="sobol"),
            hashed("laplacian", 25, draws="sobol"),
            fourier(20, "sobol"),
            partition(8, 16384),
            partition(8, 16384, median=True),
        ),
        "w = 5 as in RACE (mean density 0.035); manhattan w = 5, laplacian σ = 25, gaussian σ = 20, cells of side 8",
    ),
    Subject(
        "covtype",
        RELATIVE,
        (
            hashed("euclidean", 50, (*_FEWER, 8192), draws="independent"),
            hashed("euclidean", 50, (*_FEWER, 8192), draws="sobol"),
            Curve("hashed angular, independent", ANGULAR, (*_FEWER, 8192), rows=4096, seeds=(2, 16)),
            fourier(500, "independent"),
        ),
        "w = 50, for a mean density of 0.012 (RACE takes 20); angular to the power 8; gaussian σ = 500 as in LSQ",
    ),
    Subject(
        "taxi",
        ABSOLUTE,
        (
            as_lsq(fourier(0.01, "independent", (64, 256, 1024, 4096, 16384))),
            as_lsq(fourier(0.01, "sobol", (64, 256, 1024, 4096, 16384))),
            as_lsq(hermite(0.01, (1, 2, 3, 4, 6, 8), cutoff=3)),
            as_lsq(hermite(0.01, (1, 2, 3, 4, 6, 8), cutoff=3, weights="equal")),
            as_lsq(hashed("euclidean", 0.005, draws="independent")),
            as_lsq(hashed("euclidean", 0.005, draws="sobol")),
            as_lsq(partition(0.01, 4096)),
        ),
        "gaussian σ = 0.01° as in LSQ (mean density 0.086); euclidean w = 0.005°, cells of side 0.01°",
    ),
    Subject(
        "pay",
        RELATIVE,
        (
            hashed("euclidean", 5000, draws="independent"),
            hashed("euclidean", 5000, draws="sobol"),
            hermite(5000, (1, 2, 3, 4, 6, 8), cutoff=3),
            fourier(5000, "independent"),
            fourier(5000, "sobol"),
        ),
        "w = 5,000 as in RACE (mean density 0.07); gaussian σ = 5,000",
    ),
    Subject(
        "slashdot",
        ABSOLUTE,
        (jaccard("full"), jaccard("one-permutation")),
        "Jaccard of out-neighbour sets; W = 8192 where RACE has 100,000",
    ),
)


def quick(subject: Subject) -> Subject:
    """The same in little: one sketch of two sizes."""
    return replace(subject, curves=tuple(map(_little, subject.curves)))


def _little(curve: Curve) -> Curve:
    sizes = tuple(size for size in curve.sizes if size <= 256)[-2:]
    return replace(curve, sizes=sizes, seeds=(1, 1), epsilons=EPSILONS[::2])
