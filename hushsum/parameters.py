"""Arrays that a plan carries as data: a learned hash, a fixed linear map. The plan names each by its digest.

Encoded: ``HSPA``, format version (1 byte), number of axes (1 byte), each length (4 bytes, big-endian), then float32
numbers, little-endian, in C order. The digest is the labelled SHA-256 of these bytes, as 64 hexadecimal digits.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hushsum import labels
from hushsum.errors import PlanError

Float32 = npt.NDArray[np.float32]

PARAMETERS_FORMAT: Final = 1
#: Numbers of all arrays of a plan together: 16 MiB, which travel with the plan in one message.
NUMBERS_MAX: Final = 2**22
#: Arrays of a plan.
ARRAYS_MAX: Final = 64
_MAGIC: Final = b"HSPA"
_AXES: Final = (1, 2)


@dataclass(frozen=True, eq=False)
class Parameters:
    """The arrays beside a plan, by digest. Public: nothing here may have been learned on protected data.

    Attributes:
        arrays: Digest to a read-only float32 array of one or two axes, all finite; read-only itself.
    """

    arrays: Mapping[str, Float32]

    def __post_init__(self) -> None:
        object.__setattr__(self, "arrays", MappingProxyType(dict(self.arrays)))

    @classmethod
    def of(cls, arrays: Iterable[npt.ArrayLike]) -> "Parameters":
        """The parameters of these arrays, cast to float32.

        Raises:
            PlanError: This is no list of arrays; an array has other axes, is empty, or holds a number that float32 does
                not; or they are too many or too large.
        """
        if isinstance(arrays, np.ndarray | str | bytes | Mapping) or not isinstance(arrays, Iterable):
            came = f"an array of shape {arrays.shape}" if isinstance(arrays, np.ndarray) else arrays
            raise PlanError("parameters", came, "a list of arrays")
        made: dict[str, Float32] = {}
        for array in arrays:
            checked = _checked(array)
            made[_digest(_encoded(checked))] = checked
            _check_room(made)
        return cls(made)

    def take(self, key: str, wanted: str, *, columns: int) -> Float32:
        """The matrix (k, ``columns``) that the plan names under a key.

        Raises:
            PlanError: It was not brought along, or has another shape.
        """
        array = self.arrays.get(wanted)
        if array is None:
            brought = ", ".join(name[:12] for name in self.arrays) or "none"
            expected = f"the digest of an array in parameters=... (given: {brought})"
            raise PlanError(key, wanted, expected)
        if array.ndim != 2 or array.shape[1] != columns:
            raise PlanError(key, f"an array of shape {array.shape}", f"a matrix of {columns} columns")
        return array

    def only(self, wanted: Iterable[str]) -> "Parameters":
        """Those of these digests, in the order of their digests."""
        return Parameters({name: self.arrays[name] for name in sorted(set(wanted))})

    def to_bytes(self) -> bytes:
        """Every array in the order of their digests, each after its length (8 bytes, big-endian)."""
        encoded = [_encoded(self.arrays[name]) for name in sorted(self.arrays)]
        return b"".join(len(array).to_bytes(8, "big") + array for array in encoded)

    @classmethod
    def from_bytes(cls, data: bytes) -> "Parameters":
        """What :meth:`to_bytes` wrote.

        Raises:
            PlanError: Truncated, not in this form, or too large.
        """
        at, last, arrays = 0, "", dict[str, Float32]()
        while at < len(data):
            end = at + 8 + int.from_bytes(data[at : at + 8], "big")
            if end > len(data):
                raise PlanError("parameters", f"{len(data)} bytes", "whole arrays")
            array, name = decode(data[at + 8 : end]), _digest(data[at + 8 : end])  # an array has these bytes alone
            if name <= last:
                raise PlanError("parameters", data[:14], "each array once, in the order of their digests")
            arrays[name] = array
            _check_room(arrays)
            at, last = end, name
        return cls(arrays)

    def __eq__(self, other: object) -> bool:
        """A digest stands for its array."""
        return isinstance(other, Parameters) and self.arrays.keys() == other.arrays.keys()

    def __hash__(self) -> int:
        return hash(frozenset(self.arrays))

    def __len__(self) -> int:
        """The number of arrays."""
        return len(self.arrays)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy is read anew from the bytes: as read-only as this."""
        return Parameters.from_bytes, (self.to_bytes(),)


#: What most plans carry.
NO_PARAMETERS: Final = Parameters({})


def digest(array: npt.ArrayLike) -> str:
    """The name of an array in a plan: 64 hexadecimal digits."""
    return _digest(encode(array))


def encode(array: npt.ArrayLike) -> bytes:
    """The bytes of an array.

    Raises:
        PlanError: See :meth:`Parameters.of`.
    """
    return _encoded(_checked(array))


def decode(data: bytes) -> Float32:
    """The array of bytes; sizes are checked before anything is allocated.

    Raises:
        PlanError: Not the bytes of an array of this version.
    """
    axes = data[5] if len(data) > 5 else 0
    if data[:4] != _MAGIC or data[4:5] != bytes([PARAMETERS_FORMAT]) or axes not in _AXES:
        raise PlanError("parameters", data[:8], f"an array of format {PARAMETERS_FORMAT}")
    start = 6 + 4 * axes
    shape = [int.from_bytes(data[6 + 4 * axis : 10 + 4 * axis], "big") for axis in range(axes)]
    if len(data) != start + 4 * math.prod(shape):
        raise PlanError("parameters", f"{len(data)} bytes", f"{start + 4 * math.prod(shape)} for shape {shape}")
    return _checked(np.frombuffer(data, "<f4", offset=start).reshape(shape))


def _encoded(checked: Float32) -> bytes:
    lengths = b"".join(length.to_bytes(4, "big") for length in checked.shape)
    return _MAGIC + bytes([PARAMETERS_FORMAT, checked.ndim]) + lengths + checked.astype("<f4", copy=False).tobytes()


def _digest(encoded: bytes) -> str:
    return hashlib.sha256(labels.PARAMETERS + encoded).hexdigest()


def _check_room(arrays: Mapping[str, Float32]) -> None:
    if len(arrays) > ARRAYS_MAX:
        raise PlanError("parameters", f"{len(arrays)} arrays or more", f"at most {ARRAYS_MAX}")
    if (total := sum(array.size for array in arrays.values())) > NUMBERS_MAX:
        raise PlanError("parameters", f"{total} numbers", f"at most {NUMBERS_MAX} in all")


def _checked(array: npt.ArrayLike) -> Float32:
    try:
        given = np.asarray(array)
    except ValueError as error:
        raise PlanError("parameters", "rows of different lengths", "numbers in one or two axes") from error
    if given.dtype.kind not in "biuf" or given.ndim not in _AXES or given.size == 0 or max(given.shape) >= 2**32:
        raise PlanError("parameters", f"{given.dtype} of shape {given.shape}", "numbers in one or two axes")
    with np.errstate(over="ignore"):
        result: Float32 = np.ascontiguousarray(given, np.float32).copy()
    if not np.isfinite(result).all():
        raise PlanError("parameters", "NaN or infinity", "numbers that 32-bit floats hold")
    result.flags.writeable = False
    return result
