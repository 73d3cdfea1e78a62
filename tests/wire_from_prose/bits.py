"""Varints, zigzag numbers and packed bits, written from the section "Conventions" of docs/reference/wire.md."""

from collections.abc import Iterable

LARGEST_VARINT = 2**64 - 1


class MalformedError(ValueError):
    """The bytes end too early, or are not the one encoding of their value."""


class Reader:
    """Takes fields from the beginning of some bytes."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def take(self, count: int) -> bytes:
        """Return the next bytes."""
        if count > len(self.data) - self.position:
            raise MalformedError("the bytes end too early")
        self.position += count
        return self.data[self.position - count : self.position]

    def integer(self, count: int) -> int:
        """Return the next integer of so many bytes, the most significant first."""
        return int.from_bytes(self.take(count), "big")

    def varint(self) -> int:
        """Return the next varint, which must have its shortest form."""
        value = 0
        for place in range(10):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << 7 * place
            if byte < 0x80:
                if byte == 0 and place > 0:
                    raise MalformedError("a varint that is not in its shortest form")
                if value > LARGEST_VARINT:
                    break
                return value
        raise MalformedError("a varint of 2^64 or more")

    def zigzag(self) -> int:
        """Return the next signed number."""
        value = self.varint()
        return -((value + 1) // 2) if value % 2 else value // 2

    def rest(self) -> int:
        """Return how many bytes are left."""
        return len(self.data) - self.position


def varint(value: int) -> bytes:
    """Return an integer from 0 to 2^64 - 1 as a varint."""
    if not 0 <= value <= LARGEST_VARINT:
        raise ValueError(f"{value} does not fit into a varint")
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def zigzag(value: int) -> bytes:
    """Return a signed integer as a zigzag varint."""
    return varint(2 * value if value >= 0 else -2 * value - 1)


def bytes_of_bits(bits: str) -> bytes:
    """Return a text of the digits 0 and 1 as bytes, the first digit first; unused bits of the last byte are 0."""
    count = (len(bits) + 7) // 8
    return int(bits.ljust(8 * count, "0"), 2).to_bytes(count, "big") if bits else b""


def bits_of_bytes(data: bytes) -> str:
    """Return bytes as a text of the digits 0 and 1."""
    return bin(int.from_bytes(b"\x01" + data, "big"))[3:]


def pack(values: Iterable[int], width: int) -> bytes:
    """Return values of `width` bits each, MSB-packed."""
    return bytes_of_bits("".join(format(value, f"0{width}b") for value in values) if width else "")


def unpack(data: bytes, count: int, width: int) -> list[int]:
    """Return MSB-packed values; unused bits are not looked at."""
    if width == 0:
        return [0] * count
    bits = bits_of_bytes(data)
    return [int(bits[start : start + width], 2) for start in range(0, count * width, width)]


def unused_bits_are_zero(data: bytes, used: int) -> bool:
    """Tell whether all bits after the first `used` ones are 0."""
    return "1" not in bits_of_bytes(data)[used:]
