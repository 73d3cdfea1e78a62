"""Where the parts of each packed format stand: what lets a mutation change one part, and leave the others good."""

import hashlib
import random
import zlib
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from hushsum import canonical
from hushsum.errors import CanonicalError
from hushsum.zstd_frame import zstd
from tests.fuzz import octets
from tests.fuzz.numbers import some_number
from tests.fuzz.pieces import VARINT, Inner, Piece, cut_varint, mutator, number_in
from tests.fuzz.tables import json_mutator

_HEADER_RAW: Final = 41  # format version, plan id, stream
_HUSH_START: Final = 6
_CHECKSUM: Final = 32
_FRAME_MAX: Final = 1 << 20
_CLAIMS: Final = (0, 1, 2**16, 2**30, 2**40, 2**62, 2**64 - 2)


def _varints(data: bytes, at: int, count: int, weight: float = 1.0) -> tuple[list[Piece], int]:
    pieces = []
    for _ in range(count):
        end = cut_varint(data, at)
        pieces.append(Piece(data[at:end], number=True, weight=weight))
        at = end
    return pieces, at


def _header(data: bytes) -> tuple[list[Piece], int]:
    """Seldom the version and the plan: what is of another is refused at once."""
    pieces = [Piece(data[:1], weight=0.03), Piece(data[1:33], weight=0.04), Piece(data[33:41], weight=0.2)]
    numbers, at = _varints(data, _HEADER_RAW, 2, 0.4)
    return pieces + numbers, at


def delta(data: bytes) -> list[Piece]:
    """A packed delta."""
    pieces, at = _header(data)
    numbers, at = _varints(data, at, 1, 0.5)
    pieces += numbers
    while at < len(data):
        numbers, at = _varints(data, at, 4, 0.5)
        pieces += [*numbers, Piece(data[at : at + 1], weight=0.6)]
        end = cut_varint(data, at + 1)
        start, at = end, end + number_in(data[at + 1 : end])
        pieces.append(Piece(data[start:at], length=VARINT, weight=4))
    return pieces


def batch(data: bytes) -> list[Piece]:
    """A packed batch of reports."""
    pieces, at = _header(data)
    numbers, at = _varints(data, at, 1)
    return [*pieces, *numbers, Piece(data[at:], inner=_some_sorted, weight=4)]


def _some_sorted(rng: random.Random, data: bytes, donors: Sequence[bytes]) -> bytes:
    """Reports that still ascend, of any width; now and then other bytes."""
    if rng.random() < 0.4 or len(data) < 4:
        return octets.mutated(rng, data, donors)
    width = rng.choice((1, 2, 3, 4))
    words = [int.from_bytes(data[at : at + width], "little") for at in range(0, len(data) - width + 1, width)]
    for _ in range(rng.randint(1, 3)):
        words[rng.randrange(len(words))] = some_number(rng, words[-1]) % (1 << 8 * width)
    return b"".join(word.to_bytes(width, "little") for word in sorted(words))


def submission(data: bytes) -> list[Piece]:
    """A noised sum."""
    pieces, at = _header(data)
    return [*pieces, Piece(data[at:], weight=2)]


def parameters(data: bytes) -> list[Piece]:
    """Arrays beside a plan."""
    at, pieces = 0, []
    while at < len(data):
        size = int.from_bytes(data[at : at + 8], "big")
        pieces.append(Piece(data[at + 8 : at + 8 + size], length=8, inner=_array))
        at += 8 + size
    return pieces


def _array(rng: random.Random, data: bytes, donors: Sequence[bytes]) -> bytes:
    """One array: seldom what it begins with."""
    axes = data[5] if len(data) > 5 else 0
    cuts = [0, 4, 5, 6, *(6 + 4 * (axis + 1) for axis in range(min(axes, 3)))]
    (at,) = rng.choices(range(len(cuts)), [0.1, 0.1, 0.3] + [1.5] * (len(cuts) - 3))
    start, end = cuts[at], cuts[at + 1] if at + 1 < len(cuts) else len(data)
    return data[:start] + octets.mutated(rng, data[start:end], donors) + data[end:]


_change_json: Final = json_mutator()
_change_arrays: Final = mutator(parameters)


def change_plan(rng: random.Random, data: bytes, donors: Sequence[bytes]) -> bytes:
    """A plan's bundle: its canonical bytes, or the arrays beside them."""
    text, broken, arrays = data.partition(b"\n")
    texts = [donor.partition(b"\n")[0] for donor in donors[:4]] + [rng.choice(donors).partition(b"\n")[0]]
    if broken and rng.random() < 0.5:
        return text + broken + _change_arrays(rng, arrays, [arrays])
    return _change_json(rng, text, texts) + broken + arrays


