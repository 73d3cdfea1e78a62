"""The encoder and decoder that were written from docs/reference/wire.md alone, on the older vectors.

Which vectors: all of `draws.json`, of the four files of `hashed`/`euclidean`, and of `families/families.json` the
deltas of the plans that these modules cover (kernel `euclidean`, independent draws) and every release. The others
(other families, local mode, log, `files.zip`) need sections of the page that these modules were not written from.
"""

import hashlib
import json
import math
import struct
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from .bits import MalformedError, Reader, varint, zigzag
from .canonical_json import Json, NotCanonicalError, decode, encode, read_real, write_real
from .codes import Sketch
from .delta import (
    DENSE,
    ELIAS_FANO,
    LIST,
    RefusedError,
    encode_delta,
    most_bytes,
    most_bytes_of_run,
    most_records,
    pack_dense,
    pack_elias_fano,
    pack_list,
    pack_rows,
    read_delta,
    sizes,
    unpack_dense,
    unpack_elias_fano,
    unpack_list,
    write_delta,
)
from .hush_file import (
    ReleaseError,
    check_header,
    read_parts,
    read_release,
    read_values,
    write_parts,
    write_release,
)
from .plan import Plan, PlanError, read_bundle
from .public_random import Stream
from .zstandard import FrameError, compress, decompress

VECTORS = Path(__file__).parents[1] / "vectors" / "v1"
DRAWS = json.loads((VECTORS / "draws.json").read_text())
HASHED = {
    name: json.loads((VECTORS / f"{name}.json").read_text())
    for name in ("codes-that-fit", "two-parts", "rehash-power-of-two", "rehash-any-width")
}
FAMILIES = json.loads((VECTORS / "families" / "families.json").read_text())
COVERED_FAMILIES = ("transforms", "count-of-rho", "laplace-at-delta")
IDENTITY = (2**63 + 9, 300)
WINDOW = -3

each_hashed = pytest.mark.parametrize("name", HASHED)
each_covered_family = pytest.mark.parametrize("name", COVERED_FAMILIES)


def vector_of(name: str) -> Mapping[str, Any]:
    """Return the vectors of a plan."""
    found: Mapping[str, Any] = HASHED[name] if name in HASHED else FAMILIES[name]
    return found


@cache
def sketch_of(name: str) -> Sketch:
    """Return the draws of a plan."""
    return Sketch(plan_of(name))


@cache
def plan_of(name: str) -> Plan:
    """Return a plan."""
    vector = vector_of(name)
    return read_bundle(bytes.fromhex(vector["bundle"]) if "bundle" in vector else vector["plan"].encode("utf-8"))


def records_of(name: str) -> list[list[float]]:
    """Return the records of a plan."""
    return [[float.fromhex(x) for x in record] for record in vector_of(name)["records"]]


def classes_of(name: str) -> list[int]:
    """Return the classes of a plan's records: none, or by turns."""
    classes = plan_of(name).classes_or_one
    return [i % classes for i in range(len(records_of(name)))]


def reason_of(plan: Plan, data: bytes) -> str | None:
    """Return the reason for which a delta is refused, or None."""
    try:
        read_delta(plan, data)
    except RefusedError as refusal:
        return refusal.reason
    return None


@pytest.mark.parametrize("number", range(len(DRAWS)))
def test_words_uniforms_and_normals_are_those_of_the_vectors(number: int) -> None:
    vector = DRAWS[number]
    key = (vector["seed"], vector["purpose"])
    for name, first in (("words", 0), ("words_from_1020", 1020)):
        stream = Stream(*key, first)
        words = [format(stream.word(), "016x") for _ in vector[name]]
        assert words == vector[name]
    for name in ("uniform", "normal"):
        expected = bytes.fromhex(vector[name])
        count = len(expected) // 8
        stream = Stream(*key)
        numbers = stream.normals(count) if name == "normal" else [stream.uniform() for _ in range(count)]
        assert count
        assert struct.pack(f"<{count}d", *numbers) == expected


@each_hashed
def test_a_plan_has_the_id_of_its_bytes_and_one_encoding(name: str) -> None:
    vector = HASHED[name]
    data = vector["plan"].encode("utf-8")
    assert encode(decode(data)) == data
    assert plan_of(name).identity.hex() == vector["plan_id"]


