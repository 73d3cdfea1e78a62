"""Rows and queries spread over all cores: the bytes of one core, in every family."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from hushsum.families import Hashed, threads
from hushsum.families.base import SetRecords, VectorRecords
from hushsum.families.fourier import Fourier
from hushsum.families.fourier import kernels as spectrum
from hushsum.families.hermite import Hermite
from hushsum.families.lsh.compiled.one_permutation import CompiledOnePermutation
from hushsum.families.lsh.numpy_engine import NumpyOnePermutation
from hushsum.families.paired import Paired
from hushsum.families.partition import Partition
from hushsum.families.sets import Sets
from hushsum.schema import Table

SETS: dict[str, object] = {"kernel": "jaccard", "rows": 13, "buckets": 16, "minhash": "one-permutation"}
CASES: tuple[tuple[Any, dict[str, object]], ...] = (
    (Partition, {"cells": "grid", "bandwidth": "0.5", "rows": 5, "buckets": 32, "levels": 3}),
    (Partition, {"cells": "grid", "bandwidth": "0.5", "rows": 1, "buckets": 33}),
    (Partition, {"cells": "lsh", "bandwidth": 1, "rows": 7, "buckets": 33, "power": 2}),
    (Paired, {"rows": 13, "radius": 4}),
    (Paired, {"rows": 3, "loss": "margin", "form": "orthogonal"}),
    (Hermite, {"kernel": "gaussian", "bandwidth": 1, "order": 3}),
    (Fourier, {"kernel": "gaussian", "bandwidth": 1, "rows": 9}),
)


def many_cores(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(threads, "RECORDS_MIN", 50)
    monkeypatch.setattr(threads, "cores", lambda: count)


def parts(family: Any, records: Any, queries: Any) -> list[bytes]:
    counters, usable = np.zeros(family.shape, np.int64), family.accept(records)[0]
    family.add(counters, usable)
    increments, answer = family.encode(usable), family.answer(counters, queries, noise_variance=2.0)
    arrays = [counters, increments.indices, increments.values, answer.value, answer.std_error]
    return [array.tobytes() for array in (arrays if answer.bias is None else [*arrays, answer.bias])]


@pytest.mark.parametrize("kernels", ("plain", "fast"))
@pytest.mark.parametrize("kind, keys", CASES)
def test_pieces_give_the_bytes_of_the_whole(
    kind: Any, keys: dict[str, object], kernels: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HUSHSUM_KERNELS", kernels)
    record = VectorRecords(2, (Fraction(-2),) * 2, (Fraction(2),) * 2)
    records, queries = rng.uniform(-2, 2, (301, 2)), rng.uniform(-0.9, 0.9, (101, 1 if kind is Paired else 2))
    found = []
    for count in (1, 3):
        many_cores(monkeypatch, count)
        found.append(parts(kind.from_table(Table(keys, "sketch"), record), records, queries))
    assert found[0] == found[1]


@pytest.mark.parametrize("kernels", ("plain", "fast"))
@pytest.mark.parametrize("copied", (2**24, 1))
def test_one_permutation_is_cut_by_records_and_computes_each_once(
    copied: int, kernels: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each record that is added, encoded or asked about is ordered once, however many cores there are."""
    monkeypatch.setenv("HUSHSUM_KERNELS", kernels)
    monkeypatch.setattr("hushsum.families.hashed.family._COPIED_MAX", copied)
    computed: list[int] = []
    kind: Any = NumpyOnePermutation if kernels == "plain" else CompiledOnePermutation
    whole = kind._all

    def counted(self: Any, records: Sets) -> Any:
        computed.append(len(records))
        return whole(self, records)

    monkeypatch.setattr(kind, "_all", counted)
    records, queries = ([np.unique(rng.integers(0, 500, 9)).tolist() for _ in range(n)] for n in (200, 70))
    found = []
    for count in (1, 3):
        computed.clear()
        many_cores(monkeypatch, count)
        found.append(parts(Hashed.from_table(Table(SETS, "sketch"), SetRecords(500)), records, queries))
        assert sum(computed) == 200 + 200 + 70
    assert found[0] == found[1]


@pytest.mark.parametrize("draws", ("independent", "sobol"))
def test_frequencies_are_the_same_however_many_are_drawn_at_once(draws: str, monkeypatch: pytest.MonkeyPatch) -> None:
    record, found = VectorRecords(2, (Fraction(-2),) * 2, (Fraction(2),) * 2), []
    for size in (1 << 20, 7):
        monkeypatch.setattr(spectrum, "_BLOCK_UNIFORMS", size)
        for kernel in ("gaussian", "laplacian", "cauchy"):
            keys = {"kernel": kernel, "bandwidth": 1, "rows": 2000, "draws": draws}
            pairs = Fourier.from_table(Table(keys, "sketch"), record)._pairs
            arrays = (pairs.projection.directions, pairs.projection.offsets, pairs.bases)
            found.append([array.tobytes() for array in arrays])
    assert found[:3] == found[3:]


@pytest.mark.parametrize("loss", ("regression", "margin"))
@pytest.mark.parametrize("power", (2, 8))
def test_few_paired_records_are_sorted_to_what_adding_them_gives(
    loss: str, power: int, rng: np.random.Generator
) -> None:
    record = VectorRecords(3, (Fraction(-2),) * 3, (Fraction(2),) * 3)
    keys = {"rows": 50, "form": "orthogonal", "loss": loss, "power": power}
    family = Paired.from_table(Table(keys, "sketch"), record)
    for n in (0, 1, 2, 31, 32, 33, 64, 65, 300):
        records = family.accept(np.repeat(rng.uniform(-2, 2, (n, 3)), 2, axis=0)[:n])[0]
        counters, increments = np.zeros(family.shape, np.int64), family.encode(records)
        family.add(counters, records)
        assert np.array_equal(increments.indices, np.flatnonzero(counters))
        assert np.array_equal(increments.values, counters.reshape(-1)[increments.indices])
        assert increments.indices.dtype == increments.values.dtype == np.int64
