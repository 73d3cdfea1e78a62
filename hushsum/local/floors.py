"""What the error of an answer is at least, whatever its reports: a few of them, or all alike, have no spread to tell.

Given the hashes, a record's report supports a certain value with a probability from q* to p*, so that n reports of the
mean probability a do so with the variance n·a(1 − a), their records' own means counted in. From S of n that support,
a is taken as (S + 2)/(n + 4) (Agresti and Coull 1998: the middle of what two standard errors do not refute), and never
nearer to 0 or 1 than p* and q* allow: n·min(p*(1 − p*), q*(1 − q*)) is sure, whatever comes.

Of m values of which a record's own can be one, a report of an *exclusive* randomiser (λq* = p*: no report supports two)
supports one with a probability from m·q* to p* + (m − 1)q*. Otherwise they are supported nearly independently, m − 1 of
them with q*. A share of a class is an answer z less the ratio times a count u: αs − γ(s + o), s the support of the
query's bucket, o those of the class's other buckets.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hushsum.noise.randomiser import Randomiser

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Floor:
    """Of one randomiser.

    Attributes:
        hit: p*.
        miss: q*.
        exclusive: Whether no report supports two values.
    """

    hit: float
    miss: float
    exclusive: bool

    @classmethod
    def of(cls, randomiser: Randomiser) -> "Floor":
        """Of a randomiser."""
        exclusive = randomiser.hit == randomiser.ratio * randomiser.miss
        return cls(float(randomiser.hit), float(randomiser.miss), exclusive)

    def of_sum(self, supports: Int64, reports: Int64, values: int) -> Float64:
        """(k,): the least variance of how many of so many values all reports support.

        Args:
            supports: (k,): what was counted.
            reports: (k,): n, those that may support one.
            values: m, at least 1.
        """
        share = self._share(supports, reports, values)
        return np.asarray(reports * self._variance(share, values), np.float64)

    def of_parts(
        self, supports: Int64, others: Int64, reports: Int64, values: int, weight: float, less: Float64
    ) -> Float64:
        """(k,): the least variance of Σ weight·s − less·(s + o), s of one value and o of the others of m.

        Args:
            supports: (k,): Σ s.
            others: (k,): Σ o.
            reports: (k,): n.
            values: m, at least 2.
            weight: α.
            less: (k,): γ.
        """
        one, rest = self._share(supports, reports, 1), self._share(others, reports, values - 1)
        own = weight - less
        variance = own**2 * self._variance(one, 1) + less**2 * self._variance(rest, values - 1)
        if self.exclusive:  # where one is, the others are not
            variance = variance + 2 * own * less * one * rest
        return np.asarray(reports * np.maximum(variance, 0.0), np.float64)

    def _share(self, supports: Int64, reports: Int64, values: int) -> Float64:
        """a; where several may be supported, beyond those that are by chance."""
        chance = (values - 1) * self.miss
        low, high = self.miss, self.hit
        if self.exclusive:
            low, high, chance = values * self.miss, self.hit + chance, 0.0
        share = (supports - reports * chance + 2.0) / (reports + 4.0)
        return np.clip(share, min(low, 0.5), max(high, 0.5))

    def _variance(self, share: Float64, values: int) -> Float64:
        more = 0.0 if self.exclusive else (values - 1) * self.miss * (1.0 - self.miss)
        return np.asarray(share * (1.0 - share) + more, np.float64)
