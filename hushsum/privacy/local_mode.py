"""Local mode (``[privacy.local]``, docs/explanation/local-mode.md): form, randomiser, and the size of a report."""

from dataclasses import dataclass
from typing import Final, Self

from hushsum.errors import PlanError
from hushsum.noise.projective_geometry import dimension_of, points
from hushsum.schema import Table

SILO: Final = "silo"
REPORT: Final = "report"
FORMS: Final = (SILO, REPORT)

K_RR: Final = "k-rr"
PROJECTIVE: Final = "projective"
ONE_BIT: Final = "one-bit"
RANDOMISERS: Final = (K_RR, PROJECTIVE, ONE_BIT)

#: The most reports that a shuffled batch may be said to hold.
SHUFFLE_MAX: Final = 2**21
#: Bits of a report: rows and outputs are counted, one counter each.
REPORT_BITS_MAX: Final = 31
_ONE_BIT_OUTPUTS: Final = 4  # 2·(0 cosine, 1 sine) + bit
_BITS: Final = 8
#: What each family's records are randomised with; the first is the default.
_RANDOMISERS_OF: Final = {"hashed": (K_RR, PROJECTIVE), "fourier": (ONE_BIT,)}
_MEMOISE: Final = {"true": True, "false": False}  # as the canonical encoding writes them, which has no booleans
_OF_REPORTS: Final = ("randomiser", "memoise", "shuffle_min")


@dataclass(frozen=True)
class ReportSpace:
    """What a record's report is drawn from, by the family alone.

    Attributes:
        family: Its name.
        rows: R, of which a report names one, uniformly; of ``fourier`` the pairs.
        buckets: W of one row.
        classes: Labels; 0: none.
    """

    family: str
    rows: int
    buckets: int
    classes: int

    @property
    def inputs(self) -> int:
        """K, the values of one row that a randomiser tells apart: pairs of a class and a bucket."""
        return max(1, self.classes) * self.buckets


