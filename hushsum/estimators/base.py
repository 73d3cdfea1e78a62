"""What all estimators share: a fit makes one release, charged to a ledger, and everything else reads that release."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Real
from os import PathLike
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted, validate_data

from hushsum import query
from hushsum.errors import DroppedRecordsWarning, NoUsableRecordsError, PlanError, RecordError, warn
from hushsum.families import SetRecords
from hushsum.plan import Plan
from hushsum.privacy.ledger import Ledger
from hushsum.proposal import WHY_BOUNDS, bounds_of
from hushsum.releases import Release, release
from hushsum.sketch import Sketch

Floats = npt.NDArray[np.float64]
#: One pair for all columns, a pair for each column in their order, or pairs by the names of columns.
Bounds = Mapping[str, Any] | Sequence[Any] | None
_ERROR_LEAST: Final = 1e-6  # records
_NO_NUMBER: Final = (
    "got a value that is no number or too large for float64, expected numbers; encode other columns as numbers, or "
    "leave them out"
)
#: How errors begin that show values, and what to say instead; scikit-learn's checks look for some of these words.
_VALUES_SHOWN: Final = {
    "could not convert": _NO_NUMBER,
    "Complex data not supported": "Complex data not supported, expected real numbers",
    "Expected 2D array, got 1D": "Expected 2D array, got 1D array. Reshape your data to (n, d): array.reshape(-1, 1) "
    "if it is one column, array.reshape(1, -1) if it is one record",
    "Expected 2D array, got scalar": "Expected 2D array, got scalar array. Reshape your data to (n, d)",
}
_OF_A_PROPOSAL: Final = ("epsilon", "delta", "bounds", "total_epsilon", "records")


class ReleaseEstimator(BaseEstimator):  # type: ignore[misc]  # scikit-learn ships no types
    """An estimator that holds one release: see the classes that are made of it."""

    release_: Release
    n_features_in_: int

    def __init__(
        self,
        *,
        epsilon: object = None,
        delta: object = None,
        bounds: Bounds = None,
        plan: Plan | None = None,
        ledger: str | PathLike[str] | None = None,
        total_epsilon: object = None,
        records: int | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.bounds = bounds
        self.plan = plan
        self.ledger = ledger
        self.total_epsilon = total_epsilon
        self.records = records

    @classmethod
    def from_release(cls, release: Release, **parameters: Any) -> Self:
        """An estimator that reads a release, such as one that a service has published. It costs no privacy.

        Args:
            release: Of vectors.
            parameters: Of the constructor. Those of a fit have no effect.

        Raises:
            PlanError: The release cannot answer this estimator's questions.
        """
        estimator = cls(**parameters)
        estimator._check_plan(release.plan)
        names = estimator._feature_names(release.plan)
        estimator.n_features_in_ = estimator._features(release.plan)
        if names:
            estimator.feature_names_in_ = np.array(names, object)
        estimator.release_ = release
        estimator._derive()
        return estimator

    def __sklearn_is_fitted__(self) -> bool:
        return "release_" in vars(self)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True  # every fit draws noise of its own
        return tags

    def __getstate__(self) -> dict[str, Any]:
        """The parameters, what was derived from the release, and the bytes of the release: no record is in them."""
        state = dict(super().__getstate__())
        if "release_" in state:
            state["release_"] = state["release_"].to_bytes()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Reads the release from its bytes.

        Raises:
            ReleaseError: They were altered, or are of a newer version.
        """
        if "release_" in state:
            state = {**state, "release_": Release.from_bytes(state["release_"])}
        super().__setstate__(state)

    def _check_plan(self, plan: Plan) -> None:
        """Refuses a plan that cannot answer this estimator's questions, before anything is charged.

        Raises:
            PlanError: With the key of the plan.
        """

    def _derive(self) -> None:
        """Sets the attributes that are computed from the release."""

    def _features(self, plan: Plan) -> int:
        return plan.vectors.dim

    def _feature_names(self, plan: Plan) -> tuple[str, ...]:
        return plan.collection.names

    def _forget(self) -> None:
        """Removes what an earlier fit has left."""
        for name in [name for name in vars(self) if name.endswith("_")]:
            delattr(self, name)

    @contextmanager
    def _forgetting(self) -> Iterator[None]:
        """A part of a fit: if it fails, nothing is fitted, not even what was before."""
        try:
            yield
        except BaseException:
            self._forget()
            raise

    def _read_fit(self, X: Any) -> Floats:
        """(n, d) float64, and the number and names of its columns; values that are no finite numbers are kept."""
        self._forget()
        with self._forgetting(), hiding_values("X"):
            return np.asarray(
                validate_data(self, X, dtype=np.float64, ensure_all_finite=False, ensure_min_samples=0), np.float64
            )

    def _read_points(self, X: Any) -> Floats:
        """(m, d) finite float64 of as many columns as were fitted, with the same names."""
        check_is_fitted(self)
        with hiding_values("X"):
            return np.asarray(validate_data(self, X, dtype=np.float64, reset=False), np.float64)

    def _named(self, points: Floats, plan: Plan) -> Floats | dict[str, Floats]:
        names = getattr(self, "feature_names_in_", None)
        if names is None or not plan.collection.names:
            return points
        return {str(name): points[:, column] for column, name in enumerate(names)}

    def _charged(self, sketch: Sketch, records: Any, labels: object) -> Release:
        columns = list(sketch.plan.collection.names) if isinstance(records, Mapping) else None
        try:
            sketch.add(records, labels=labels, columns=columns)
        except NoUsableRecordsError as error:  # released all the same: a single record would decide it otherwise
            warn(DroppedRecordsWarning(str(error)))
        path = self._ledger_path()
        if path is None:
            return release(sketch)
        with Ledger(path) as opened:
            return release(sketch, ledger=opened)

    def _refuse_both(self) -> None:
        for name in _OF_A_PROPOSAL:
            if getattr(self, name) is not None:
                raise ValueError(f"{name}: not allowed together with plan, which has its own")

    def _needed_epsilon(self) -> object:
        if self.epsilon is None:
            raise ValueError("epsilon: missing, expected the ε that a fit may spend, such as 1.0; or give a plan")
        return self.epsilon

    def _ledger_path(self) -> str | PathLike[str] | None:
        if self.ledger is not None and not isinstance(self.ledger, str | PathLike):
            raise TypeError(
                f"ledger: got {type(self.ledger).__name__}, expected the path of a ledger: "
                "an open ledger cannot be cloned or pickled"
            )
        return self.ledger

    def _column_bounds(self, dim: int) -> dict[str, Any] | list[Any]:
        """A pair for each of d columns: by their names, if they have names."""
        given, names = self.bounds, [str(name) for name in getattr(self, "feature_names_in_", ())]
        if given is None:
            raise RecordError(f"bounds: missing, expected public bounds of each column, or a plan; {WHY_BOUNDS}")
        if isinstance(given, Mapping):
            if not names:
                raise RecordError("bounds: got them by names, but the columns of X have none: give a list of pairs")
            checked = bounds_of(names, given)
            assert isinstance(checked, Mapping), "as it was given"
            return {name: checked[name] for name in names}
        pairs = list(given)
        if len(pairs) == 2 and all(isinstance(end, Real) for end in pairs):
            pairs = [tuple(pairs)] * dim
        if len(pairs) != dim:
            raise RecordError(f"bounds: got {len(pairs)} pairs for {dim} columns, expected one for each")
        return dict(zip(names, pairs, strict=True)) if names else pairs