@each_covered_family
def test_a_bundle_has_the_id_of_its_canonical_bytes(name: str) -> None:
    plan = plan_of(name)
    assert plan.identity.hex() == FAMILIES[name]["plan_id"]
    assert plan.bundle.partition(b"\n")[0].decode("utf-8") == FAMILIES[name]["plan"]


@each_hashed
def test_malformed_plans_are_refused(name: str) -> None:
    malformed = HASHED[name]["malformed_plans"]
    assert malformed
    for text in malformed:
        with pytest.raises(PlanError):
            read_bundle(text.encode("utf-8"))


def test_a_bundle_with_other_arrays_than_its_plan_names_is_refused() -> None:
    bundle = plan_of("transforms").bundle
    for damaged in (bundle[:-1], bundle[:-1] + bytes([bundle[-1] ^ 1]), bundle.partition(b"\n")[0], bundle + b"\x00"):
        with pytest.raises(PlanError):
            read_bundle(damaged)


@each_hashed
def test_records_fall_into_the_buckets_of_the_vectors(name: str) -> None:
    assert [sketch_of(name).buckets(record) for record in records_of(name)] == HASHED[name]["buckets"]


def test_the_plans_are_hashed_in_every_way() -> None:
    ways = {(sketch_of(name).direct, plan_of(name).power, plan_of(name).buckets) for name in HASHED}
    assert {direct for direct, _, _ in ways} == {False, True}
    assert {power for _, power, _ in ways} == {1, 2}
    assert {width & (width - 1) == 0 for direct, _, width in ways if not direct} == {False, True}


