"""A release is noised once, says what it promises, survives its file, and refuses a damaged one."""

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import hushsum as hs
from hushsum.entropy import ReplayableEntropy
from hushsum.releases import draw
from tests.plans import client_plan, small_plan

RECORDS = np.random.default_rng(0).uniform(0, 10, (500, 2))
QUERIES = np.array([[5.0, 5.0], [1.0, 9.0]])


def released(plan: hs.Plan | None = None) -> hs.Release:
    sketch = hs.Sketch(plan or small_plan())
    sketch.add(RECORDS)
    return draw(sketch, kind="tumbling", window=3, entropy=ReplayableEntropy(b"test"), accounted=True)


def test_a_saved_release_loads_to_the_same_answers(tmp_path: Path) -> None:
    release = released()
    release.save(tmp_path / "a.hush")
    loaded = hs.load(tmp_path / "a.hush")
    assert np.array_equal(loaded.counters, release.counters)
    assert np.array_equal(loaded.counts, release.counts)
    assert (loaded.plan, loaded.kind, loaded.window, loaded.accounted) == (release.plan, "tumbling", 3, True)
    assert loaded.guarantee == release.guarantee
    assert np.array_equal(loaded.kernel_sum(QUERIES).value, release.kernel_sum(QUERIES).value)


@pytest.mark.parametrize("magnitude", [10, 10**6, 10**12])
def test_counters_of_any_size_survive_the_file(magnitude: int) -> None:
    release = released()
    grown = replace(release, counters=release.counters * magnitude)
    assert np.array_equal(hs.Release.from_bytes(grown.to_bytes()).counters, grown.counters)


def test_every_truncation_is_refused() -> None:
    data = released().to_bytes()
    for end in [*range(80), *range(80, len(data), 97), len(data) - 1]:
        with pytest.raises(hs.ReleaseError):
            hs.Release.from_bytes(data[:end])


def test_every_altered_byte_is_refused() -> None:
    data = bytearray(released().to_bytes())
    for at in [*range(100), *range(100, len(data), 53), len(data) - 1]:
        data[at] ^= 1
        with pytest.raises(hs.ReleaseError):
            hs.Release.from_bytes(bytes(data))
        data[at] ^= 1


def resealed(data: bytes) -> bytes:
    return data[:-32] + hashlib.sha256(data[:-32]).digest()


def test_a_newer_format_is_named() -> None:
    data = released().to_bytes()
    with pytest.raises(hs.ReleaseError, match="release format 2"):
        hs.Release.from_bytes(resealed(data[:4] + b"\0\2" + data[6:]))


def test_a_file_that_promises_a_huge_array_allocates_nothing() -> None:
    data = released().to_bytes()
    shape = b'"shape":[1,20,64]'
    assert shape in data
    with pytest.raises(hs.ReleaseError, match="shape"):
        hs.Release.from_bytes(resealed(data.replace(shape, b'"shape":[9,99,99]')))


def test_a_guarantee_that_its_plan_does_not_give_is_refused() -> None:
    release = released()
    lying = replace(release, guarantee=replace(release.guarantee, epsilon=release.guarantee.epsilon / 2))
    with pytest.raises(hs.ReleaseError, match="guarantee"):
        hs.Release.from_bytes(lying.to_bytes())


def test_a_release_without_a_ledger_says_so(tmp_path: Path) -> None:
    sketch = hs.Sketch(small_plan())
    sketch.add(RECORDS)
    release = hs.release(sketch)
    assert "unaccounted" in repr(release)
    assert "unaccounted" in release.statement()
    release.save(tmp_path / "a.hush")
    assert not hs.load(tmp_path / "a.hush").accounted


def test_a_ledger_is_charged_before_anything_is_drawn(tmp_path: Path) -> None:
    class Untouched:
        def read(self, size: int) -> bytes:
            raise AssertionError("noise was drawn")

    plan = small_plan(privacy={"epsilon": 1, "total_epsilon": 2})
    sketch = hs.Sketch(plan)
    with hs.Ledger(tmp_path / "ledger.db") as ledger:
        for _ in range(2):
            assert hs.release(sketch, ledger=ledger).accounted
        with pytest.raises(hs.BudgetError):
            hs.release(sketch, ledger=ledger, entropy=Untouched())


def test_another_epsilon_is_another_plan_with_its_own_noise() -> None:
    sketch = hs.Sketch(small_plan())
    sketch.add(RECORDS)
    release = hs.release(sketch, epsilon=0.25)
    assert release.guarantee.epsilon * 4 == sketch.plan.guarantee.epsilon
    assert release.plan.privacy.mechanism.scale == 4 * sketch.plan.privacy.mechanism.scale
    assert release.plan.id != sketch.plan.id


def test_an_override_cannot_raise_the_limits_of_a_ledger(tmp_path: Path) -> None:
    sketch = hs.Sketch(small_plan(privacy={"epsilon": 1, "total_epsilon": 2}))
    with hs.Ledger(tmp_path / "ledger.db") as ledger, pytest.raises(hs.BudgetError):
        hs.release(sketch, ledger=ledger, epsilon=5.0)


def test_delta_above_zero_is_not_built_yet() -> None:
    with pytest.raises(hs.NotBuiltError, match=r"privacy\.delta"):
        hs.release(hs.Sketch(small_plan()), delta=1e-6)


def test_the_exact_count_is_never_shown() -> None:
    sketch = hs.Sketch(client_plan(3))
    sketch.add(RECORDS, clients=range(500))
    counts = {hs.release(sketch).count for _ in range(8)}
    assert len(counts) > 1


def test_density_is_the_kernel_sum_over_the_noisy_count() -> None:
    release = released(small_plan(privacy={"epsilon": 50}))
    density, total = release.density(QUERIES), release.kernel_sum(QUERIES)
    assert np.allclose(density.value, total.value / release.count)
    assert (density.std_error >= total.std_error / release.count).all()


def test_an_interval_holds_its_value_and_widens_with_confidence() -> None:
    answer = released().kernel_sum(QUERIES)
    narrow, wide = answer.interval(0.5), answer.interval(0.99)
    assert narrow.shape == (2, 2)
    assert (wide[:, 0] < narrow[:, 0]).all()
    assert (narrow[:, 0] < answer.value).all()
    assert (answer.value < narrow[:, 1]).all()
    with pytest.raises(ValueError, match="confidence"):
        answer.interval(1.0)
