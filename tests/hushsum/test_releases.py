"""A release is noised once, says what it promises, survives its file, and refuses a damaged one."""

import hashlib
import pickle
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hushsum as hs
from hushsum import query
from hushsum.canonical import real
from hushsum.entropy import OsEntropy, ReplayableEntropy
from hushsum.noise import DiscreteGaussian, DiscreteLaplace
from hushsum.query import count_std_error
from hushsum.releases import draw
from hushsum.zstd_frame import zstd
from tests.plans import classed_plan, client_plan, small_plan

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


@pytest.mark.parametrize("classes", ((), ("a", "b")), ids=("one class", "two classes"))
def test_a_release_that_keeps_sums_answers_for_its_own_counters(classes: tuple[str, ...]) -> None:
    narrow = {"bandwidth": 0.05}  # so that codes are rehashed, and answers need the totals of rows
    plan = classed_plan(*classes, sketch=narrow) if classes else small_plan(sketch=narrow)
    rng = np.random.default_rng(1)
    empty = draw(hs.Sketch(plan), kind="tumbling", window=3, entropy=ReplayableEntropy(b"test"), accounted=True)
    first, second = (replace(empty, counters=rng.integers(-50, 50, plan.counters_shape)) for _ in range(2))
    for release in (first, second, first, first):
        for label in (None, *classes):
            kept = release.kernel_sum(QUERIES, label=label)
            fresh = query.kernel_sum(plan, release.counters.copy(), QUERIES, label=label)
            assert np.array_equal(kept.value, fresh.value)
            assert np.array_equal(kept.std_error, fresh.std_error)


@pytest.mark.parametrize("copied", (False, True), ids=("drawn", "copied"))
def test_counters_of_a_release_cannot_be_written_to(copied: bool) -> None:
    release = released()
    expected = release.kernel_sum(QUERIES).value
    if copied:
        release = pickle.loads(pickle.dumps(release))
    for values in (release.counters, release.counts):
        with pytest.raises(ValueError, match="read-only"):
            values[...] = 0
    assert np.array_equal(release.kernel_sum(QUERIES).value, expected)


def test_counters_that_can_change_are_read_again() -> None:
    family = small_plan(sketch={"bandwidth": 0.05}).family
    counters = np.random.default_rng(1).integers(0, 50, family.shape)
    before = family.answer(counters, QUERIES).value
    counters *= 2
    assert np.allclose(family.answer(counters, QUERIES).value, 2 * before)


@pytest.mark.parametrize(
    "value", [sign * 2**bits + off for bits in (15, 31, 62) for sign in (-1, 1) for off in (-1, 0, 1)]
)
def test_counters_of_any_size_survive_the_file(value: int) -> None:
    release = released()
    grown = replace(release, counters=np.full_like(release.counters, value))
    assert np.array_equal(hs.Release.from_bytes(grown.to_bytes()).counters, grown.counters)


def test_a_save_that_fails_leaves_the_file_that_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.hush"
    released().save(path)
    before = path.read_bytes()

    def full(handle: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="no space"):
        released().save(path)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["a.hush"]


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


def test_more_counters_than_allowed_are_refused_before_they_are_unpacked() -> None:
    data = released().to_bytes()
    with pytest.raises(hs.ReleaseError, match="1280 counters, expected at most counters_max = 1279"):
        hs.Release.from_bytes(data, counters_max=1279)
    assert hs.Release.from_bytes(data, counters_max=1280).counters.size == 1280


def reframed(data: bytes, frame: bytes) -> bytes:
    """The file with another frame of counters."""
    at = data.rindex(b"\x28\xb5\x2f\xfd") - 8
    return resealed(data[:at] + len(frame).to_bytes(8, "big") + frame + bytes(32))


