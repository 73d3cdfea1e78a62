"""Writes the frozen vectors of format version 1, once: ``python -m tests.vectors.generate``.

What it has written passes unchanged for ever (tests/vectors/test_vectors.py), so it refuses to write a file again. A
new format version gets a folder of its own.
"""

import hashlib
import json
from pathlib import Path

import numpy as np

import hushsum as hs
from hushsum.delta import Delta, DeltaId, encode
from hushsum.entropy import ReplayableEntropy
from hushsum.errors import DeltaError
from hushsum.releases import draw

FOLDER = Path(__file__).parent / "v1"
PLANS: dict[str, dict[str, object]] = {
    "codes-that-fit": {"bandwidth": 60, "rows": 6, "buckets": 1024},
    "rehash-power-of-two": {"bandwidth": 0.25, "rows": 6, "buckets": 256},
    "rehash-any-width": {"bandwidth": 0.25, "rows": 6, "buckets": 1000},
    "two-parts": {"bandwidth": 5, "rows": 6, "buckets": 1024, "power": 2},
}
RECORDS: list[list[float]] = [
    [0, 0, 0],
    [255, 255, 255],
    [127.5, 127.5, 127.5],
    [12, 200, 99.25],
    [300, -5, 1e30],
    [1e-30, 0.1, 254.9],
]


def plan_of(name: str, sketch: dict[str, object]) -> hs.Plan:
    """One of the plans of the vectors."""
    return hs.Plan(
        name=name,
        record={"dim": 3, "lower": [0, 0, 0], "upper": [255, 255, 255], "names": ["red", "green", "blue"]},
        sketch={"family": "hashed", "kernel": "euclidean", "seed": 7, **sketch},
        privacy={"epsilon": 0.5, "total_epsilon": 2},
    )


def vectors_of(name: str, sketch: dict[str, object]) -> dict[str, object]:
    """Everything that is frozen of one plan."""
    plan = plan_of(name, sketch)
    packed = delta_of(plan, RECORDS)
    counters = hs.Sketch(plan)
    counters.add(RECORDS)
    release = draw(counters, kind="tumbling", window=-3, entropy=ReplayableEntropy(b"vectors"), accounted=True)
    return {
        "plan": plan.to_bytes().decode(),
        "plan_id": plan.hex_id,
        "malformed_plans": malformed_plans(plan.to_bytes().decode()),
        "records": [[float(value).hex() for value in record] for record in RECORDS],
        "buckets": [buckets_of(plan, record) for record in RECORDS],
        "deltas": {str(repeats): delta_of(plan, RECORDS[:1] * repeats).hex() for repeats in (1, 6, 4096)},
        "delta": packed.hex(),
        "malformed_deltas": [{"delta": data.hex(), "reason": reason_of(plan, data)} for data in damaged(plan, packed)],
        "release": release.to_bytes().hex(),
        "release_counters": release.counters.reshape(-1)[:50].tolist(),
        "release_counts": release.counts.tolist(),
        "release_sum": int(release.counters.sum()),
        "malformed_releases": [data.hex() for data in damaged_releases(release.to_bytes())],
    }


def delta_of(plan: hs.Plan, records: list[list[float]]) -> bytes:
    """A packed delta."""
    delta, _ = encode(plan, records, window=-3, id=DeltaId(2**63 + 9, 300))
    assert delta is not None
    return delta.pack(plan)


def malformed_plans(text: str) -> list[str]:
    """Bytes that are no plan of version 1: another spelling, another claim, a key too many or too few."""
    changes = [
        ('"epsilon":"0.5"', '"epsilon":"0.50"'),
        ('"epsilon":"0.5"', '"epsilon":"0.25"'),
        ('"epsilon":"0.5"', '"epsilon":0.5'),
        ('"format":1', '"format":2'),
        ('"seed":7', '"seed":7,"sede":7'),
        (',"seed":7', ""),
        ('"unit":"record"', '"unit":"client"'),
        ("red", "\\u0072ed"),
    ]
    assert all(old in text for old, _ in changes)
    return [text.replace(old, new) for old, new in changes] + [f" {text}", text[:-1]]


def damaged_releases(data: bytes) -> list[bytes]:
    """Releases that are refused, each for another fault; those that are sealed again pass the checksum."""

    def sealed(body: bytes) -> bytes:
        return body + hashlib.sha256(body).digest()

    body = data[:-32]
    return [
        data[:-1],
        data[:50] + bytes([data[50] ^ 1]) + data[51:],
        sealed(b"HUSX" + body[4:]),
        sealed(body[:4] + b"\0\2" + body[6:]),
        sealed(body.replace(b'"kind":"tumbling"', b'"kind":"tumblign"')),
        sealed(body + b"\0"),
        sealed(body[:-1]),
    ]


def buckets_of(plan: hs.Plan, record: list[float]) -> list[int]:
    """The bucket of one record in each row."""
    accepted, _ = plan.family.accept([record])
    return [int(index) for index in plan.family.encode(accepted).indices % plan.family.shape[1]]


def damaged(plan: hs.Plan, packed: bytes) -> list[bytes]:
    """Deltas that are refused, each for another fault."""
    header, run = packed[:43], packed[45:]  # between them: the window, and the number of runs
    one, many = delta_of(plan, RECORDS[:1]), delta_of(plan, RECORDS[:1] * 4096)
    beyond = [one[:-8] + b"\xff\xff" + one[-6:]] if plan.family.shape[1] == 1000 else []
    return [
        *beyond,
        b"",
        packed[:-1],
        packed + b"\0",
        b"\x02" + packed[1:],
        b"\0" + packed[1:],
        packed[:1] + bytes(32) + packed[33:],
        header + b"\0" + b"\0",
        header + b"\x05\x02" + run,
        header + b"\x05\0",
        header + b"\x05\x01\0\0" + run[2:],
        header + b"\x05\x01\0\x81\x20" + run[2:],
        header + b"\x05\x01\0\x06\x07" + run[3:],
        header + b"\x05\x01\0\x81\x80\0" + run[2:],
        many[:-9] + b"\xff" * 8 + many[-1:],
        packed + bytes(plan.delta_bytes_max),
    ]


def reason_of(plan: hs.Plan, data: bytes) -> str:
    """Why a delta is refused."""
    try:
        Delta.unpack(data, plan)
    except DeltaError as error:
        return error.reason.value
    raise AssertionError(f"not refused: {data.hex()}")


def main() -> None:
    """Writes one file a plan."""
    for name, sketch in PLANS.items():
        path = FOLDER / f"{name}.json"
        with path.open("x", encoding="utf-8") as file:
            json.dump(vectors_of(name, sketch), file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    np.seterr(all="raise")
    main()
