"""What every randomiser of local reports must do. It finds those of one value of many in ``RANDOMISERS``."""

from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import chisquare

from hushsum.compiled import VARIABLE
from hushsum.entropy import OsEntropy, ReplayableEntropy
from hushsum.noise import RANDOMISERS, OneBit, Randomiser
from hushsum.noise.random_words import Blocks
from hushsum.public_random import PublicSeed

FALSE_ALARM = 1e-6
DRAWS = 60_000
LAMBDA = Fraction("54.5981")
PARAMETERS = (  # ratio, inputs, field
    (Fraction(100_001, 100_000), 5, 3),
    (Fraction(7, 3), 2, 3),
    (Fraction(7, 3), 17, 3),
    (LAMBDA, 3, 2),
    (LAMBDA, 40, 5),
)

EXAMPLES = {
    f"{name}-{ratio}-{inputs}": make(ratio, inputs, field if name == "projective" else None)
    for name, make in RANDOMISERS.items()
    for ratio, inputs, field in PARAMETERS
}
BITS = {f"{ratio}-{peak}": OneBit(ratio, peak) for ratio, peak in ((Fraction(7, 3), 1), (LAMBDA, 3), (LAMBDA, 255))}

Int64 = npt.NDArray[np.int64]


@pytest.fixture(params=EXAMPLES)
def randomiser(request: pytest.FixtureRequest) -> Randomiser:
    return EXAMPLES[request.param]


@pytest.fixture(params=BITS)
def one_bit(request: pytest.FixtureRequest) -> OneBit:
    return BITS[request.param]


@pytest.fixture
def key(seed: int) -> bytes:
    return seed.to_bytes(8, "big")


def law(randomiser: Randomiser, value: int) -> list[Fraction]:
    return [randomiser.probability(value, output) for output in range(randomiser.outputs)]


def laws(randomiser: Randomiser) -> list[list[Fraction]]:
    return [law(randomiser, value) for value in range(-1, randomiser.inputs)]


# ------------------------------------------------------------------------------------------------------- the law


def test_the_probabilities_of_each_value_sum_to_one(randomiser: Randomiser) -> None:
    assert all(sum(each) == 1 for each in laws(randomiser))


def test_the_largest_likelihood_ratio_over_all_outputs_and_all_pairs_is_the_ratio(randomiser: Randomiser) -> None:
    *usable, nothing = [*laws(randomiser)[1:], laws(randomiser)[0]]
    columns = list(zip(*usable, strict=True))
    assert max(max(column) / min(column) for column in columns) == randomiser.ratio
    with_nothing = [max(each, *column) / min(each, *column) for each, column in zip(nothing, columns, strict=True)]
    assert max(with_nothing) == randomiser.ratio


def test_an_unusable_record_is_answered_uniformly(randomiser: Randomiser) -> None:
    assert law(randomiser, -1) == [Fraction(1, randomiser.outputs)] * randomiser.outputs


def test_a_report_supports_its_own_value_and_any_other_as_often_as_stated(randomiser: Randomiser) -> None:
    """The support of each report, found by counting it alone, weighed with the law of each value."""
    supports = randomiser.support(np.eye(randomiser.outputs, dtype=np.int64))
    for value in range(randomiser.inputs):
        chances = law(randomiser, value)
        for other in range(randomiser.inputs):
            found = sum(chance for chance, hit in zip(chances, supports[:, other].tolist(), strict=True) if hit)
            assert found == (randomiser.hit if other == value else randomiser.miss)


def test_the_variance_of_a_miss_is_that_of_its_estimate(randomiser: Randomiser) -> None:
    p, q = randomiser.hit, randomiser.miss
    estimate = {1: (1 - q) / (p - q), 0: -q / (p - q)}
    assert q * estimate[1] + (1 - q) * estimate[0] == 0
    assert randomiser.variance_of_miss == q * estimate[1] ** 2 + (1 - q) * estimate[0] ** 2


def test_support_adds_up_over_rows_and_reports(randomiser: Randomiser, rng: np.random.Generator) -> None:
    counts = rng.integers(0, 1000, (7, randomiser.outputs))
    each = randomiser.support(np.eye(randomiser.outputs, dtype=np.int64))
    assert np.array_equal(randomiser.support(counts), counts @ each)
    assert randomiser.support(counts[:0]).shape == (0, randomiser.inputs)


