"""Zstandard frames (RFC 8878) as the section "Releases: .hush" of docs/reference/wire.md uses them.

`decompress` reads any frame that states its content size and has no dictionary; `compress` writes raw blocks, as the
page describes. The decoder follows the RFC, and uses no library.
"""

from collections.abc import Sequence
from dataclasses import dataclass

MAGIC = bytes.fromhex("28b52ffd")
LARGEST_BLOCK = 131_072
RAW, RLE, COMPRESSED = 0, 1, 2
LARGEST_WINDOW = 2**31

LITERAL_LENGTH = [(length, 0) for length in range(16)]
LITERAL_LENGTH += [(16, 1), (18, 1), (20, 1), (22, 1), (24, 2), (28, 2), (32, 3), (40, 3), (48, 4)]
LITERAL_LENGTH += [(1 << bits, bits) for bits in range(6, 17)]
MATCH_LENGTH = [(length, 0) for length in range(3, 35)]
MATCH_LENGTH += [(35, 1), (37, 1), (39, 1), (41, 1), (43, 2), (47, 2), (51, 3), (59, 3), (67, 4), (83, 4), (99, 5)]
MATCH_LENGTH += [(3 + (1 << bits), bits) for bits in range(7, 17)]
LARGEST_OFFSET_CODE = 31

DEFAULT_LITERAL_LENGTH = [4, 3, *[2] * 11, 1, 1, 1, *[2] * 9, 3, 2, *[1] * 5, *[-1] * 4]
DEFAULT_MATCH_LENGTH = [1, 4, 3, *[2] * 6, *[1] * 37, *[-1] * 7]
DEFAULT_OFFSET = [*[1] * 6, 2, 2, 2, *[1] * 15, *[-1] * 5]


class FrameError(ValueError):
    """The bytes are not one frame of RFC 8878 with a content size and without a dictionary."""


def compress(content: bytes) -> bytes:
    """Return a frame of raw blocks."""
    out = MAGIC + b"\xa0" + len(content).to_bytes(4, "little")
    for start in range(0, len(content), LARGEST_BLOCK):
        block = content[start : start + LARGEST_BLOCK]
        last = start + LARGEST_BLOCK >= len(content)
        out += (8 * len(block) + last).to_bytes(3, "little") + block
    return out


def decompress(frame: bytes, size: int) -> bytes:
    """Return the content of a frame, which states this size, holds exactly that, and is all the bytes."""
    try:
        return Frame(frame, size).content()
    except IndexError as error:
        raise FrameError("the frame ends too early") from error


@dataclass(frozen=True)
class Cell:
    """One state of a decoding table of finite state entropy."""

    symbol: int
    bits: int
    base: int


@dataclass(frozen=True)
class Table:
    """A decoding table of finite state entropy, with 2^log cells."""

    log: int
    cells: list[Cell]


