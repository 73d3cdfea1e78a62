"""How large a delta of a plan can be, a batch of reports, or a submission, and how many records it may hold for that.

One packed delta is a message, and an entry of the log: at most 16 MiB (:data:`BYTES_MAX`). Most plans reach
:data:`RECORDS_MAX` records long before.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from hushsum.errors import GuaranteeError, PlanError
from hushsum.families import Family
from hushsum.privacy.modular_words import Words, words_of
from hushsum.privacy.spec import PrivacySpec

BYTES_MAX: Final = 16 * 2**20
RECORDS_MAX: Final = 4096
_HEADER_BYTES: Final = 96
_RUN_HEADER_BYTES: Final = 48
#: Reports of a batch, where no shuffler needs more of them together.
REPORTS_MAX: Final = 2**16
_BATCH_HEADER_BYTES: Final = 64
_SUBMISSION_HEADER_BYTES: Final = 96
_DIFFERENT_MAX: Final = 2**31  # reports: each has a counter


@dataclass(frozen=True, eq=False)
class DeltaSizes:
    """The limits of one plan's deltas.

    Attributes:
        family: Of the plan.
        classes: Sketches, at least 1.
        records_per_client: Of a window, where it is bounded.
    """

    family: Family
    classes: int
    records_per_client: int | None
    _runs: dict[int, int] = field(default_factory=dict, init=False, repr=False)

    def check(self) -> None:
        """Refuses a plan of which one record alone can need a larger delta.

        Raises:
            PlanError: With what to change.
        """
        if (size := self._bytes(1)) > BYTES_MAX:
            key = "sketch.rows" if "rows" in self.family.to_fields() else "sketch"
            came, expected = f"a delta of up to {size} bytes for one record", f"at most {BYTES_MAX}: a smaller sketch"
            raise PlanError(key, came, expected + (", of fewer rows" if key == "sketch.rows" else ""))

    @cached_property
    def records_max(self) -> int:
        """Records that one delta may hold: the most of which every delta fits."""
        fits, most = 1, min(RECORDS_MAX, self.records_per_client or RECORDS_MAX)
        beyond = most + 1
        if self._bytes(most) <= BYTES_MAX:
            return most
        while beyond - fits > 1:
            middle = (fits + beyond) // 2
            fits, beyond = (middle, beyond) if self._bytes(middle) <= BYTES_MAX else (fits, middle)
        return fits

    @cached_property
    def bytes_max(self) -> int:
        """Bytes that one packed delta can need; one of 0 runs needs a header alone, and always fits."""
        return self._bytes(self.records_max)

    def batch_bytes_max(self, records: int) -> int:
        """Bytes that the deltas of up to so many records can need together, cut as by ``encode_all``."""
        whole, rest = divmod(records, self.records_max)
        return whole * self._tight_bytes(self.records_max) + self._tight_bytes(rest)

    def _tight_bytes(self, most: int) -> int:
        """As :meth:`_bytes`, closer where there are classes; the limits of plans are fixed, and stay with that."""
        runs = min(self.classes, most)
        if runs <= 1:
            return self._bytes(most) if runs else 0
        powers = [2**k for k in range(most.bit_length())]
        sizes = [self._packed_bytes_max(min(2 * n - 1, most)) for n in powers]  # of runs of n to 2n - 1 records
        # A line that no run's size is above bounds the sum of all: its height for each run, its slope for each record.
        steps = ((above - below) // n for n, below, above in zip(powers[:-1], sizes[:-1], sizes[1:], strict=True))
        slopes = {0, max(-(-size // n) for n, size in zip(powers, sizes, strict=True)), *steps}
        heights = {
            slope: max(0, *(size - slope * n for n, size in zip(powers, sizes, strict=True))) for slope in slopes
        }
        total: int = min(runs * height + slope * most for slope, height in heights.items() if slope >= 0)
        return _HEADER_BYTES + runs * _RUN_HEADER_BYTES + total

    def run_bytes_max(self, records: int) -> int:
        """Bytes that the packed rows of one run of so many records cannot exceed: within a factor, and cheap."""
        rounded = min((1 << records.bit_length()) - 1, max(records, self.records_max))
        return self._packed_bytes_max(rounded)

    def _bytes(self, most: int) -> int:
        """Bytes that a packed delta of up to so many records can need."""
        runs = min(self.classes, most)
        whole = self._packed_bytes_max(most)
        if runs == 1:
            return _HEADER_BYTES + whole
        # Over several classes: no more than so many whole runs, nor than so many bytes a record of the dearest run.
        powers = [2**k for k in range(most.bit_length())]
        dearest: int = max(-(-self._packed_bytes_max(min(2 * n - 1, most)) // n) for n in powers)
        return _HEADER_BYTES + runs * _RUN_HEADER_BYTES + min(runs * whole, most * dearest)

    def _packed_bytes_max(self, records: int) -> int:
        """Of one run of up to so many records; dear to find out, and asked for with each batch."""
        if records not in self._runs:
            self._runs[records] = self.family.packed_bytes_max(records)
        return self._runs[records]


@dataclass(frozen=True)
class ReportSizes:
    """The limits of batches of randomised reports, each an integer below rows × outputs.

    Attributes:
        rows: R.
        outputs: What a randomised value can be; rows × outputs is at most 2^31.
        shuffle_min: The least number of reports that a shuffler forwards together; 0: there is none.
    """

    rows: int
    outputs: int
    shuffle_min: int = 0

    @cached_property
    def width(self) -> int:
        """Bytes of one report, from 1 to 4."""
        return max(1, -(-(self.rows * self.outputs - 1).bit_length() // 8))

    @cached_property
    def records_max(self) -> int:
        """Reports that one batch may hold: never fewer than a shuffler has to forward together."""
        return min(max(REPORTS_MAX, 2 * self.shuffle_min), (BYTES_MAX - _BATCH_HEADER_BYTES) // self.width)

    @cached_property
    def bytes_max(self) -> int:
        """Bytes that one packed batch can need."""
        return _BATCH_HEADER_BYTES + self.width * self.records_max


@dataclass(frozen=True, eq=False)
class UploadSizes:
    """The limits of everything that a plan's clients send.

    Attributes:
        family: Of the plan.
        classes: Sketches, at least 1.
        privacy: Its guarantee.
    """

    family: Family
    classes: int
    privacy: PrivacySpec

    def check(self) -> None:
        """Refuses a plan of which something could not be sent, or not be counted.

        Raises:
            PlanError: With what to change.
        """
        if (reports := self.reports) is not None:
            if (total := reports.rows * reports.outputs) > _DIFFERENT_MAX:
                raise PlanError("sketch.rows", f"{total} different reports", f"at most {_DIFFERENT_MAX}: fewer rows")
            return
        self.delta.check()
        if self.submits:
            _ = self.words  # a sum that no vector holds is refused here

    @cached_property
    def counters_shape(self) -> tuple[int, ...]:
        """(classes, *shape of one class's counters); of reports (1, R, outputs)."""
        if (reports := self.reports) is not None:
            return 1, reports.rows, reports.outputs
        return self.classes, *self.family.shape

    @cached_property
    def delta(self) -> DeltaSizes:
        """Of deltas."""
        return DeltaSizes(self.family, self.classes, self.privacy.records_per_client)

    @cached_property
    def reports(self) -> ReportSizes | None:
        """Of batches of reports; None where clients send no reports."""
        reports = self.privacy.reports
        if reports is None:
            return None
        return ReportSizes(reports.rows, reports.outputs(self.privacy.mechanism.field), self.privacy.shuffle_min)

    @property
    def submits(self) -> bool:
        """Whether a client submits a vector of all its counters: to a secure sum, or noised by itself."""
        return self.privacy.cohort is not None or self.privacy.is_silo

    @cached_property
    def words(self) -> Words:
        """Of that vector: it holds what all of a cohort may submit, or in mode ``local`` one client.

        For unit record that is 4096 records of each client of a cohort, or 2^20 of a silo, which is assumed and never
        enforced (:mod:`hushsum.privacy.modular_words`).

        Raises:
            GuaranteeError: Clients submit no such vector.
            PlanError: No vector of the format holds it.
        """
        if not self.submits:
            what = "reports, one a record" if self.privacy.reports else f"deltas in mode {self.privacy.mode!r}"
            raise GuaranteeError(f"clients of this plan send {what}: it has no secure sum, nor noised submissions")
        return words_of(self.family.sensitivity, self.family.shape, self.classes, self.privacy)

    @cached_property
    def records_max(self) -> int:
        """Records of one delta, or reports of one batch."""
        return (self.reports or self.delta).records_max

    @cached_property
    def bytes_max(self) -> int:
        """Of one packed delta, or of one packed batch of reports."""
        return (self.reports or self.delta).bytes_max

    @cached_property
    def upload_bytes_max(self) -> int:
        """Of the largest message that a device sends."""
        if self.privacy.is_silo:
            return _SUBMISSION_HEADER_BYTES + self.words.bytes
        return self.bytes_max
