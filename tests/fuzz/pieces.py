"""Mutations of bytes whose layout is known: numbers, lengths and parts change alone, and what depends on them follows.

A layout cuts a sample into pieces. A piece is changed, left out, doubled, or taken from another sample, and lengths are
written anew, unless it is a length that is to be wrong.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from hushsum.bitpacking import varint
from tests.fuzz import octets
from tests.fuzz.numbers import some_number, some_varint

#: Bytes of a length that stands before a part; VARINT: as many as it needs.
VARINT: Final = 0
Inner = Callable[[random.Random, bytes, Sequence[bytes]], bytes]


@dataclass(frozen=True)
class Piece:
    """A part of a sample.

    Attributes:
        data: Its bytes; of a number those of the number.
        number: Whether it is a varint.
        length: How its length is written before it; None: it is not.
        inner: How it is changed inside; None: as bytes.
        weight: How often it is the one to be changed.
    """

    data: bytes
    number: bool = False
    length: int | None = None
    inner: Inner | None = None
    weight: float = 1.0

    def written(self, rng: random.Random | None = None) -> bytes:
        """Its bytes with its length; with a wrong one if a generator is given."""
        if self.length is None:
            return self.data
        size = len(self.data)
        if self.length == VARINT:
            return (varint(size) if rng is None else some_varint(rng, size)) + self.data
        told = (size if rng is None else some_number(rng, size)) % (1 << 8 * self.length)  # data may be too long for it
        return told.to_bytes(self.length, "big") + self.data


Layout = Callable[[bytes], list[Piece]]


def number_in(data: bytes) -> int:
    """The number of a varint's bytes, good or bad."""
    return sum((octet & 0x7F) << (7 * place) for place, octet in enumerate(data))


def cut_varint(data: bytes, at: int) -> int:
    """Where the varint ends that begins here."""
    while at < len(data) and data[at] >= 0x80:
        at += 1
    return at + 1


def _changed(rng: random.Random, piece: Piece, donors: Sequence[bytes]) -> Piece:
    if piece.number:
        return replace(piece, data=some_varint(rng, number_in(piece.data)))
    if piece.inner is not None and rng.random() < 0.9:
        return replace(piece, data=piece.inner(rng, piece.data, donors))
    return replace(piece, data=octets.mutated(rng, piece.data, donors))


def mutator(layout: Layout, close: Callable[[bytes], bytes] = bytes) -> Inner:
    """Changes samples of a layout.

    Args:
        layout: Cuts a good sample into pieces; what it cannot cut is changed as bytes.
        close: Whatever follows from all the bytes, such as a checksum.
    """

    def change(rng: random.Random, data: bytes, donors: Sequence[bytes]) -> bytes:
        if rng.random() < 0.08:
            return octets.mutated(rng, data, donors)
        try:
            pieces = layout(data)
        except (IndexError, ValueError):
            return octets.mutated(rng, data, donors)
        wrong = -1
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            if not pieces:
                break
            (at,) = rng.choices(range(len(pieces)), [piece.weight for piece in pieces])
            step = rng.random()
            if step < 0.70:
                pieces[at] = _changed(rng, pieces[at], donors)
            elif step < 0.76:
                wrong = at
            elif step < 0.80:
                del pieces[at]
            elif step < 0.84:
                pieces.insert(at, pieces[at])
            else:
                other = _pieces_of(layout, rng.choice(donors))
                if at < len(other):
                    pieces[at] = other[at]
        body = b"".join(piece.written(rng if place == wrong else None) for place, piece in enumerate(pieces))
        return close(body) if rng.random() < 0.97 else body

    return change


def _pieces_of(layout: Layout, data: bytes) -> list[Piece]:
    try:
        return layout(data)
    except (IndexError, ValueError):
        return []
