"""RACE's linear regression (section 4; STORM, Coleman et al. 2020): a surrogate loss read from a sketch of signs."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_STEPS = 150
_PROBES = 16


@dataclass(frozen=True, eq=False)
class SurrogateLoss:
    """Counters of records [x, y] by the signs of p projections a row.

    Attributes:
        directions: (R, p, d + 1).
        counters: (R, 2^p), exact or noisy.
    """

    directions: Floats
    counters: Floats

    @classmethod
    def of(cls, records: Floats, *, rows: int, power: int, rng: np.random.Generator) -> "SurrogateLoss":
        """The exact sketch of (n, d + 1) records, the target last."""
        directions = rng.normal(size=(rows, power, records.shape[1]))
        empty = cls(directions, np.zeros((rows, 2**power)))
        counters = [np.bincount(codes, minlength=2**power) for codes in empty._codes(records)]
        return cls(directions, np.array(counters, np.float64))

    def noised(self, epsilon: float, rng: np.random.Generator) -> "SurrogateLoss":
        """With Laplace noise for ε: one record changes one counter of each of R rows by 1."""
        rows = len(self.counters)
        return SurrogateLoss(
            self.directions, self.counters + rng.laplace(scale=rows / epsilon, size=self.counters.shape)
        )

    def values(self, coefficients: Floats) -> Floats:
        """(m,) losses of (m, d) linear models: the answers at [θ, −1] and at −[θ, −1], added."""
        query = np.column_stack([coefficients, -np.ones(len(coefficients))])
        rows = np.arange(len(self.counters))[:, None]
        codes = self._codes(query)
        opposite = self.counters.shape[1] - 1 - codes  # every sign is the other one
        return np.asarray((self.counters[rows, codes] + self.counters[rows, opposite]).mean(axis=0))

    def minimised(self, rng: np.random.Generator) -> Floats:
        """(d,) coefficients: derivative-free steps from 0, along differences at random points around them.

        Coefficients longer than 1 are shortened. Without that bound the steps end far outside: the loss sees angles
        alone, and falls there because few rows tell large coefficients apart.
        """
        found = np.zeros(self.directions.shape[2] - 1)
        for step in range(_STEPS):
            left = 1 - step / _STEPS
            reach = 0.05 + 0.4 * left
            around = rng.normal(size=(_PROBES, len(found)))
            ahead, behind = np.split(self.values(np.concatenate([found + reach * around, found - reach * around])), 2)
            slope = (ahead - behind) @ around
            found = found - 0.2 * left * slope / max(float(np.linalg.norm(slope)), 1e-12)
            found /= max(float(np.linalg.norm(found)), 1.0)
        return found

    def _codes(self, points: Floats) -> npt.NDArray[np.int64]:
        """(R, n): the signs of each row's projections, as the bits of a number."""
        rows, power, width = self.directions.shape
        signs = (self.directions.reshape(-1, width) @ points.T > 0).reshape(rows, power, len(points))
        return np.asarray(np.einsum("rpn,p->rn", signs.astype(np.int64), 1 << np.arange(power)))
