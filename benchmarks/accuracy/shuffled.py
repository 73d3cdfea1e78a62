"""Shuffled reports beside bit sums: the setting of Wagner 2025, at the same (ε, δ) for one user in the centre.

"Learning from End User Data with Shuffled Differential Privacy over Kernel Densities" (ICLR 2025): a user's record
becomes I features of an LSQ family, here √2·cos(ω·x + β), each rounded at random to one of its ends, and each bit goes
into a sum of its own that a shuffler protects. All I bits of a user are one unit, so that (ε, δ) is shared by them.
Errors are those of a density, and follow in closed form; tests simulate both kinds of bit sums.

* Ours: one report a user (k-rr or projective with the W of least error, or one bit of one cosine or sine), local
  ratio λ the largest whose amplified ε (Feldman, McMillan, Talwar 2021) is that of the centre. Rows or pairs are free.
* Bit sums by randomised response: I bits a user, each with a ratio that is amplified to ε' at δ/(2I); I times (ε', δ/
  (2I)) is (ε, δ) by the advanced composition of Kairouz, Oh and Viswanath 2015, at slack δ/2, or by basic composition.
* Idealised bit sums: the noise of a central geometric mechanism on each sum, as the protocols with several messages
  reach or nearly reach (Ghazi et al. 2020 and 2023, pure; Ghazi et al. 2021, "almost a single message"); I of them
  are composed by zCDP.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from benchmarks.accuracy.data import data_sets
from benchmarks.accuracy.modes import DELTA
from benchmarks.report import Row
from hushsum.errors import PlanError
from hushsum.local.predicted_error import Setting, best_width, report_variance
from hushsum.noise.projective_geometry import Projective, projective_order
from hushsum.noise.randomized_response import KRR
from hushsum.privacy.mechanisms import RATIO_MIN
from hushsum.privacy.shuffle_amplification import is_amplified_to
from hushsum.privacy.zcdp import supports

Floats = npt.NDArray[np.float64]

NUMBERS: Final = (10_000, 100_000, 1_000_000)
CENTRAL: Final = (0.25, 0.5, 1.0, 2.0)
#: Rows or pairs of ours, of which a report names one; features of theirs, of which a user sends a bit each.
MOST: Final = 2**14
FEATURES: Final = tuple(2**k for k in range(15))
RESPONSE: Final = "bit sums, randomised response"
IDEALISED: Final = "bit sums, idealised"
_SIGMA: Final = 0.01
_DRAWN: Final = 4096  # features, of which the spread is measured
_GRIDS: Final = 400
_RECORDS: Final = 5000
_QUERIES: Final = 100
_HALVINGS: Final = 30
_ROWS: Final = 1024  # a projective report has to fit with so many
_SEED: Final = 20250424
#: I to the ε of one bit or sum, and a variance.
_Sums = Callable[[int], tuple[float, float]]


@dataclass(frozen=True)
class Place:
    """Where densities are asked for: moments of the kernel, and what one row, pair or feature is off by.

    Attributes:
        mean: k̄.
        square: The mean of k².
        rows: The variance of a density that one row of the hashed family gives, without noise.
        pairs: Of one pair of the fourier family.
        features: Of one feature √2·cos(ω·x + β).
    """

    mean: float
    square: float
    rows: float
    pairs: float
    features: float

    @classmethod
    def of(cls, records: Floats, queries: Floats) -> Self:
        """Of the laplacian kernel, measured with records, queries, and public draws of their own."""
        kernels, rng = _laplacian(records, queries), np.random.default_rng(_SEED)
        pairs, features = _spreads(records, queries, rng)
        rows = _rows_spread(records, queries, rng)
        return cls(float(kernels.mean()), float(np.square(kernels).mean()), rows, pairs, features)


def measure_shuffled(*, quick: bool) -> list[Row]:
    """One row for each protocol, n and ε: the standard error of a density, on taxi with the laplacian kernel."""
    rows: list[Row] = []
    for data in data_sets(["taxi"], quick=quick):
        some = np.random.default_rng(_SEED).permutation(data.size)[:_RECORDS]
        place = Place.of(data.records[some], data.queries[:_QUERIES])
        for n in NUMBERS[:1] if quick else NUMBERS:
            for epsilon in CENTRAL[2:3] if quick else CENTRAL:
                known: Row = {"data": data.name, "n": n, "epsilon": epsilon, "mean density": place.mean}
                rows += [known | row for row in (*_ours(n, epsilon, place), *_theirs(n, epsilon, place))]
    return rows


def _ours(n: int, epsilon: float, place: Place) -> Iterator[Row]:
    ratio = local_ratio(n, epsilon, DELTA)
    more = place.mean - place.square  # which of near and far a row makes of a record
    found = {
        "k-rr": (*_k_rr(ratio, place.mean), more, place.rows),
        "projective": (*_projective(ratio, place.mean), more, place.rows),
        "one-bit": (1, 2 * _stretch(ratio), -place.square, place.pairs),
    }
    for name, (size, variance, other, spread) in found.items():
        noise = (variance + other) / n
        error = math.sqrt(noise + spread / MOST)
        yield _row(name, math.log(ratio), size, 1, math.sqrt(noise), error)


def _theirs(n: int, epsilon: float, place: Place) -> Iterator[Row]:
    for name, one in ((RESPONSE, response_sums(n, epsilon)), (IDEALISED, idealised_sums(epsilon, n))):
        found = [(features, *one(features)) for features in FEATURES]
        features, each, variance = min(found, key=lambda by: by[2] + place.features / by[0])
        error = math.sqrt(variance + place.features / features)
        yield _row(name, each, features, features, math.sqrt(variance), error)


def _row(protocol: str, local: float, size: int, messages: int, noise: float, error: float) -> Row:
    return {
        "protocol": protocol,
        "epsilon of one": local,
        "size": size,
        "messages": messages,
        "noise": noise,
        "error": error,
    }


def local_ratio(n: int, epsilon: float, delta: Fraction) -> Fraction:
    """The largest λ of one report that promises ε in the centre: by amplification, or because ln λ is that small."""
    plain = Fraction(math.floor(math.exp(epsilon) * 10**6), 10**6)
    high, wanted = math.log(n), Fraction(repr(epsilon))

    low = epsilon
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if is_amplified_to(_ratio(middle), n, wanted, delta) else (low, middle)
    return max(plain, _ratio(low))


def _ratio(local: float) -> Fraction:
    return max(RATIO_MIN, Fraction(f"{math.exp(local):.6g}"))


def _stretch(ratio: Fraction) -> float:
    return float((ratio + 1) / (ratio - 1)) ** 2


def _k_rr(ratio: Fraction, mean: float) -> tuple[int, float]:
    most = 2 * best_width(ratio) + 2
    return _least({width: Setting.of(KRR(ratio, width), width) for width in range(2, most + 1)}, mean)


def _projective(ratio: Fraction, mean: float) -> tuple[int, float]:
    laws = {}
    for width in (2**k for k in range(1, 11)):
        field = projective_order(width, ratio, rows=_ROWS)
        laws[width] = Setting.of(Projective(ratio, width, field), width)
    return _least(laws, mean)


def _least(laws: dict[int, Setting], mean: float) -> tuple[int, float]:
    return min(((width, report_variance(of, near=mean)) for width, of in laws.items()), key=lambda found: found[1])


def response_sums(n: int, epsilon: float) -> _Sums:
    """By randomised response: I to the local ε of one bit, and the variance of a density beside that of features."""

    def one(features: int) -> tuple[float, float]:
        each = max(epsilon / features, _composed(features, epsilon, float(DELTA) / 2))
        ratio = local_ratio(n, each, DELTA / (2 * features))
        return math.log(ratio), response_variance(float(ratio), features, n)

    return one


def idealised_sums(epsilon: float, n: int) -> _Sums:
    """With central geometric noise on each sum: I to the ε of one sum, and the variance of a density."""
    rho = _rho(epsilon)

    def one(features: int) -> tuple[float, float]:
        each = max(epsilon / features, math.sqrt(2 * rho / features))
        return each, idealised_variance(each, features, n)

    return one


def response_variance(ratio: float, features: int, n: int) -> float:
    """Of a density, beside the spread of features: I bits a user, rounded to ±√2 and randomised with ratio λ.

    Each reads 2·((λ + 1)/(λ − 1))²/n, less the square of its mean, which is left out; queries weigh it with √2·cos,
    whose square is 1 on average.
    """
    return 2 * ((ratio + 1) / (ratio - 1)) ** 2 / (features * n)


def idealised_variance(epsilon: float, features: int, n: int) -> float:
    """The same with geometric noise of ε on the sum of each feature's bits, in place of responses: 8·Var(noise)/n²."""
    ratio = math.exp(-epsilon)
    noise = 2 * ratio / (1 - ratio) ** 2
    return (2 / n + 8 * noise / n**2) / features


