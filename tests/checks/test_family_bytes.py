"""What every sketch family gives, byte for byte: plain or fast, in batches of any size, in any process."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.checks.examples import EXAMPLES, Example

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(params=EXAMPLES, ids=lambda example: f"{example.family}-{example.label}")
def example(request: pytest.FixtureRequest) -> Example:
    found: Example = request.param
    return found


def digest(example: Example) -> str:
    """Of all that a family computes from some records and queries."""
    rng, family, points = np.random.default_rng(5), example.build(), example.points
    records, queries = points.join(points.random(rng, 1500), points.extreme()), points.queries(rng, 50)
    counters = example.counters_of(family, records)
    few = family.encode(example.accepted(family, points.take(records, np.arange(len(records)) < 3)))
    answer = family.answer(counters, queries, noise_variance=2.0)
    bias = np.zeros(50) if answer.bias is None else answer.bias
    parts = (counters, few.indices, few.values, answer.value, answer.std_error, bias)
    return hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()


def test_plain_and_fast_give_the_same_bytes(example: Example, monkeypatch: pytest.MonkeyPatch) -> None:
    digests = []
    for kernels in ("plain", "fast"):
        monkeypatch.setenv("HUSHSUM_KERNELS", kernels)
        digests.append(digest(example))
    assert digests[0] == digests[1]


@pytest.mark.parametrize("kernels", ("plain", "fast"))
def test_batches_of_any_size_give_the_same_bytes(
    example: Example, kernels: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HUSHSUM_KERNELS", kernels)
    family, points = example.build(), example.points
    records, queries = points.random(rng, 1000), points.queries(rng, 40)
    whole = example.counters_of(family, records)
    one_by_one = example.counters_of(family, points.take(records, np.arange(1000) >= 200))
    for record in example.each(points.take(records, np.arange(1000) < 200)):
        family.add(one_by_one, example.accepted(family, record))
    assert np.array_equal(one_by_one, whole)
    together = family.answer(whole, queries, noise_variance=2.0)
    apart = [family.answer(whole, query, noise_variance=2.0) for query in example.each(queries)]
    assert np.concatenate([a.value for a in apart]).tobytes() == together.value.tobytes()
    assert np.concatenate([a.std_error for a in apart]).tobytes() == together.std_error.tobytes()
    if together.bias is not None:
        assert np.concatenate([a.bias for a in apart if a.bias is not None]).tobytes() == together.bias.tobytes()


PROCESS = """
import os
from tests.checks import test_family_bytes as suite
for kernels in ("plain", "fast"):
    os.environ["HUSHSUM_KERNELS"] = kernels
    print(*map(suite.digest, suite.EXAMPLES))
"""


def test_another_process_gives_the_same_bytes() -> None:
    paths = os.pathsep.join([str(ROOT), str(ROOT / "proto")])
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": "77"}
    command = [sys.executable, "-c", PROCESS]
    run = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=400, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == 2 * [digest(example) for example in EXAMPLES]


def test_another_seed_places_records_elsewhere(example: Example, rng: np.random.Generator) -> None:
    if not example.seeded:
        pytest.skip("this family draws nothing")
    records = example.points.random(rng, 50)
    a, b = (example.counters_of(example.build(seed), records) for seed in (1, 2))
    assert not np.array_equal(a, b)
