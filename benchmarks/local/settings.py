"""The plans that are measured: real records where they are there, R = 1000, ε = 4."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from benchmarks.data_files import shown
from benchmarks.report import Row
from benchmarks.workloads import data
from hushsum import Plan
from hushsum.delta import DeltaId
from hushsum.entropy import OsEntropy
from hushsum.local.report_batch import ReportBatch
from hushsum.local.reports import reports

ROWS: Final = 1000
REPORTS: Final = 65_536
QUICK: Final = 4_096
_EPSILON: Final = 4
#: A bandwidth for each data set: about what a collection of it would take.
_BANDWIDTHS: Final = {"skin": 60, "covtype": 2500}


@dataclass(frozen=True, eq=False)
class Setting:
    """One plan and records for it.

    Attributes:
        name: Of the records.
        plan: Of reports.
        records: (n, d) float64.
        inputs: K.
    """

    name: str
    plan: Plan
    records: npt.NDArray[np.float64]
    inputs: int

    @property
    def about(self) -> Row:
        """The columns that tell one setting from another."""
        fields, mechanism = self.plan.family.to_fields(), self.plan.privacy.mechanism
        buckets = fields.get("buckets", 0)
        about: Row = {"data": shown(self.name), "d": self.records.shape[1], "family": self.plan.family.name}
        if isinstance(buckets, int) and buckets:
            about["W"] = buckets
        return {**about, "randomiser": mechanism.name, "outputs": self.plan.counters_shape[2]}

    def packed(self) -> bytes:
        """What a device sends of all records: one batch."""
        found, _ = reports(self.plan, self.records, None, OsEntropy())
        return ReportBatch(self.plan.id, 0, DeltaId(1, 0), found).pack(self.plan)


def settings(*, quick: bool) -> Iterator[Setting]:
    """Three and fifty-odd coordinates, two widths, both randomisers, and the fourier family."""
    for name in ("skin", "covtype"):
        values = data(name)
        records = np.resize(values, (QUICK if quick else REPORTS, values.shape[1]))
        for width in (64, 1024):
            for randomiser in ("k-rr", "projective"):
                yield _hashed(name, records, width, randomiser)
        keys = {"family": "fourier", "kernel": "gaussian", "bandwidth": _BANDWIDTHS[name], "rows": ROWS}
        yield Setting(name, _plan(records, keys, {}), records, 2)


def _hashed(name: str, records: npt.NDArray[np.float64], width: int, randomiser: str) -> Setting:
    keys = {"family": "hashed", "kernel": "euclidean", "bandwidth": _BANDWIDTHS[name], "rows": ROWS, "buckets": width}
    return Setting(name, _plan(records, keys, {"randomiser": randomiser}), records, width)


def _plan(records: npt.NDArray[np.float64], sketch: dict[str, Any], local: dict[str, object]) -> Plan:
    lower = records.min(axis=0)
    upper = np.maximum(records.max(axis=0), lower + 1)
    return Plan(
        name="local reports",
        record={"dim": len(lower), "lower": lower.tolist(), "upper": upper.tolist()},
        sketch=sketch,
        privacy={"mode": "local", "epsilon": _EPSILON, "total_epsilon": _EPSILON, "local": local},
    )