def hush(data: bytes) -> list[Piece]:
    """A release's file, without its checksum."""
    pieces = [Piece(data[:4], weight=0.05), Piece(data[4:_HUSH_START], weight=0.05)]
    at = _HUSH_START
    for inner in (_change_json, change_plan, _change_json):
        size = int.from_bytes(data[at : at + 4], "big")
        pieces.append(Piece(data[at + 4 : at + 4 + size], length=4, inner=_own_kind(inner)))
        at += 4 + size
    size = int.from_bytes(data[at : at + 8], "big")
    pieces.append(Piece(data[at + 8 : -_CHECKSUM], length=8, inner=change_frame, weight=3))
    return pieces


def _own_kind(inner: Inner) -> Inner:
    """Donors are whole files: a part is mixed with itself alone."""
    return lambda rng, data, donors: inner(rng, data, [data])


def sealed(body: bytes) -> bytes:
    """A release's file with the checksum that it must have."""
    return body + hashlib.sha256(body).digest()


def change_frame(rng: random.Random, data: bytes, donors: Sequence[bytes]) -> bytes:
    """Compressed counters: others, in another frame, or in one that claims to be of another size."""
    choice = rng.random()
    if choice < 0.3:
        return octets.mutated(rng, data, donors)
    try:
        if not 0 < (zstd.get_frame_info(data).decompressed_size or 0) <= _FRAME_MAX:  # a bomb of before
            return octets.mutated(rng, data, donors)
        raw = zstd.decompress(data)
    except zstd.ZstdError:
        return octets.mutated(rng, data, donors)
    if choice < 0.45:
        return bomb(rng, len(raw)) + data[rng.randint(0, len(data)) :]
    if choice < 0.55:
        return data + rng.choice((data, b"\x50\x2a\x4d\x18\x04\0\0\0abcd", b"\0"))
    values = bytearray(raw)
    for _ in range(rng.randint(1, 4)):
        size = rng.choice((2, 4, 8))
        at = size * rng.randrange(max(1, len(values) // size))
        values[at : at + size] = (some_number(rng) % (1 << 8 * size)).to_bytes(size, "little")
    if choice < 0.65:
        values = values[: rng.randint(0, len(values))] if choice < 0.6 else values + bytes(rng.choice((1, 8, 100_000)))
    level, told = rng.choice((1, 3, 19)), rng.random() < 0.9
    parameter = zstd.CompressionParameter
    options: dict[int, int] = {parameter.compression_level: level, parameter.content_size_flag: told}
    return zstd.compress(bytes(values), options=options)


def bomb(rng: random.Random, size: int) -> bytes:
    """A frame of one block of a repeated byte, or of nothing, that claims to hold some number of bytes."""
    claimed = rng.choice((*_CLAIMS, size, size + 1))
    head = b"\x28\xb5\x2f\xfd" + rng.choice((b"\xe0", b"\xc0" + bytes([rng.randrange(256)])))
    repeated = min(size, (1 << 17) - 1) if rng.random() < 0.5 else 1 << 20
    block = (repeated << 3 | 1 << 1 | 1).to_bytes(3, "little") + b"\0"
    return head + claimed.to_bytes(8, "little") + block


change_hush: Final = mutator(hush, sealed)


def _with_checksum(fields: Any) -> Any:
    """A receipt's line with the checksum of whatever it holds."""
    if isinstance(fields, dict) and "checksum" in fields:
        rest = {key: value for key, value in fields.items() if key != "checksum"}
        try:
            return {**rest, "checksum": f"{zlib.crc32(canonical.encode(rest)):08x}"}
        except CanonicalError:
            return fields
    return fields


change_receipt: Final = json_mutator(_with_checksum)


def prefixed(data: bytes) -> list[Piece]:
    """Several texts or messages, each after its length in 4 bytes."""
    at, pieces = 0, []
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        pieces.append(Piece(data[at + 4 : at + 4 + size], length=4))
        at += 4 + size
    return pieces


def parts_of(data: bytes) -> list[bytes]:
    """The same without lengths; what is cut ends there."""
    return [piece.data for piece in prefixed(data)]


def joined(parts: Sequence[bytes]) -> bytes:
    """The other way round."""
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def integers_in(data: bytes, count: int) -> tuple[list[int], bytes]:
    """So many numbers of two bytes, and what follows them."""
    padded = data.ljust(2 * count, b"\0")
    return np.frombuffer(padded[: 2 * count], ">u2").astype(np.int64).tolist(), padded[2 * count :]
