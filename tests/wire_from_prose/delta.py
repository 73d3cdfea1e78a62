"""Deltas of family `hashed`, written from the section "Deltas" of docs/reference/wire.md.

`write_delta` makes the bytes of records, `read_delta` checks bytes in the order of the page and gives its reasons.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NoReturn

from .bits import (
    MalformedError,
    Reader,
    bits_of_bytes,
    bytes_of_bits,
    pack,
    unpack,
    unused_bits_are_zero,
    varint,
    zigzag,
)
from .codes import Sketch
from .plan import Plan

FORMAT = 1
LIST, ELIAS_FANO, DENSE = 1, 2, 3
LARGEST_SEQUENCE = 2**63 - 1
MOST_RECORDS = 4096
MOST_BYTES = 16 * 2**20


class RefusedError(ValueError):
    """A delta is refused, for one of the reasons of the page."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


@dataclass(frozen=True)
class Run:
    """The records of one class: for each row their buckets, ascending."""

    class_index: int
    records: int
    rows: list[list[int]]


@dataclass(frozen=True)
class Delta:
    """A delta, decoded."""

    stream: int
    sequence: int
    window: int
    runs: list[Run]

    def increments(self, plan: Plan, class_index: int) -> tuple[Counter[int], int]:
        """Return what the counters of a class (by row * width + bucket) and its count counter grow by."""
        counters: Counter[int] = Counter()
        count = 0
        for run in self.runs:
            if run.class_index == class_index:
                count += plan.count_scale * run.records
                for row, buckets in enumerate(run.rows):
                    counters.update(row * plan.buckets + bucket for bucket in buckets)
        return counters, count


def write_delta(
    sketch: Sketch,
    records: Sequence[Sequence[float]],
    identity: tuple[int, int],
    window: int,
    classes: Sequence[int] | None = None,
) -> bytes:
    """Return the delta of records (with the index of each one's class); `identity` is stream and sequence number."""
    plan = sketch.plan
    of_class: dict[int, list[list[int]]] = {}
    for record, class_index in zip(records, classes or [0] * len(records), strict=True):
        buckets = sketch.buckets(record)
        if buckets is not None:
            of_class.setdefault(class_index, []).append(buckets)
    runs = [
        Run(index, len(of_class[index]), [sorted(row) for row in zip(*of_class[index], strict=True)])
        for index in sorted(of_class)
    ]
    return encode_delta(plan, Delta(*identity, window, runs))


def encode_delta(plan: Plan, delta: Delta) -> bytes:
    """Return the bytes of a delta."""
    if not 1 <= sum(run.records for run in delta.runs) <= most_records(plan):
        raise ValueError("a delta has at least one record, and at most as many as the plan allows")
    out = bytes([FORMAT]) + plan.identity + delta.stream.to_bytes(8, "big")
    out += varint(delta.sequence) + zigzag(delta.window) + varint(len(delta.runs))
    for run in delta.runs:
        encoding, packed = pack_rows(run.rows, run.records, plan.buckets)
        out += varint(run.class_index) + varint(run.records) + varint(plan.rows) + varint(plan.buckets)
        out += bytes([encoding]) + varint(len(packed)) + packed
    return out


def pack_rows(rows: list[list[int]], n: int, width: int) -> tuple[int, bytes]:
    """Return the encoding with the fewest bytes, of equal ones the least number, and its bytes."""
    packed = {LIST: pack_list(rows, width), ELIAS_FANO: pack_elias_fano(rows, n, width), DENSE: pack_dense(rows, width)}
    encoding = min(packed, key=lambda number: (len(packed[number]), number))
    return encoding, packed[encoding]


def pack_list(rows: list[list[int]], width: int) -> bytes:
    """Return encoding 1."""
    return pack([bucket for row in rows for bucket in row], (width - 1).bit_length())


def pack_elias_fano(rows: list[list[int]], n: int, width: int) -> bytes:
    """Return encoding 2."""
    low = lower_bits(n, width)
    mask = (1 << low) - 1
    bitmaps = ""
    for row in rows:
        bitmap = ["0"] * (n + (width - 1 >> low))
        for i, bucket in enumerate(row):
            bitmap[(bucket >> low) + i] = "1"
        bitmaps += "".join(bitmap)
    return pack([bucket & mask for row in rows for bucket in row], low) + bytes_of_bits(bitmaps)


