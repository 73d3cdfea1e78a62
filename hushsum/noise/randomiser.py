"""What a randomiser of local reports offers, and all that answer one value of many."""

from collections.abc import Callable, Mapping
from fractions import Fraction
from types import MappingProxyType
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from hushsum.entropy import Entropy
from hushsum.noise.projective_geometry import Projective
from hushsum.noise.randomized_response import KRR


class Randomiser(Protocol):
    """A randomised response to one value of K, of exactly stated probabilities."""

    @property
    def ratio(self) -> Fraction:
        """λ: the largest likelihood ratio of an output, over all pairs of values."""
        ...

    @property
    def inputs(self) -> int:
        """K."""
        ...

    @property
    def outputs(self) -> int:
        """How many reports there are."""
        ...

    @property
    def hit(self) -> Fraction:
        """p*: that a report supports the value it was made of."""
        ...

    @property
    def miss(self) -> Fraction:
        """q*: that a report supports a certain other value."""
        ...

    @property
    def variance_of_miss(self) -> Fraction:
        """q*(1 − q*)/(p* − q*)²: of a report's estimate for another value."""
        ...

    def probability(self, value: int, output: int) -> Fraction:
        """Of an output, exactly; value −1: of an unusable record."""
        ...

    def randomise(self, values: npt.NDArray[np.int64], entropy: Entropy) -> npt.NDArray[np.int64]:
        """(n,) outputs of (n,) values; −1 is answered uniformly."""
        ...

    def support(self, counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """(R, K) how many reports support each value, of (R, outputs) counts of reports."""
        ...


def _k_rr(ratio: Fraction, inputs: int, field: int | None) -> KRR:
    if field is not None:
        raise ValueError("k-ary response has no field")
    return KRR(ratio, inputs)


def _projective(ratio: Fraction, inputs: int, field: int | None) -> Projective:
    if field is None:
        raise ValueError("a projective response requires field, a prime")
    return Projective(ratio, inputs, field)


#: Those that answer one value of many, by the name a plan gives them: of λ, K and, where it takes one, the field.
#: The response to a number of a range is :class:`hushsum.noise.one_bit.OneBit`, of another form.
RANDOMISERS: Final[Mapping[str, Callable[[Fraction, int, int | None], Randomiser]]] = MappingProxyType(
    {"k-rr": _k_rr, "projective": _projective}
)
