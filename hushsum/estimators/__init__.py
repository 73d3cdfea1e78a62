"""Estimators in scikit-learn's form over one release, and its modes and samples (extra ``analyst``).

An estimator is made from a release (``from_release``), or fitted from records. A fit makes a plan from public bounds,
or takes one, sketches the records, draws one release, charges the ledger, and forgets the records. **Every fit makes
a new release and charges the ledger**: each fold of a cross-validation, each candidate of a search, each refit. All
else reads the release and costs no privacy.

**A score is no release.** ``model.score``, a cross-validation and a search compare predictions with private records:
their results, and a parameter that is chosen by them, are outputs without noise, whatever the fits have charged. Choose
parameters from public knowledge or on public records.

    >>> from hushsum.estimators import KernelClassifier
    >>> model = KernelClassifier(epsilon=1, bounds=(0, 255), classes=[1, 2], ledger="ledger.db").fit(X, y)
    >>> model.predict(other)
    >>> model.release_.save("today.hush")

Nothing else imports this package: scikit-learn is loaded with it.
"""

from hushsum.estimators.classifier import KernelClassifier
from hushsum.estimators.density import KernelDensity
from hushsum.estimators.linear import LinearClassifier, LinearRegressor
from hushsum.estimators.modes import Modes, find_modes
from hushsum.estimators.outliers import KernelOutlierDetector
from hushsum.estimators.sampling import sample

__all__ = [
    "KernelClassifier",
    "KernelDensity",
    "KernelOutlierDetector",
    "LinearClassifier",
    "LinearRegressor",
    "Modes",
    "find_modes",
    "sample",
]
