"""The plans whose bytes are frozen beside those of the first files: every family, every hash, every way to draw."""

from typing import Any

import numpy as np
import numpy.typing as npt

from hushsum.learned_hashes import given_hash
from hushsum.parameters import digest

MATRIX: npt.NDArray[np.float32] = np.array([[1, 0.5, 0], [0, -1, 2]], np.float32)
TABLE = given_hash(MATRIX, rows=8, bandwidth=40, seed=3)

VECTORS: dict[str, object] = {"dim": 3, "lower": [0, 0, 0], "upper": [255, 255, 255]}
ANGLES: dict[str, object] = {"dim": 3, "lower": [-2, -2, -2], "upper": [2, 2, 2]}
SETS: dict[str, object] = {"kind": "set", "universe": 1000}

HASHED: dict[str, Any] = {"family": "hashed", "rows": 8, "buckets": 64, "seed": 7}
FOURIER: dict[str, Any] = {"family": "fourier", "rows": 8, "seed": 7}
PARTITION: dict[str, Any] = {"family": "partition", "rows": 3, "buckets": 64, "seed": 7}
PAIRED: dict[str, Any] = {"family": "paired", "rows": 8, "power": 4, "seed": 7}

#: Name: the tables of the plan.
PLANS: dict[str, tuple[dict[str, object], dict[str, object]]] = {
    "manhattan": (VECTORS, {**HASHED, "kernel": "manhattan", "bandwidth": 60}),
    "laplacian": (VECTORS, {**HASHED, "kernel": "laplacian", "bandwidth": 60}),
    "angular": (ANGLES, {**HASHED, "kernel": "angular", "power": 4}),
    "jaccard": (SETS, {**HASHED, "kernel": "jaccard"}),
    "jaccard-one-permutation": (SETS, {**HASHED, "kernel": "jaccard", "minhash": "one-permutation"}),
    "sobol": (VECTORS, {**HASHED, "kernel": "euclidean", "bandwidth": 60, "draws": "sobol", "sobol_sets": 4}),
    "orthogonal": (VECTORS, {**HASHED, "kernel": "euclidean", "bandwidth": 60, "draws": "orthogonal"}),
    "fastfood": (VECTORS, {**HASHED, "kernel": "euclidean", "bandwidth": 60, "draws": "fastfood"}),
    "given": (
        VECTORS,
        {**HASHED, "kernel": "euclidean", "draws": "given", "parameters": digest(TABLE)},
    ),
    "groups": (
        VECTORS,
        {
            **HASHED,
            "groups": [
                {"columns": [0, 2], "kernel": "euclidean", "bandwidth": 60},
                {"columns": [1], "kernel": "laplacian", "bandwidth": 90},
            ],
        },
    ),
    "transforms": (
        {**VECTORS, "classes": ["dark", "light"]},
        {
            **HASHED,
            "kernel": "euclidean",
            "bandwidth": 2,
            "transforms": [
                {"kind": "scale", "factor": ["0.01", "0.01", "0.01"]},
                {"kind": "clip", "lower": [0, 0, 0], "upper": [2, 2, 2]},
                {"kind": "linear", "matrix": digest(MATRIX)},
                {"kind": "unit-norm"},
            ],
        },
    ),
    "fourier-gaussian": (VECTORS, {**FOURIER, "kernel": "gaussian", "bandwidth": 60}),
    "fourier-laplacian": (VECTORS, {**FOURIER, "kernel": "laplacian", "bandwidth": 60}),
    "fourier-cauchy": (VECTORS, {**FOURIER, "kernel": "cauchy", "bandwidth": 60}),
    "fourier-exponential-p": (
        VECTORS,
        {**FOURIER, "kernel": "exponential-p", "exponent": "1.5", "bandwidth": 60, "fraction_bits": 8},
    ),
    "fourier-sobol": (
        VECTORS,
        {**FOURIER, "kernel": "gaussian", "bandwidth": 60, "draws": "sobol", "sobol_sets": 4},
    ),
    "hermite": (VECTORS, {"family": "hermite", "kernel": "gaussian", "bandwidth": 100, "order": 3}),
    "hermite-weights-gaussian": (
        VECTORS,
        {"family": "hermite", "kernel": "gaussian", "bandwidth": 100, "order": 4, "weights": "auto"},
    ),
    "hermite-weights-laplace": (
        VECTORS,
        {
            "family": "hermite",
            "kernel": "gaussian",
            "bandwidth": 100,
            "order": 5,
            "fraction_bits": 5,
            "weights": "auto",
        },
    ),
    "partition-grid": (VECTORS, {**PARTITION, "cells": "grid", "bandwidth": 32, "levels": 2}),
    "partition-lsh": (VECTORS, {**PARTITION, "cells": "lsh", "bandwidth": 60, "power": 2}),
    "paired-inner": (ANGLES, {**PAIRED, "form": "inner", "radius": 2, "norm_bound": 4}),
    "paired-orthogonal": (ANGLES, {**PAIRED, "form": "orthogonal"}),
    "paired-margin": (ANGLES, {**PAIRED, "loss": "margin", "form": "inner", "radius": 2, "norm_bound": 4}),
    "count-of-rho": (VECTORS, {**HASHED, "kernel": "euclidean", "bandwidth": 60, "rows": 64, "buckets": 2}),
    "laplace-at-delta": (VECTORS, {**HASHED, "kernel": "euclidean", "bandwidth": 60, "rows": 5}),
    "cells-without-count": (VECTORS, {**PARTITION, "cells": "grid", "bandwidth": 128, "levels": 2, "rows": 2}),
    "rows-without-count": (ANGLES, {**PAIRED, "form": "inner", "radius": 2, "norm_bound": 4}),
}

#: Name: keys of ``[privacy]``: of another choice of the maker than of the usual ones, or of one that it made once.
PRIVACY: dict[str, dict[str, object]] = {
    "count-of-rho": {
        "unit": "client",
        "records_per_client": 8,
        "total_delta": "0.000001",
        "mechanism": {"name": "discrete-laplace", "scale": "1056", "count_scale": 2},
    },
    "paired-inner": {"mechanism": {"name": "discrete-laplace", "scale": "18", "count_scale": 1}},
    "paired-orthogonal": {"mechanism": {"name": "discrete-laplace", "scale": "18", "count_scale": 1}},
    "laplace-at-delta": {"delta": "0.000001", "total_delta": "0.000001"},
    "hermite-weights-gaussian": {"delta": "0.000001", "total_delta": "0.000001"},
}