def pack_dense(rows: list[list[int]], width: int) -> bytes:
    """Return encoding 3."""
    counters = [Counter(row) for row in rows]
    bits = max(max(counts.values()) for counts in counters).bit_length()
    return bytes([bits]) + pack([counts[bucket] for counts in counters for bucket in range(width)], bits)


def lower_bits(n: int, width: int) -> int:
    """Return the number of lower bits of encoding 2."""
    return (width // n).bit_length() - 1 if width >= n else 0


def bytes_for(bits: int) -> int:
    """Return the number of bytes of so many bits."""
    return (bits + 7) // 8


def sizes(n: int, rows: int, width: int) -> tuple[int, int, int]:
    """Return the sizes of n records in the encodings 1 to 3, with n as the largest count."""
    low = lower_bits(n, width)
    return (
        bytes_for(rows * n * (width - 1).bit_length()),
        bytes_for(rows * n * low) + bytes_for(rows * (n + (width - 1 >> low))),
        1 + bytes_for(rows * width * n.bit_length()),
    )


@cache
def most_bytes_of_run(n: int, rows: int, width: int) -> int:
    """Return M(n) of the section "Sizes": the most packed bytes of a run of n records."""
    candidates = [n] + [width >> k for k in range(width.bit_length()) if width >> k < n]
    return max(min(sizes(m, rows, width)) for m in candidates)


def most_bytes(n: int, plan: Plan) -> int:
    """Return B(n) of the section "Sizes": the most bytes of a delta of n records."""
    of_run = most_bytes_of_run(n, plan.rows, plan.buckets)
    if not plan.classes or n == 1:
        return 96 + of_run
    runs = min(len(plan.classes), n)
    of_record = 0
    for k in range(n.bit_length()):
        of_group = most_bytes_of_run(min(2 ** (k + 1) - 1, n), plan.rows, plan.buckets)
        of_record = max(of_record, -(-of_group // 2**k))
    return 96 + 48 * runs + min(runs * of_run, n * of_record)


def most_records(plan: Plan) -> int:
    """Return N of the section "Sizes": the most records of a delta."""
    n = min(MOST_RECORDS, plan.records_per_client or MOST_RECORDS)
    while most_bytes(n, plan) > MOST_BYTES:
        n -= 1
    return n


def read_delta(plan: Plan, data: bytes) -> Delta:
    """Return a delta, or refuse it for the first check that fails."""
    try:
        return checked_delta(plan, data)
    except MalformedError as error:
        raise RefusedError("malformed", str(error)) from error


def refuse(reason: str, detail: str) -> NoReturn:
    """Refuse a delta."""
    raise RefusedError(reason, detail)


def checked_delta(plan: Plan, data: bytes) -> Delta:
    """Return a delta; what is malformed may also raise `MalformedError`."""
    most = most_records(plan)
    if len(data) > most_bytes(most, plan):
        refuse("too_large", "more bytes than the plan can need")
    reader = Reader(data)
    version = reader.integer(1)
    if version > FORMAT:
        refuse("newer_format", f"format {version}")
    if version < FORMAT:
        refuse("malformed", "format 0")
    identity = reader.take(32)
    stream = reader.integer(8)
    sequence = reader.varint()
    if sequence > LARGEST_SEQUENCE:
        refuse("malformed", "a sequence number above 2^63 - 1")
    window = reader.zigzag()
    if identity != plan.identity:
        refuse("wrong_plan", "the id of another plan")
    count = reader.varint()
    if count == 0:
        refuse("empty", "no runs")
    if count > plan.classes_or_one:
        refuse("malformed", "more runs than classes")
    runs: list[Run] = []
    for _ in range(count):
        runs.append(read_run(plan, reader, runs, most))
    if reader.rest():
        refuse("malformed", "bytes after the last run")
    return Delta(stream, sequence, window, runs)


def read_run(plan: Plan, reader: Reader, before: Sequence[Run], most: int) -> Run:
    """Return the next run, given those before it and the most records of a delta."""
    class_index, n, rows, width = (reader.varint() for _ in range(4))
    encoding = reader.integer(1)
    packed = reader.take(reader.varint())
    if class_index >= plan.classes_or_one or (before and class_index <= before[-1].class_index):
        refuse("malformed", "classes out of range or not rising")
    if (rows, width) != (plan.rows, plan.buckets):
        refuse("wrong_shape", "another shape than the plan's")
    if n == 0:
        refuse("empty", "a run without records")
    if n + sum(run.records for run in before) > most:
        refuse("too_many_records", "more records than a delta may have")
    if len(packed) > most_bytes_of_run(min(2 ** n.bit_length() - 1, most), rows, width):
        refuse("malformed", "more bytes than the run can need")
    if encoding == LIST:
        return Run(class_index, n, unpack_list(packed, n, rows, width))
    if encoding == ELIAS_FANO:
        return Run(class_index, n, unpack_elias_fano(packed, n, rows, width))
    if encoding == DENSE:
        return Run(class_index, n, unpack_dense(packed, n, rows, width))
    refuse("malformed", f"the unknown encoding {encoding}")


def unpack_list(packed: bytes, n: int, rows: int, width: int) -> list[list[int]]:
    """Return the rows of encoding 1."""
    bits = (width - 1).bit_length()
    exact(packed, rows * n * bits)
    return checked_buckets(unpack(packed, rows * n, bits), n, width)


def unpack_elias_fano(packed: bytes, n: int, rows: int, width: int) -> list[list[int]]:
    """Return the rows of encoding 2; the unused bits of the lower parts are checked after the bitmaps."""
    low = lower_bits(n, width)
    length = n + (width - 1 >> low)
    lower, upper = packed[: bytes_for(rows * n * low)], packed[bytes_for(rows * n * low) :]
    if len(packed) != bytes_for(rows * n * low) + bytes_for(rows * length):
        refuse("malformed", "another number of bytes than the encoding has")
    exact(upper, rows * length)
    bits = bits_of_bytes(upper)
    highs: list[int] = []
    for start in range(0, rows * length, length):
        places = [place for place, bit in enumerate(bits[start : start + length]) if bit == "1"]
        if len(places) != n:
            refuse("impossible_counts", "a bitmap without n bits set")
        highs += [place - i for i, place in enumerate(places)]
    exact(lower, rows * n * low)
    lows = unpack(lower, rows * n, low)
    return checked_buckets([high << low | rest for high, rest in zip(highs, lows, strict=True)], n, width)


def unpack_dense(packed: bytes, n: int, rows: int, width: int) -> list[list[int]]:
    """Return the rows of encoding 3."""
    if not packed or not 1 <= packed[0] <= n.bit_length():
        refuse("malformed", "counts of too many bits, or of none")
    bits = packed[0]
    exact(packed[1:], rows * width * bits)
    counts = unpack(packed[1:], rows * width, bits)
    lists = []
    for start in range(0, rows * width, width):
        row = counts[start : start + width]
        if max(row) > n or sum(row) != n:
            refuse("impossible_counts", "a row that does not sum to n")
        lists.append([bucket for bucket, count in enumerate(row) for _ in range(count)])
    return lists


def exact(packed: bytes, bits: int) -> None:
    """Refuse another number of bytes than these bits need, and unused bits that are not 0."""
    if len(packed) != bytes_for(bits):
        refuse("malformed", "another number of bytes than the encoding has")
    if not unused_bits_are_zero(packed, bits):
        refuse("malformed", "unused bits that are not 0")


def checked_buckets(buckets: list[int], n: int, width: int) -> list[list[int]]:
    """Return the rows of a list of buckets, which are below the width and ascend in each row."""
    if max(buckets) >= width:
        refuse("bucket_out_of_range", "a bucket beyond the largest")
    lists = [buckets[start : start + n] for start in range(0, len(buckets), n)]
    if any(row != sorted(row) for row in lists):
        refuse("malformed", "buckets that do not ascend")
    return lists