# ------------------------------------------------------------------------------------------------------- its draws


@pytest.mark.statistical
def test_draws_have_the_stated_law(randomiser: Randomiser, key: bytes) -> None:
    """χ² for each of four values, among them an unusable record; false alarm 1e-6 together."""
    entropy = ReplayableEntropy(key)
    for value in (-1, 0, randomiser.inputs // 2, randomiser.inputs - 1):
        drawn = randomiser.randomise(np.full(DRAWS, value), entropy)
        chances = np.array(law(randomiser, value), np.float64)
        p = chisquare(np.bincount(drawn, minlength=randomiser.outputs), chances * (DRAWS / chances.sum())).pvalue
        assert p > FALSE_ALARM / 4


@pytest.mark.statistical
def test_estimates_are_unbiased(randomiser: Randomiser, rng: np.random.Generator, key: bytes) -> None:
    """Each of at most 40 within 6.5 standard deviations: false alarm below 1e-6."""
    values = np.minimum(rng.geometric(0.3, DRAWS) - 1, randomiser.inputs - 1)
    drawn = randomiser.randomise(values, ReplayableEntropy(key))
    supports = randomiser.support(np.bincount(drawn, minlength=randomiser.outputs)[None])[0]
    p, q = float(randomiser.hit), float(randomiser.miss)
    found = (supports - DRAWS * q) / (p - q)
    truth = np.bincount(values, minlength=randomiser.inputs)
    spread = np.sqrt((truth * p * (1 - p) + (DRAWS - truth) * q * (1 - q)) / (p - q) ** 2)
    assert (np.abs(found - truth) < 6.5 * spread + 1e-9).all()


def test_draws_are_int64_outputs_one_for_each_value(randomiser: Randomiser, key: bytes) -> None:
    for size in (0, 1, 17):
        drawn = randomiser.randomise(np.arange(size) % (randomiser.inputs + 1) - 1, ReplayableEntropy(key))
        assert drawn.dtype == np.int64
        assert drawn.shape == (size,)
        assert ((drawn >= 0) & (drawn < randomiser.outputs)).all()


def test_values_are_left_as_they_were(randomiser: Randomiser) -> None:
    values = np.arange(50) % (randomiser.inputs + 1) - 1
    values.flags.writeable = False
    before = values.copy()
    randomiser.randomise(values, OsEntropy())
    assert np.array_equal(values, before)


def test_as_many_bytes_are_read_whatever_the_values(randomiser: Randomiser, key: bytes) -> None:
    """Rejected words are among them: 30,000 of a stream."""
    after = []
    for value in (-1, 0, randomiser.inputs - 1):
        entropy = ReplayableEntropy(key)
        randomiser.randomise(np.full(30_000, value), entropy)
        after.append(entropy.read(16))
    assert len(set(after)) == 1


def test_draws_do_not_depend_on_the_size_of_a_block(
    randomiser: Randomiser, key: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = np.arange(2 * Blocks.draws + 3) % (randomiser.inputs + 1) - 1
    usual = randomiser.randomise(values, ReplayableEntropy(key))
    for block in (101, 10**6):
        monkeypatch.setattr(Blocks, "draws", block)
        assert np.array_equal(usual, randomiser.randomise(values, ReplayableEntropy(key)))


def test_compiled_loops_and_plain_ones_count_the_same(
    randomiser: Randomiser, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts, found = rng.integers(0, 1000, (50, randomiser.outputs)), []
    for kernels in ("plain", "fast"):
        monkeypatch.setenv(VARIABLE, kernels)
        found.append(randomiser.support(counts))
    assert np.array_equal(found[0], found[1])


# -------------------------------------------------------------------------------------------------------- refusals


def test_a_public_seed_is_no_source_of_noise(randomiser: Randomiser) -> None:
    with pytest.raises(TypeError, match="Entropy"):
        randomiser.randomise(np.zeros(1, np.int64), PublicSeed(7))  # type: ignore[arg-type]  # of the wrong type on purpose


def test_a_value_out_of_range_is_refused_without_naming_it(randomiser: Randomiser) -> None:
    for values in ([-2], [10**6]):
        with pytest.raises(ValueError, match="out of range") as refused:
            randomiser.randomise(np.array(values), OsEntropy())
        assert str(values[0]) not in str(refused.value)


def test_values_of_another_type_or_shape_are_refused(randomiser: Randomiser) -> None:
    with pytest.raises(TypeError, match="int64"):
        randomiser.randomise(np.zeros(1, np.int32), OsEntropy())
    with pytest.raises(ValueError, match="one axis"):
        randomiser.randomise(np.zeros((1, 1), np.int64), OsEntropy())


def test_counts_of_another_shape_are_refused(randomiser: Randomiser) -> None:
    with pytest.raises(ValueError, match="counts"):
        randomiser.support(np.zeros((2, randomiser.outputs + 1), np.int64))


@pytest.mark.parametrize("name", RANDOMISERS)
@pytest.mark.parametrize(
    ("ratio", "inputs", "error"),
    [
        (Fraction(1), 4, ValueError),
        (Fraction(1, 2), 4, ValueError),
        (Fraction(2), 1, ValueError),
        (2.0, 4, TypeError),
        (Fraction(2), 4.0, TypeError),
        (Fraction(2**61 + 1, 2**61), 4, ValueError),
        (Fraction(2**61), 4, ValueError),
    ],
)
def test_parameters_that_protect_nobody_or_overflow_are_refused(
    name: str, ratio: Fraction, inputs: int, error: type[Exception]
) -> None:
    with pytest.raises(error):
        RANDOMISERS[name](ratio, inputs, 3 if name == "projective" else None)


# --------------------------------------------------------------------------------------------------------- one bit


def test_the_ratio_of_one_bit_is_reached_at_the_peaks_and_never_passed(one_bit: OneBit) -> None:
    numbers = range(-one_bit.peak, one_bit.peak + 1)
    for bit in (0, 1):
        chances = [one_bit.probability(number, bit) for number in numbers]
        assert max(chances) / min(chances) == one_bit.ratio
    assert all(one_bit.probability(number, 0) + one_bit.probability(number, 1) == 1 for number in numbers)


def test_one_bit_tells_the_number_on_average(one_bit: OneBit) -> None:
    for number in range(-one_bit.peak, one_bit.peak + 1):
        up, down = one_bit.probability(number, 1), one_bit.probability(number, 0)
        assert (up - down) * one_bit.factor == number


@pytest.mark.statistical
def test_bits_have_the_stated_law(one_bit: OneBit, key: bytes) -> None:
    """Within 5.5 standard deviations each, four of an example: false alarm below 2e-7 an example."""
    entropy = ReplayableEntropy(key)
    for number, nothing in ((one_bit.peak, False), (-one_bit.peak, False), (1, False), (one_bit.peak, True)):
        drawn = one_bit.randomise(np.full(DRAWS, number), entropy, np.full(DRAWS, nothing))
        assert set(drawn.tolist()) <= {0, 1}
        chance = float(one_bit.probability(0 if nothing else number, 1))
        assert abs(drawn.sum() - DRAWS * chance) < 5.5 * np.sqrt(DRAWS * chance * (1 - chance))


def test_one_bit_reads_as_many_bytes_whatever_the_numbers(one_bit: OneBit, key: bytes) -> None:
    after = []
    for number, nothing in ((0, True), (one_bit.peak, False), (-one_bit.peak, False)):
        entropy = ReplayableEntropy(key)
        one_bit.randomise(np.full(30_000, number), entropy, np.full(30_000, nothing))
        after.append(entropy.read(16))
    assert len(set(after)) == 1


def test_one_bit_refuses_what_it_cannot_answer() -> None:
    response = OneBit(Fraction(3), 5)
    with pytest.raises(ValueError, match="out of range"):
        response.randomise(np.array([6]), OsEntropy())
    with pytest.raises(ValueError, match="mask"):
        response.randomise(np.array([5]), OsEntropy(), np.array([True, False]))
    with pytest.raises(ValueError, match="entry"):
        response.probability(6, 1)
    with pytest.raises(ValueError, match="peak"):
        OneBit(Fraction(3), 0)
    with pytest.raises(ValueError, match="2\\^62"):
        OneBit(Fraction(3), 2**60)
