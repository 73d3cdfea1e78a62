"""A mechanism with its exact parameters: how the noise of a plan is distributed."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from types import MappingProxyType
from typing import Final, Self

from hushsum.canonical import real_text
from hushsum.errors import GuaranteeError, PlanError
from hushsum.noise import SAMPLERS, Sampler, discrete_gaussian, discrete_laplace
from hushsum.noise.polya import PolyaShare
from hushsum.privacy.exact_numbers import notch_of
from hushsum.privacy.factorisation import (
    BufferedToeplitz,
    Factorisation,
    SignedDigitTree,
    factorisation_from_table,
)
from hushsum.privacy.local_mode import PROJECTIVE, RANDOMISERS
from hushsum.privacy.relations import is_positive
from hushsum.schema import Table

DISCRETE_LAPLACE: Final = "discrete-laplace"
DISCRETE_GAUSSIAN: Final = "discrete-gaussian"
MECHANISMS: Final = (DISCRETE_LAPLACE, DISCRETE_GAUSSIAN, *RANDOMISERS)

#: The count counters of 10^9 records then fit 63 bits; calibration asks for far less.
COUNT_SCALE_MAX: Final = 2**33

#: Shares of noise, one a client: as many as a cohort can have.
SURVIVORS_MAX: Final = 10_000

#: The order of a field of ``projective`` reports.
FIELD_MAX: Final = 2**31

#: The most ε of one report: beyond it, one is hardly ever random, and the integers that it is drawn with grow.
REPORT_EPSILON_MAX: Final = 20
#: Likelihood ratios of 6 significant digits: the first above 1, and the last that is at most e^20.
RATIO_MIN: Final = Fraction(100_001, 100_000)
RATIO_MAX: Final = Fraction(485_165_000)

#: The least and the largest parameter of each noise, powers of two: what its sampler draws and a counter can hold.
SCALES: Final[Mapping[str, tuple[Fraction, Fraction]]] = MappingProxyType(
    {
        DISCRETE_LAPLACE: (discrete_laplace.SCALE_MIN, Fraction(discrete_laplace.SCALE_MAX)),
        DISCRETE_GAUSSIAN: (discrete_gaussian.SCALE_MIN, Fraction(discrete_gaussian.SCALE_MAX)),
    }
)


@dataclass(frozen=True)
class Mechanism:
    """Independent noise of one distribution on every counter, count counters included; or a randomiser of reports.

    Args:
        name: ``discrete-laplace`` or ``discrete-gaussian``; or of reports ``k-rr``, ``projective`` or ``one-bit``.
        scale: Its exact parameter: b with P(k) ∝ e^(−|k|/b), or σ² with P(k) ∝ e^(−k²/2σ²). Of a randomiser λ, of at
            most 6 significant digits: no report is more than λ times as likely for one record as for another.
        count_scale: c, by which one record moves the count counter; from 1 to 2^33. 0: there is no count counter, and
            the sums of rows tell the number of records; for families of which every row sums to it. Of a randomiser 1.
        clients_scale: b of the discrete Laplace noise on the number of clients that decides whether a window is
            released; None: nothing noised decides it.
        honest_survivors: h, the shares of clients that the noise of the scale is made of; None: it is drawn whole.
        field: Of ``projective`` alone: the order of its field, a prime.
        factorisation: How the noise of cumulative releases is made of draws of this distribution: buffers with
            ``discrete-gaussian``, a tree with ``discrete-laplace``; None: each release has one draw of its own.

    Raises:
        PlanError: A parameter is out of range; it names the key under ``privacy.mechanism``.
    """

    name: str
    scale: Fraction
    count_scale: int
    clients_scale: Fraction | None = None
    honest_survivors: int | None = None
    field: int | None = None
    factorisation: Factorisation | None = None

    def __post_init__(self) -> None:
        if self.name not in MECHANISMS:
            raise PlanError("privacy.mechanism.name", self.name, " or ".join(map(repr, MECHANISMS)))
        _check_scale("scale", self.scale, self.name)
        if type(self.count_scale) is not int or not 0 <= self.count_scale <= COUNT_SCALE_MAX:
            expected = f"an integer from 0 to {COUNT_SCALE_MAX}"
            raise PlanError("privacy.mechanism.count_scale", self.count_scale, expected)
        if self.clients_scale is not None:
            _check_scale("clients_scale", self.clients_scale, DISCRETE_LAPLACE)
        h = self.honest_survivors
        if h is not None and (type(h) is not int or not 1 <= h <= SURVIVORS_MAX):
            raise PlanError("privacy.mechanism.honest_survivors", h, f"an integer from 1 to {SURVIVORS_MAX}")
        self._check_randomiser()
        self._check_factorisation()

    def _check_factorisation(self) -> None:
        made = self.factorisation
        if made is None:
            return
        kind = BufferedToeplitz if self.name == DISCRETE_GAUSSIAN else SignedDigitTree
        if self.randomises or not isinstance(made, kind):
            expected = "theta, omega and bits with 'discrete-gaussian', blocks with 'discrete-laplace', else no value"
            raise PlanError("privacy.mechanism.factorisation", made.to_fields(), expected)
        for key in ("clients_scale", "honest_survivors"):
            if (came := getattr(self, key)) is not None:
                raise PlanError(f"privacy.mechanism.{key}", came, "no value with a factorisation")
        if isinstance(made, BufferedToeplitz) and self.scale * 4**made.bits > discrete_gaussian.SCALE_MAX:
            bits = discrete_gaussian.SCALE_MAX.bit_length() - 1 - 2 * made.bits
            expected = f"at most 2^{bits} with bits {made.bits}: sums of noise must fit 64 bits"
            raise PlanError("privacy.mechanism.scale", real_text(self.scale), expected)

    def _check_randomiser(self) -> None:
        field = self.field
        if self.name != PROJECTIVE:
            if field is not None:
                raise PlanError("privacy.mechanism.field", field, f"no value: only for {PROJECTIVE!r}")
        elif type(field) is not int or not 2 <= field <= FIELD_MAX:
            raise PlanError("privacy.mechanism.field", field, f"a prime from 2 to {FIELD_MAX} with {PROJECTIVE!r}")
        if not self.randomises:
            return
        if self.count_scale != 1:
            raise PlanError(
                "privacy.mechanism.count_scale", self.count_scale, f"1 with {self.name!r}: reports are counted"
            )
        for key in ("clients_scale", "honest_survivors"):
            if (came := getattr(self, key)) is not None:
                raise PlanError(f"privacy.mechanism.{key}", came, f"no value with {self.name!r}: only for noise")

    @property
    def randomises(self) -> bool:
        """Whether it is a randomiser of reports, and no noise on counters."""
        return self.name in RANDOMISERS

    def noise(self) -> Sampler:
        """The distribution of one counter's noise; of a secure sum, that of exactly h shares together.

        Of a buffered Toeplitz factorisation it is that of one draw, in units of 2^−k of a counter.

        Raises:
            GuaranteeError: It is a randomiser of reports: no noise is added to counters.
        """
        if self.randomises:
            raise GuaranteeError(
                f"{self.name} randomises each report on its device: it has no noise to add to counters"
            )
        return SAMPLERS[self.name](self.scale * self._units)

    @property
    def _units(self) -> int:
        """The square of how many units of a draw are one of a counter."""
        return 4**self.factorisation.bits if isinstance(self.factorisation, BufferedToeplitz) else 1

    @cached_property
    def noise_variance(self) -> float:
        """That of :meth:`noise`, on one counter; of cumulative releases that of one draw."""
        return self.noise().variance / self._units

    def share(self) -> Sampler:
        """The sampler of one client's share of a counter's noise in a secure sum (docs/explanation/proofs/shares.md).

        h Pólya shares are discrete Laplace noise of the scale, exactly; h discrete Gaussian shares of σ²/h are about
        that of σ² (Kairouz, Liu and Steinke 2021).

        Raises:
            GuaranteeError: The noise of this mechanism is not made of shares.
        """
        if self.honest_survivors is None:
            raise GuaranteeError(f"{self.name} noise without honest_survivors is drawn whole, not in shares of clients")
        if self.name == DISCRETE_LAPLACE:
            return PolyaShare(self.scale, self.honest_survivors)
        return SAMPLERS[DISCRETE_GAUSSIAN](self.scale / self.honest_survivors)

    def clients_noise(self) -> Sampler | None:
        """The sampler of the noise on a window's number of clients; None where no noised number decides anything."""
        return None if self.clients_scale is None else SAMPLERS[DISCRETE_LAPLACE](self.clients_scale)

    def to_fields(self) -> dict[str, object]:
        """Strings and integers for the canonical encoding; the last four only where they are set."""
        fields: dict[str, object] = {
            "name": self.name,
            "scale": real_text(self.scale),
            "count_scale": self.count_scale,
        }
        if self.clients_scale is not None:
            fields["clients_scale"] = real_text(self.clients_scale)
        if self.honest_survivors is not None:
            fields["honest_survivors"] = self.honest_survivors
        if self.field is not None:
            fields["field"] = self.field
        if self.factorisation is not None:
            fields["factorisation"] = self.factorisation.to_fields()
        return fields

    @classmethod
    def from_table(cls, table: Table) -> Self:
        """Reads what :meth:`to_fields` wrote, or what stands in a plan file.

        Raises:
            PlanError: A key is missing, unknown or out of range.
        """
        expected = "an exact rational above 0"
        name = table.choice("name", built=MECHANISMS)
        scale = table.real("scale", expected=expected, above=0)
        count_scale = table.integer("count_scale", low=0)
        clients = table.real("clients_scale", expected=expected, above=0) if table.has("clients_scale") else None
        survivors = table.integer("honest_survivors", low=1) if table.has("honest_survivors") else None
        field = table.integer("field", low=2, high=FIELD_MAX) if table.has("field") else None
        made = table.optional_table("factorisation")
        factorisation = None if made is None else factorisation_from_table(made)
        table.finish()
        return cls(name, scale, count_scale, clients, survivors, field, factorisation)