def test_a_frame_of_another_size_or_with_something_after_it_is_refused() -> None:
    data = released().to_bytes()
    small = np.arange(1281, dtype="<i2").tobytes()
    assert hs.Release.from_bytes(reframed(data, zstd.compress(small))).counts.tolist() == [1280]
    for frame in (
        zstd.compress(small[:-2]),
        zstd.compress(small + b"\0\0"),
        zstd.compress(small) + b"\0",
        zstd.compress(small) * 2,
        b"",
    ):
        with pytest.raises(hs.ReleaseError):
            hs.Release.from_bytes(reframed(data, frame))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"kind":"tumbling"', b'"kind":"tumbleing"'),
        (b'"kind":"tumbling"', b'"kind":5'),
        (b'"kind":"tumbling"', b'"kind":"in-process"'),
        (b'"window":3', b'"window":"x"'),
        (b',"window":3', b""),
        (b'"window":3', b'"window":3,"x":1'),
        (b'"item_bytes":2', b'"item_bytes":3'),
        (b'"item_bytes":2', b'"item_bytes":4'),
        (b'"accounting":"ledger"', b'"accounting":"paid"'),
    ],
)
def test_a_header_that_says_something_else_is_refused(old: bytes, new: bytes) -> None:
    data = released().to_bytes()
    size = int.from_bytes(data[6:10], "big")
    header = data[10 : 10 + size]
    assert old in header
    changed = header.replace(old, new)
    with pytest.raises(hs.ReleaseError):
        hs.Release.from_bytes(resealed(data[:6] + len(changed).to_bytes(4, "big") + changed + data[10 + size :]))


def test_a_guarantee_that_its_plan_does_not_give_is_refused() -> None:
    data = released().to_bytes()
    at = data.rindex(b'"epsilon":"1"')  # the guarantee stands after the plan
    with pytest.raises(hs.ReleaseError, match="guarantee"):
        hs.Release.from_bytes(resealed(data[:at] + b'"epsilon":"2"' + data[at + 13 :]))


def test_a_release_without_a_ledger_says_so(tmp_path: Path) -> None:
    sketch = hs.Sketch(small_plan())
    sketch.add(RECORDS)
    release = hs.release(sketch)
    assert "unaccounted" in repr(release)
    assert release.statement() == (
        "ε = 1, δ = 0, unit record, add/remove: adding or removing one record changes the probability of anything "
        "that this release can show by a factor of at most e^1 = 2.72. The aggregator is trusted with the exact "
        "counters and adds the noise once (discrete-laplace of scale 22 on every counter, the number of records "
        "included). It is unaccounted: no ledger was charged, so the total over several releases of the same data is "
        "not limited. An observer who believes with 50 % that one record is included can afterwards believe it with "
        "at most 73.2 %. That is ε = 1, δ = 0."
    )
    release.save(tmp_path / "a.hush")
    assert not hs.load(tmp_path / "a.hush").accounted


def test_a_release_that_is_counted_at_another_delta_than_its_own_says_so() -> None:
    promised = {"epsilon": 0.5, "delta": "0.000001"}
    same = hs.release(hs.Sketch(small_plan(privacy={**promised, "total_delta": "0.000001"}))).statement()
    other = hs.release(hs.Sketch(small_plan(privacy={**promised, "total_delta": "0.00001"}))).statement()
    assert "ε = 0.5, δ = 1e-6, unit record" in same
    assert "whether one record is included is correct with a probability of at most 62.3 %. That is ε = 0.5" in same
    assert same.endswith(", δ = 1e-6.")
    assert "total δ" not in same
    assert "whether one record is included is correct with a probability of at most 60.8 %. That is ε = 0.4373" in other
    assert other.endswith(", at the population's total δ of 1e-5.")


def test_a_ledger_is_charged_before_anything_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def untouched(self: OsEntropy, size: int) -> bytes:
        raise AssertionError("noise was drawn")

    sketch = hs.Sketch(small_plan(privacy={"epsilon": 1, "total_epsilon": 2}))
    with hs.Ledger(tmp_path / "ledger.db") as ledger:
        for _ in range(2):
            assert hs.release(sketch, ledger=ledger).accounted
        monkeypatch.setattr(OsEntropy, "read", untouched)
        with pytest.raises(hs.BudgetError):
            hs.release(sketch, ledger=ledger)
        with pytest.raises(AssertionError, match="noise was drawn"):  # and from nowhere else but the system
            hs.release(sketch)


def test_noise_is_drawn_once_for_every_counter_and_count_counter_and_added_as_it_is() -> None:
    sketch = hs.Sketch(small_plan())
    sketch.add(RECORDS)
    release = draw(sketch, kind="tumbling", window=3, entropy=ReplayableEntropy(b"noise"), accounted=True)
    added = np.append((release.counters - sketch.counters).reshape(-1), release.counts - sketch.counts)
    law = sketch.plan.privacy.mechanism.noise()
    assert np.array_equal(added, law.sample(20 * 64 + 1, ReplayableEntropy(b"noise")))