def _composed(features: int, epsilon: float, slack: float) -> float:
    """The ε' of which I are ε at a slack: I·ε'(e^ε' − 1)/(e^ε' + 1) + ε'·√(2I·ln(1/slack)) = ε."""
    low, high = 0.0, epsilon
    for _ in range(_HALVINGS + 30):
        each = (low + high) / 2
        total = features * each * math.tanh(each / 2) + each * math.sqrt(2 * features * math.log(1 / slack))
        low, high = (each, high) if total <= epsilon else (low, each)
    return low


@lru_cache
def _rho(epsilon: float) -> float:
    """The zCDP that supports (ε, δ)."""
    low, high = 0.0, epsilon
    for _ in range(_HALVINGS):
        rho = (low + high) / 2
        try:
            holds = supports(Fraction(f"{rho:.6g}"), epsilon=Fraction(str(epsilon)), delta=DELTA)
        except PlanError:
            holds = False
        low, high = (rho, high) if holds else (low, rho)
    return low


def features_of(points: Floats, count: int, rng: np.random.Generator) -> Callable[[Floats], Floats]:
    """√2·cos(ω·x + β) of the laplacian kernel: (n, d) to (n, I)."""
    frequencies = rng.standard_cauchy((points.shape[1], count)) / _SIGMA
    phases = rng.uniform(0, 2 * math.pi, count)
    middle = points.mean(axis=0)
    return lambda places: np.asarray(math.sqrt(2) * np.cos((places - middle) @ frequencies + phases), np.float64)


