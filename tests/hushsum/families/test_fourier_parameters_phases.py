"""Phases of the fourier family: their definition in exact arithmetic, and every engine's agreement with it."""

import math
import threading
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest

from hushsum.families import threads as parallel
from hushsum.families.base import VectorRecords
from hushsum.families.fourier import Fourier, engine_compiled, engine_numpy
from hushsum.families.fourier.parameters import CHORD_ERROR, TURN, Pairs, waves
from hushsum.schema import Table

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]

# Dimension, bandwidth, kernel: narrow products; wide ones of float32, of float64; frequencies far beyond 32 bits.
CASES = (
    (1, 1.0, "gaussian"),
    (3, 5.0, "laplacian"),
    (8, 0.0025, "cauchy"),
    (9, 3.0, "gaussian"),
    (20, 50.0, "laplacian"),
    (12, 0.01, "gaussian"),
    (12, 0.006, "laplacian"),
)


def family(dim: int, bandwidth: float, kernel: str, rows: int = 30, **changes: object) -> Fourier:
    record = VectorRecords(dim, (Fraction(-10),) * dim, (Fraction(20),) * dim)
    keys = {"kernel": kernel, "bandwidth": bandwidth, "rows": rows, "seed": 5, **changes}
    return Fourier.from_table(Table(keys, "sketch"), record)


def points(sketched: Fourier, rng: np.random.Generator, n: int) -> Float32:
    records = rng.uniform(-12, 22, (n, sketched.record.dim))
    records[: n // 4] = np.rint(records[: n // 4])
    return sketched.accept(records)[0]


def defined(pairs: Pairs, records: Float32) -> Int64:
    """(P, n) phases by the text of the definition, with Python's floats and integers."""
    projection, phases = pairs.projection, np.empty((len(pairs), len(records)), np.int64)
    for p in range(len(pairs)):
        for i in range(len(records)):
            s = 0.0
            for a, x in zip(projection.directions[p].tolist(), records[i].tolist(), strict=True):
                s += a * x
            phases[p, i] = (math.floor(s + projection.offsets[p]) + int(pairs.bases[p])) % TURN
    return phases


@pytest.mark.parametrize("dim, bandwidth, kernel", CASES)
def test_both_engines_add_what_the_definition_says(
    dim: int, bandwidth: float, kernel: str, rng: np.random.Generator
) -> None:
    sketched = family(dim, bandwidth, kernel)
    pairs, records = sketched._pairs, points(sketched, rng, 150)
    phases = defined(pairs, records)
    expected = pairs.waves.added[:, phases].sum(axis=2).T
    for engine in (engine_numpy, engine_compiled):
        counters = np.zeros(sketched.shape, np.int64)
        engine.add(pairs, counters[:11], records, slice(0, 11))
        engine.add(pairs, counters[11:], records, slice(11, 30))
        assert np.array_equal(counters, expected), engine.__name__


@pytest.mark.parametrize("dim, bandwidth, kernel", CASES)
def test_batches_and_engines_give_the_same_bytes(
    dim: int, bandwidth: float, kernel: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    sketched = family(dim, bandwidth, kernel)
    records, queries, seen = points(sketched, rng, 2500), rng.uniform(-30, 40, (1030, dim)), set()
    for engine in ("plain", "fast"):
        monkeypatch.setenv("HUSHSUM_KERNELS", engine)
        whole, cut = np.zeros(sketched.shape, np.int64), np.zeros(sketched.shape, np.int64)
        sketched.add(whole, records)
        for part in np.split(records, [0, 1, 2, 999, 2100, 2499]):
            sketched.add(cut, part)
        assert np.array_equal(whole, cut)
        noisy = whole + np.arange(whole.size).reshape(whole.shape) * 10**12
        together = sketched.answer(noisy, queries)
        apart = [sketched.answer(noisy, queries[i : i + 1]) for i in (0, 7, 1029)]
        assert [answer.value[0] for answer in apart] == [together.value[i] for i in (0, 7, 1029)]
        assert [answer.std_error[0] for answer in apart] == [together.std_error[i] for i in (0, 7, 1029)]
        groups = sketched.answer(noisy, queries, groups=4)
        parts = (whole, together.value, together.std_error, groups.value, groups.std_error)
        seen.add(b"".join(part.tobytes() for part in parts))
    assert len(seen) == 1


def test_the_filter_is_used_for_both_kinds_of_products_and_flags_few(rng: np.random.Generator) -> None:
    """Float32 where frequencies are low; float64 where its filter would flag a large share."""
    for bandwidth, most in ((3.0, 0.02), (0.01, 1e-3)):
        sketched = family(12, bandwidth, "gaussian", rows=100)
        engine, records = engine_compiled.PhaseEngine(sketched._pairs), points(sketched, rng, 1000)
        for _ in engine.phases(slice(0, 100), records):
            pass
        assert engine.flagged <= most * 100 * len(records)
        assert (engine.flagged > 0) == (bandwidth == 3.0)


@pytest.mark.parametrize("engine", ("plain", "fast"))
def test_all_cores_give_the_same_bytes_as_one(
    engine: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HUSHSUM_KERNELS", engine)
    sketched, queries, seen = family(9, 1.0, "laplacian"), rng.uniform(-12, 22, (900, 9)), set()
    records = points(sketched, rng, 900)
    for cores, least in ((1, 10**5), (3, 500)):
        monkeypatch.setattr(parallel, "cores", lambda cores=cores: cores)
        monkeypatch.setattr(parallel, "RECORDS_MIN", least)
        counters = np.zeros(sketched.shape, np.int64)
        sketched.add(counters, records)
        answer = sketched.answer(counters, queries)
        seen.add(counters.tobytes() + answer.value.tobytes() + answer.std_error.tobytes())
    assert len(seen) == 1


def test_two_threads_may_add_with_one_family(rng: np.random.Generator) -> None:
    sketched = family(9, 1.0, "laplacian")
    records, out = points(sketched, rng, 4000), np.zeros((2, *sketched.shape), np.int64)
    expected = np.zeros(sketched.shape, np.int64)
    sketched.add(expected, records)
    threads = [threading.Thread(target=sketched.add, args=(counters, records)) for counters in out]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert np.array_equal(out[0], expected)
    assert np.array_equal(out[1], expected)


def test_an_offset_makes_the_mean_product_the_chord_of_the_cosine() -> None:
    """For two points Δ steps apart, over all offsets of a fine grid and all bases: within h²/8 of cos hΔ, exactly."""
    table, grid = waves(12), np.arange(2**10) / 2**10
    worst = 0.0
    for delta in np.concatenate([np.linspace(0, 3, 61), [57.3, 200.5, 255.25]]):
        apart = (np.floor(0.5 + delta + grid) - np.floor(0.5 + grid)).astype(np.int64)
        mean = table.read[0, apart % TURN].mean()  # the table's mean over all bases: see the tests of its symmetries
        worst = max(worst, abs(mean - math.cos(2 * math.pi * delta / TURN)))
    assert CHORD_ERROR / 2 < worst < CHORD_ERROR * 1.01
