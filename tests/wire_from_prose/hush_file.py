"""Releases, `.hush` files, written from the section "Releases: .hush" of docs/reference/wire.md.

`read_parts` checks what does not depend on the family: the layout, the checksum, the header and the frame.
`read_release` also checks the plan, its guarantee and the shape, for plans that the module `plan` covers.
`write_release` writes the frame with raw blocks.
"""

import hashlib
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from .bits import MalformedError, Reader
from .canonical_json import Json, NotCanonicalError, decode, encode
from .plan import MOST_BYTES_OF_BUNDLE, Plan, PlanError, read_bundle
from .zstandard import FrameError, compress, decompress

MAGIC = b"HUSH"
FORMAT = 1
MOST_BYTES_OF_PART = 65_536
CHECKSUM_BYTES = 32
ITEM = {2: "h", 4: "i", 8: "q"}
KEYS = {"accounting", "item_bytes", "kind", "shape"}


class ReleaseError(ValueError):
    """The bytes are not a release."""


@dataclass(frozen=True)
class Parts:
    """The parts of a release before anything is known of its plan."""

    header: Mapping[str, Json]
    bundle: bytes
    guarantee: Json
    frame: bytes


@dataclass(frozen=True)
class Release:
    """A release, decoded: counters of all classes, the last axis fastest, and count counters."""

    plan: Plan
    header: Mapping[str, Json]
    guarantee: Json
    counters: tuple[int, ...]
    counts: tuple[int, ...]

    def records(self) -> list[Fraction]:
        """Return the noised number of records of each class."""
        return [Fraction(count, self.plan.count_scale) for count in self.counts]


def read_release(data: bytes) -> Release:
    """Return a release, or refuse it."""
    parts = read_parts(data)
    try:
        plan = read_bundle(parts.bundle)
        guarantee = guarantee_of(plan)
        if parts.guarantee != guarantee:
            raise ReleaseError("the guarantee is not the plan's")
        check_header(parts.header)
        shape = [plan.classes_or_one, plan.rows, plan.buckets]
        if parts.header["shape"] != shape:
            raise ReleaseError("another shape than the plan's")
        counts = plan.classes_or_one if plan.count_scale else 0
        values = read_values(parts, math.prod(shape) + counts)
    except (PlanError, FrameError) as error:
        raise ReleaseError(str(error)) from error
    split = math.prod(shape)
    return Release(plan, parts.header, guarantee, values[:split], values[split:])


def read_parts(data: bytes) -> Parts:
    """Return the parts of a release; the magic, the format, the checksum and the lengths are verified."""
    if data[:4] != MAGIC:
        raise ReleaseError("not a release")
    try:
        reader = Reader(data[:-CHECKSUM_BYTES])
        reader.take(4)
        version = reader.integer(2)
        if version > FORMAT:
            raise ReleaseError(f"the newer format {version}")
        if version < FORMAT:
            raise ReleaseError("format 0")
        if hashlib.sha256(reader.data).digest() != data[-CHECKSUM_BYTES:]:
            raise ReleaseError("the checksum differs")
        header_bytes = read_part(reader, MOST_BYTES_OF_PART)
        bundle = read_part(reader, MOST_BYTES_OF_BUNDLE)
        guarantee = decode(read_part(reader, MOST_BYTES_OF_PART))
        header = decode(header_bytes)
        length = reader.integer(8)
        if length != reader.rest():
            raise ReleaseError("the frame is not the rest of the bytes")
        frame = reader.take(length)
    except (MalformedError, NotCanonicalError) as error:
        raise ReleaseError(str(error)) from error
    if not isinstance(header, dict):
        raise ReleaseError("the header is not an object")
    return Parts(header, bundle, guarantee, frame)


def read_part(reader: Reader, most: int) -> bytes:
    """Return a part after its length, which is verified before the part is taken."""
    length = reader.integer(4)
    if length > min(most, reader.rest()):
        raise ReleaseError("a part is longer than it may be")
    return reader.take(length)


def check_header(header: Mapping[str, Json]) -> None:
    """Refuse a header of mode `central` with unknown or missing keys, or unknown values."""
    tumbling = header.get("kind") == "tumbling"
    if set(header) != KEYS | ({"window"} if tumbling else set()):
        raise ReleaseError("unknown or missing keys of the header")
    if header["kind"] not in ("tumbling", "in-process") or header["accounting"] not in ("ledger", "unaccounted"):
        raise ReleaseError("an unknown kind or accounting")
    if tumbling and not isinstance(header["window"], int):
        raise ReleaseError("a window that is not an integer")


def read_values(parts: Parts, count: int) -> tuple[int, ...]:
    """Return the values of the frame, with no more bytes for each than they need."""
    item_bytes = parts.header.get("item_bytes")
    if not isinstance(item_bytes, int) or item_bytes not in ITEM:
        raise ReleaseError("values of another number of bytes than 2, 4 or 8")
    content = decompress(parts.frame, count * item_bytes)
    values: tuple[int, ...] = struct.unpack(f"<{count}{ITEM[item_bytes]}", content)
    if item_bytes != least_item_bytes(values):
        raise ReleaseError("more bytes for each value than they need")
    return values


def least_item_bytes(values: tuple[int, ...]) -> int:
    """Return the least of 2, 4 and 8 bytes that holds all values."""
    return next(size for size in ITEM if all(-(2 ** (8 * size - 1)) <= value < 2 ** (8 * size - 1) for value in values))


def guarantee_of(plan: Plan) -> Json:
    """Return the guarantee of a plan of mode `central` and `discrete-laplace`."""
    copied = ("delta", "epsilon", "mechanism", "mode", "records_per_client", "unit")
    return {"relation": "add/remove", **{key: plan.privacy[key] for key in copied if key in plan.privacy}}


def write_release(release: Release) -> bytes:
    """Return the bytes of a release, its frame made of raw blocks."""
    values = release.counters + release.counts
    item_bytes = least_item_bytes(values)
    if release.header["item_bytes"] != item_bytes:
        raise ReleaseError("the header states another number of bytes than the values need")
    frame = compress(struct.pack(f"<{len(values)}{ITEM[item_bytes]}", *values))
    return write_parts(Parts(release.header, release.plan.bundle, release.guarantee, frame))


def write_parts(parts: Parts) -> bytes:
    """Return the bytes of a release of its parts, and the checksum."""
    out = MAGIC + FORMAT.to_bytes(2, "big")
    for part in (encode(dict(parts.header)), parts.bundle, encode(parts.guarantee)):
        out += len(part).to_bytes(4, "big") + part
    out += len(parts.frame).to_bytes(8, "big") + parts.frame
    return out + hashlib.sha256(out).digest()
