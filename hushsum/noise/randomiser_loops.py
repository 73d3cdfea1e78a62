"""Compiled loops of randomised responses: those of :mod:`.randomized_response` and :mod:`.projective_geometry`.

Every draw takes the same steps: comparisons give 0 or 1, which choose by multiplication. Numbers are unsigned, so that
divisions need no look at signs.
"""

import numpy as np
import numpy.typing as npt

from hushsum.compiled import compiled

Int64 = npt.NDArray[np.int64]
Word = np.uint64
Words = npt.NDArray[np.uint64]


def warm_up() -> None:
    """Compiles the loops, or loads what was compiled before."""
    values = np.zeros(1, np.int64)
    answer_choice(values, values.copy(), Word(2), Word(1), Word(1))
    constants = [np.ones(shape, np.uint64) for shape in (2, 2, (1, 2), (3, 2))]
    for table in constants:
        table.flags.writeable = False  # as they are given
    answer_projective(values, values.copy(), np.ones(5, np.uint64), *constants)


@compiled
def answer_choice(values: Int64, draws: Int64, total: Word, kept: Word, each: Word) -> None:
    """Replaces draws below K·T by responses.

    Args:
        values: (n,), −1 for none.
        draws: (n,), in place.
        total: T.
        kept: a.
        each: b.
    """
    one = np.uint64(1)
    for i in range(len(draws)):
        draw, value = np.uint64(draws[i]), np.uint64(values[i])  # −1 is larger than every other number
        stand_in = draw // total
        rest = draw - stand_in * total
        keeps, nothing = np.uint64(rest < kept), np.uint64(values[i] < 0)
        other = (rest - kept * (one - keeps)) // each
        other += np.uint64(other >= value)
        answer = other + keeps * (value - other)
        draws[i] = np.int64(answer + nothing * (stand_in - answer))


@compiled
def answer_projective(
    values: Int64,
    draws: Int64,
    numbers: Words,
    powers: Words,
    inverses: Words,
    facing: Words,
    space: Words,
) -> None:
    """Replaces draws below N·T by responses.

    Args:
        values: (n,), −1 for none.
        draws: (n,), in place.
        numbers: f, T, a, b, h.
        powers: (K,): f^(t − 1 − l) of each value.
        inverses: (K,): 1/v_l.
        facing: (t − 1, K): what its report's coordinates but l are multiplied with, the last first.
        space: See :func:`hushsum.noise.projective_geometry.steps_of`.
    """
    one, zero = np.uint64(1), np.uint64(0)
    field, total, hit_weight, miss_weight = numbers[0], numbers[1], numbers[2], numbers[3]
    dimension, hit_total = space.shape[1], hit_weight * numbers[4]
    for i in range(len(draws)):
        draw, nothing = np.uint64(draws[i]), np.uint64(values[i] < 0)
        value = np.uint64(values[i]) * (one - nothing)  # an unsigned index, which never counts from the end
        stand_in = draw // total
        rest = draw - stand_in * total
        hits = np.uint64(rest < hit_total)
        misses = one - hits
        weight = miss_weight + hits * (hit_weight - miss_weight)
        left = (rest - misses * hit_total) // weight
        point = left
        for k in range(dimension - 1):
            left += hits * np.uint64(point >= space[1, k]) * space[2, k]
        power, inverse = powers[value], inverses[value]
        product, leading, place, against, result, upper = zero, one, zero, zero, zero, zero
        for k in range(dimension - 1):
            rest = left // field if k < dimension - 2 else zero
            x, y = left - rest * field, facing[k, value]
            left = rest
            product += x * y
            before = np.uint64(power <= space[0, k])
            found = before * np.uint64(x != zero)
            leading += found * (x - leading)
            place += found * (space[0, k] - place)
            against += found * (y - against)
            upper |= found
            result += x * (space[0, k] + before * (space[0, k + 1] - space[0, k]))
        more = leading - one
        last = ((misses * leading + more * against) * inverse + product * (field - inverse)) % field
        last += misses * (one - upper) * (one - last)
        result += last * power - more * place * field
        answer = result
        for k in range(dimension):
            answer -= np.uint64(result >= space[0, k]) * space[2, k]
        draws[i] = np.int64(answer + nothing * (stand_in - answer))
