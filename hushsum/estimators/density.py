"""A density estimator in scikit-learn's form, and the integrals that make a mean kernel a probability density."""

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any, Final, Self

import numpy as np
from sklearn.base import DensityMixin

from hushsum.estimators.base import Floats, KernelEstimator, noise_error
from hushsum.families import Answer
from hushsum.families.partition import Partition
from hushsum.families.partition.density import volumes
from hushsum.families.transforms import Clip, Scale, Transform, Transforms, UnitNorm, float32
from hushsum.plan import Plan
from hushsum.tables import read_queries

_LOG_MAX: Final = 700.0  # e to it is still a float


class KernelDensity(DensityMixin, KernelEstimator):  # type: ignore[misc]  # scikit-learn ships no types
    """A kernel density estimate from one private release.

    It is made from a release (:meth:`from_release`), or fitted from records. Every fit makes a new release and charges
    the ledger once: each fold of a cross-validation, each candidate of a search and each refit. Queries are free.

    Where the kernel's integral over R^d has a closed form, :meth:`density_` is a probability density: kernels
    ``gaussian``, ``laplacian``, ``cauchy`` and ``exponential-p``, and cells of a grid, with no transforms, or with
    ``scale`` and invertible square ``linear`` ones. With others (``euclidean``, ``manhattan``, ``angular``, products,
    LSH cells) it is the mean kernel, between 0 and 1 but for noise, and ``normalised_`` is false.

    Noise can make a density 0 or negative, and a logarithm has no such value. :meth:`score_samples` therefore takes
    the mean kernel as at least ``floor_``, one standard error of the noise alone, or 1 if that is less: a point that
    the release does not distinguish from empty space gets the logarithm of that, never −∞ or NaN. :meth:`density_`
    stays as it is, unbiased and with its interval.

    Args:
        epsilon: ε of a fit. Required, with ``bounds``, unless there is a plan.
        delta: δ of a fit; None: 0.
        bounds: Public lower and upper bounds of the columns of X, which must not be taken from the data: one pair for
            all columns, a list of d pairs, or a mapping from the names of columns to pairs. Records beyond are clipped.
        plan: A plan of mode ``central`` and unit ``record``, in place of the proposal from ``bounds``
            (:func:`hushsum.proposal.propose`): with it the kernel and the bandwidth can be chosen.
        ledger: The path of a ledger, opened in each fit; None: the release is "unaccounted".
        total_epsilon: The most that all releases of the ledger may spend in all; None: what the ledger allows, and of a
            new ledger ε, which pays for one fit. A cross-validation of k folds needs at least k·ε.
        records: About how many records there are, from public knowledge; None: 100,000. It sizes the sketch.
        bandwidth: Of the kernel, as a share of the width of the bounds, from public knowledge: 0.05 if records that
            differ by a twentieth of a column's range are alike. It must not be taken from the data: a bandwidth that
            was tried out on records is an output without noise. None: a guess from the number of records and of
            columns (:func:`hushsum.proposal.propose`).

    Attributes:
        release_: The release: all that is kept of the records. A pickle holds its bytes.
        normalised_: Whether :meth:`density_` integrates to 1 over R^d, but for noise and hashing error.
        floor_: The least mean kernel of which :meth:`score_samples` takes the logarithm.
        n_features_in_: d.
        feature_names_in_: Names of the columns of X, if they have names.
    """

    normalised_: bool
    floor_: float

    def fit(self, X: Any, y: object = None) -> Self:
        """Makes a release of the records and charges the ledger.

        Args:
            X: (n, d) array or data frame. A record with NaN or infinity is dropped alone, with a warning.
            y: Not used.

        Warns:
            DroppedRecordsWarning: Records were dropped.
            ClippedRecordsWarning: Records lay outside the bounds.

        Raises:
            BudgetError: The ledger's limits do not allow the spend. Nothing was drawn, and nothing is fitted.
            RecordError: A column has no bounds.
            PlanError: There is no such plan, or the plan cannot answer densities.
            ValueError: X is no (n, d) array of numbers, or parameters are missing or contradict each other.
        """
        del y
        return self._fit_release(self._read_fit(X))

    def density_(self, X: Any) -> Answer:
        """Densities at the points, with standard errors and intervals: ``density_(X).interval(0.95)``.

        Args:
            X: (m, d), finite. With cells of a grid the density is 0 outside the bounds.

        Returns:
            In 1 over the unit of volume if ``normalised_``, else the mean kernel. Values may be negative.
        """
        points = self._read_queries(X)
        answer = self.release_.density(points)
        volume = np.exp(self._log_volumes(points))
        bias = None if answer.bias is None else answer.bias / volume
        return replace(answer, value=answer.value / volume, std_error=answer.std_error / volume, bias=bias)

    def score_samples(self, X: Any) -> Floats:
        """The logarithm of the density at the points, (m,): of a mean kernel of at least ``floor_``.

        Args:
            X: (m, d), finite.
        """
        points = self._read_queries(X)
        values = np.maximum(self.release_.density(points).value, self.floor_)
        return np.asarray(np.log(values) - self._log_volumes(points), np.float64)

    def score(self, X: Any, y: object = None) -> float:
        """The sum of :meth:`score_samples`: the log-likelihood of the points, if ``normalised_``."""
        del y
        return float(self.score_samples(X).sum())

    def _derive(self) -> None:
        # With fewer records than noise: a mean kernel is at most 1.
        self.floor_ = min(1.0, noise_error(self.release_) / max(self.release_.count, 1.0))
        self.normalised_ = kernel_log_integral(self.release_.plan) is not None

    def _log_volumes(self, points: Any) -> Floats | float:
        """What the mean kernel is divided by, as a logarithm: of a grid (m,), the volume of each point's cell."""
        plan = self.release_.plan
        whole = kernel_log_integral(plan)
        if whole is None:
            return 0.0
        if not isinstance(plan.family, Partition):
            return whole
        cells = volumes(plan.family, read_queries(plan, points))
        side = plan.vectors.dim * math.log(float(plan.family.bandwidth))
        return np.asarray(whole - side + np.log(np.where(np.isnan(cells), math.exp(side), cells)), np.float64)


