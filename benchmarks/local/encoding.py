"""Records to a packed batch of reports, beside bare sketching of the same one row a record."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from benchmarks.local.settings import Setting, settings
from benchmarks.report import Row
from benchmarks.stopwatch import Rounds
from hushsum import compiled
from hushsum.families import Hashed
from hushsum.families.fourier import Fourier

Int64 = npt.NDArray[np.int64]

TITLE = (
    "Records to one packed batch of randomised reports, nanoseconds a record on one core; bare: the same records "
    "accepted, hashed in one given row each and counted, without randomiser or bytes"
)


def measure(*, quick: bool) -> list[Row]:
    """One row a setting."""
    return [_measure(setting, quick=quick) for setting in settings(quick=quick)]


def _measure(setting: Setting, *, quick: bool) -> Row:
    n = len(setting.records)
    rounds = Rounds({"encode": setting.packed, "bare": _bare(setting)}, repeats=2 if quick else 15)
    limit = -(-(setting.plan.family.shape[0] * setting.inputs - 1).bit_length() // 8) + 1
    row: Row = {**setting.about, "records": n}
    row |= {f"{name} ns": 1e9 * rounds.seconds(name) / n for name in ("encode", "bare")}
    row |= {"encode/bare": rounds.ratio(["encode"], ["bare"]), "bytes a record": len(setting.packed()) / n}
    return row | ({"limit": limit} if isinstance(setting.plan.family, Hashed) else {})


def _bare(setting: Setting) -> Callable[[], object]:
    family, rng = setting.plan.family, np.random.default_rng(3)
    counters = np.zeros(int(np.prod(family.shape)), np.int64)

    def add(flat: Int64, values: Int64 | None) -> None:
        if values is None and compiled.enabled():
            from hushsum.local import report_batch_loops

            report_batch_loops.add(flat, counters)
        else:
            np.add.at(counters, flat, 1 if values is None else values)

    if isinstance(family, Fourier):
        features = rng.integers(0, 2 * family.rows, len(setting.records))
        return lambda: add(features, family.entries_of(family.accept(setting.records)[0], features))
    assert isinstance(family, Hashed), "reports are of these two families"
    rows = rng.integers(0, family.rows, len(setting.records))
    starts = rows * family.buckets
    return lambda: add(starts + family.buckets_of(family.accept(setting.records)[0], rows), None)
