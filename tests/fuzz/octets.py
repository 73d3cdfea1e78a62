"""Mutations that know nothing of what they change: bits, bytes, words, ranges."""

import random
from collections.abc import Callable, Sequence
from typing import Final

from tests.fuzz.numbers import some_number, some_varint

Donors = Sequence[bytes]
_GROWTH_MAX: Final = 4096
_LONG_MAX: Final = 200_000


def _flip(rng: random.Random, data: bytearray, donors: Donors) -> None:
    at = rng.randrange(len(data))
    data[at] ^= 1 << rng.randrange(8)


def _set(rng: random.Random, data: bytearray, donors: Donors) -> None:
    data[rng.randrange(len(data))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))


def _word(rng: random.Random, data: bytearray, donors: Donors) -> None:
    size = rng.choice((2, 4, 8))
    at = rng.randrange(len(data))
    number = some_number(rng, len(data)) % (1 << 8 * size)
    data[at : at + size] = number.to_bytes(size, rng.choice(("big", "little")))


def _varint(rng: random.Random, data: bytearray, donors: Donors) -> None:
    at = rng.randrange(len(data))
    data[at : at + rng.randint(0, 2)] = some_varint(rng, len(data))


def _cut(rng: random.Random, data: bytearray, donors: Donors) -> None:
    at = rng.randrange(len(data))
    del data[at : at + rng.choice((1, 1, 2, 8, 32, len(data)))]


def _truncate(rng: random.Random, data: bytearray, donors: Donors) -> None:
    del data[rng.choice((-1, -2, -8, -rng.randint(1, len(data)))) :]


def _insert(rng: random.Random, data: bytearray, donors: Donors) -> None:
    at = rng.randint(0, len(data))
    data[at:at] = rng.randbytes(rng.choice((1, 1, 2, 8, 33)))


def _extend(rng: random.Random, data: bytearray, donors: Donors) -> None:
    size = rng.choice((1, 1, 8, 32, 300)) if rng.random() < 0.99 else rng.randint(1, _LONG_MAX)
    data += rng.choice((bytes(size), b"\xff" * size, rng.randbytes(min(size, 300))))


def _repeat(rng: random.Random, data: bytearray, donors: Donors) -> None:
    at, size = rng.randrange(len(data)), rng.choice((1, 2, 8, 40))
    part = bytes(data[at : at + size])
    data[at:at] = part * rng.randint(1, max(1, min(16, _GROWTH_MAX // size)))


def _swap(rng: random.Random, data: bytearray, donors: Donors) -> None:
    one, other, size = rng.randrange(len(data)), rng.randrange(len(data)), rng.choice((1, 2, 8))
    a, b = bytes(data[one : one + size]), bytes(data[other : other + size])
    if len(a) == len(b):
        data[one : one + size], data[other : other + size] = b, a


def _splice(rng: random.Random, data: bytearray, donors: Donors) -> None:
    donor = rng.choice(donors)
    if donor:
        start = rng.randrange(len(donor))
        end = min(len(donor), start + rng.choice((4, 16, 64, len(donor))))
        at = rng.randint(0, len(data))
        data[at : at + rng.choice((0, end - start, len(data)))] = donor[start:end]


_STEPS: Final[tuple[Callable[[random.Random, bytearray, Donors], None], ...]] = (
    _flip,
    _flip,
    _set,
    _set,
    _word,
    _varint,
    _cut,
    _truncate,
    _insert,
    _extend,
    _repeat,
    _swap,
    _splice,
)


def mutated(rng: random.Random, data: bytes, donors: Donors) -> bytes:
    """The bytes after 1 to 4 changes."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 4))):
        if not changed:
            changed += rng.randbytes(rng.choice((1, 2, 16, 64)))
        rng.choice(_STEPS)(rng, changed, donors)
    return bytes(changed)
