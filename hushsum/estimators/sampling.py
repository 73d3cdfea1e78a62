"""Synthetic records, and a warning where they are no better than independent columns."""

import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from sklearn.utils import check_random_state

from hushsum.errors import HushsumWarning, warn
from hushsum.estimators.base import noise_error
from hushsum.families.partition.heavy_hitters import HeavyCells
from hushsum.releases import Release
from hushsum.synthetic import heavy_cells, synthetic_records

Floats = npt.NDArray[np.float64]
_SHARE_LEAST: Final = 0.5


def sample(
    release: Release,
    n: int,
    *,
    label: str | None = None,
    deviations: float = 4.0,
    random_state: Any = None,
) -> Floats:
    """Synthetic records from a release of the family ``partition`` with cells of a grid. It costs no privacy.

    A heavy cell is picked in proportion to its estimated records, then a point of it, uniformly
    (:mod:`hushsum.synthetic`). The records of all other cells are missing: the more columns, the fewer records a cell
    has, and the more are missing. Two shares tell whether the rest is worth having, both from the release alone:
    that of records outside heavy cells, and the total variation distance between the heavy cells and cells with the
    same, but independent columns, beyond what chance makes of it.

    Args:
        release: Such as of question ``histogram``.
        n: How many records, at least 0.
        label: Of one class; None: all of them together.
        deviations: How heavy a cell is: see :func:`hushsum.synthetic.heavy_cells`.
        random_state: None, an integer, or a ``RandomState``, as in scikit-learn. Nothing private depends on it.

    Returns:
        (n, d) float64 within the bounds, in the unit of the records.

    Warns:
        HushsumWarning: Fewer than half of the records are in heavy cells; or more are outside of them than what
            distinguishes heavy cells from independent columns, so that a histogram of each column may say as much.

    Raises:
        PlanError: Another family, other cells, or transforms that cannot be inverted.
        RecordError: There is no such class.
        ValueError: ``n`` is negative, or no cell is heavy.
    """
    cells = heavy_cells(release, label=label, deviations=deviations)
    records = synthetic_records(release, cells, n, _Uniforms(random_state))
    counted = release.count if label is None else release.count_of(label)
    outside = 1.0 - float(np.maximum(cells.counts, 0.0).sum()) / max(counted, 1.0)
    apart = _from_independent(cells, noise_error(release, label=label))
    if outside > 1.0 - _SHARE_LEAST:
        warn(
            HushsumWarning(
                f"sample: {outside:.0%} of the records are in no heavy cell and have no part in the samples; release "
                "fewer columns, wider cells or more records"
            )
        )
    elif cells.codes.shape[1] > 1 and outside > apart:
        warn(
            HushsumWarning(
                f"sample: {outside:.0%} of the records are in no heavy cell, and heavy cells differ from independent "
                f"columns by {apart:.0%}: a histogram of each column says as much"
            )
        )
    return records


def _from_independent(cells: HeavyCells, noise: float) -> float:
    """The total variation distance of heavy cells from the product of their columns' distributions, 0 to 1.

    What chance alone would make of it is subtracted: a count that is off by a normal error of σ exceeds its mean by
    σ/√(2π) on average, σ² being the noise's variance and that of a sample, the count itself.
    """
    counts = np.maximum(cells.counts, 0.0)
    total = float(counts.sum())
    shares, product = counts / total, np.ones(len(counts))
    for codes in cells.codes.T:
        _, places = np.unique(codes, return_inverse=True)
        product *= np.bincount(places, shares)[places]
    chance = float(np.sqrt(counts + noise**2).sum()) / math.sqrt(2.0 * math.pi) / total
    return max(0.0, float(np.maximum(shares - product, 0.0).sum()) - chance)


class _Uniforms:
    """The uniform numbers of a ``RandomState``."""

    def __init__(self, random_state: Any) -> None:
        self._state = check_random_state(random_state)

    def random(self, size: tuple[int, int]) -> Floats:
        return np.asarray(self._state.random_sample(size), np.float64)
