"""How large a delta of a plan can be, and how many records it may hold for that.

One packed delta is a message, and an entry of the log: at most 16 MiB (:data:`BYTES_MAX`). Most plans reach
:data:`RECORDS_MAX` records long before.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from hushsum.errors import PlanError
from hushsum.families import Family

BYTES_MAX: Final = 16 * 2**20
RECORDS_MAX: Final = 4096
_HEADER_BYTES: Final = 96
_RUN_HEADER_BYTES: Final = 48


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

    def run_bytes_max(self, records: int) -> int:
        """Bytes that the packed rows of one run of so many records cannot exceed: within a factor, and cheap."""
        rounded = min((1 << records.bit_length()) - 1, max(records, self.records_max))
        if rounded not in self._runs:
            self._runs[rounded] = self.family.packed_bytes_max(rounded)
        return self._runs[rounded]

    def _bytes(self, most: int) -> int:
        """Bytes that a packed delta of up to so many records can need."""
        family, runs = self.family, min(self.classes, most)
        whole = family.packed_bytes_max(most)
        if runs == 1:
            return _HEADER_BYTES + whole
        # Over several classes: no more than so many whole runs, nor than so many bytes a record of the dearest run.
        powers = [2**k for k in range(most.bit_length())]
        dearest: int = max(-(-family.packed_bytes_max(min(2 * n - 1, most)) // n) for n in powers)
        return _HEADER_BYTES + runs * _RUN_HEADER_BYTES + min(runs * whole, most * dearest)
