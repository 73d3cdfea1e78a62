"""Each example in docs/reference/wire.md is what the code gives, and its tables list what the code has."""

import hashlib
import json
import re
import zipfile
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

import hushsum as hs
from hushsum import canonical, labels, math_portable
from hushsum.bitpacking import Encoding, pack_rows, pack_signed, size_max
from hushsum.delta import digest
from hushsum.errors import Reason
from hushsum.families import Hashed
from hushsum.families.lsh.placement import Direct, Rehash
from hushsum.privacy.modular_words import Words
from hushsum.public_random import PublicSeed, PublicStream
from hushsum_proto.answers import AnyReason, Refusal, ServiceReason
from hushsum_proto.convert import reason_to_wire
from hushsum_proto.entries import CohortSumEntry, partition_of
from hushsum_proto.v1 import wire_pb2 as pb
from tests.plans import small_plan

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = (ROOT / "docs" / "reference" / "wire.md").read_text(encoding="utf-8")
V1: Final = ROOT / "tests" / "vectors" / "v1"
RECORD: Final = [[12, 200, 99.25]]
#: From two spaces on, a line of an example is a note.
SHOWN: Final = {
    name: "".join(re.split(r"  +", line, maxsplit=1)[0] for line in body.splitlines()).replace(" ", "")
    for name, body in re.findall(r"```text\nexample ([a-z-]+)\n(.*?)```", PAGE, re.DOTALL)
}