@pytest.mark.parametrize("name", ["codes-that-fit", "two-parts"])
def test_corners_of_the_bounds_have_the_least_and_the_largest_codes(name: str) -> None:
    # With a larger bandwidth the rows of two parts are not rehashed either.
    text = HASHED[name]["plan"].replace('"bandwidth":"5"', '"bandwidth":"60"')
    sketch = Sketch(read_bundle(text.encode("utf-8")))
    plan = sketch.plan
    assert sketch.direct
    for row in range(plan.rows):
        spans = sketch.spans[row * plan.power : (row + 1) * plan.power]
        direction = sketch.directions[row * plan.power]
        least = [high if a < 0 else low for a, low, high in zip(direction, plan.lower, plan.upper, strict=True)]
        most = [low if a < 0 else high for a, low, high in zip(direction, plan.lower, plan.upper, strict=True)]
        buckets = [(sketch.buckets([float(x) for x in corner]) or [])[row] for corner in (least, most)]
        after_first = math.prod(spans[1:])
        assert [bucket // after_first for bucket in buckets] == [0, spans[0] - 1]


@each_hashed
def test_records_that_cannot_be_used_are_dropped(name: str) -> None:
    record = records_of(name)[0]
    dropped = [[float("nan"), *record[1:]], [float("-inf"), *record[1:]], record[1:], [*record, 0.0]]
    data = write_delta(sketch_of(name), [*dropped, *records_of(name), *dropped], IDENTITY, WINDOW)
    assert data.hex() == HASHED[name]["delta"]


@each_hashed
def test_deltas_are_written_byte_for_byte_and_read_back(name: str) -> None:
    vector, sketch, plan = HASHED[name], sketch_of(name), plan_of(name)
    records = records_of(name)
    cases = [(records, vector["delta"])]
    cases += [([records[0]] * int(copies), expected) for copies, expected in vector["deltas"].items()]
    for given, expected in cases:
        data = write_delta(sketch, given, IDENTITY, WINDOW)
        assert data.hex() == expected
        delta = read_delta(plan, data)
        assert (delta.stream, delta.sequence, delta.window) == (*IDENTITY, WINDOW)
        assert sum(run.records for run in delta.runs) == len(given)
        assert encode_delta(plan, delta) == data
    buckets = read_delta(plan, bytes.fromhex(vector["delta"])).runs[0].rows
    assert buckets == [sorted(row) for row in zip(*vector["buckets"], strict=True)]


@each_covered_family
def test_deltas_of_families_are_written_byte_for_byte_and_read_back(name: str) -> None:
    vector, sketch, plan = FAMILIES[name], sketch_of(name), plan_of(name)
    records, classes = records_of(name), classes_of(name)
    first, every = (bytes.fromhex(data) for data in vector["deltas"])
    assert write_delta(sketch, records[:1], IDENTITY, WINDOW, classes[:1]) == first
    assert write_delta(sketch, records, IDENTITY, WINDOW, classes) == every
    delta = read_delta(plan, every)
    assert encode_delta(plan, delta) == every
    counts = [delta.increments(plan, index)[1] for index in range(plan.classes_or_one)]
    assert counts == [plan.count_scale * classes.count(index) for index in range(plan.classes_or_one)]


@each_covered_family
def test_records_of_one_class_add_the_counters_of_the_vectors(name: str) -> None:
    vector, plan = FAMILIES[name], plan_of(name)
    data = write_delta(sketch_of(name), records_of(name), IDENTITY, WINDOW)
    counters, count = read_delta(plan, data).increments(plan, 0)
    assert sorted(counters.items()) == list(zip(vector["indices"], vector["values"], strict=True))
    assert count == plan.count_scale * len(records_of(name))


@each_hashed
def test_malformed_deltas_are_refused_for_their_reason(name: str) -> None:
    malformed = HASHED[name]["malformed_deltas"]
    reasons = [reason_of(plan_of(name), bytes.fromhex(case["delta"])) for case in malformed]
    assert reasons == [case["reason"] for case in malformed]
    assert reasons


def delta_of_runs(plan: Plan, *runs: tuple[int, int, int, int, int, bytes]) -> bytes:
    """Return a delta of runs: class, records, rows, width, encoding and packed counters, right or wrong."""
    out = b"\x01" + plan.identity + IDENTITY[0].to_bytes(8, "big") + varint(IDENTITY[1]) + zigzag(WINDOW)
    out += varint(len(runs))
    for *numbers, encoding, packed in runs:
        out += b"".join(map(varint, numbers)) + bytes([encoding]) + varint(len(packed)) + packed
    return out


def test_a_run_is_refused_for_the_first_check_that_fails() -> None:
    plan = plan_of("rehash-any-width")
    rows, width = plan.rows, plan.buckets
    lists = read_delta(plan, bytes.fromhex(HASHED["rehash-any-width"]["delta"])).runs[0].rows
    n = len(lists[0])
    good = pack_list(lists, width)
    single = pack_list([row[:1] for row in lists], width)
    beyond = pack_list([[*row[:-1], width] for row in lists], width)
    falling = pack_list([row[::-1] for row in lists], width)
    both = pack_list([[width, *row[1:]] for row in lists], width)
    sparse = pack_elias_fano(lists, n, width)
    sparse_beyond = pack_elias_fano([[*row[:-1], 1023] for row in lists], n, width)
    other_bitmap = sparse[:-1] + bytes([sparse[-1] ^ 0x10])
    cases: list[tuple[tuple[int, int, int, int, int, bytes], str | None]] = [
        ((0, n, rows, width, LIST, good), None),
        ((0, n, rows, width, ELIAS_FANO, sparse), None),
        ((1, n, rows, width, LIST, good), "malformed"),
        ((0, n, rows, width + 1, LIST, good), "wrong_shape"),
        ((0, 0, rows, width + 1, LIST, good), "wrong_shape"),
        ((1, 0, rows, width, LIST, good), "malformed"),
        ((0, 4097, rows, width, 9, good), "too_many_records"),
        *(((0, n, rows, width, encoding, good), "malformed") for encoding in (0, 4, 5)),
        ((0, n, rows, width, LIST, good[:-1]), "malformed"),
        ((0, n, rows, width, LIST, good + b"\x00"), "malformed"),
        ((0, 1, rows, width, LIST, single), None),
        ((0, 1, rows, width, LIST, single[:-1] + bytes([single[-1] | 1])), "malformed"),
        ((0, n, rows, width, LIST, falling), "malformed"),
        ((0, n, rows, width, LIST, beyond), "bucket_out_of_range"),
        ((0, n, rows, width, LIST, both), "bucket_out_of_range"),
        ((0, n, rows, width, ELIAS_FANO, sparse[:-1]), "malformed"),
        ((0, n, rows, width, ELIAS_FANO, sparse_beyond), "bucket_out_of_range"),
        ((0, n, rows, width, ELIAS_FANO, other_bitmap), "impossible_counts"),
        ((0, 1, rows, width, DENSE, pack_dense([row[:1] for row in lists], width)), "malformed"),
    ]
    for run, reason in cases:
        assert reason_of(plan, delta_of_runs(plan, run)) == reason, run


def test_unused_lower_bits_are_checked_after_the_bitmaps() -> None:
    plan = plan_of("codes-that-fit")
    sketch, n = sketch_of("codes-that-fit"), 5
    rows = [sorted(row) for row in zip(*[sketch.buckets(records_of("codes-that-fit")[0]) or []] * n, strict=True)]
    packed = pack_elias_fano(rows, n, plan.buckets)
    length = (plan.rows * n * 7 + 7) // 8
    assert plan.rows * n * 7 % 8
    wrong = packed[: length - 1] + bytes([packed[length - 1] | 1]) + packed[length:]
    for data, reason in ((packed, None), (wrong, "malformed"), (wrong[:-2] + b"\x00" * 2, "impossible_counts")):
        run = (0, n, plan.rows, plan.buckets, ELIAS_FANO, data)
        assert reason_of(plan, delta_of_runs(plan, run)) == reason


def test_dense_counts_are_refused_unless_each_row_sums_to_the_records() -> None:
    plan, n = plan_of("rehash-power-of-two"), 4096
    rows = read_delta(plan, bytes.fromhex(HASHED["rehash-power-of-two"]["deltas"][str(n)])).runs[0].rows
    good = pack_dense(rows, plan.buckets)
    more = pack_dense([[0, *rows[0]], *rows[1:]], plan.buckets)
    cases = [
        (good, None),
        (more, "impossible_counts"),
        (pack_dense([rows[0][1:], *rows[1:]], plan.buckets), "impossible_counts"),
        (b"\x00" + good[1:], "malformed"),
        (b"\x0e" + good[1:], "malformed"),
        (good + b"\x00", "malformed"),
        (b"\x00", "malformed"),
        (b"", "malformed"),
    ]
    for data, reason in cases:
        run = (0, n, plan.rows, plan.buckets, DENSE, data)
        assert reason_of(plan, delta_of_runs(plan, run)) == reason


def test_classes_rise_and_their_records_count_together() -> None:
    plan = plan_of("transforms")
    buckets = sketch_of("transforms").buckets(records_of("transforms")[0]) or []
    packed = pack_list([[bucket] for bucket in buckets], plan.buckets)
    many = pack_dense([[bucket] * 4096 for bucket in buckets], plan.buckets)
    shape = (plan.rows, plan.buckets)
    first, second = ((index, 1, *shape, LIST, packed) for index in (0, 1))
    full = (0, 4096, *shape, DENSE, many)
    for runs, reason in (
        ((first, second), None),
        ((second,), None),
        ((full,), None),
        ((second, first), "malformed"),
        ((first, first), "malformed"),
        (((2, *first[1:]),), "malformed"),
        ((first, second, second), "malformed"),
        ((full, second), "too_many_records"),
    ):
        assert reason_of(plan, delta_of_runs(plan, *runs)) == reason


def test_fields_are_checked_in_the_order_of_the_page() -> None:
    plan, good = plan_of("two-parts"), bytes.fromhex(HASHED["two-parts"]["delta"])
    other_plan = bytes([1]) + bytes(32)
    too_long = b"\xff" * 9 + b"\x01"
    for data, reason in (
        (b"\x02", "newer_format"),
        (other_plan + good[33:41], "malformed"),
        (other_plan + good[33:41] + too_long + b"\x05\x01", "malformed"),
        (other_plan + good[33:44] + b"\x00", "wrong_plan"),
        (good[:41] + too_long + good[43:], "malformed"),
        (good[:41] + b"\x80" * 9 + b"\x01" + good[43:], "malformed"),
        (good[:41] + b"\xff" * 8 + b"\x7f" + good[43:], None),
        (good[:43] + too_long + good[44:], None),
    ):
        assert reason_of(plan, data) == reason


@each_hashed
def test_every_shorter_delta_is_refused_and_none_is_read_wrongly(name: str) -> None:
    plan, data = plan_of(name), bytes.fromhex(HASHED[name]["delta"])
    assert {reason_of(plan, data[:length]) for length in range(len(data))} == {"malformed"}
    for place in range(len(data)):
        other = bytes([*data[:place], data[place] ^ 0x10, *data[place + 1 :]])
        if reason_of(plan, other) is None:
            assert encode_delta(plan, read_delta(plan, other)) == other


@pytest.mark.parametrize(("rows", "width"), [(1, 2), (3, 12), (6, 64), (2, 10), (1, 18), (8, 250)])
def test_a_run_is_limited_to_the_bytes_that_its_records_can_need(rows: int, width: int) -> None:
    most = 0
    for n in range(1, 70):
        most = max(most, min(sizes(n, rows, width)))
        assert most_bytes_of_run(n, rows, width) == most
        packed = pack_rows([[0] * n] * rows, n, width)[1]
        assert len(packed) == min(sizes(n, rows, width))


def test_a_delta_with_classes_is_limited_to_one_run_for_each_record_and_class() -> None:
    plan = plan_of("transforms")
    of_run = [0, *(most_bytes_of_run(n, plan.rows, plan.buckets) for n in (1, 2))]
    assert [most_bytes(n, plan) for n in (1, 2)] == [96 + of_run[1], 96 + 96 + min(2 * of_run[2], 2 * of_run[1])]
    assert most_bytes(4096, plan) == 96 + 96 + 2 * most_bytes_of_run(4096, plan.rows, plan.buckets)


@each_hashed
def test_a_delta_has_at_most_the_bytes_of_its_limit(name: str) -> None:
    plan = plan_of(name)
    most = most_bytes(most_records(plan), plan)
    good = bytes.fromhex(HASHED[name]["delta"])
    assert reason_of(plan, good.ljust(most, b"\x00")) == "malformed"
    assert reason_of(plan, good.ljust(most + 1, b"\x00")) == "too_large"


@pytest.mark.parametrize(
    ("width", "rows", "packed"),
    [
        (8, [[1, 6]], {LIST: "38"}),
        (64, [[1, 3, 3, 13, 40, 41, 50, 63]], {ELIAS_FANO: "2dd057e86a"}),
        (3, [[0] * 15 + [2] * 5, [0] * 4 + [1] * 10 + [2] * 6], {DENSE: "04f054a6"}),
    ],
)
def test_the_encodings_of_rows_give_the_examples_of_the_page(
    width: int, rows: list[list[int]], packed: dict[int, str]
) -> None:
    n = len(rows[0])
    every = {LIST: pack_list(rows, width), ELIAS_FANO: pack_elias_fano(rows, n, width), DENSE: pack_dense(rows, width)}
    assert unpack_list(every[LIST], n, len(rows), width) == rows
    assert unpack_elias_fano(every[ELIAS_FANO], n, len(rows), width) == rows
    assert unpack_dense(every[DENSE], n, len(rows), width) == rows
    for encoding, expected in packed.items():
        assert every[encoding].hex() == expected
    assert len(pack_rows(rows, n, width)[1]) == min(map(len, every.values()))


def test_varints_have_one_form() -> None:
    for value, encoded in ((300, "ac02"), (4096, "8020"), (2**64 - 1, "ff" * 9 + "01"), (0, "00")):
        assert varint(value).hex() == encoded
        assert Reader(bytes.fromhex(encoded)).varint() == value
    for value, encoded in ((-3, "05"), (2, "04"), (-(2**63), "ff" * 9 + "01")):
        assert zigzag(value).hex() == encoded
        assert Reader(bytes.fromhex(encoded)).zigzag() == value
    for encoded in ("", "80", "8000", "ac8200", "ff" * 9 + "02", "ff" * 9 + "8100", "80" * 10 + "00"):
        with pytest.raises(MalformedError):
            Reader(bytes.fromhex(encoded)).varint()


def test_real_numbers_have_one_form() -> None:
    for text in ("0.1", "-2.5", "100", "0.000001", "1/3", "0", "-7/12"):
        assert write_real(read_real(text)) == text
    for text in ("-0", "0.10", "1.", ".5", "01", "+1", "1e3", "2/6", "1/2", "1/0", "4/1", "1" + "0" * 64, "٣", ""):
        with pytest.raises(NotCanonicalError):
            read_real(text)


@pytest.mark.parametrize(
    "data",
    [
        *(b"[true]", b"null", b"1.5", b"1e2", b"[-0]", b"9007199254740992", b'{"b":1,"a":2}', b'{"a":1,"a":1}'),
        *(b'"\\u0041"', b'"e\xcc\x81"', b'"\xff"', b'"\xf0\x9f\xa7\x81"', b"[" * 17 + b"]" * 17, b" 1", b"1\n", b""),
        b'"' + b"a" * 1025 + b'"',
    ],
)
def test_other_bytes_than_canonical_json_are_refused(data: bytes) -> None:
    with pytest.raises(NotCanonicalError):
        decode(data)


def test_canonical_json_is_read() -> None:
    for data in (
        *(b"[" * 16 + b"]" * 16, b"-9007199254740991", b'"\\u001f\\n\\"\\\\\x7f/"'),
        *('{"a":-3,"b":["1.5","é"]}'.encode(), b'"' + b"a" * 1024 + b'"'),
    ):
        assert encode(decode(data)) == data


@each_hashed
def test_a_release_is_read(name: str) -> None:
    vector = HASHED[name]
    release = read_release(bytes.fromhex(vector["release"]))
    first = vector["release_counters"]
    assert first
    assert list(release.counters[: len(first)]) == first
    assert sum(release.counters) == vector["release_sum"]
    assert list(release.counts) == vector["release_counts"]
    assert release.records() == [count / release.plan.count_scale for count in vector["release_counts"]]
    assert release.plan == plan_of(name)
    assert release.header["window"] == WINDOW


@pytest.mark.parametrize("name", FAMILIES)
def test_the_counters_of_every_family_are_read(name: str) -> None:
    vector = FAMILIES[name]
    parts = read_parts(bytes.fromhex(vector["release"]))
    assert parts.bundle.hex() == vector["bundle"]
    check_header(parts.header)
    assert isinstance(parts.header["shape"], list)
    classes, rows, width = (size for size in parts.header["shape"] if isinstance(size, int))
    count = classes * rows * width
    values = read_values(parts, count + len(vector["release_counts"]))
    assert sum(values[:count]) == vector["release_sum"]
    assert list(values[count:]) == vector["release_counts"]


@each_covered_family
def test_a_release_of_a_covered_family_is_read(name: str) -> None:
    release = read_release(bytes.fromhex(FAMILIES[name]["release"]))
    assert sum(release.counters) == FAMILIES[name]["release_sum"]
    assert list(release.counts) == FAMILIES[name]["release_counts"]


@each_hashed
def test_malformed_releases_are_refused(name: str) -> None:
    malformed = HASHED[name]["malformed_releases"]
    assert malformed
    for data in malformed:
        with pytest.raises(ReleaseError):
            read_release(bytes.fromhex(data))


def test_a_release_is_refused_for_each_part_that_is_not_its_own() -> None:
    parts = read_parts(bytes.fromhex(HASHED["rehash-power-of-two"]["release"]))
    content = decompress(parts.frame, 2 * (6 * 256 + 1))
    wide = b"".join(
        content[at : at + 2] + (b"\xff\xff" if content[at + 1] > 127 else b"\x00\x00")
        for at in range(0, len(content), 2)
    )
    assert isinstance(parts.guarantee, dict)
    header = dict(parts.header)
    read_release(write_parts(replace(parts, frame=compress(content))))
    shapes: list[Json] = [[1, 6, 255], [6, 256], [1, 6, 256, 1], 6]
    others = [
        replace(parts, bundle=plan_of("two-parts").bundle),
        replace(parts, guarantee={**parts.guarantee, "epsilon": "0.25"}),
        replace(parts, guarantee={**parts.guarantee, "unit": "client"}),
        *(replace(parts, frame=frame) for frame in (compress(content[:-2]), compress(content + b"\x00\x00"))),
        *(replace(parts, frame=frame) for frame in (parts.frame + b"\x00", parts.frame * 2, b"", parts.frame[:-1])),
        replace(parts, header={**header, "item_bytes": 4}, frame=compress(wide)),
        *(replace(parts, header={**header, "shape": shape}) for shape in shapes),
        *(replace(parts, header={**header, "item_bytes": size}) for size in (1, 4, "2")),
        *(replace(parts, header={**header, "kind": kind}) for kind in ("in-process", "choice", 1)),
        *(replace(parts, header={**header, **fields}) for fields in ({"cohorts": 1}, {"accounting": ""})),
        *(replace(parts, header={k: v for k, v in header.items() if k != key}) for key in header),
    ]
    for other in others:
        with pytest.raises(ReleaseError):
            read_release(write_parts(other))


@each_hashed
def test_a_damaged_release_is_refused(name: str) -> None:
    data = bytes.fromhex(HASHED[name]["release"])
    for place in range(0, len(data), 101):
        with pytest.raises(ReleaseError):
            read_release(bytes([*data[:place], data[place] ^ 1, *data[place + 1 :]]))
    for length in (0, 3, 4, 5, 6, 37, len(data) - 1):
        with pytest.raises(ReleaseError):
            read_release(data[:length])


@each_hashed
def test_a_release_is_written_with_the_bytes_of_the_vector_but_for_its_frame(name: str) -> None:
    data = bytes.fromhex(HASHED[name]["release"])
    release = read_release(data)
    written = write_release(release)
    frame = len(read_parts(data).frame)
    before_frame = len(data) - 32 - frame - 8
    assert written[:before_frame] == data[:before_frame]
    assert read_release(written) == release
    assert hashlib.sha256(written[:-32]).digest() == written[-32:]


SHAKEN = hashlib.shake_256(b"").digest(220)


@pytest.mark.parametrize(
    ("content", "frame"),
    [
        # What no vector has: a checksum of the content, few literals, repeated offsets and long matches.
        # Written by the command `zstd -19`.
        (
            b"never change, " * 6 + bytes(range(40)) + b"never, never change",
            (
                "28b52ffd248f1d020064036e65766572206368616e67652c20000102030405060708090a0b0c0d0e0f1011"
                "12131415161718191a1b1c1d1e1f202122232425262703004090005909e5043a953f6e9f80"
            ),
        ),
        (
            bytes(b"aaaabbc\n"[byte % 8] for byte in SHAKEN),
            (
                "28b52ffd20dc050200c20d0f06e0e90d80561751000a3406efcc80287525a9b15c1a41b7c1a49b2ecc07e9f5"
                "e665089490ce149ea21b8a31296139c596a1fd0a4809f587a6786f0200"
            ),
        ),
        (
            b"ab" * 300 + bytes(range(200, 232)) + b"ab" * 40,
            (
                "28b52ffd60c8017d010044026162c8c9cacbcccdcecfd0d1d2d3d4d5d6d7d8d9dadbdcdddedfe0e1e2e3e4e5"
                "e6e7616202005a80be29550e0b"
            ),
        ),
    ],
)
def test_frames_of_other_writers_are_read(content: bytes, frame: str) -> None:
    data = bytes.fromhex(frame)
    assert decompress(data, len(content)) == content
    for damaged in (data[:-1], data + b"\x00", data[:-4], data[:6], b""):
        with pytest.raises(FrameError):
            decompress(damaged, len(content))
    with pytest.raises(FrameError):
        decompress(data, len(content) + 1)


def test_a_wrong_checksum_of_the_content_is_refused() -> None:
    content = b"counters" * 5
    frame = compress(content)
    assert decompress(frame, len(content)) == content
    for checksum in (b"", bytes(4)):
        with pytest.raises(FrameError):
            decompress(frame[:4] + b"\xa4" + frame[5:] + checksum, len(content))
