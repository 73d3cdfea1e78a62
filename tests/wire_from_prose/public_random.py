"""Streams of public random words and numbers, written from the section "Public draws" of docs/reference/wire.md."""

import hashlib
import math

from .math_portable import ln

LABEL = b"hushsum/v1/public-draws\x00"
WORDS_OF_BLOCK = 1024


class Stream:
    """The words of one seed and purpose; each draw takes the next words."""

    def __init__(self, seed: int, purpose: str, first_word: int = 0) -> None:
        name = purpose.encode("utf-8")
        self._prefix = LABEL + seed.to_bytes(8, "little") + len(name).to_bytes(8, "little") + name
        self._next = first_word
        self._block_number = -1
        self._block = b""

    def word(self) -> int:
        """Return the next word, an integer of 64 bits."""
        number, place = divmod(self._next, WORDS_OF_BLOCK)
        if number != self._block_number:
            data = self._prefix + number.to_bytes(8, "little")
            self._block = hashlib.shake_256(data).digest(8 * WORDS_OF_BLOCK)
            self._block_number = number
        self._next += 1
        return int.from_bytes(self._block[8 * place : 8 * place + 8], "little")

    def uniform(self) -> float:
        """Return the next uniform number, at least 0 and below 1."""
        return (self.word() >> 11) * 2.0**-53

    def normals(self, count: int) -> list[float]:
        """Return the next standard normal numbers, two for each accepted pair of uniforms."""
        numbers: list[float] = []
        while len(numbers) < count:
            u = 2 * self.uniform() - 1
            v = 2 * self.uniform() - 1
            s = u * u + v * v
            if s >= 1 or s == 0:
                continue
            f = math.sqrt((-2 * ln(s)) / s)
            numbers += [u * f, v * f]
        return numbers[:count]