def is_ratio(ratio: Fraction) -> bool:
    """Whether it is a λ that a randomiser takes: above 1, at most e^20, of at most 6 significant digits."""
    return RATIO_MIN <= ratio <= RATIO_MAX and (ratio / notch_of(ratio)).denominator == 1


def scale_fits(name: str, scale: Fraction) -> bool:
    """Whether the parameter of a noise lies within :data:`SCALES`."""
    low, high = SCALES[name]
    return low <= scale <= high


def scales_text(name: str) -> str:
    """That range, as ``from 2^-48 to 2^48``."""
    low, high = SCALES[name]
    return f"from 2^{1 - low.denominator.bit_length()} to 2^{high.numerator.bit_length() - 1}"


def _check_scale(key: str, scale: Fraction, name: str) -> None:
    if name in RANDOMISERS:
        if not is_positive(scale) or not is_ratio(scale):
            came = real_text(scale) if isinstance(scale, Fraction) else scale
            expected = f"a likelihood ratio from 1.00001 to {RATIO_MAX} of at most 6 significant digits"
            raise PlanError(f"privacy.mechanism.{key}", came, expected)
        return
    if not is_positive(scale) or not scale_fits(name, scale):
        came = real_text(scale) if isinstance(scale, Fraction) else scale
        raise PlanError(f"privacy.mechanism.{key}", came, f"an exact rational {scales_text(name)}")