class KernelEstimator(ReleaseEstimator):
    """An estimator that asks a release for kernel sums: see the classes that are made of it."""

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
        self.bandwidth = bandwidth

    def _check_plan(self, plan: Plan) -> None:
        if isinstance(plan.record, SetRecords):
            raise PlanError("record.kind", "set", "'vector': the estimators take arrays (n, d)")
        if plan.family.name == "paired":
            raise PlanError("sketch.family", "paired", "a family with densities; LinearRegressor fits this plan")

    def _read_queries(self, X: Any) -> Floats | dict[str, Floats]:
        """Queries as the release takes them: by names, where both sides have names."""
        return self._named(self._read_points(X), self.release_.plan)

    def _fit_release(
        self, points: Floats, *, question: str = "density", labels: object = None, classes: Sequence[str] = ()
    ) -> Self:
        """Makes the release, which charges the ledger once; whatever fails before leaves nothing that is fitted."""
        with self._forgetting():
            if self.plan is not None:
                self._refuse_both()
                self._check_plan(self.plan)
                made = self._charged(Sketch(self.plan), self._named(points, self.plan), labels)
            else:
                bounds = self._column_bounds(points.shape[1])
                names = list(bounds) if isinstance(bounds, dict) else []
                table = {name: points[:, i] for i, name in enumerate(names)} if names else points
                made = Release.from_data(
                    table,
                    bounds=bounds,
                    epsilon=self._needed_epsilon(),
                    delta=self.delta,
                    ledger=self._ledger_path(),
                    total_epsilon=self.total_epsilon,
                    question=question,
                    labels=labels,
                    classes=classes,
                    records=self.records,
                    bandwidth=self.bandwidth,
                    name=type(self).__name__,
                )
        self.release_ = made
        self._derive()
        return self

    def _refuse_both(self) -> None:
        super()._refuse_both()
        if self.bandwidth is not None:
            raise ValueError("bandwidth: not allowed together with plan, which has its own")


@contextmanager
def hiding_values(what: str) -> Iterator[None]:
    """A conversion to numbers: if it fails, the error does not show values, which are those of records.

    Raises:
        ValueError: A value is no number or no float64 holds it, or there is no array (n, d) or (n,) of real numbers.
    """
    try:
        yield
    except OverflowError:
        text = _NO_NUMBER
    except ValueError as error:
        found = [text for start, text in _VALUES_SHOWN.items() if str(error).startswith(start)]
        if not found:
            raise
        text = found[0]
    else:
        return
    raise ValueError(f"{what}: {text}. Values are not shown: they are of records") from None


def noise_error(release: Release, *, label: str | None = None) -> float:
    """The standard error of a kernel sum over all records, or those of one class, that is noise alone, in records.

    Of reports it is that of the randomisation far from all records. A huge ε leaves at least a millionth.
    """
    plan, draws = release.plan, release.draws
    classes = 1 if label is not None else max(1, len(plan.classes))
    if plan.privacy.reports is not None:
        draws, classes = max(1, round(release.count)), 1
    error = query.noise_std_error(plan, draws=draws) * math.sqrt(classes)
    return max(error, _ERROR_LEAST)
