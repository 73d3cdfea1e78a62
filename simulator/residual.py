"""Whether a release without its exact sum is the noise that the plan says, and nothing else.

Three things are looked at: the mean and the variance over all counters, and for every client how much of its own vector
is left. A client that is lost leaves −1 of it, one that is counted twice +1.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Counters = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]

#: Beyond so many standard errors something is wrong: a normal quantity gets there once in 500 million looks.
LIMIT: Final = 6.0
_HALF: Final = 0.5


@dataclass(frozen=True)
class Residual:
    """What is left, in standard errors of what is looked at; of noise alone each is a standard normal quantity.

    Attributes:
        variance_ratio: The empirical variance over the expected one.
        variance_z: How far that is from 1.
        mean_z: How far the mean is from 0.
        client_z: The largest part of one client's vector that is left, of all clients.
    """

    variance_ratio: float
    variance_z: float
    mean_z: float
    client_z: float

    @property
    def is_noise(self) -> bool:
        """Whether all is within :data:`LIMIT`; noise alone is not less than once in a million runs of 400 clients."""
        return max(abs(self.variance_z), abs(self.mean_z), abs(self.client_z)) <= LIMIT


def examine(left: Counters, vectors: Sequence[Callable[[], Counters]], variance: float, *, excess: float) -> Residual:
    """Looks at what is left.

    Args:
        left: (D,) the released counters less the exact sum.
        vectors: Each makes the exact counters (D,) of one client, whether it is in the sum or not; one at a time.
        variance: Of the noise of one counter, as the plan and the number of submissions say.
        excess: The noise's excess kurtosis, or more: it widens what the empirical variance may be.
    """
    values, size = left.astype(np.float64), left.size
    std = math.sqrt(variance)
    ratio = float(np.mean(values**2)) / variance
    parts = [_part(values, make()) / std for make in vectors]
    return Residual(
        variance_ratio=ratio,
        variance_z=(ratio - 1) / math.sqrt((2 + excess) / size),
        mean_z=float(values.mean()) / (std / math.sqrt(size)),
        client_z=max(parts, key=abs, default=0.0),
    )


def _part(values: _Floats, vector: Counters) -> float:
    """⟨left, v⟩/‖v‖: of standard deviation one counter's, where there is noise alone."""
    own = vector.astype(np.float64)
    length = math.sqrt(float(own @ own))
    return float(values @ own) / length if length else 0.0


def read_out(left: Counters, doubtful: Mapping[str, Counters]) -> set[str]:
    """Which of these clients' vectors are in what is left: the choice after which least is left, in squares.

    Only who holds the clients' own records can ask so. It tells whether the vector of a client that vanished in the
    middle of its upload came whole: the client does not know, and the release says no more than a number.

    Parts by least squares, rounded, are too rough: clients with alike records take from each other. The best whole
    parts are found by a depth-first search that leaves out what cannot be better (Schnorr and Euchner 1994).

    Args:
        left: (D,) the released counters less the sum of those that are certainly in it.
        doubtful: The exact counters (D,) of those that may be.
    """
    if not doubtful:
        return set()
    matrix = np.stack([vector.astype(np.float64) for vector in doubtful.values()])
    gram = matrix @ matrix.T
    gram += np.eye(len(gram)) * (1e-9 * np.trace(gram) / len(gram))  # of equal vectors either may be the one
    upper: _Floats = np.linalg.cholesky(gram).T.astype(np.float64)
    real: _Floats = np.linalg.solve(gram, matrix @ left.astype(np.float64)).astype(np.float64)
    inside = _nearest(upper, real)
    return {client for client, there in zip(doubtful, inside, strict=True) if there}


def _nearest(upper: _Floats, real: _Floats) -> _Floats:
    """The vector of zeros and ones s with the least ‖U·(s − real)‖², for an upper triangular U (n, n)."""
    chosen, best = np.zeros_like(real), np.zeros_like(real)
    least = math.inf

    def descend(row: int, squares: float) -> None:
        nonlocal best, least
        if row < 0:
            best, least = chosen.copy(), squares
            return
        after = slice(row + 1, None)
        centre = real[row] + float(upper[row, after] @ (real[after] - chosen[after])) / upper[row, row]
        for part in (1.0, 0.0) if centre > _HALF else (0.0, 1.0):
            more = squares + (upper[row, row] * (part - centre)) ** 2
            if more < least:
                chosen[row] = part
                descend(row - 1, more)

    descend(len(real) - 1, 0.0)
    return best
