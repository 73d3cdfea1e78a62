"""Sets of a roster's members as bits: member i is bit i mod 8 of byte ⌊i/8⌋, lowest first; what is left over is 0."""

from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from hushsum.errors import SecureSumError

Flags = npt.NDArray[np.bool_]


def bitmap_bytes(members: int) -> int:
    """Bytes of a bitmap over so many members."""
    return -(-members // 8)


def bitmap_of(chosen: Collection[int], members: int) -> bytes:
    """The bitmap of some members' indices."""
    flags = np.zeros(members, np.bool_)
    flags[list(chosen)] = True
    return np.packbits(flags, bitorder="little").tobytes()


def flags_of(bitmap: bytes, members: int) -> Flags:
    """Whether each member is in it, of shape (members,).

    Raises:
        SecureSumError: It is not as long as these members need, or a bit behind the last of them is set.
    """
    if len(bitmap) != bitmap_bytes(members):
        raise SecureSumError(f"a bitmap of {len(bitmap)} bytes, expected {bitmap_bytes(members)}")
    bits = np.unpackbits(np.frombuffer(bitmap, np.uint8), bitorder="little").astype(np.bool_)
    if bits[members:].any():
        raise SecureSumError(f"a bitmap with members beyond the {members} of the roster")
    return bits[:members]
