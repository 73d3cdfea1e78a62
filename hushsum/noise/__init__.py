"""Exact samplers of integer noise. Nothing outside this package draws private noise.

A sampler is a frozen value that one exact rational decides; what it draws depends on that and on the entropy alone.
``SAMPLERS`` names them all, and ``SHARES`` what a client of a secure sum draws of each: the conformance suite in
``tests/checks`` takes them from there. ``RANDOMISERS`` and ``OneBit`` answer for one record of a local report.
"""

from collections.abc import Callable, Mapping
from fractions import Fraction
from types import MappingProxyType
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from hushsum import compiled
from hushsum.entropy import Entropy
from hushsum.noise.discrete_gaussian import DiscreteGaussian
from hushsum.noise.discrete_laplace import DiscreteLaplace
from hushsum.noise.one_bit import OneBit
from hushsum.noise.polya import PolyaShare
from hushsum.noise.projective_geometry import Projective, projective_order
from hushsum.noise.randomiser import RANDOMISERS, Randomiser
from hushsum.noise.randomized_response import KRR

__all__ = [
    "KRR",
    "RANDOMISERS",
    "SAMPLERS",
    "SHARES",
    "DiscreteGaussian",
    "DiscreteLaplace",
    "OneBit",
    "PolyaShare",
    "Projective",
    "Randomiser",
    "Sampler",
    "projective_order",
    "warm_up",
]


class Sampler(Protocol):
    """Symmetric integer noise of an exactly stated distribution."""

    @property
    def scale(self) -> Fraction:
        """The exact parameter, above 0."""
        ...

    @property
    def variance(self) -> float:
        """Of one draw."""
        ...

    @property
    def std(self) -> float:
        """The standard deviation of one draw."""
        ...

    @property
    def block_draws(self) -> int:
        """How many draws are made at once: speed alone, it never changes what is drawn."""
        ...

    def log_probability(self, k: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """The natural logarithm of P(k) of each element, in float64; for tests and error bars, never for drawing."""
        ...

    def sample(self, size: int, entropy: Entropy) -> npt.NDArray[np.int64]:
        """(size,) int64, independent draws."""
        ...


SAMPLERS: Final[Mapping[str, Callable[[Fraction], Sampler]]] = MappingProxyType(
    {"discrete-laplace": DiscreteLaplace, "discrete-gaussian": DiscreteGaussian}
)

#: One of h shares of the noise of that name and scale. Discrete Laplace noise is the sum of h Pólya shares, exactly; h
#: discrete Gaussians of σ²/h sum to nearly the one of σ² (:mod:`hushsum.privacy.distributed_gaussian` says how nearly).
SHARES: Final[Mapping[str, Callable[[Fraction, int], Sampler]]] = MappingProxyType(
    {"discrete-laplace": PolyaShare, "discrete-gaussian": lambda scale, shares: DiscreteGaussian(scale / shares)}
)


def warm_up() -> None:
    """Makes compiled loops ready where they are used: a second once after an install, then a fraction of one.

    Raises:
        AccelerationError: The environment asks for loops that cannot be compiled.
    """
    if compiled.enabled():
        from hushsum.noise import (
            gaussian_envelope_loops,
            geometric_digits_loops,
            projective_geometry_loops,
            randomiser_loops,
        )

        geometric_digits_loops.warm_up()
        gaussian_envelope_loops.warm_up()
        projective_geometry_loops.warm_up()
        randomiser_loops.warm_up()
