"""Freezes edge cases of ``hashed``/``euclidean`` plans, once: ``python -m tests.vectors.generate_edge_cases``.

Rows of several codes without a rehash, transforms that move their coordinates, classes, limits of sizes; plans, deltas
and releases that break one rule each. What it has written passes unchanged for ever (tests/vectors/test_edge_cases.py),
so it refuses to write the file again.
"""

import copy
import hashlib
import json
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import hushsum as hs
from hushsum import zstd_frame
from hushsum.bitpacking import pack_bits, pack_elias_fano, varint, zigzag
from hushsum.delta import Delta, DeltaId, encode
from hushsum.entropy import ReplayableEntropy
from hushsum.errors import DeltaError
from hushsum.parameters import Parameters, digest
from hushsum.parameters import encode as encode_array
from hushsum.releases import draw
from tests.vectors.generate import FOLDER, RECORDS

POINTS: list[list[float]] = [*([float(x) for x in corner] for corner in product((0, 255), repeat=3)), *RECORDS]
PATH = FOLDER / "edge_cases" / "edge_cases.json"
ID = DeltaId(2**63 + 9, 300)
WINDOW = -3
LIST, ELIAS_FANO, DENSE = 1, 2, 3
MATRIX: npt.NDArray[np.float32] = np.array(
    [[0.1, -0.7, 1 / 3], [0.9, 0.05, -0.3], [1e-3, 0.6, 0.77], [-1.1, 0.2, 0.4]], np.float32
)
VECTORS: dict[str, object] = {"dim": 3, "lower": [0, 0, 0], "upper": [255, 255, 255]}
CLASSES = ("a", "b", "c")
STEPS: list[dict[str, object]] = [
    {"kind": "scale", "factor": ["-0.01", "0.02", "1/300"]},
    {"kind": "clip", "lower": ["-2", "0.5", "0.1"], "upper": ["-0.3", "3", "0.8"]},
    {"kind": "linear", "matrix": digest(MATRIX)},
    {"kind": "clip", "lower": ["-1"] * 4, "upper": ["1"] * 4},
]
#: Name: tables of the plan.
PLANS: dict[str, tuple[dict[str, object], dict[str, object], dict[str, object]]] = {
    "two-parts-direct": (VECTORS, {"bandwidth": 60, "rows": 6, "buckets": 1024, "power": 2}, {}),
    "three-parts-direct": (VECTORS, {"bandwidth": 120, "rows": 5, "buckets": 1500, "power": 3}, {}),
    "moving-transforms": (
        {**VECTORS, "classes": list(CLASSES)},
        {"bandwidth": "1.5", "rows": 5, "buckets": 50, "transforms": STEPS},
        {},
    ),
    "one-record-of-a-client": (
        {**VECTORS, "classes": list(CLASSES), "names": ["red", "green", "blue"]},
        {"bandwidth": 60, "rows": 4, "buckets": 10},
        {"unit": "client", "records_per_client": 1},
    ),
}


def plan_of(name: str) -> hs.Plan:
    """One of the plans."""
    record, sketch, privacy = PLANS[name]
    return hs.Plan(
        name=name,
        record=record,
        sketch={"family": "hashed", "kernel": "euclidean", "seed": 7, **sketch},
        privacy={"epsilon": 0.5, "total_epsilon": 2, **privacy},
        parameters=Parameters.of([MATRIX]),
    )


def records_of(plan: hs.Plan) -> list[list[float]]:
    """Corners of the bounds, points within them and beyond them; as many as a delta of the plan may hold."""
    return POINTS[: plan.delta_records_max]


def labels_of(plan: hs.Plan, n: int) -> list[str] | None:
    """The classes of records, by turns."""
    return [plan.classes[i % len(plan.classes)] for i in range(n)] if plan.classes else None


def delta_of(plan: hs.Plan, records: list[list[float]]) -> bytes:
    """A packed delta."""
    delta, _ = encode(plan, records, window=WINDOW, id=ID, labels=labels_of(plan, len(records)))
    assert delta is not None
    return delta.pack(plan)


class Run(NamedTuple):
    """The fields of a run, right or wrong."""

    class_index: int
    records: int
    rows: int
    width: int
    encoding: int
    packed: bytes

    def to_bytes(self) -> bytes:
        """The run."""
        *numbers, encoding, packed = self
        return b"".join(map(varint, numbers)) + bytes([encoding]) + varint(len(packed)) + packed