def test_a_plan_goes_on_under_limits_that_another_has_lowered(tmp_path: Path) -> None:
    first, second = (hs.Sketch(small_plan(privacy={"total_epsilon": total})) for total in (30, 2))
    with hs.Ledger(tmp_path / "ledger.db") as ledger:
        hs.release(first, ledger=ledger)
        hs.release(second, ledger=ledger)
        with pytest.raises(hs.BudgetError, match="is left"):
            hs.release(first, ledger=ledger)


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


@pytest.mark.parametrize("epsilon", ["abc", True, float("nan"), np.float32(0.5), 0, -1.0])
def test_another_epsilon_that_is_none_is_refused_by_its_key(epsilon: object) -> None:
    with pytest.raises(hs.PlanError) as caught:
        hs.release(hs.Sketch(small_plan()), epsilon=epsilon)
    assert caught.value.key == "privacy.epsilon"


def test_another_epsilon_keeps_the_count_right_whatever_the_count_scale_becomes() -> None:
    written = {"name": "discrete-laplace", "scale": "100", "count_scale": 7}
    sketch = hs.Sketch(small_plan(privacy={"mechanism": written}))
    sketch.add(RECORDS)
    release = hs.release(sketch, epsilon=50)
    assert release.plan.privacy.mechanism.count_scale == 2
    assert abs(release.count - 500) < 20  # the noise has scale 22/50 and is divided by 2: beyond this is below 1e-39


GAUSSIAN: dict[str, object] = {"epsilon": 1, "delta": 1e-6, "total_delta": 1e-4}


def test_a_release_of_a_plan_with_delta_has_gaussian_noise_and_survives_its_file(tmp_path: Path) -> None:
    release = released(small_plan(privacy=GAUSSIAN))
    law = release.plan.privacy.mechanism.noise()
    assert isinstance(law, DiscreteGaussian)
    sketch = hs.Sketch(release.plan)
    sketch.add(RECORDS)
    added = np.append((release.counters - sketch.counters).reshape(-1), release.counts - sketch.counts)
    assert np.array_equal(added, law.sample(20 * 64 + 1, ReplayableEntropy(b"test")))
    release.save(tmp_path / "a.hush")
    loaded = hs.load(tmp_path / "a.hush")
    assert np.array_equal(loaded.counters, release.counters)
    assert (loaded.plan, loaded.guarantee) == (release.plan, release.guarantee)
    assert "ε=1, δ=1e-6 per record" in repr(loaded)


@pytest.mark.parametrize(
    ("privacy", "override", "kind", "total_delta"),
    [
        ({}, {"epsilon": 1.0, "delta": 1e-6}, DiscreteGaussian, "0.000001"),
        ({}, {"delta": 1e-6}, DiscreteGaussian, "0.000001"),
        ({"total_delta": 1e-4}, {"delta": 1e-6}, DiscreteGaussian, "0.0001"),
        (GAUSSIAN, {"delta": 0}, DiscreteLaplace, "0.0001"),
        (GAUSSIAN, {"epsilon": 0.5, "delta": 1e-9}, DiscreteGaussian, "0.0001"),
    ],
)
def test_another_delta_is_another_plan_with_its_own_noise_and_room_for_it(
    privacy: dict[str, object], override: dict[str, Any], kind: type, total_delta: str
) -> None:
    sketch = hs.Sketch(small_plan(privacy=privacy))
    sketch.add(RECORDS)
    release = hs.release(sketch, **override)
    mechanism, limits = release.plan.privacy.mechanism, release.plan.limits
    assert isinstance(mechanism.noise(), kind)
    assert release.guarantee.delta == real(override["delta"])
    assert limits.delta == Fraction(total_delta)
    # Noise of deviation below 60 on a count of scale 2: 400 is farther than one in 10^12 releases go.
    assert mechanism.noise().std < 60
    assert abs(release.count - 500) < 400


