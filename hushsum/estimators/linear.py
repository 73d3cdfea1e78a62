"""Linear models from a release of the paired family: the sums that its counters hold, and their solution.

The equations of all rows are solved for Σ u·uᵀ (:mod:`hushsum.families.paired.moments`), and that for the coefficients.
Directions in which those sums are no larger than their own error are shrunk, so that noise alone gives nearly 0.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from os import PathLike
from typing import Any, ClassVar, Final, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.validation import check_consistent_length, column_or_1d

from hushsum.canonical import real
from hushsum.errors import PlanError, RecordError
from hushsum.estimators.base import Bounds, Floats, ReleaseEstimator, hiding_values
from hushsum.estimators.classifier import read_labels
from hushsum.families.paired import Paired
from hushsum.families.paired.moments import moments, refuse_few_rows
from hushsum.families.transforms import Linear, Scale, float32
from hushsum.parameters import digest
from hushsum.plan import Plan
from hushsum.proposal import RECORDS, WHY_BOUNDS, read_bounds
from hushsum.releases import Release
from hushsum.releases.released import limits_of
from hushsum.sketch import Sketch

_INTERCEPT: Final = "intercept"  # the name of a plan's column of ones
_TARGET: Final = "target"
_DEVIATIONS: Final = 6  # of the assumed records, from one bound to the other, as in hushsum.proposal
_RADIUS: Final = 1.2  # in typical lengths of a record
_ROWS: Final = (96, 1024)
_ROW_RECORDS: Final = 15  # ε times the records for each row: 100 rows at 1,500 are the best with pure ε


class LinearEstimator(ReleaseEstimator):
    """A linear model from one release of the paired family: see the classes that are made of it."""

    _loss: ClassVar[str]
    fit_intercept: bool
    coef_: Floats
    intercept_: Any

    def _check_plan(self, plan: Plan) -> None:
        family = plan.family
        if not isinstance(family, Paired):
            raise PlanError("sketch.family", family.name, "'paired'")
        if family.loss != self._loss:
            other = {"regression": "LinearRegressor", "margin": "LinearClassifier"}[family.loss]
            raise PlanError("sketch.loss", family.loss, f"{self._loss!r}; {other} fits this plan")
        _weights(plan, np.zeros(family.query_dim), regression=self._loss == "regression")
        try:
            refuse_few_rows(family.tables)
        except ValueError as error:
            raise PlanError("sketch.rows", family.rows, str(error)) from error

    def _features(self, plan: Plan) -> int:
        return plan.vectors.dim - 1 - _has_intercept(plan)

    def _feature_names(self, plan: Plan) -> tuple[str, ...]:
        names = plan.collection.names[: self._features(plan)]
        return () if names == _unnamed(len(names)) else names

    def _derive(self) -> None:
        plan = self.release_.plan
        weights = _weights(plan, _coefficients(self.release_), regression=self._loss == "regression")
        has_intercept = _has_intercept(plan)
        self.coef_ = weights[:-1] if has_intercept else weights
        self.intercept_ = float(weights[-1]) if has_intercept else 0.0

    def _fit_records(self, points: Floats, last: Floats, ends: Any) -> Self:
        """Records [x, 1, y], or [x, y] as the plan has them, and their release."""
        with self._forgetting():
            plan = self.plan
            if plan is None:
                plan = self._proposed(points.shape[1], ends)
            else:
                self._refuse_both()
                self._check_plan(plan)
                if self._features(plan) != points.shape[1]:
                    expected = f"{points.shape[1]} columns, a column named 'intercept' if wanted, and the target last"
                    raise PlanError("record.dim", plan.vectors.dim, expected)
            ones = [np.ones(len(points))] if _has_intercept(plan) else []
            made = self._charged(Sketch(plan), self._arranged(points, [*ones, last], plan), None)
        self.release_ = made
        self._derive()
        return self

    def _arranged(self, points: Floats, others: Sequence[Floats], plan: Plan) -> Floats:
        """(n, d + 1 or 2): columns in the order of the plan, by name where both sides have names."""
        given = [str(name) for name in getattr(self, "feature_names_in_", ())]
        names = self._feature_names(plan)
        if self.plan is not None and given and names:
            if set(given) != set(names):
                raise RecordError(f"X: got the columns {', '.join(given)}, the plan has {', '.join(names)}")
            points = points[:, [given.index(name) for name in names]]
        return np.column_stack([points, *others])

    def _proposed(self, dim: int, last: tuple[Fraction, Fraction]) -> Plan:
        """A plan of records [x, 1, y]: each column in units of a sixth of its bounds, from their middle."""
        bounds = self._column_bounds(dim)
        given = read_bounds(bounds)
        names = list(given) if isinstance(bounds, dict) else list(_unnamed(dim))
        ends = [*given.values()]
        columns = dim + 2 if self.fit_intercept else dim + 1
        matrix = np.zeros((columns, columns))
        for column, (low, high) in enumerate([*ends, last]):
            place = columns - 1 if column == dim else column
            is_label = column == dim and self._loss == "margin"
            factor = 1.0 if is_label else float(_DEVIATIONS / (high - low))
            matrix[place, place] = factor
            if self.fit_intercept and not is_label:
                matrix[place, dim] = -factor * float((low + high) / 2)
        if self.fit_intercept:
            matrix[dim, dim] = 1.0
            ends, names = [*ends, (Fraction(0), Fraction(1))], [*names, _INTERCEPT]
        ends, names = [*ends, last], [*names, _TARGET]
        sketch = {
            "family": "paired",
            "loss": self._loss,
            "radius": round(_RADIUS * math.sqrt(columns - (self._loss == "margin")), 2),
            "rows": self._rows(columns),
            "transforms": [{"kind": "linear", "matrix": digest(matrix.astype(np.float32))}],
        }
        record = {"dim": columns, "names": names, "lower": [low for low, _ in ends], "upper": [up for _, up in ends]}
        return Plan(
            name=type(self).__name__,
            record=record,
            sketch=sketch,
            privacy=self._privacy(),
            parameters=[matrix.astype(np.float32)],
        )

    def _rows(self, columns: int) -> int:
        """With pure ε noise grows with the rows; with δ above 0 it does not."""
        least, most = _ROWS
        least = max(least, -(-columns * (columns + 1) // 3))
        if self.delta:
            return max(least, most)
        strength = float(real(self._needed_epsilon())) * (self.records or RECORDS)
        return int(min(max(least, strength / _ROW_RECORDS), max(least, most)))

    def _privacy(self) -> dict[str, object]:
        limits, epsilon = limits_of(self._ledger_path()), self._needed_epsilon()
        total = self.total_epsilon
        if total is None:
            total = limits.epsilon if limits else epsilon
        privacy: dict[str, object] = {"epsilon": epsilon, "total_epsilon": total}
        in_all = limits.delta if limits and limits.delta else self.delta
        return privacy | ({"delta": self.delta} if self.delta else {}) | ({"total_delta": in_all} if in_all else {})


class LinearRegressor(RegressorMixin, LinearEstimator):  # type: ignore[misc]  # scikit-learn ships no types
    """Linear least squares from one private release of the paired family.

    It is made from a release (:meth:`from_release`), or fitted from records. Every fit makes a new release and charges
    the ledger once: each fold of a cross-validation, each candidate of a search and each refit. Predictions are free.

    The release holds sums of products of columns, in units of a sixth of their bounds, so bounds that fit matter: in a
    column whose values lie within a tenth of its bounds, little but noise is left. Records far longer than typical are
    shortened. Columns that nearly depend on each other are beyond the sketch: directions in which the sums are no
    larger than their error are shrunk.

    Seen with power 4, pure ε, unit record, columns standardised and clipped at 3: the share of variance explained on
    airfoil (1,503 records, 6 columns; least squares 0.53).

    ======== ==== ========== ======= ====== ======== =========
    data     R    form       exact   ε = 10 ε = 1    ε = 0.1
    ======== ==== ========== ======= ====== ======== =========
    airfoil  30   inner      0.48    0.48   0.49     0.04
    airfoil  100  inner      0.51    0.51   0.45     −0.02
    airfoil  1000 inner      0.52    0.51   0.22     −0.06
    airfoil  100  orthogonal 0.50    0.49   0.45     −0.01
    ======== ==== ========== ======= ====== ======== =========

    A radius of the largest length within the bounds makes 0.45 at ε = 1, R = 100 into 0.06. Columns that nearly depend
    on each other, as naval's, ask for more than any of this: a ridge of a tenth of a column's variance leaves 0.09 of
    0.84 there even without a sketch.

    Args:
        epsilon: ε of a fit. Required, with ``bounds`` and ``target_bounds``, unless there is a plan.
        delta: δ of a fit; None: 0. With δ above 0 noise does not grow with the rows, and errors are smaller.
        bounds: Public lower and upper bounds of the columns of X, which must not be taken from the data: one pair for
            all columns, a list of d pairs, or a mapping from the names of columns to pairs. Records beyond are clipped.
        plan: A plan of the paired family with the regression loss, mode ``central`` and unit ``record``, in place of
            one from the bounds. Its columns are those of X, then one named ``intercept`` (between 0 and 1, a column of
            ones) if the model shall have an intercept, then the target. Transforms may be ``scale`` and ``linear``.
        ledger: The path of a ledger, opened in each fit; None: the release is "unaccounted".
        total_epsilon: The most that all releases of the ledger may spend in all; None: what the ledger allows, and of a
            new ledger ε, which pays for one fit. A cross-validation of k folds needs at least k·ε.
        records: About how many records there are, from public knowledge; None: 100,000. It sizes the sketch.
        target_bounds: Public lower and upper bound of y, which is clipped to them.
        fit_intercept: Whether the model of a fit from bounds has an intercept.

    Attributes:
        release_: The release: all that is kept of the records. A pickle holds its bytes.
        coef_: (d,) coefficients, in the unit of y over that of each column.
        intercept_: In the unit of y; 0 without one.
        n_features_in_: d.
        feature_names_in_: Names of the columns of X, if they have names.
    """

    _loss: ClassVar[str] = "regression"

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
        target_bounds: Sequence[Any] | None = None,
        fit_intercept: bool = True,
    ) -> None:
        super().__init__(
            epsilon=epsilon,
            delta=delta,
            bounds=bounds,
            plan=plan,
            ledger=ledger,
            total_epsilon=total_epsilon,
            records=records,
        )
        self.target_bounds = target_bounds
        self.fit_intercept = fit_intercept

    def fit(self, X: Any, y: Any) -> Self:
        """Makes a release of the records and charges the ledger once.

        Args:
            X: (n, d) array or data frame. A record with NaN or infinity is dropped alone, with a warning.
            y: (n,) numbers; a record whose target is not finite is dropped alone.

        Warns:
            DroppedRecordsWarning: Records were dropped.
            ClippedRecordsWarning: Records lay outside the bounds.

        Raises:
            BudgetError: The ledger's limits do not allow the spend. Nothing was drawn, and nothing is fitted.
            RecordError: A column, or y, has no bounds.
            PlanError: There is no such plan, or it fits no regression of so many columns.
            ValueError: X or y cannot be used, or parameters are missing or contradict each other.
        """
        points = self._read_fit(X)
        with self._forgetting():
            target = _target(self, y, len(points))
            ends = (Fraction(0), Fraction(1)) if self.plan is not None else self._target_ends()
        return self._fit_records(points, target, ends)

    def predict(self, X: Any) -> Floats:
        """The fitted values at the points, (m,), in the unit of y.

        Args:
            X: (m, d), finite.
        """
        points = self._read_points(X)
        return np.asarray(points @ self.coef_ + self.intercept_, np.float64)

    def _target_ends(self) -> tuple[Fraction, Fraction]:
        if self.target_bounds is None:
            raise RecordError(f"target_bounds: missing, expected public bounds of y, or a plan; {WHY_BOUNDS}")
        return read_bounds({"target_bounds": tuple(self.target_bounds)})["target_bounds"]

    def _refuse_both(self) -> None:
        super()._refuse_both()
        if self.target_bounds is not None:
            raise ValueError("target_bounds: not allowed together with plan, which has its own")


class LinearClassifier(ClassifierMixin, LinearEstimator):  # type: ignore[misc]  # scikit-learn ships no types
    """A linear classifier of two classes from one private release of the paired family: least squares to labels ±1.

    It is made from a release (:meth:`from_release`), or fitted from records. Every fit makes a new release and charges
    the ledger once: each fold of a cross-validation, each candidate of a search and each refit. Predictions are free.

    Seen as in :class:`LinearRegressor`: the accuracy on htru2 (17,898 records, 9 features and a one; least squares
    0.972, logistic regression 0.980, always the commoner label 0.908).

    ======== ==== ========== ======= ====== ======== =========
    data     R    form       exact   ε = 10 ε = 1    ε = 0.1
    ======== ==== ========== ======= ====== ======== =========
    htru2    100  inner      0.970   0.970  0.970    0.967
    htru2    100  orthogonal 0.971   0.971  0.972    0.967
    htru2    1000 inner      0.973   0.973  0.969    0.952
    ======== ==== ========== ======= ====== ======== =========

    Args:
        epsilon: As of :class:`LinearRegressor`, as are delta, bounds, ledger, total_epsilon, records, fit_intercept.
        delta: δ of a fit; None: 0.
        bounds: Public bounds of the columns of X. Required, with ``epsilon``, unless there is a plan.
        plan: A plan of the paired family with the margin loss, whose last column is the label.
        ledger: The path of a ledger.
        total_epsilon: The most that all releases of the ledger may spend in all.
        records: About how many records there are, from public knowledge.
        classes: Both labels, public. None: those that occur in y, with a warning: the set of labels is then an output
            without noise. Records with other labels are dropped.
        fit_intercept: Whether the model of a fit from bounds has an intercept.

    Attributes:
        release_: The release: all that is kept of the records. A pickle holds its bytes.
        classes_: Both labels, sorted. After :meth:`from_release` −1 and 1, unless ``classes`` says others.
        coef_: (1, d) coefficients: positive where a column speaks for the second class.
        intercept_: (1,); 0 without one.
        n_features_in_: d.
        feature_names_in_: Names of the columns of X, if they have names.
    """

    _loss: ClassVar[str] = "margin"
    classes_: npt.NDArray[Any]

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
        classes: Sequence[Any] | None = None,
        fit_intercept: bool = True,
    ) -> None:
        super().__init__(
            epsilon=epsilon,
            delta=delta,
            bounds=bounds,
            plan=plan,
            ledger=ledger,
            total_epsilon=total_epsilon,
            records=records,
        )
        self.classes = classes
        self.fit_intercept = fit_intercept

    def fit(self, X: Any, y: Any) -> Self:
        """Makes a release of the records and charges the ledger once.

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
            PlanError: There is no such plan, or it fits no classifier of so many columns.
            ValueError: X or y cannot be used, there are not two classes, or parameters are missing or contradict.
        """
        points = self._read_fit(X)
        with self._forgetting():
            self.classes_, given = read_labels(self, y, len(points))
            self._refuse_many()
            signs = dict(zip(self.classes_.tolist(), (-1.0, 1.0), strict=True))
            labels = np.array([signs.get(label, math.nan) for label in given], np.float64)
        return self._fit_records(points, labels, (Fraction(-1), Fraction(1)))

    def decision_function(self, X: Any) -> Floats:
        """Positive where the second class is predicted, (m,).

        Args:
            X: (m, d), finite.
        """
        points = self._read_points(X)
        return np.asarray(points @ self.coef_[0] + self.intercept_[0], np.float64)

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """The predicted labels, (m,).

        Args:
            X: (m, d), finite.
        """
        is_second = self.decision_function(X) > 0
        return np.asarray(self.classes_[is_second.astype(np.intp)])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags

    def _derive(self) -> None:
        super()._derive()
        self.coef_, self.intercept_ = self.coef_[None], np.array([self.intercept_])
        if "classes_" not in vars(self):
            self.classes_ = np.array([-1, 1]) if self.classes is None else np.unique(np.asarray(self.classes))
            self._refuse_many()

    def _refuse_many(self) -> None:
        if len(self.classes_) != 2:
            kind = "multiclass" if len(self.classes_) > 2 else "one class"
            raise ValueError(f"Only binary classification is supported. The type of the target is {kind}.")


def _target(estimator: Any, y: Any, n: int) -> Floats:
    if y is None:
        name = type(estimator).__name__
        raise ValueError(f"This {name} estimator requires y to be passed, but the target y is None.")
    with hiding_values("y"):
        target = column_or_1d(y, warn=True)
    if len(target) != n:
        check_consistent_length(np.empty(n), target)
    with hiding_values("y"):
        return np.asarray(target, np.float64)


def _unnamed(dim: int) -> tuple[str, ...]:
    """What a plan calls d columns without names: the columns after them have some."""
    return tuple(f"x{column}" for column in range(dim))


def _has_intercept(plan: Plan) -> bool:
    """Whether the column before the target is one of ones, by its name."""
    return plan.collection.names[-2:-1] == (_INTERCEPT,)


def _weights(plan: Plan, theta: Floats, *, regression: bool) -> Floats:
    """Coefficients of records as they come, from those θ of transformed records: T = [[A, 0], [b, t]].

    θ·A x = b·x + t·y gives y = (θA − b)·x/t.

    Raises:
        PlanError: The transforms are no such linear map.
    """
    family = plan.family
    assert isinstance(family, Paired), "checked before"
    matrix = np.eye(plan.vectors.dim)
    for step in family.transforms.steps:
        if not isinstance(step, Scale | Linear):
            kind = str(step.to_fields()["kind"])
            raise PlanError("sketch.transforms", kind, "'scale' and 'linear': other transforms cannot be inverted")
        matrix = (np.diag(float32(step.factor)) if isinstance(step, Scale) else step.matrix).astype(np.float64) @ matrix
    last = matrix[-1]
    mixed = matrix[:-1, -1].any() or not (last[-1] if regression else last[-1] > 0 and not last[:-1].any())
    if mixed:
        raise PlanError("sketch.transforms", "linear", "a map under which only the last column has the target or label")
    weights = theta @ matrix[:-1, :-1]
    return np.asarray((weights - last[:-1]) / last[-1] if regression else weights, np.float64)


def _coefficients(release: Release) -> Floats:
    """θ of transformed records, from the sums over all classes."""
    family = release.plan.family
    assert isinstance(family, Paired), "checked before"
    found = moments(family.tables, release.counters.sum(axis=0))
    if found.first is not None:  # of the margin loss: Σ x·xᵀ and Σ label·x
        return _solved(found.second, found.first, found.std_error)
    return _solved(found.second[:-1, :-1], found.second[:-1, -1], found.std_error)


def _solved(matrix: Floats, vector: Floats, std_error: float) -> Floats:
    """A⁻¹b, no eigenvalue of A below the largest that a matrix of such errors alone would have (Wigner's 2σ√k)."""
    eigenvalues, basis = np.linalg.eigh(matrix)
    floor = 2.0 * std_error * math.sqrt(len(vector)) + np.finfo(np.float64).tiny
    return np.asarray(basis @ (basis.T @ vector / np.maximum(eigenvalues, floor)), np.float64)
