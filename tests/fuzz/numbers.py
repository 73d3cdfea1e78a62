"""Numbers at which something ends: widths of words, bounds of formats, sizes that nobody has memory for."""

import random
from typing import Final

from hushsum.bitpacking import varint

_POWERS: Final = (7, 8, 14, 15, 16, 20, 21, 24, 28, 31, 32, 35, 42, 47, 48, 52, 53, 56, 62, 63, 64)
EDGES: Final = tuple(
    sorted({0, 1, 2, 3, 255, 4096, 4097, 65535, *(2**power + off for power in _POWERS for off in (-1, 0, 1))})
)
#: Bytes of varints that are none, or not the shortest, or as long as one can be.
ODD_VARINTS: Final = (
    b"\x80\x00",
    b"\x81\x80\x00",
    b"\xff" * 9 + b"\x01",
    b"\xff" * 9 + b"\x02",
    b"\xff" * 9 + b"\x7f",
    b"\xff" * 10 + b"\x01",
    b"\x80" * 9 + b"\x01",
    b"\x80" * 10 + b"\x00",
    b"\xff" * 40,
)


def some_number(rng: random.Random, near: int = 0) -> int:
    """A number from 0 to 2^64 + 1: an edge, one near the given one, or any."""
    choice = rng.random()
    if choice < 0.45:
        return rng.choice(EDGES)
    if choice < 0.85:
        return max(0, near + rng.choice((-2, -1, 1, 2, near, -near // 2, rng.randint(-300, 300))))
    return rng.getrandbits(rng.randint(1, 64))


def some_varint(rng: random.Random, near: int = 0) -> bytes:
    """The bytes of a varint, now and then of one that is not good."""
    return rng.choice(ODD_VARINTS) if rng.random() < 0.15 else varint(min(some_number(rng, near), 2**64 - 1))