@dataclass(frozen=True)
class Reports:
    """How one record becomes a report, as a value that a claim holds.

    Attributes:
        randomiser: ``k-rr``, ``projective`` or ``one-bit``.
        rows: R.
        inputs: K, at least 1; ``one-bit`` takes entries of a table instead.
    """

    randomiser: str
    rows: int
    inputs: int

    @property
    def bytes_max(self) -> int:
        """What one report may take: ⌈log2(R·K)/8⌉ + 1 bytes."""
        return -(-(self.rows * self.inputs - 1).bit_length() // _BITS) + 1

    @property
    def bits_max(self) -> int:
        """The same in bits, and no more than counters can have."""
        return min(_BITS * self.bytes_max, REPORT_BITS_MAX)

    def outputs(self, field: int | None) -> int:
        """What a randomised value can be: values of a report are below R times this.

        Args:
            field: The order of the field, for ``projective`` alone.
        """
        if self.randomiser == ONE_BIT:
            return _ONE_BIT_OUTPUTS
        if field is None:
            return self.inputs
        return points(field, dimension_of(field, self.inputs))

    def fits(self, field: int) -> bool:
        """Whether a projective report of this field has no more than :attr:`bits_max` bits."""
        return (self.rows * self.outputs(field) - 1).bit_length() <= self.bits_max


@dataclass(frozen=True)
class LocalMode:
    """What a device does before anything leaves it.

    Args:
        form: ``silo`` (a client's whole delta is noised, once a window) or ``report`` (each record becomes one
            randomised report).
        randomiser: Of reports: ``k-rr``, ``projective`` or ``one-bit``; None for ``silo``.
        memoise: Whether a record that comes again sends the same report again, of reports alone. Then which records of
            a device are equal is not protected: the promise is for neighbours that repeat theirs alike.
        shuffle_min: The least number of honest, independent reports in a batch that a shuffler forwards; 0: there is
            no shuffler. Of reports alone.

    Raises:
        PlanError: A field is out of range or contradicts another; it names the key of the plan.
    """

    form: str = REPORT
    randomiser: str | None = K_RR
    memoise: bool = False
    shuffle_min: int = 0

    def __post_init__(self) -> None:
        if self.form not in FORMS:
            raise PlanError("privacy.local.form", self.form, " or ".join(map(repr, FORMS)))
        if self.form == SILO:
            if (self.randomiser, self.memoise, self.shuffle_min) != (None, False, 0):
                raise PlanError("privacy.local", self, "no randomiser, memoise or shuffle_min with form 'silo'")
            return
        if self.randomiser not in RANDOMISERS:
            raise PlanError("privacy.local.randomiser", self.randomiser, " or ".join(map(repr, RANDOMISERS)))
        if type(self.memoise) is not bool:
            raise PlanError("privacy.local.memoise", self.memoise, "true or false")
        if type(self.shuffle_min) is not int or not 0 <= self.shuffle_min <= SHUFFLE_MAX:
            raise PlanError("privacy.local.shuffle_min", self.shuffle_min, f"an integer from 0 to {SHUFFLE_MAX}")
        if self.memoise and self.shuffle_min:
            expected = (
                "false with shuffle_min above 0: a repeated report can be distinguished from all others, so shuffling "
                "does not amplify; remove one of the two"
            )
            raise PlanError("privacy.local.memoise", "true", expected)

    @property
    def reports(self) -> bool:
        """Whether each record becomes a report of its own: form ``report``."""
        return self.form == REPORT

    @classmethod
    def from_table(cls, table: Table | None, space: ReportSpace) -> Self:
        """Reads ``[privacy.local]``; None: it was left out.

        Raises:
            PlanError: With the key, what came and what was expected.
        """
        table = Table({}, "privacy.local") if table is None else table
        if table.choice("form", built=FORMS, default=REPORT) == SILO:
            for key in _OF_REPORTS:
                if table.has(key):
                    raise PlanError(table.name(key), table.value(key), "no value: only for form 'report'")
            table.finish()
            return cls(SILO, None)
        randomisers = _randomisers(space)
        local = cls(
            form=REPORT,
            randomiser=table.choice("randomiser", built=randomisers, default=randomisers[0]),
            memoise=_memoise(table),
            shuffle_min=table.integer("shuffle_min", low=0, high=SHUFFLE_MAX, default=0),
        )
        table.finish()
        return local

    def of(self, space: ReportSpace) -> Reports | None:
        """How a record of such a family becomes a report; None for ``silo``."""
        return None if self.randomiser is None else Reports(self.randomiser, space.rows, space.inputs)

    def to_fields(self) -> dict[str, object]:
        """Every key that its form has, canonical."""
        if not self.reports:
            return {"form": self.form}
        return {
            "form": self.form,
            "randomiser": self.randomiser,
            "memoise": str(self.memoise).lower(),
            "shuffle_min": self.shuffle_min,
        }

    @classmethod
    def from_fields(cls, table: Table) -> Self:
        """Reads what :meth:`to_fields` wrote, whatever the family.

        Raises:
            PlanError: A field is missing, unknown or out of range.
        """
        if table.choice("form", built=FORMS) == SILO:
            table.finish()
            return cls(SILO, None)
        local = cls(
            form=REPORT,
            randomiser=table.choice("randomiser", built=RANDOMISERS),
            memoise=_MEMOISE[table.choice("memoise", built=tuple(_MEMOISE))],
            shuffle_min=table.integer("shuffle_min", low=0, high=SHUFFLE_MAX),
        )
        table.finish()
        return local


def _randomisers(space: ReportSpace) -> tuple[str, ...]:
    randomisers = _RANDOMISERS_OF.get(space.family)
    if randomisers is None:
        known = " or ".join(map(repr, _RANDOMISERS_OF))
        expected = f"{known} with reports; any family can be sent with privacy.local.form = 'silo'"
        raise PlanError("sketch.family", space.family, expected)
    if space.classes and ONE_BIT in randomisers:
        expected = (
            f"none with reports of family {space.family!r}, because one bit cannot contain a label; use family "
            "'hashed', or privacy.local.form = 'silo'"
        )
        raise PlanError("record.classes", f"{space.classes} classes", expected)
    return randomisers


def _memoise(table: Table) -> bool:
    """A boolean of TOML, or the word that stands for it in canonical bytes."""
    if table.has("memoise") and isinstance(value := table.value("memoise"), bool):
        return value
    return _MEMOISE[table.choice("memoise", built=tuple(_MEMOISE), default="false")]
