"""Small numbers in few bytes: LEB128, the shortest form alone, so that a number has one encoding."""

from typing import Final

from hushsum.errors import DeltaError, Reason

_BYTES_MAX: Final = 10


def varint(value: int) -> bytes:
    """An integer from 0 to 2⁶⁴ − 1, seven bits a byte, least significant first."""
    octets = bytearray()
    while value >= 0x80:
        octets.append(value & 0x7F | 0x80)
        value >>= 7
    octets.append(value)
    return bytes(octets)


def zigzag(value: int) -> int:
    """A signed 64-bit integer as an unsigned one, small where its magnitude is small."""
    return value << 1 if value >= 0 else (-value << 1) - 1


class Reader:
    """Reads bytes from front to back.

    Every method raises:
        DeltaError: ``malformed`` where the bytes end too early or a number is not in its shortest form.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        """The next ``size`` bytes."""
        taken = self._data[self._at : self._at + size]
        if len(taken) != size:
            raise DeltaError(Reason.MALFORMED, f"{len(self._data)} bytes, which end too early")
        self._at += size
        return taken

    def byte(self) -> int:
        """The next byte."""
        return self.take(1)[0]

    def varint(self) -> int:
        """The next unsigned number."""
        value = 0
        for place in range(_BYTES_MAX):
            octet = self.byte()
            value |= (octet & 0x7F) << (7 * place)
            if octet < 0x80:
                if (octet == 0 and place > 0) or value >= 2**64:
                    break
                return value
        raise DeltaError(Reason.MALFORMED, "a number that is not in its shortest form")

    def signed(self) -> int:
        """The next signed number."""
        value = self.varint()
        return value >> 1 if value % 2 == 0 else -((value + 1) >> 1)

    def finish(self) -> None:
        """Refuses bytes that nobody has read."""
        if self._at != len(self._data):
            raise DeltaError(Reason.MALFORMED, f"{len(self._data) - self._at} bytes after the end")