def kernel_log_integral(plan: Plan) -> float | None:
    """The natural logarithm of ∫ k(x, q) dx over R^d, in the unit of the records; of a grid that of a whole cell.

    None where it is infinite or has no closed form here. For σ the bandwidth: ``gaussian`` (σ√π)^d, ``laplacian``
    (2σ/p)^d of power p, ``cauchy`` (πσ)^d, ``exponential-p`` (2σΓ(1 + 1/p))^d; divided by |det T| of transforms T.
    """
    fields, dim = plan.family.to_fields(), plan.vectors.dim
    widths = {
        "gaussian": math.sqrt(math.pi),
        "laplacian": 2.0 / float(str(fields.get("power", 1))),
        "cauchy": math.pi,
    }
    kernel = fields.get("kernel")
    if plan.family.name == "partition":
        width = 1.0 if fields.get("cells") == "grid" else None
    elif fields.get("draws") == "given" and plan.family.name == "fourier":
        width = None  # the kernel is then a mean of cosines
    elif kernel == "exponential-p":
        width = 2.0 * math.gamma(1.0 + 1.0 / float(Fraction(str(fields["exponent"]))))
    else:
        width = widths.get(str(kernel))
    if width is None:
        return None
    total = dim * math.log(width * float(Fraction(str(fields["bandwidth"]))))
    steps: tuple[Transform, ...] = getattr(plan.family, "transforms", Transforms()).steps
    for step in steps:
        if isinstance(step, Clip | UnitNorm):
            return None
        matrix = np.diag(float32(step.factor)) if isinstance(step, Scale) else step.matrix
        if matrix.shape != (dim, dim):
            return None
        total -= float(np.linalg.slogdet(matrix.astype(np.float64))[1])
    return total if abs(total) <= _LOG_MAX else None
