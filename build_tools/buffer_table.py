"""Writes ``hushsum/privacy/buffer_table.py``: for each horizon three buffers with the least noise of the last step.

``python -m build_tools.buffer_table`` needs scipy, and takes a few minutes. The table decides how much noise a plan
has, and nothing about its privacy: what a plan is charged is computed from the integers that it holds.
"""

from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize

from hushsum.privacy.factorisation import UNIT, BufferedToeplitz

_HORIZONS: Final = tuple(2**power for power in range(2, 21))
_FIRST: Final = 2**14  # where the search starts, from the guess below; neighbours start from its result
_GUESS: Final = np.log([1e-4, 4e-3, 0.12, 0.015, 0.068, 0.33])  # of 1 - theta, then of omega
_REFUSED: Final = 1e3
_TARGET: Final = Path(__file__).parents[1] / "hushsum" / "privacy" / "buffer_table.py"
_HEAD: Final = '''"""Buffers of linear Toeplitz factorisations; ``python -m build_tools.buffer_table`` writes it."""

from typing import Final

#: (horizon, theta, omega) with theta and omega in units of 2^-20; a horizon between two takes the larger one's.
BUFFERS: Final[tuple[tuple[int, tuple[int, ...], tuple[int, ...]], ...]] = (
'''

Floats = npt.NDArray[np.float64]


def _loss(logs: Floats, horizon: int) -> float:
    """The logarithm of the noise of the last step, in standard deviations that one window would have."""
    tau, omega = np.exp(logs[:3]), np.exp(logs[3:])
    if tau.max() >= 1 or omega.sum() > 1 or np.diff(np.sort(tau)).min() < 1e-3 * tau.min():
        return _REFUSED
    poles = np.concatenate([[0.0], _poles(tau, omega)])
    rest = [1 / (u * np.sum(omega / (u - tau) ** 2)) for u in poles[1:]]
    shares = np.concatenate([[1 / (1 + np.sum(omega / tau))], rest])
    rows = _quadratic(poles, shares, horizon)
    columns = 1 + _quadratic(tau, omega, horizon - 1)
    return 0.5 * float(np.log(rows * columns))


def _poles(tau: Floats, omega: Floats) -> Floats:
    """Where 1 = sum of omega/(u - tau): one root above each tau, by bisection."""
    order = np.argsort(tau)
    tau, omega = tau[order], omega[order]
    found = []
    for index, start in enumerate(tau):
        low, high = start, tau[index + 1] if index + 1 < len(tau) else start + omega.sum() + 1
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (middle, high) if np.sum(omega / (middle - tau)) > 1 else (low, middle)
        found.append((low + high) / 2)
    return np.array(found)


def _quadratic(rates: Floats, weights: Floats, terms: int) -> float:
    """The sum of (sum of weights·(1 - rates)^j)^2 over j below ``terms``."""
    product = 1 - (1 - rates[:, None]) * (1 - rates[None, :])
    product = np.where(product == 0, 1e-300, product)
    sums = -np.expm1(terms * np.log1p(-np.minimum(product, 1 - 1e-16))) / product
    sums = np.where(product == 1e-300, float(terms), sums)
    return float(np.sum(weights[:, None] * weights[None, :] * sums))


def _minimum(horizon: int, start: Floats) -> Floats:
    options = {"maxiter": 20_000, "maxfev": 20_000, "xatol": 1e-10, "fatol": 1e-13, "adaptive": True}
    for _ in range(4):
        start = minimize(_loss, start, (horizon,), method="Nelder-Mead", options=options).x
    return start


def _rounded(logs: Floats) -> BufferedToeplitz:
    tau = [max(1, round(value * UNIT)) for value in np.exp(logs[:3])]
    omega = [max(1, round(value * UNIT)) for value in np.exp(logs[3:])]
    pairs = sorted((UNIT - t, w) for t, w in zip(tau, omega, strict=True))
    return BufferedToeplitz(tuple(theta for theta, _ in pairs), tuple(w for _, w in pairs))


def main() -> None:
    """Searches each horizon from its neighbour's result, and writes the file."""
    found = {_FIRST: _minimum(_FIRST, _GUESS)}
    at = _HORIZONS.index(_FIRST)
    for near, horizon in zip(_HORIZONS[at:], _HORIZONS[at + 1 :], strict=False):
        found[horizon] = _minimum(horizon, found[near])
    for near, horizon in zip(_HORIZONS[at::-1], _HORIZONS[at - 1 :: -1], strict=False):
        found[horizon] = _minimum(horizon, found[near])
    lines = []
    for horizon in _HORIZONS:
        made = _rounded(found[horizon])
        lines.append(f"    ({horizon}, {made.theta}, {made.omega}),\n")
        print(horizon, made, made.worst_error(horizon))
    _TARGET.write_text(_HEAD + "".join(lines) + ")\n", encoding="utf-8")


if __name__ == "__main__":
    main()
