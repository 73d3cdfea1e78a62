"""How families pack their increments: rows that each sum to the number of records, or counters with signs."""

import math
from typing import Final, Protocol

from hushsum.families.family import Increments
from hushsum.packing import pack_rows, size_max, unpack_rows
from hushsum.sensitivity import Sensitivity
from hushsum.signed_packing import pack_signed, signed_bytes_max, unpack_signed

_LARGEST: Final = 2**47 - 1  # what the packing of signed counters holds


class _Shaped(Protocol):
    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def sensitivity(self) -> Sensitivity: ...


class RowsPacked:
    """A family each of whose rows sums to the number of records (:mod:`hushsum.packing`)."""

    def pack(self: _Shaped, increments: Increments, records: int) -> tuple[int, bytes]:
        """A list of buckets a row, Elias–Fano, or counts."""
        return pack_rows(increments.indices, increments.values, *self.shape, records)

    def unpack(self: _Shaped, encoding: int, data: bytes, records: int) -> Increments:
        """What :meth:`pack` was given.

        Raises:
            DeltaError: See :func:`hushsum.packing.unpack_rows`.
        """
        return Increments(*unpack_rows(encoding, data, *self.shape, records))

    def packed_bytes_max(self: _Shaped, records: int) -> int:
        """Of up to so many records."""
        return max(size_max(*self.shape, n) for n in range(1, records + 1))


class SignedPacked:
    """A family whose counters have signs and no fixed sum (:mod:`hushsum.signed_packing`)."""

    def pack(self: _Shaped, increments: Increments, records: int) -> tuple[int, bytes]:
        """Every counter, or those that are not 0 with their places, whichever is smaller."""
        del records
        return pack_signed(increments.indices, increments.values, math.prod(self.shape))

    def unpack(self: _Shaped, encoding: int, data: bytes, records: int) -> Increments:
        """What :meth:`pack` was given.

        Raises:
            DeltaError: See :func:`hushsum.signed_packing.unpack_signed`.
        """
        return Increments(*unpack_signed(encoding, data, math.prod(self.shape), **_limits(self, records)))

    def packed_bytes_max(self: _Shaped, records: int) -> int:
        """Of up to so many records."""
        return signed_bytes_max(math.prod(self.shape), **_limits(self, records))


def _limits(family: _Shaped, records: int) -> dict[str, int]:
    """How many counters so many records can change, and by how much one of them."""
    stated = family.sensitivity
    entries = min(records * stated.l0, math.prod(family.shape))
    return {"entries_max": entries, "largest": min(records * stated.linf, _LARGEST)}