class Forward:
    """Takes bits from the beginning of some bytes, the lowest bit of the first byte first."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def peek(self, count: int) -> int:
        """Return the next bits without taking them; bits after the end are 0."""
        start = self.position // 8
        window = int.from_bytes(self.data[start : (self.position + count + 7) // 8], "little")
        return window >> self.position % 8 & (1 << count) - 1

    def take(self, count: int) -> int:
        """Return the next bits."""
        value = self.peek(count)
        self.position += count
        if self.position > 8 * len(self.data):
            raise FrameError("a description of a table ends too early")
        return value


class Backward:
    """Takes bits from the end of some bytes, whose last byte marks its end by its highest bit."""

    def __init__(self, data: bytes) -> None:
        if not data or data[-1] == 0:
            raise FrameError("a stream of bits without an end mark")
        self.data = data
        self.left = 8 * len(data) - 9 + data[-1].bit_length()

    def peek(self, count: int) -> int:
        """Return the next bits without taking them; bits after the end are 0."""
        end, start = self.left, max(0, self.left - count)
        window = int.from_bytes(self.data[start // 8 : (end + 7) // 8], "little") >> start % 8
        return (window & (1 << end - start) - 1) << count - (end - start)

    def take(self, count: int) -> int:
        """Return the next bits."""
        if count > self.left:
            raise FrameError("a stream of bits ends too early")
        value = self.peek(count)
        self.left -= count
        return value


class Frame:
    """The decoder of one frame, with what a block leaves for the next one."""

    def __init__(self, frame: bytes, size: int) -> None:
        self.frame = frame
        self.size = size
        self.out = bytearray()
        self.repeats = [1, 4, 8]
        self.huffman: HuffmanTable | None = None
        self.tables: dict[str, Table] = {}

    def content(self) -> bytes:
        """Return the content of the frame."""
        frame = self.frame
        if frame[:4] != MAGIC:
            raise FrameError("no magic number of a frame")
        descriptor = frame[4]
        single_segment = descriptor >> 5 & 1
        if descriptor >> 3 & 1:
            raise FrameError("a reserved bit is set")
        position = 5
        window = 0
        if not single_segment:
            exponent, mantissa = frame[5] >> 3, frame[5] & 7
            window = (1 << 10 + exponent) // 8 * (8 + mantissa)
            position += 1
        if descriptor & 3:
            length = (0, 1, 2, 4)[descriptor & 3]
            if any(frame[position : position + length]):
                raise FrameError("a dictionary")
            position += length
        width = (1 if single_segment else 0, 2, 4, 8)[descriptor >> 6]
        if width == 0:
            raise FrameError("no content size")
        if len(frame) < position + width:
            raise FrameError("the frame ends too early")
        stated = int.from_bytes(frame[position : position + width], "little") + (256 if width == 2 else 0)
        position += width
        if stated != self.size:
            raise FrameError(f"a content size of {stated} bytes instead of {self.size}")
        window = self.size if single_segment else window
        if window > max(self.size, LARGEST_WINDOW):
            raise FrameError("a window that is too large")
        position = self.blocks(position, min(window, LARGEST_BLOCK), window)
        if len(self.out) != self.size:
            raise FrameError("less content than stated")
        if descriptor >> 2 & 1:
            if frame[position : position + 4] != (xxh64(bytes(self.out)) & 0xFFFFFFFF).to_bytes(4, "little"):
                raise FrameError("the checksum of the content differs")
            position += 4
        if position != len(frame):
            raise FrameError("bytes after the frame")
        return bytes(self.out)

    def blocks(self, position: int, largest: int, window: int) -> int:
        """Decode all blocks, and return where they end."""
        last = 0
        while not last:
            if position + 3 > len(self.frame):
                raise FrameError("the frame ends too early")
            header = int.from_bytes(self.frame[position : position + 3], "little")
            position += 3
            last, kind, length = header & 1, header >> 1 & 3, header >> 3
            if kind > COMPRESSED or length > largest:
                raise FrameError("a block of an unknown kind, or one that is too large")
            stored = 1 if kind == RLE else length
            body = self.frame[position : position + stored]
            if len(body) < stored:
                raise FrameError("the frame ends too early")
            position += stored
            before = len(self.out)
            if kind == RAW:
                self.out += body
            elif kind == RLE:
                self.out += body * length
            else:
                self.compressed(body, window)
            if len(self.out) - before > largest or len(self.out) > self.size:
                raise FrameError("more content than a block may have, or than stated")
        return position

    def compressed(self, body: bytes, window: int) -> None:
        """Decode a compressed block."""
        literals, rest = self.literals(body)
        count, at = rest[0], 1
        if count > 254:
            count, at = rest[1] + (rest[2] << 8) + 0x7F00, 3
        elif count > 127:
            count, at = (count - 128 << 8) + rest[1], 2
        if count == 0:
            if len(rest) != at:
                raise FrameError("bytes after the literals of a block")
            self.out += literals
            return
        modes = rest[at]
        if modes & 3:
            raise FrameError("reserved bits of a block are set")
        rest = rest[at + 1 :]
        rest = self.table("literal length", modes >> 6, rest, (9, 6), DEFAULT_LITERAL_LENGTH, len(LITERAL_LENGTH))
        rest = self.table("offset", modes >> 4 & 3, rest, (8, 5), DEFAULT_OFFSET, LARGEST_OFFSET_CODE + 1)
        rest = self.table("match length", modes >> 2 & 3, rest, (9, 6), DEFAULT_MATCH_LENGTH, len(MATCH_LENGTH))
        self.sequences(count, Backward(rest), literals, window)

    def table(
        self, name: str, mode: int, data: bytes, logs: tuple[int, int], default: list[int], symbols: int
    ) -> bytes:
        """Set one of the three tables of sequences, and return the data after its description."""
        if mode == 0:
            self.tables[name] = decoding_table(default, logs[1])
        elif mode == 1:
            if data[0] >= symbols:
                raise FrameError("an unknown code of sequences")
            self.tables[name] = Table(0, [Cell(data[0], 0, 0)])
            return data[1:]
        elif mode == 2:
            counts, log, length = distribution(data, logs[0])
            if len(counts) > symbols:
                raise FrameError("an unknown code of sequences")
            self.tables[name] = decoding_table(counts, log)
            return data[length:]
        elif name not in self.tables:
            raise FrameError("a table is repeated, but there is none")
        return data

    def sequences(self, count: int, stream: Backward, literals: bytes, window: int) -> None:
        """Decode and execute the sequences of a block."""
        lengths, offsets, matches = (self.tables[name] for name in ("literal length", "offset", "match length"))
        states = [stream.take(table.log) for table in (lengths, offsets, matches)]
        used = 0
        most = len(self.out) + LARGEST_BLOCK
        for number in range(count):
            length_cell, offset_cell = lengths.cells[states[0]], offsets.cells[states[1]]
            match_cell = matches.cells[states[2]]
            value = (1 << offset_cell.symbol) + stream.take(offset_cell.symbol)
            base, extra = MATCH_LENGTH[match_cell.symbol]
            match = base + stream.take(extra)
            base, extra = LITERAL_LENGTH[length_cell.symbol]
            length = base + stream.take(extra)
            if number < count - 1:
                states[0] = length_cell.base + stream.take(length_cell.bits)
                states[2] = match_cell.base + stream.take(match_cell.bits)
                states[1] = offset_cell.base + stream.take(offset_cell.bits)
            if used + length > len(literals):
                raise FrameError("more literals than a block has")
            self.out += literals[used : used + length]
            used += length
            self.copy(self.offset(value, length), match, window, most)
        if stream.left:
            raise FrameError("bits after the last sequence")
        self.out += literals[used:]

    def offset(self, value: int, literal_length: int) -> int:
        """Return the offset of a sequence, and keep it as the most recent one."""
        if value > 3:
            self.repeats = [value - 3, *self.repeats[:2]]
            return value - 3
        index = value - 1 + (literal_length == 0)
        offset = self.repeats[index] if index < 3 else self.repeats[0] - 1
        if offset == 0:
            raise FrameError("an offset of 0")
        if index:
            others = [repeat for place, repeat in enumerate(self.repeats) if place != min(index, 2)]
            self.repeats = [offset, *others]
        return offset

    def copy(self, offset: int, length: int, window: int, most: int) -> None:
        """Append bytes that occurred before."""
        if offset > min(len(self.out), window) or len(self.out) + length > most:
            raise FrameError("an offset before the beginning, or a match that is too long")
        start = len(self.out) - offset
        piece = bytes(self.out[start : start + length])
        self.out += (piece * (length // len(piece) + 1))[:length]

    def literals(self, body: bytes) -> tuple[bytes, bytes]:
        """Return the literals of a block, and the rest of the block."""
        kind, form = body[0] & 3, body[0] >> 2 & 3
        if kind < COMPRESSED:
            width, shift = ((1, 3), (2, 4), (1, 3), (3, 4))[form]
            size = int.from_bytes(body[:width], "little") >> shift
            stored = size if kind == RAW else 1
            data, rest = body[width : width + stored], body[width + stored :]
            if len(data) < stored or size > LARGEST_BLOCK:
                raise FrameError("literals that end too early, or are too long")
            return (data if kind == RAW else data * size), rest
        width, bits = ((3, 10), (3, 10), (4, 14), (5, 18))[form]
        header = int.from_bytes(body[:width], "little") >> 4
        size, stored = header & (1 << bits) - 1, header >> bits
        data, rest = body[width : width + stored], body[width + stored :]
        if len(data) < stored or size > LARGEST_BLOCK:
            raise FrameError("literals that end too early, or are too long")
        if kind == COMPRESSED:
            self.huffman, length = huffman_table(data)
            data = data[length:]
        if self.huffman is None:
            raise FrameError("a Huffman table is repeated, but there is none")
        if form == 0:
            return self.huffman.decode(data, size), rest
        sizes = [int.from_bytes(data[2 * i : 2 * i + 2], "little") for i in range(3)]
        data = data[6:]
        part = (size + 3) // 4
        literals = b""
        for length in sizes:
            literals += self.huffman.decode(data[:length], part)
            data = data[length:]
        return literals + self.huffman.decode(data, size - 3 * part), rest


def distribution(data: bytes, largest_log: int) -> tuple[list[int], int, int]:
    """Return the counts of symbols that a table is made of, its log, and the length of the description."""
    stream = Forward(data)
    log = stream.take(4) + 5
    if log > largest_log:
        raise FrameError("a table that is too large")
    remaining = (1 << log) + 1
    threshold, bits = 1 << log, log + 1
    counts: list[int] = []
    while remaining > 1:
        short = 2 * threshold - 1 - remaining
        value = stream.peek(bits - 1)
        if value < short:
            stream.take(bits - 1)
        else:
            value = stream.take(bits)
            if value >= threshold:
                value -= short
        count = value - 1
        counts.append(count)
        remaining -= abs(count)
        if count == 0:
            repeat = 3
            while repeat == 3:
                repeat = stream.take(2)
                counts += [0] * repeat
        while remaining < threshold:
            threshold >>= 1
            bits -= 1
    if remaining != 1 or len(counts) > 256:
        raise FrameError("counts that do not sum to the size of their table")
    return counts, log, (stream.position + 7) // 8


def decoding_table(counts: Sequence[int], log: int) -> Table:
    """Return the decoding table of a distribution; a count of -1 means less than one."""
    size = 1 << log
    symbols = [-1] * size
    high = size - 1
    for symbol, count in enumerate(counts):
        if count == -1:
            symbols[high] = symbol
            high -= 1
    step, place = (size >> 1) + (size >> 3) + 3, 0
    for symbol, count in enumerate(counts):
        for _ in range(count):
            symbols[place] = symbol
            place = (place + step) % size
            while place > high:
                place = (place + step) % size
    following = [abs(count) for count in counts]
    cells = []
    for symbol in symbols:
        state = following[symbol]
        following[symbol] += 1
        bits = log - (state.bit_length() - 1)
        cells.append(Cell(symbol, bits, (state << bits) - size))
    return Table(log, cells)


@dataclass(frozen=True)
class HuffmanTable:
    """The symbol and the number of bits of each value of the next `bits` bits."""

    bits: int
    cells: list[tuple[int, int]]

    def decode(self, data: bytes, count: int) -> bytes:
        """Return the symbols of one stream, which ends with the last of them."""
        stream = Backward(data)
        out = bytearray()
        for _ in range(count):
            symbol, bits = self.cells[stream.peek(self.bits)]
            stream.take(bits)
            out.append(symbol)
        if stream.left:
            raise FrameError("bits after the last literal")
        return bytes(out)


def huffman_table(data: bytes) -> tuple[HuffmanTable, int]:
    """Return a Huffman table, and the length of its description."""
    header = data[0]
    if header >= 128:
        count = header - 127
        length = 1 + (count + 1) // 2
        if len(data) < length:
            raise FrameError("weights that end too early")
        weights = [nibble for byte in data[1:length] for nibble in (byte >> 4, byte & 15)][:count]
    else:
        length = 1 + header
        if len(data) < length:
            raise FrameError("weights that end too early")
        weights = compressed_weights(data[1:length])
    total = sum(1 << weight - 1 for weight in weights if weight)
    if total == 0:
        raise FrameError("a Huffman table without symbols")
    bits = total.bit_length()
    left = (1 << bits) - total
    if bits > 11 or left & left - 1 or len(weights) > 255:
        raise FrameError("weights that no Huffman table has")
    weights.append(left.bit_length())
    cells: list[tuple[int, int]] = []
    for weight in range(1, bits + 1):
        for symbol, own in enumerate(weights):
            if own == weight:
                cells += [(symbol, bits + 1 - weight)] * (1 << weight - 1)
    if len(cells) != 1 << bits:
        raise FrameError("weights that no Huffman table has")
    return HuffmanTable(bits, cells), length


def compressed_weights(data: bytes) -> list[int]:
    """Return weights that are compressed with two alternating states, until the bits do not suffice."""
    counts, log, length = distribution(data, 6)
    table = decoding_table(counts, log)
    stream = Backward(data[length:])
    states = [stream.take(log), stream.take(log)]
    weights: list[int] = []
    turn = 0
    while len(weights) < 255:
        cell = table.cells[states[turn]]
        weights.append(cell.symbol)
        if cell.bits > stream.left:
            weights.append(table.cells[states[1 - turn]].symbol)
            return weights
        states[turn] = cell.base + stream.take(cell.bits)
        turn = 1 - turn
    raise FrameError("too many weights")


def xxh64(data: bytes) -> int:
    """Return the hash XXH64 with seed 0, whose lower half is the checksum of a content."""
    primes = (
        *(0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9),
        *(0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5),
    )
    mask = 2**64 - 1

    def rotate(value: int, count: int) -> int:
        return (value << count | value >> 64 - count) & mask

    def mixed(lane: int, word: int) -> int:
        return rotate((lane + word * primes[1]) & mask, 31) * primes[0] & mask

    at = 0
    if len(data) >= 32:
        lanes = [(primes[0] + primes[1]) & mask, primes[1], 0, -primes[0] & mask]
        while at + 32 <= len(data):
            for lane in range(4):
                word = int.from_bytes(data[at + 8 * lane : at + 8 * lane + 8], "little")
                lanes[lane] = mixed(lanes[lane], word)
            at += 32
        value = sum(rotate(lane, turn) for lane, turn in zip(lanes, (1, 7, 12, 18), strict=True)) & mask
        for lane in lanes:
            value = ((value ^ mixed(0, lane)) * primes[0] + primes[3]) & mask
    else:
        value = primes[4]
    value = (value + len(data)) & mask
    while at + 8 <= len(data):
        value ^= mixed(0, int.from_bytes(data[at : at + 8], "little"))
        value = (rotate(value, 27) * primes[0] + primes[3]) & mask
        at += 8
    if at + 4 <= len(data):
        value ^= int.from_bytes(data[at : at + 4], "little") * primes[0] & mask
        value = (rotate(value, 23) * primes[1] + primes[2]) & mask
        at += 4
    for byte in data[at:]:
        value ^= byte * primes[4] & mask
        value = rotate(value, 11) * primes[0] & mask
    value = (value ^ value >> 33) * primes[1] & mask
    value = (value ^ value >> 29) * primes[2] & mask
    return value ^ value >> 32
