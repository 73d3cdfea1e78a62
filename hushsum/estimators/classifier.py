"""A classifier from the densities of a release's classes."""

from collections.abc import Sequence
from os import PathLike
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, column_or_1d

from hushsum.errors import HushsumWarning, PlanError, warn
from hushsum.estimators.base import Bounds, Floats, KernelEstimator, hiding_values, noise_error
from hushsum.plan import Plan
from hushsum.releases import Release

_PRIORS: Final = ("counts", "uniform")


class KernelClassifier(ClassifierMixin, KernelEstimator):  # type: ignore[misc]  # scikit-learn ships no types
    """A classifier by the density of each class at a point, from one private release with a sketch for each class.

    The classes are disjoint, so that one ε pays for all of their sketches. Every fit makes a new release and charges
    the ledger once: each fold of a cross-validation, each candidate of a search and each refit. Queries are free.

    With ``prior="counts"`` the posterior of a class is in proportion to its noisy number of records times its density
    (maximum a posteriori), with ``"uniform"`` to its density alone (maximum likelihood). A density is taken as at least
    one standard error of the noise over all records, so that a point far from all records gets the prior.

    Args:
        epsilon: As of :class:`hushsum.estimators.KernelDensity`, as are delta, bounds, plan, ledger, total_epsilon.
        delta: δ of a fit; None: 0.
        bounds: Public bounds of the columns of X. Required, with ``epsilon``, unless there is a plan.
        plan: A plan with classes.
        ledger: The path of a ledger.
        total_epsilon: The most that all releases of the ledger may spend in all.
        records: About how many records there are, from public knowledge.
        bandwidth: As of :class:`hushsum.estimators.KernelDensity`.
        classes: All labels that records may have, public. None: those of the plan; without a plan the labels that
            occur in y, with a warning: the set of labels is then an output without noise, in which a label of a single
            record shows. Records with other labels are dropped.
        prior: ``"counts"`` or ``"uniform"``.

    Attributes:
        release_: The release: all that is kept of the records. A pickle holds its bytes.
        classes_: (c,) labels, sorted.
        class_count_: (c,) noisy numbers of records, at least 1.
        n_features_in_: d.
        feature_names_in_: Names of the columns of X, if they have names.
    """

    classes_: npt.NDArray[Any]
    class_count_: Floats

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
        classes: Sequence[Any] | None = None,
        prior: str = "counts",
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
        self.classes = classes
        self.prior = prior

    @classmethod
    def from_release(cls, release: Release, **parameters: Any) -> Self:
        """A classifier that reads a release with classes. It costs no privacy.

        Args:
            release: Of vectors with classes.
            parameters: Of the constructor; ``classes`` gives the labels another type than text: ``[0, 1]`` stands for
                the plan's ``"0"`` and ``"1"``.

        Raises:
            PlanError: The release has no classes, or others.
        """
        return super().from_release(release, **parameters)

    def fit(self, X: Any, y: Any) -> Self:
        """Makes a release of the records of each class and charges the ledger once.

        Args:
            X: (n, d) array or data frame. A record with NaN or infinity is dropped alone, with a warning.
            y: (n,) labels. A record whose label is none of ``classes`` is dropped alone.

        Warns:
            HushsumWarning: ``classes`` were taken from y.
            DroppedRecordsWarning: Records were dropped.
            ClippedRecordsWarning: Records lay outside the bounds.

        Raises:
            BudgetError: The ledger's limits do not allow the spend. Nothing was drawn, and nothing is fitted.
            RecordError: A column has no bounds.
            PlanError: There is no such plan, or the plan has no classes, or others.
            ValueError: X or y cannot be used, or parameters are missing or contradict each other.
        """
        points = self._read_fit(X)
        with self._forgetting():
            labels, names = self._read_labels(y, len(points))
        return self._fit_release(points, question="classes", labels=labels, classes=names)

    def predict_proba(self, X: Any) -> Floats:
        """The posterior probability of each class, (m, c) in the order of ``classes_``; rows sum to 1.

        It is that of densities as they are estimated, without their errors.

        Args:
            X: (m, d), finite.
        """
        points = self._read_queries(X)
        labels = [str(label) for label in self.classes_.tolist()]
        found = np.stack([self.release_.density(points, label=label).value for label in labels], axis=1)
        least = noise_error(self.release_, label=labels[0]) / float(self.class_count_.sum())
        shares = np.maximum(found, least)
        if self._checked_prior() == "counts":
            shares *= self.class_count_
        return np.asarray(shares / shares.sum(axis=1, keepdims=True), np.float64)

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """The label with the largest posterior probability, (m,).

        Args:
            X: (m, d), finite.
        """
        best = np.argmax(self.predict_proba(X), axis=1)
        return np.asarray(self.classes_[best])

    def _check_plan(self, plan: Plan) -> None:
        super()._check_plan(plan)
        if not plan.classes:
            raise PlanError("record.classes", [], "all labels that records may have")
        if self.classes is not None and {str(label) for label in self.classes} != set(plan.classes):
            raise PlanError("record.classes", list(plan.classes), f"those of the parameter classes: {self.classes}")
        self._checked_prior()

    def _derive(self) -> None:
        if "classes_" not in vars(self):
            self.classes_ = np.unique(self.release_.plan.classes if self.classes is None else list(self.classes))
        counts = [self.release_.count_of(str(label)) for label in self.classes_.tolist()]
        self.class_count_ = np.maximum(np.array(counts, np.float64), 1.0)

    def _checked_prior(self) -> str:
        if self.prior not in _PRIORS:
            raise ValueError(f"prior: got {self.prior!r}, expected 'counts' or 'uniform'")
        return self.prior

    def _read_labels(self, y: Any, n: int) -> tuple[list[str | None], list[str]]:
        """The label of each record as the plan writes it, None for an unknown one; and all labels."""
        self._checked_prior()
        self.classes_, given = read_labels(self, y, n)
        names = {label: str(label) for label in self.classes_.tolist()}
        if len(set(names.values())) < len(names):
            raise ValueError(f"classes: got {list(names)}, expected labels that differ as text")
        return [names.get(label) for label in given], list(names.values())


def read_labels(estimator: Any, y: Any, n: int) -> tuple[npt.NDArray[Any], list[Any]]:
    """The classes, sorted, from the parameter ``classes`` or the plan's, else from y; and the n labels of y.

    Warns:
        HushsumWarning: They were taken from y.

    Raises:
        ValueError: y is missing, has another length, or is no set of labels; or there are fewer than two classes.
    """
    if y is None:
        name = type(estimator).__name__
        raise ValueError(f"This {name} estimator requires y to be passed, but the target y is None.")
    with hiding_values("y"):
        labels = column_or_1d(y, warn=True)
    if len(labels) != n:
        check_consistent_length(np.empty(n), labels)
    public = estimator.classes
    if public is None and estimator.plan is not None and estimator.plan.classes:
        public = estimator.plan.classes
    if public is None:
        check_classification_targets(labels)
        classes = np.unique(labels)
        warn(
            HushsumWarning(
                f"classes: taken from y ({len(classes)} labels), so that the set of labels is not private: a label of "
                "a single record shows; give all labels that records may have"
            )
        )
    else:
        classes = np.unique(np.asarray(public))
    if len(classes) < 2:
        raise ValueError(f"classes: got {len(classes)} class, expected at least 2")
    return classes, list(np.asarray(labels).tolist())