def vectors(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((V1 / name).read_text(encoding="utf-8"))
    return loaded


FITS: Final = vectors("codes-that-fit.json")
LOCAL: Final = vectors("local/local.json")
MESSAGES: Final = vectors("log_messages/messages.json")
PARTS: Final = vectors("edge_cases/edge_cases.json")["two-parts-direct"]
CLASSES: Final = vectors("families/families.json")["transforms"]


def plan_of(frozen: dict[str, Any]) -> hs.Plan:
    return hs.Plan.from_bytes(frozen["plan"].encode())


def hashed(frozen: dict[str, Any]) -> Hashed:
    family = plan_of(frozen).family
    assert isinstance(family, Hashed)
    return family


def stream(purpose: str, seed: int = 7) -> PublicStream:
    return PublicStream(PublicSeed(seed), purpose)


def hexes(values: Any) -> str:
    return "".join(float(value).hex() for value in values)


def code_of_the_first_row() -> str:
    rows = hashed(FITS)._tables
    (record,), _ = hashed(FITS).accept(RECORD)
    (code,) = rows.projection.exact_codes(np.array([0]), record[None])
    assert isinstance(rows.placement, Direct)
    least = int(rows.placement.lowest[0, 0])
    bucket = FITS["buckets"][3][0]
    assert code - least == bucket
    direction = rows.projection.directions[0]
    return hexes(record) + hexes(direction) + hexes(rows.projection.offsets[:1]) + f"{code}{least}{bucket}"


def two_parts_of_the_first_row() -> str:
    family = hs.Plan.from_bytes(bytes.fromhex(PARTS["bundle"])).family
    assert isinstance(family, Hashed)
    rows, point = family._tables, PARTS["records"].index([float(x).hex() for x in RECORD[0]])
    (record,), _ = family.accept(RECORD)
    assert isinstance(rows.placement, Direct)
    parts = zip(
        rows.projection.exact_codes(np.array([0, 1]), np.stack([record, record])),
        rows.placement.lowest[0],
        rows.placement.spans[0],
        strict=True,
    )
    return "".join(f"{code}{least}{span}" for code, least, span in parts) + str(PARTS["buckets"][point][0])


def rehashed(name: str) -> str:
    frozen = vectors(f"{name}.json")
    rows = hashed(frozen)._tables
    (record,), _ = hashed(frozen).accept(RECORD)
    assert isinstance(rows.placement, Rehash)
    (code,) = rows.projection.exact_codes(np.array([0]), record[None])
    first, second = (int(word) for word in rows.placement.multipliers[0])
    h = (first + second * int(code)) % 2**64
    return f"{code}{first:016x}{second:016x}{h:016x}{frozen['buckets'][3][0]}"


def head_of_a_release() -> str:
    data = bytes.fromhex(FITS["release"])
    plan, guarantee = FITS["plan"].encode(), canonical.encode(plan_of(FITS).guarantee.to_fields())
    header = data[10 : data.index(b"}") + 1]
    at = 10 + len(header)
    assert data[at + 4 : at + 4 + len(plan)] == plan
    end = at + 8 + len(plan) + len(guarantee)
    parts = (data[:10].hex(), header.decode(), data[at : at + 4].hex(), data[at + 4 + len(plan) :][:4].hex())
    return "".join((*parts, guarantee.decode(), data[end : end + 14].hex(), data[-32:].hex()))


def receipts() -> str:
    with zipfile.ZipFile(ROOT / "tests" / "vectors" / "receipts" / "format-3.zip") as archive:
        return archive.read("receipts.jsonl").decode().replace("\n", "")


def framed() -> str:
    parts = (b"ab", b"", b"c")
    head = b"".join(number.to_bytes(4, "big") for number in (len(parts), *map(len, parts)))
    return (labels.SHUFFLED + head + b"".join(parts)).hex()


def packed_rows(buckets: list[list[int]], width: int, expected: Encoding) -> str:
    rows, total = len(buckets), len(buckets[0])
    flat = np.array(buckets) + np.arange(rows)[:, None] * width
    encoding, packed = pack_rows(*np.unique(flat, return_counts=True), rows, width, total)
    assert encoding is expected
    return packed.hex()


def packed_signed(counters: list[int], expected: Encoding) -> str:
    values = np.array(counters)
    (indices,) = np.nonzero(values)
    encoding, packed = pack_signed(indices, values[indices], len(values))
    assert encoding is expected
    return packed.hex()


def largest_sizes() -> str:
    def of_ten_buckets(n: int) -> int:
        return max(size_max(1, 10, m) for m in range(1, n + 1))

    plan, classes = plan_of(FITS), hs.Plan.from_bytes(bytes.fromhex(CLASSES["bundle"]))
    numbers = [of_ten_buckets(5), size_max(1, 10, 6), of_ten_buckets(6), plan.delta_records_max, plan.delta_bytes_max]
    numbers += [*map(plan.family.packed_bytes_max, (1, 6)), plan.delta_sizes.run_bytes_max(6)]
    return "".join(map(str, [*numbers, classes.delta_records_max, classes.delta_bytes_max]))


EXAMPLES: Final[dict[str, Callable[[], str]]] = {
    "framed": framed,
    "canonical": lambda: canonical.encode({"b": ["1.5", "é"], "a": -3}).hex(),
    "reals": lambda: "".join(
        canonical.real_text(value)
        for value in (Fraction(1, 10), Fraction(-5, 2), Fraction(100), Fraction(1, 10**6), Fraction(2, 6))
    ),
    "plan-id": lambda: FITS["plan"] + hashlib.sha256(FITS["plan"].encode()).hexdigest(),
    "partition": lambda: str(partition_of("alice", 16)),
    "words": lambda: "".join(f"{int(word):016x}" for word in stream("hashed/euclidean/directions", 0).words(3)),
    "uniforms": lambda: (
        hexes(stream("hashed/euclidean/directions", 0).uniform(2))
        + hexes(stream("hashed/euclidean/directions", 0).open_uniform(2))
    ),
    "normals": lambda: hexes(stream("hashed/euclidean/directions", 0).normal(3)),
    "functions": lambda: hexes(
        (
            math_portable.ln(np.array([0.3]))[0],
            math_portable.exp(np.array([1.0]))[0],
            *(part[0] for part in math_portable.sin_cos_turns(np.array([0.3]))),
            *math_portable.normal_quantile(np.array([0.3, 2.0**-8, 2.0**-53])),
        )
    ),
    "quantile": lambda: "".join(
        repr(number)
        for pair in (math_portable._CENTRE, math_portable._NEAR_TAIL, math_portable._FAR_TAIL)
        for side in pair
        for number in side
    ),
    "code": code_of_the_first_row,
    "two-parts": two_parts_of_the_first_row,
    "rehash-power-of-two": lambda: rehashed("rehash-power-of-two"),
    "rehash-any-width": lambda: rehashed("rehash-any-width"),
    "delta": lambda: FITS["deltas"]["1"],
    "delta-digest": lambda: digest(bytes.fromhex(FITS["deltas"]["1"])).hex(),
    "list": lambda: packed_rows([[1, 6]], 8, Encoding.LIST),
    "elias-fano": lambda: packed_rows([[1, 3, 3, 13, 40, 41, 50, 63]], 64, Encoding.ELIAS_FANO),
    "sizes": largest_sizes,
    "dense": lambda: packed_rows([[0] * 15 + [2] * 5, [0] * 4 + [1] * 10 + [2] * 6], 3, Encoding.DENSE),
    "signed-dense": lambda: packed_signed([-3, 2, 0, 1], Encoding.SIGNED_DENSE),
    "signed-sparse": lambda: packed_signed([0, 0, -3, *[0] * 87, 2, *[0] * 9], Encoding.SIGNED_SPARSE),
    "silo": lambda: LOCAL["silo"]["submitted"][: 2 * 44],
    "words-of-a-vector": lambda: (
        Words(3, 4, 33, 1).pack(Words(3, 4, 33, 1).of(np.arange(33) % 5 - 2, np.array([-1]))).hex()
    ),
    "reports": lambda: LOCAL["k-rr"]["submitted"],
    "signature": lambda: LOCAL["silo"]["signature"],
    "entry": lambda: MESSAGES["entries"]["deltas"][0],
    "batch": lambda: MESSAGES["plain"],
    "cohort-sum-id": lambda: f"{CohortSumEntry(bytes(range(32)), -3, bytes(32), 1, b'', 0).id.stream:016x}",
    "hush": head_of_a_release,
    "receipts": receipts,
}


def test_the_page_has_these_examples() -> None:
    assert set(SHOWN) == set(EXAMPLES)


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_an_example_is_what_the_code_gives(name: str) -> None:
    assert SHOWN[name] == EXAMPLES[name]().replace(" ", "")


def rows_of(pattern: str) -> list[tuple[str, ...]]:
    return [found.groups() for found in re.finditer(pattern, PAGE, re.MULTILINE)]


@pytest.mark.parametrize("release", ["tumbling", "cumulative"])
@pytest.mark.parametrize("unit", [{}, {"unit": "client", "records_per_client": 2}])
@pytest.mark.parametrize("noise", [{}, {"delta": "0.000001", "total_delta": "0.00001", "noise": "gaussian"}])
def test_the_page_lists_every_key_that_the_windows_and_the_noise_of_a_plan_have(
    release: str, unit: dict[str, object], noise: dict[str, object]
) -> None:
    window: dict[str, object] = {"release": release}
    if release == "cumulative":
        window |= {"horizon": 20, **({"windows_per_client": 3} if unit else {})}
    plan = small_plan(privacy={**unit, **noise}, window=window)
    section = PAGE[PAGE.index("### Keys that an encoder uses") : PAGE.index("### Arrays")]
    listed = set(re.findall(r"`([a-z_.]+)`", section))
    fields = canonical.decode(plan.to_bytes())
    assert isinstance(fields, dict)
    keys = {f"window.{key}" for key in fields["window"]}
    keys |= {*fields["privacy"]["mechanism"].get("factorisation", {})}
    assert keys <= listed
    assert f"`{fields['window']['release']}`" in section
    rules = "| `window.horizon`, `mechanism.factorisation` | with `window.release` = `cumulative`"
    assert rules in section
    assert ("factorisation" in fields["privacy"]["mechanism"]) is (release == "cumulative")
    assert ("horizon" in fields["window"]) is (release == "cumulative")


def test_the_page_lists_every_label() -> None:
    listed = [name for (name,) in rows_of(r"^\| `(hushsum/v1/[a-z/-]+)` \|")]
    assert sorted(listed) == sorted(label[:-1].decode() for label in labels.ALL)


def test_the_page_lists_every_reason_with_its_number_fault_and_retry() -> None:
    def row(reason: AnyReason) -> tuple[str, ...]:
        refusal = Refusal.of(reason, "")
        return str(reason_to_wire(reason)), reason.value, refusal.fault.value, "yes" if refusal.retry else "no"

    listed = rows_of(r"^\| (\d+) \| `([a-z_]+)` \| (sender|service) \| (yes|no) \|")
    assert listed == sorted(map(row, (*Reason, *ServiceReason)), key=lambda found: int(found[0]))


def test_the_fields_of_messages_are_those_of_the_definition() -> None:
    types = {value: name.removeprefix("TYPE_").lower() for name, value in field_types()}
    listed = rows_of(r"^- `([A-Z][A-Za-z]+)`: (.+)$")
    assert len(listed) > 20
    for name, fields in listed:
        described = []
        for field in getattr(pb, name).DESCRIPTOR.fields:
            kind = next((each.name for each in (field.message_type, field.enum_type) if each), types[field.type])
            described.append(f"{field.number} {field.name} {'repeated ' if field.is_repeated else ''}{kind}")
        assert fields == " · ".join(described), name


def field_types() -> list[tuple[str, int]]:
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto

    return list(FieldDescriptorProto.Type.items())