def _spreads(records: Floats, queries: Floats, rng: np.random.Generator) -> tuple[float, float]:
    """Variances of what one pair, and one feature, says of a density, over draws, averaged over queries."""
    middle = records.mean(axis=0)
    frequencies = rng.standard_cauchy((records.shape[1], _DRAWN)) / _SIGMA
    waves = np.exp(1j * ((records - middle) @ frequencies)).mean(axis=0)
    pairs = (waves * np.exp(-1j * ((queries - middle) @ frequencies))).real
    embed = features_of(records, _DRAWN, rng)
    features = embed(records).mean(axis=0) * embed(queries)
    return float(pairs.var(axis=1).mean()), float(features.var(axis=1).mean())


def _rows_spread(records: Floats, queries: Floats, rng: np.random.Generator) -> float:
    """The same of one row of random binning, whose bins are given numbers of their own."""
    shares = np.empty((_GRIDS, len(queries)))
    for share in shares:
        pitch = rng.gamma(2.0, _SIGMA, records.shape[1])
        offset = rng.uniform(0, pitch)
        bins, asked = (np.floor((places - offset) / pitch).astype(np.int64) for places in (records, queries))
        share[:] = (bins[:, None, :] == asked[None]).all(axis=2).mean(axis=0)
    return float(shares.var(axis=0).mean())


def _laplacian(records: Floats, queries: Floats) -> Floats:
    apart = np.abs(records[:, None, :] - queries[None]).sum(axis=2)
    return np.asarray(np.exp(-apart / _SIGMA), np.float64)