def delta_of_runs(plan: hs.Plan, *runs: Run, sequence: bytes = b"\xac\x02", window: int = WINDOW) -> bytes:
    """A delta of any runs; ``sequence`` is its packed sequence number."""
    head = b"\x01" + plan.id + ID.stream.to_bytes(8, "big") + sequence + varint(zigzag(window))
    return head + varint(len(runs)) + b"".join(run.to_bytes() for run in runs)


class Rows:
    """Rows of ascending buckets of one class, packed in each encoding, and with one fault each."""

    def __init__(self, plan: hs.Plan, buckets: npt.NDArray[np.int64]) -> None:
        self.rows, self.width = plan.family.shape
        self.buckets = np.sort(buckets, axis=1)

    @classmethod
    def of(cls, plan: hs.Plan, records: list[list[float]]) -> "Rows":
        """Those of records."""
        return cls(plan, np.array([buckets_of(plan, record) for record in records], np.int64).T)

    def run(self, encoding: int, packed: bytes, class_index: int = 0) -> Run:
        """A run of one class."""
        return Run(class_index, self.buckets.shape[1], self.rows, self.width, encoding, packed)

    def list(self, buckets: npt.NDArray[np.int64] | None = None, class_index: int = 0) -> Run:
        """Encoding 1."""
        given = self.buckets if buckets is None else buckets
        return self.run(LIST, pack_bits(given.reshape(-1), (self.width - 1).bit_length()), class_index)

    def elias_fano(self, class_index: int = 0) -> Run:
        """Encoding 2."""
        return self.run(ELIAS_FANO, pack_elias_fano(self.buckets, self.width), class_index)

    def dense(self, counts: npt.NDArray[np.int64] | None = None, *, bits: int = 0) -> Run:
        """Encoding 3, of other counts or of other bits than the largest needs."""
        rows = [np.bincount(row, minlength=self.width) for row in self.buckets]
        given = np.stack(rows) if counts is None else counts
        bits = bits or int(given.max()).bit_length()
        return self.run(DENSE, bytes([bits]) + pack_bits(given.reshape(-1), bits))

    def smaller(self, class_index: int = 0) -> Run:
        """The smaller one of encodings 1 and 2."""
        return min(self.list(class_index=class_index), self.elias_fano(class_index), key=lambda run: len(run.packed))

    @property
    def lower_bytes(self) -> int:
        """Bytes of the lower parts of encoding 2."""
        n = int(self.buckets.shape[1])
        low = max(0, (self.width // n).bit_length() - 1)
        return -(-self.rows * n * low // 8)


def flipped(run: Run, at: int, mask: int = 1) -> Run:
    """A run with bits of one byte of its packed counters changed."""
    packed = bytearray(run.packed)
    packed[at] ^= mask
    return run._replace(packed=bytes(packed))


def buckets_of(plan: hs.Plan, record: list[float]) -> list[int]:
    """The bucket of one record in each row."""
    accepted, _ = plan.family.accept([record])
    return [int(index) for index in plan.family.encode(accepted).indices % plan.family.shape[1]]


def accepted_deltas(plan: hs.Plan) -> Iterator[tuple[str, bytes]]:
    """Deltas that a reader accepts, though a writer would not write their runs so, or hardly ever has such an id."""
    records = records_of(plan)
    rows = Rows.of(plan, records)
    yield "the largest sequence number", delta_of_runs(plan, rows.smaller(), sequence=b"\xff" * 8 + b"\x7f")
    yield "the least window", delta_of_runs(plan, rows.smaller(), window=-(2**63))
    if plan.delta_records_max == 1:
        return
    n = records_too_many_for_a_list(plan)
    yield "a list that is not the smallest", delta_of_runs(plan, Rows.of(plan, records[:1] * (n - 1)).list())
    yield "as many records in encoding 2", delta_of_runs(plan, Rows.of(plan, records[:1] * n).elias_fano())
    full = every_bucket_twice(plan)
    yield "dense counts of more bits than needed", delta_of_runs(plan, full.dense(bits=3))


def every_bucket_twice(plan: hs.Plan) -> Rows:
    """Rows of which every bucket has two records: counts are the smallest encoding."""
    rows, width = plan.family.shape
    return Rows(plan, np.tile(np.repeat(np.arange(width), 2), (rows, 1)))


def records_too_many_for_a_list(plan: hs.Plan) -> int:
    """The least number of records of which a list is beyond the limit of a run."""
    rows, width = plan.family.shape
    bits = (width - 1).bit_length()
    return next(n for n in range(1, 4096) if -(-rows * n * bits // 8) > plan.delta_sizes.run_bytes_max(n))


def malformed_deltas(plan: hs.Plan) -> Iterator[tuple[str, bytes]]:
    """Deltas that are refused, each for another fault, or for the first of two."""
    good = delta_of(plan, records_of(plan))
    head, other = good[:43], b"\x01" + bytes(32) + good[33:43]
    most = plan.delta_bytes_max
    beyond = (2**63).to_bytes(8, "big")
    rows = Rows.of(plan, records_of(plan))
    run = rows.smaller()
    yield "as many bytes as a delta may have", good.ljust(most, b"\0")
    yield "a byte more than a delta may have", good.ljust(most + 1, b"\0")
    yield "a byte more, and a newer format", (b"\x02" + good[1:]).ljust(most + 1, b"\0")
    yield "cut off within the window, of another plan", other + b"\x85"
    yield "cut off after the window, of another plan", other + b"\x05"
    yield "cut off after the window", head + b"\x05"
    yield "a sequence number of 2^63", delta_of_runs(plan, run, sequence=b"\x80" * 9 + b"\x01")
    yield "a sequence number of 2^63, of another plan", other[:41] + b"\x80" * 9 + b"\x01\x05\x01"
    yield "a window of 65 bits", head + b"\xff" * 9 + b"\x02" + good[44:]
    for encoding in (0, 4, 5, 255):
        yield f"encoding {encoding}", delta_of_runs(plan, run._replace(encoding=encoding))
    yield "a row more", delta_of_runs(plan, run._replace(rows=run.rows + 1))
    yield "a row more, cut off", delta_of_runs(plan, run._replace(rows=run.rows + 1))[:-1]
    yield "a row more, no records", delta_of_runs(plan, run._replace(rows=run.rows + 1, records=0))
    yield "no records", delta_of_runs(plan, run._replace(records=0))
    yield "a class too many", delta_of_runs(plan, run._replace(class_index=max(1, len(plan.classes))))
    yield "a class too many, a row more", delta_of_runs(plan, run._replace(class_index=1024, rows=run.rows + 1))
    many = plan.delta_records_max + 1
    yield "too many records, an unknown encoding", delta_of_runs(plan, run._replace(records=many, encoding=9))
    yield "records of 64 bits", delta_of_runs(plan, run._replace(records=int.from_bytes(beyond, "big")))
    yield "a byte less", delta_of_runs(plan, run._replace(packed=run.packed[:-1]))
    yield "a byte more", delta_of_runs(plan, run._replace(packed=run.packed + b"\0"))
    yield "no bytes", delta_of_runs(plan, run._replace(packed=b""))
    yield from faults_of_rows(plan)
    if plan.delta_records_max > 1:
        yield from faults_of_dense(plan)
        n = records_too_many_for_a_list(plan)
        yield "a list beyond its limit", delta_of_runs(plan, Rows.of(plan, records_of(plan)[:1] * n).list())
    if len(plan.classes) > 1:
        yield from faults_of_classes(plan)


def faults_of_rows(plan: hs.Plan) -> Iterator[tuple[str, bytes]]:
    """Faults of encodings 1 and 2."""
    one = Rows.of(plan, records_of(plan)[:1])
    bits = (one.width - 1).bit_length()
    if (one.rows * bits) % 8:
        yield "unused bits of a list", delta_of_runs(plan, flipped(one.list(), -1))
    if one.width < 2**bits:
        beyond = one.buckets.copy()
        beyond[-1, -1] = one.width
        yield "a bucket of W in a list", delta_of_runs(plan, one.list(beyond))
    if plan.delta_records_max == 1:
        return
    corners = Rows.of(plan, [POINTS[0], POINTS[7]])
    yield "a list that does not ascend", delta_of_runs(plan, corners.list(corners.buckets[:, ::-1]))
    if one.width < 2**bits:
        both = corners.buckets[:, ::-1].copy()
        both[1, -1] = one.width
        yield "a first row that does not ascend, W in the second", delta_of_runs(plan, corners.list(both))
        both[0] = corners.buckets[0]
        yield "a bucket of W in encoding 2", delta_of_runs(plan, Rows(plan, both).elias_fano())
    for n in (3, 5, 6, 7, 13):
        rows = Rows.of(plan, records_of(plan)[:n])
        run, split = rows.elias_fano(), rows.lower_bytes
        low = max(0, (rows.width // n).bit_length() - 1)
        length = n + (rows.width - 1 >> low)
        name = f"of {n} records"
        if rows.rows * n * low % 8:
            wrong = flipped(run, split - 1)
            yield f"unused lower bits {name}", delta_of_runs(plan, wrong)
            without = wrong._replace(packed=wrong.packed[:split] + bytes(len(run.packed) - split))
            yield f"unused lower bits and empty bitmaps {name}", delta_of_runs(plan, without)
        if rows.rows * length % 8:
            yield f"unused bits of the bitmaps {name}", delta_of_runs(plan, flipped(run, -1))
        bitmap = np.unpackbits(np.frombuffer(run.packed[split:], np.uint8))
        moved, first = bitmap.copy(), int(np.flatnonzero(bitmap[:length])[0])
        free = int(np.flatnonzero(bitmap[length : 2 * length] == 0)[0]) + length
        moved[[first, free]] = 0, 1
        packed = run.packed[:split] + np.packbits(moved).tobytes()
        yield f"a bit of the first bitmap in the second {name}", delta_of_runs(plan, run._replace(packed=packed))
    twins = Rows.of(plan, records_of(plan)[:1] * 2)
    below = twins.buckets.copy()
    below[:, 0] ^= 1  # the lowest of the lower bits: equal high parts, and in some rows a falling list
    falling = np.sort(below, axis=1)[:, ::-1]
    packed = pack_elias_fano(falling, twins.width)
    yield "lower parts that fall in encoding 2", delta_of_runs(plan, twins.run(ELIAS_FANO, packed))


def faults_of_dense(plan: hs.Plan) -> Iterator[tuple[str, bytes]]:
    """Faults of encoding 3."""
    full = every_bucket_twice(plan)
    run = full.dense()
    counts = np.full((full.rows, full.width), 2)
    less, swapped = counts.copy(), counts.copy()
    less[0, 0] = 1
    swapped[0, 0], swapped[1, 0] = 1, 3
    yield "counts of no bits", delta_of_runs(plan, run._replace(packed=b"\0" + run.packed[1:]))
    yield "counts of 16 bits", delta_of_runs(plan, run._replace(packed=b"\x10" + run.packed[1:]))
    yield "a byte less of encoding 3", delta_of_runs(plan, run._replace(packed=run.packed[:-1]))
    yield "a byte more of encoding 3", delta_of_runs(plan, run._replace(packed=run.packed + b"\0"))
    yield "a row that sums to n - 1", delta_of_runs(plan, full.dense(less))
    yield "rows that sum to n - 1 and n + 1", delta_of_runs(plan, full.dense(swapped))
    if full.rows * full.width * 2 % 8:
        yield "unused bits of counts", delta_of_runs(plan, flipped(run, -1))


def faults_of_classes(plan: hs.Plan) -> Iterator[tuple[str, bytes]]:
    """Faults of several runs."""
    one = Rows.of(plan, records_of(plan)[:1])
    first, second, third = (one.smaller(index) for index in range(3))
    yield "more runs than classes", delta_of_runs(plan, first, second, third, third)
    if plan.delta_records_max == 1:
        yield "a record of each class", delta_of_runs(plan, first, second)
        return
    yield "classes that fall", delta_of_runs(plan, second, first)
    yield "a class twice", delta_of_runs(plan, first, first)
    yield "a second run without records", delta_of_runs(plan, first, second._replace(records=0))
    yield "a second run that is missing", delta_of_runs(plan, first, second)[: -len(second.to_bytes())]
    yield "a byte after the second run", delta_of_runs(plan, first, second) + b"\0"
    full = Rows.of(plan, records_of(plan)[:1] * plan.delta_records_max).dense()
    yield "too many records in two runs", delta_of_runs(plan, full, second)
    three = Rows.of(plan, records_of(plan)[:3]).elias_fano()
    empty = three._replace(packed=bytes(len(three.packed)))
    wide = second._replace(width=second.width + 1)
    yield "no bits in a first bitmap, another width in the second run", delta_of_runs(plan, empty, wide)


def reason_of(plan: hs.Plan, data: bytes) -> str:
    """Why a delta is refused."""
    try:
        Delta.unpack(data, plan)
    except DeltaError as error:
        return error.reason.value
    raise AssertionError(f"not refused: {data.hex()}")


Change = Callable[[dict[str, Any]], object]

#: Accepted by a reader of ``two-parts-direct``: the plan with another key, and so with another id.
ACCEPTED_PLANS: dict[str, Change] = {
    "a name with spaces and accents": lambda plan: plan.update(name="räume und flure"),
    "a name of 128 characters": lambda plan: plan.update(name="n" * 128),
    "a name with U+00AD, a dash in Unicode 3.2": lambda plan: plan.update(name="a\u00adb"),
    "no lateness": lambda plan: plan["window"].update(lateness="0s"),
    "a window of one millisecond": lambda plan: plan["window"].update(length="1ms"),
    "units that are equal": lambda plan: plan["record"].update(units=["m", "m", ""]),
    "no count counter": lambda plan: plan["privacy"]["mechanism"].update(count_scale=0),
}
#: Refused: the plan of this name with another key, canonical again.
MALFORMED_PLANS: dict[str, dict[str, Change]] = {
    "two-parts-direct": {
        "no name": lambda plan: plan.update(name=""),
        "a name that begins with a space": lambda plan: plan.update(name=" n"),
        "a name that ends with a space": lambda plan: plan.update(name="n "),
        "a name with U+00A0": lambda plan: plan.update(name="a\u00a0b"),
        "a name with U+200B": lambda plan: plan.update(name="a\u200bb"),
        "a name with U+200D": lambda plan: plan.update(name="a\u200db"),
        "a name with U+E000": lambda plan: plan.update(name="a\ue000b"),
        "a name with U+2028": lambda plan: plan.update(name="a\u2028b"),
        "a name with a line break": lambda plan: plan.update(name="a\nb"),
        "a name with U+0378": lambda plan: plan.update(name="a\u0378b"),
        "a name with U+FFFE": lambda plan: plan.update(name="a\ufffeb"),
        "a name with U+1F9C1": lambda plan: plan.update(name="a\U0001f9c1b"),
        "a name that is not in normal form C": lambda plan: plan.update(name="e\u0301"),
        "a name of 129 characters": lambda plan: plan.update(name="n" * 129),
        "a lower bound that is the upper one": lambda plan: plan["record"].update(lower=["0", "255", "0"]),
        "a bound with an exponent": lambda plan: plan["record"].update(upper=["255", "255", "2e2"]),
        "bounds that are equal in float32": lambda plan: plan["record"].update(lower=["254.999999999", "0", "0"]),
        "a bound above 2^64": lambda plan: plan["record"].update(upper=["18446744073709551617", "255", "255"]),
        "two bounds": lambda plan: plan["record"].update(lower=["0", "0"]),
        "two names": lambda plan: plan["record"].update(names=["a", "b"]),
        "names that are equal": lambda plan: plan["record"].update(names=["a", "b", "a"]),
        "one class": lambda plan: plan["record"].update(classes=["a"]),
        "classes that are equal": lambda plan: plan["record"].update(classes=["a", "a"]),
        "a class without a label": lambda plan: plan["record"].update(classes=["a", ""]),
        "a key of sets": lambda plan: plan["record"].update(universe=1000),
        "a bandwidth of 0": lambda plan: plan["sketch"].update(bandwidth="0"),
        "power 9": lambda plan: plan["sketch"].update(power=9),
        "one bucket": lambda plan: plan["sketch"].update(buckets=1),
        "no rows": lambda plan: plan["sketch"].update(rows=0),
        "a negative seed": lambda plan: plan["sketch"].update(seed=-1),
        "no steps of transforms": lambda plan: plan["sketch"].update(transforms=[]),
        "a count scale above 2^33": lambda plan: plan["privacy"]["mechanism"].update(
            count_scale=2**33 + 1, scale="281474976710656"
        ),
        "a scale above 2^48": lambda plan: plan["privacy"]["mechanism"].update(scale="281474976710657"),
        "a count scale that takes too much of epsilon": lambda plan: plan["privacy"]["mechanism"].update(count_scale=9),
        "another participation": lambda plan: plan["privacy"].update(participation="public"),
        "a bound of unit client": lambda plan: plan["privacy"].update(records_per_client=1),
        "no window": lambda plan: plan["window"].update(length="0s"),
        "a length in another unit": lambda plan: plan["window"].update(length="60m"),
        "a length of 3,661 days": lambda plan: plan["window"].update(length="3661d"),
        "a lateness with a zero before it": lambda plan: plan["window"].update(lateness="05m"),
        "an epoch before 1970": lambda plan: plan["window"].update(epoch="1969-12-31T23:59:59Z"),
        "an epoch of milliseconds": lambda plan: plan["window"].update(epoch="1970-01-01T00:00:00.000Z"),
        "another time": lambda plan: plan["window"].update(time="arrival"),
        "another release": lambda plan: plan["window"].update(release="cumulative"),
        "clients that are counted without noise": lambda plan: plan["window"].update(min_clients=1),
        "a default that is not written": lambda plan: plan["window"].update(late="drop"),
        "a number of reports that is not written": lambda plan: plan["window"].update(min_reports=0),
    },
    "moving-transforms": {
        "17 steps": lambda plan: plan["sketch"].update(transforms=[{"kind": "unit-norm"}] * 17),
        "two factors": lambda plan: plan["sketch"]["transforms"][0].update(factor=["1", "1"]),
        "a factor of 0": lambda plan: plan["sketch"]["transforms"][0].update(factor=["0", "1", "1"]),
        "a factor below 2^-64": lambda plan: plan["sketch"]["transforms"][0].update(
            factor=["0.00000000000000000001", "1", "1"]
        ),
        "a clip of one value": lambda plan: plan["sketch"]["transforms"][1].update(lower=["-2", "0.5", "0.8"]),
        "a clip beyond the bounds": lambda plan: (
            plan["sketch"]["transforms"][1].update(upper=["-0.3", "3", "0.8"])
            or plan["sketch"]["transforms"][1].update(lower=["-9", "0.5", "0.1"], upper=["-8", "3", "0.8"])
        ),
        "a clip of three coordinates of four": lambda plan: plan["sketch"]["transforms"][3].update(
            lower=["-1"] * 3, upper=["1"] * 3
        ),
        "bounds above 2^64": lambda plan: plan["sketch"]["transforms"][0].update(
            factor=["-18446744073709551616", "0.02", "1/300"]
        ),
        "an unknown key of a step": lambda plan: plan["sketch"]["transforms"][0].update(offset=["0", "0", "0"]),
        "an unknown kind": lambda plan: plan["sketch"]["transforms"][0].update(kind="shift"),
        "another matrix": lambda plan: plan["sketch"]["transforms"][2].update(matrix="0" * 64),
        "no matrix": lambda plan: plan["sketch"]["transforms"].pop(2),
    },
    "one-record-of-a-client": {
        "no records of a client": lambda plan: plan["privacy"].update(records_per_client=0),
        "records of a client above 2^31": lambda plan: plan["privacy"].update(records_per_client=2**31 + 1),
        "records that the noise does not hide": lambda plan: plan["privacy"].update(records_per_client=2),
        "a bound that is missing": lambda plan: plan["privacy"].pop("records_per_client"),
    },
}


def changed(plan: hs.Plan, change: Change) -> bytes:
    """The bundle of a plan with another key, right or wrong."""
    fields: dict[str, Any] = copy.deepcopy(json.loads(plan.to_bytes()))
    change(fields)
    text = json.dumps(fields, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return text.encode() + plan.bundle[len(plan.to_bytes()) :]


def malformed_bundles(name: str) -> Iterator[tuple[str, bytes]]:
    """Bundles that are refused."""
    plan = plan_of(name)
    for case, change in MALFORMED_PLANS.get(name, {}).items():
        yield case, changed(plan, change)
    yield "a line break after the plan", plan.to_bytes() + b"\n"
    if len(plan.parameters):
        array = encode_array([[1.0, 2.0, 3.0]])
        empty = b"HSPA\x01\x02" + bytes(8)
        yield "no arrays", plan.to_bytes()
        yield "an array twice", plan.bundle + plan.bundle[len(plan.to_bytes()) + 1 :]
        yield (
            "an array too many",
            plan.to_bytes()
            + b"\n"
            + b"".join(
                len(data).to_bytes(8, "big") + data for data in sorted([array, encode_array(MATRIX)], key=digest_of)
            ),
        )
        yield "an array of no numbers", plan.bundle + len(empty).to_bytes(8, "big") + empty


def digest_of(data: bytes) -> bytes:
    """The digest of an encoded array."""
    return hashlib.sha256(b"hushsum/v1/parameters\0" + data).digest()


class Parts(NamedTuple):
    """The parts of a release, right or wrong."""

    header: bytes
    bundle: bytes
    guarantee: bytes
    frame: bytes

    @classmethod
    def of(cls, data: bytes) -> "Parts":
        """Those of a release."""
        parts, at = [], 6
        for size in (4, 4, 4, 8):
            end = at + size + int.from_bytes(data[at : at + size], "big")
            parts.append(data[at + size : end])
            at = end
        return cls(*parts)

    def to_bytes(self, *, before: bytes = b"HUSH\0\1", after: bytes = b"", longer: int = 0) -> bytes:
        """The release with a right checksum; its frame's length is ``longer`` than the frame."""
        body = before + b"".join(len(part).to_bytes(4, "big") + part for part in self[:3])
        body += (len(self.frame) + longer).to_bytes(8, "big") + self.frame + after
        return body + hashlib.sha256(body).digest()

    def with_header(self, **changes: object) -> "Parts":
        """Another header; a value of None leaves its key out."""
        fields = {key: value for key, value in {**json.loads(self.header), **changes}.items() if value is not None}
        return self._replace(header=json.dumps(fields, sort_keys=True, separators=(",", ":")).encode())

    def with_guarantee(self, **changes: object) -> "Parts":
        """Another guarantee; a value of None leaves its key out."""
        fields = {key: value for key, value in {**json.loads(self.guarantee), **changes}.items() if value is not None}
        return self._replace(guarantee=json.dumps(fields, sort_keys=True, separators=(",", ":")).encode())


def raw_frame(content: bytes, *, stated: int | None = None, descriptor: int = 0xA0, after: bytes = b"") -> bytes:
    """A frame of one raw block, which states its content size, or another one."""
    size = (len(content) if stated is None else stated).to_bytes(4, "little")
    block = (8 * len(content) + 1).to_bytes(3, "little")
    return b"\x28\xb5\x2f\xfd" + bytes([descriptor]) + size + block + content + after


def content_of(parts: Parts) -> bytes:
    """The values of a release as they are stored."""
    return bytes(zstd_frame.zstd.decompress(parts.frame))


def with_checksum(content: bytes) -> bytes:
    """A frame that has a checksum of its content."""
    return bytes(zstd_frame.zstd.compress(content, options={zstd_frame.zstd.CompressionParameter.checksum_flag: 1}))


def accepted_releases(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Releases with the same values in other frames."""
    parts = Parts.of(data)
    yield "a raw block", parts._replace(frame=raw_frame(content_of(parts))).to_bytes()
    yield "a checksum of the content", parts._replace(frame=with_checksum(content_of(parts))).to_bytes()


def malformed_releases(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Releases with a right checksum that are refused, each for another fault."""
    parts = Parts.of(data)
    content, frame = content_of(parts), parts.frame
    wide = np.frombuffer(content, "<i2").astype("<i4").tobytes()
    checked = with_checksum(content)
    classes, rows, width = json.loads(parts.header)["shape"]
    yield "format 0", parts.to_bytes(before=b"HUSH\0\0")
    yield "a newer format", parts.to_bytes(before=b"HUSH\0\2")
    yield "no parts", b"HUSH\0\1" + hashlib.sha256(b"HUSH\0\1").digest()
    yield "the plan of another release", parts._replace(bundle=plan_of("two-parts-direct").bundle).to_bytes()
    yield "a plan that is not canonical", parts._replace(bundle=parts.bundle + b" ").to_bytes()
    for key, value in {
        "epsilon": "0.25",
        "delta": "0.1",
        "unit": "record",
        "relation": "zero-out",
        "mode": "local",
        "records_per_client": 2,
        "rho": "1",
        "mechanism": {"count_scale": 1, "name": "discrete-laplace", "scale": "1"},
    }.items():
        yield f"a guarantee with another {key}", parts.with_guarantee(**{key: value}).to_bytes()
    yield "a guarantee without records_per_client", parts.with_guarantee(records_per_client=None).to_bytes()
    yield "a guarantee that is not canonical", parts._replace(guarantee=parts.guarantee + b" ").to_bytes()
    yield "a header that is not canonical", parts._replace(header=b" " + parts.header).to_bytes()
    for shape in ([classes, rows, width - 1], [rows, width], [classes * rows * width], [1, classes * rows, width]):
        yield f"shape {shape}", parts.with_header(shape=shape).to_bytes()
    for key in json.loads(parts.header):
        yield f"a header without {key}", parts.with_header(**{key: None}).to_bytes()
    yield "a window of kind in-process", parts.with_header(kind="in-process").to_bytes()
    yield "an unknown kind", parts.with_header(kind="choice").to_bytes()
    yield "an unknown accounting", parts.with_header(accounting="none").to_bytes()
    yield "a window that is a text", parts.with_header(window="-3").to_bytes()
    yield "an unknown key", parts.with_header(comment="").to_bytes()
    yield "submissions in mode central", parts.with_header(submissions=1).to_bytes()
    yield "reports of a shuffler in mode central", parts.with_header(shuffled=1).to_bytes()
    yield "items of 3 bytes", parts.with_header(item_bytes=3).to_bytes()
    yield "items of 4 bytes in a frame of 2", parts.with_header(item_bytes=4).to_bytes()
    yield "items of 4 bytes where 2 suffice", parts._replace(frame=raw_frame(wide)).with_header(item_bytes=4).to_bytes()
    yield "a frame of one value less", parts._replace(frame=raw_frame(content[:-2])).to_bytes()
    yield "a frame of one value more", parts._replace(frame=raw_frame(content + b"\0\0")).to_bytes()
    short = raw_frame(content[:-2], stated=len(content))
    yield "a frame that holds less than it states", parts._replace(frame=short).to_bytes()
    long = raw_frame(content + b"\0\0", stated=len(content))
    yield "a frame that holds more than it states", parts._replace(frame=long).to_bytes()
    unsized = b"\x28\xb5\x2f\xfd\0\0" + raw_frame(content)[9:]
    yield "a frame without its content size", parts._replace(frame=unsized).to_bytes()
    yield "a byte after the frame", parts._replace(frame=frame + b"\0").to_bytes()
    yield "an empty frame after the frame", parts._replace(frame=frame + raw_frame(b"")).to_bytes()
    yield "a frame that is cut off", parts._replace(frame=frame[:-1]).to_bytes()
    yield (
        "a frame whose own checksum is wrong",
        parts._replace(frame=checked[:-1] + bytes([checked[-1] ^ 1])).to_bytes(),
    )
    yield "no frame", parts._replace(frame=b"").to_bytes()
    yield "a frame that is shorter than its length", parts.to_bytes(longer=1)
    yield "a byte after the length of the frame", parts.to_bytes(after=b"\0")


def release_of(plan: hs.Plan) -> hs.Release:
    """A release of the records."""
    sketch, records = hs.Sketch(plan), records_of(plan)
    clients = ["one"] * len(records) if plan.privacy.unit == "client" else None
    sketch.add(records, labels=labels_of(plan, len(records)), clients=clients)
    return draw(sketch, kind="tumbling", window=WINDOW, entropy=ReplayableEntropy(b"edge cases"), accounted=True)


def vectors_of(name: str) -> dict[str, object]:
    """Everything that is frozen of one plan."""
    plan = plan_of(name)
    records = records_of(plan)
    vectors: dict[str, object] = {
        "bundle": plan.bundle.hex(),
        "plan_id": plan.hex_id,
        "malformed_bundles": {case: bundle.hex() for case, bundle in malformed_bundles(name)},
        "records": [[float(value).hex() for value in point] for point in POINTS],
        "buckets": [buckets_of(plan, point) for point in POINTS],
        "records_max": plan.delta_records_max,
        "bytes_max": plan.delta_bytes_max,
        "delta_records": len(records),
        "delta": delta_of(plan, records).hex(),
        "accepted_deltas": {case: data.hex() for case, data in accepted_deltas(plan)},
        "malformed_deltas": {
            case: {"delta": data.hex(), "reason": reason_of(plan, data)} for case, data in malformed_deltas(plan)
        },
    }
    if name == "two-parts-direct":
        bundles = {case: changed(plan, change) for case, change in ACCEPTED_PLANS.items()}
        vectors["accepted_bundles"] = {case: bundle.hex() for case, bundle in bundles.items()}
    if name == "one-record-of-a-client":
        release = release_of(plan)
        data = release.to_bytes()
        vectors |= {
            "release": data.hex(),
            "release_counters": release.counters.reshape(-1).tolist(),
            "release_counts": release.counts.tolist(),
            "accepted_releases": {case: other.hex() for case, other in accepted_releases(data)},
            "malformed_releases": {case: other.hex() for case, other in malformed_releases(data)},
        }
    return vectors


def main() -> None:
    """Writes the file."""
    PATH.parent.mkdir(exist_ok=True)
    vectors = {name: vectors_of(name) for name in PLANS}
    with PATH.open("x", encoding="utf-8") as file:
        json.dump(vectors, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    np.seterr(all="raise")
    main()