def test_another_delta_keeps_the_count_right_whatever_the_count_scale_becomes() -> None:
    written = {"name": "discrete-laplace", "scale": "100", "count_scale": 7}
    sketch = hs.Sketch(small_plan(privacy={"mechanism": written}))
    sketch.add(RECORDS)
    release = hs.release(sketch, epsilon=50, delta=1e-6)
    mechanism = release.plan.privacy.mechanism
    assert mechanism.count_scale == 2
    assert mechanism.noise().std < 2
    assert abs(release.count - 500) < 20  # twenty deviations


def test_another_delta_cannot_raise_the_limits_of_a_ledger(tmp_path: Path) -> None:
    sketch = hs.Sketch(small_plan())
    with hs.Ledger(tmp_path / "ledger.db") as ledger, pytest.raises(hs.BudgetError):
        hs.release(sketch, ledger=ledger, delta=1e-6)


@pytest.mark.parametrize("delta", ["abc", True, float("nan"), 1, -1e-6])
def test_another_delta_that_is_none_is_refused_by_its_key(delta: object) -> None:
    with pytest.raises(hs.PlanError) as caught:
        hs.release(hs.Sketch(small_plan()), delta=delta)
    assert caught.value.key == "privacy.delta"


def test_a_release_in_process_pays_for_the_counters_and_not_for_the_test_of_the_clients(tmp_path: Path) -> None:
    plan = small_plan(privacy={"min_clients_share": "0.25"}, window={"min_clients": 10**6})
    with hs.Ledger(tmp_path / "ledger.db") as ledger:
        assert hs.release(hs.Sketch(plan), ledger=ledger).accounted
        assert ledger.spent.epsilon == Fraction(3, 4)


def test_a_release_in_process_says_nothing_of_a_test_that_did_not_run() -> None:
    plan = small_plan(window={"min_clients": 5})
    assert "Whether a window is released" not in hs.release(hs.Sketch(plan)).statement()
    assert "Whether a window is released" in plan.guarantee.statement(accounted=True)


@pytest.mark.usefixtures("repeatable_noise")
def test_the_exact_count_is_never_shown() -> None:
    sketch = hs.Sketch(client_plan(3))
    sketch.add(RECORDS, clients=range(500))
    counts = {hs.release(sketch).count for _ in range(8)}
    assert len(counts) > 1


def test_density_is_the_kernel_sum_over_the_noisy_count() -> None:
    release = released(small_plan(privacy={"epsilon": 50}))
    density, total = release.density(QUERIES), release.kernel_sum(QUERIES)
    assert np.allclose(density.value, total.value / release.count)
    assert (density.std_error > total.std_error / release.count).all()


def test_the_errors_of_count_and_density_are_those_of_their_formulas() -> None:
    plan = small_plan(privacy={"epsilon": 50, "total_epsilon": 50})
    release = released(plan)
    law = plan.privacy.mechanism.noise()
    assert count_std_error(plan) == pytest.approx(law.std / plan.privacy.mechanism.count_scale)
    density, total = release.density(QUERIES), release.kernel_sum(QUERIES)
    by_hand = np.hypot(total.std_error, density.value * count_std_error(plan)) / release.count
    assert np.allclose(density.std_error, by_hand)


def test_a_noisy_count_below_one_is_taken_as_one_by_densities() -> None:
    release = released()
    empty = replace(release, counts=-abs(release.counts))
    assert np.array_equal(empty.density(QUERIES).value, empty.kernel_sum(QUERIES).value)


def test_limits_and_guarantee_are_the_plans() -> None:
    plan = small_plan(privacy={"unit": "client", "records_per_client": 4, "population": "staff", "total_delta": 0.001})
    assert (plan.limits.population, float(plan.limits.epsilon), float(plan.limits.delta)) == ("staff", 100.0, 0.001)
    assert (plan.limits.unit, plan.guarantee.records_per_client) == ("client", 4)


def test_an_interval_holds_its_value_and_widens_with_confidence() -> None:
    answer = released().kernel_sum(QUERIES)
    narrow, wide = answer.interval(0.5), answer.interval(0.99)
    low, high = narrow
    assert low.shape == high.shape == (2,)
    assert (wide.low < low).all()
    assert (low < answer.value).all()
    assert (answer.value < high).all()
    with pytest.raises(ValueError, match="confidence"):
        answer.interval(1.0)
