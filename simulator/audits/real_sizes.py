"""What devices draw under plans of real sizes, against the law that is stated: goodness of fit of what they send.

The exact audit tries every word, which takes small plans; code that goes wrong for many values alone shows here.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

import numpy as np

from hushsum.entropy import OsEntropy
from hushsum.families import Hashed
from hushsum.families.fourier import Fourier
from hushsum.local.layout import bit_of, choice_of
from hushsum.plan import Plan
from simulator.audits.cases import Integers, column, plan_of
from simulator.audits.devices import sent
from simulator.audits.fits import fit_check
from simulator.audits.report import Check

_DRAWS: Final = 20_000  # reports of one record
_VALUES: Final = (0.0, 3.7)
_PARTS: Final = 3  # of all outputs, for those that are no hit
_ROWS: Final = 2  # so that every cell of a fit is one of eight
_BIT: Final = {"family": "fourier", "kernel": "gaussian", "buckets": None, "rows": _ROWS}


def plans() -> Iterator[Plan]:
    """Of up to 4,096 values, with and without classes, and of tables of usual and of the finest numbers."""
    labels = {"classes": [f"class-{number}" for number in range(16)]}
    for randomiser, epsilon, buckets, record in (
        ("k-rr", 2, 16, {}),
        ("k-rr", 8, 4096, {}),
        ("k-rr", 6, 64, labels),
        ("projective", 2, 64, {}),
        ("projective", 4, 4096, {}),
        ("projective", 3, 8, labels),
    ):
        keys: dict[str, Any] = {"local": {"randomiser": randomiser}, "epsilon": epsilon, "record": record}
        yield plan_of(mode="local", sketch={"rows": _ROWS, "buckets": buckets}, **keys)
    for bits in (4, 12, 16):
        yield plan_of(mode="local", sketch={**_BIT, "fraction_bits": bits}, epsilon=2)


def checks() -> Iterator[Check]:
    """χ² of each plan."""
    return map(drawn_check, plans())


def drawn_check(plan: Plan) -> Check:
    """χ² of hits and misses of each row, or of the bits of each entry; the worst of all records, at 10⁻⁶ together."""
    of = "bits" if plan.family.name == "fourier" else f"outputs for {choice_of(plan).inputs:,} values"
    what = f"{plan.privacy.mechanism.name} {of} are drawn as stated at epsilon {float(plan.privacy.epsilon):g}"
    if plan.family.name == "fourier":
        what += f", of numbers up to {bit_of(plan).peak:,}"
    found = []
    for value in _VALUES:
        labels = [plan.classes[-1]] * _DRAWS if plan.classes else None
        reports = sent(plan, np.repeat(column(value), _DRAWS, axis=0), labels, OsEntropy())
        if len(reports) != _DRAWS:
            return Check(what, holds=False, found=f"{len(reports):,} reports of {_DRAWS:,} records")
        cells, chances = _bits(plan, value) if plan.family.name == "fourier" else _choices(plan, value)
        seen = np.bincount(cells[reports], minlength=len(chances))
        found.append(fit_check(what, seen, chances, tests=len(_VALUES)))
    return next((check for check in found if not check.holds), found[0])


def _choices(plan: Plan, value: float) -> tuple[Integers, list[float]]:
    """The cell of each report, and the chance of each cell: of each row a hit, and parts of the others."""
    family, choice = plan.family, choice_of(plan)
    assert isinstance(family, Hashed), "reports of buckets"
    accepted = family.accept(np.repeat(column(value), _ROWS, axis=0))[0]
    values = family.buckets_of(accepted, np.arange(_ROWS)) + (max(1, len(plan.classes)) - 1) * family.buckets
    cells, chances = [], []
    for row, true in enumerate(values.tolist()):
        law = _law(plan, true)
        part = 1 + np.arange(choice.outputs) * _PARTS // choice.outputs
        cell = np.where(law == law.max(), 0, part)
        cells.append(cell + row * (1 + _PARTS))
        chances += np.bincount(cell, law, minlength=1 + _PARTS).tolist()
    return np.concatenate(cells), [chance / _ROWS for chance in chances]


@lru_cache(maxsize=64)
def _law(plan: Plan, true: int) -> Any:
    choice = choice_of(plan)
    return np.array([float(choice.probability(true, output)) for output in range(choice.outputs)])


def _bits(plan: Plan, value: float) -> tuple[Integers, list[float]]:
    family, bit = plan.family, bit_of(plan)
    assert isinstance(family, Fourier), "reports of entries"
    features = np.arange(2 * _ROWS)
    accepted = family.accept(np.repeat(column(value), len(features), axis=0))[0]
    entries = family.entries_of(accepted, features).tolist()
    chances = [float(bit.probability(entry, each)) / len(features) for entry in entries for each in (0, 1)]
    return np.arange(len(chances)), chances
