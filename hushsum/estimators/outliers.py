"""An outlier detector: points where a released density is low."""

from os import PathLike
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import OutlierMixin

from hushsum.errors import HushsumWarning, warn
from hushsum.estimators.base import Bounds, Floats, KernelEstimator, noise_error
from hushsum.estimators.particles import DEVIATIONS, particles, unsmoothed
from hushsum.plan import Plan

_PARTICLES: Final = 512


class KernelOutlierDetector(OutlierMixin, KernelEstimator):  # type: ignore[misc]  # scikit-learn ships no types
    """Outliers are points where the mean kernel of a private release is low.

    Every fit, and ``fit_predict``, makes a new release and charges the ledger once: each fold of a
    cross-validation, each candidate of a search and each refit. Queries are free.

    ``offset_`` is the mean kernel below which about the share ``contamination`` of the records lies. It is computed
    from the release alone, never from scores of training records: a quantile of those would be an output without noise.
    Points are drawn from the released density within the bounds, with a public seed, and weighted so that they are
    spread as records are, of which that density is a smoothed image (:mod:`hushsum.estimators.particles`). In up to
    three columns the share of outliers among the records comes near ``contamination``; with more columns, where a
    density leaves less and less of the records' places, it is smaller (0.01 for 0.1 in the eight columns of htru2), and
    where the noise drowns the tails it is larger. The order of the scores does not depend on it.

    Args:
        epsilon: As of :class:`hushsum.estimators.KernelDensity`, as are delta, bounds, plan, ledger, total_epsilon.
        delta: δ of a fit; None: 0.
        bounds: Public bounds of the columns of X. Required, with ``epsilon``, unless there is a plan.
        plan: A plan, in place of the proposal from ``bounds``.
        ledger: The path of a ledger.
        total_epsilon: The most that all releases of the ledger may spend in all.
        records: About how many records there are, from public knowledge.
        bandwidth: As of :class:`hushsum.estimators.KernelDensity`.
        contamination: The share of the released density that counts as outlying, above 0 and at most 0.5. Public.

    Attributes:
        release_: The release: all that is kept of the records. A pickle holds its bytes.
        offset_: ``decision_function`` is ``score_samples`` minus this.
        n_features_in_: d.
        feature_names_in_: Names of the columns of X, if they have names.
    """

    offset_: float

    def __init__(  # noqa: PLR0913 -- one argument a question, as of Release.from_data
        self,
        *,
        epsilon: object = None,
        delta: object = None,
        bounds: Bounds = None,
        plan: Plan | None = None,
        ledger: str | PathLike[str] | None = None,
        total_epsilon: object = None,
        records: int | None = None,
        bandwidth: object = None,
        contamination: float = 0.1,
    ) -> None:
        super().__init__(
            epsilon=epsilon,
            delta=delta,
            bounds=bounds,
            plan=plan,
            ledger=ledger,
            total_epsilon=total_epsilon,
            records=records,
            bandwidth=bandwidth,
        )
        self.contamination = contamination

    def fit(self, X: Any, y: object = None) -> Self:
        """Makes a release of the records and charges the ledger.

        Args:
            X: (n, d) array or data frame. A record with NaN or infinity is dropped alone, with a warning.
            y: Not used.

        Warns:
            DroppedRecordsWarning: Records were dropped.
            ClippedRecordsWarning: Records lay outside the bounds.
            HushsumWarning: No place stands out of the noise.

        Raises:
            BudgetError: The ledger's limits do not allow the spend. Nothing was drawn, and nothing is fitted.
            RecordError: A column has no bounds.
            PlanError: There is no such plan, or the plan cannot answer densities.
            ValueError: X is no (n, d) array of numbers, or parameters are missing or contradict each other.
        """
        del y
        points = self._read_fit(X)
        with self._forgetting():
            self._check_contamination()
        return self._fit_release(points, question="outliers")

    def score_samples(self, X: Any) -> Floats:
        """The mean kernel at the points, (m,): the lower, the more outlying. Noise can make it negative.

        Args:
            X: (m, d), finite.
        """
        points = self._read_queries(X)
        return np.asarray(self.release_.density(points).value, np.float64)

    def decision_function(self, X: Any) -> Floats:
        """:meth:`score_samples` minus ``offset_``, (m,): negative for outliers.

        Args:
            X: (m, d), finite.
        """
        scores = self.score_samples(X)
        return np.asarray(scores - self.offset_, np.float64)

    def predict(self, X: Any) -> npt.NDArray[np.int64]:
        """1 for inliers, −1 for outliers, (m,).

        Args:
            X: (m, d), finite.
        """
        return np.where(self.decision_function(X) < 0, -1, 1).astype(np.int64)

    def _check_plan(self, plan: Plan) -> None:
        super()._check_plan(plan)
        self._check_contamination()

    def _check_contamination(self) -> None:
        if not 0.0 < self.contamination <= 0.5:
            raise ValueError(f"contamination: got {self.contamination!r}, expected a number above 0 and at most 0.5")

    def _derive(self) -> None:
        found, records = particles(self.release_, _PARTICLES), max(self.release_.count, 1.0)
        if len(found.values):
            order = np.argsort(found.values)
            shares = np.add.accumulate(unsmoothed(self.release_.plan, found.points)[order])
            place = min(int(np.searchsorted(shares, self.contamination)), len(order) - 1)
            self.offset_ = float(found.values[order[place]]) / records
            return
        self.offset_ = DEVIATIONS * noise_error(self.release_) / records
        warn(
            HushsumWarning(
                "offset_: the released density stands out of its noise nowhere; offset_ is "
                f"{DEVIATIONS:g} standard errors of the noise. A larger ε, more records or a wider kernel would help"
            )
        )
