"""A compiled loop that makes the digits of geometric variables, as :mod:`.geometric_digits` defines them."""

from fractions import Fraction
from typing import Final

import numpy as np

from hushsum.compiled import compiled
from hushsum.noise.geometric_digits import Digits, Int64, UInt16, UInt64, digits

_LANE_BITS: Final = 16  # digits that are gathered before they are widened, so that a register holds many draws
_PER_WORD: Final = 4  # lanes that are searched for ties at once


def warm_up() -> None:
    """Compiles the loop, or loads it."""
    table = digits(Fraction(1))
    words = np.frombuffer(bytes(table.bytes_per_draw), np.uint16).reshape(-1, 2)  # read-only, as what is drawn from
    differences(table, words, np.zeros(1, np.int64))


def differences(table: Digits, words: UInt16, values: Int64) -> Int64:
    """See :func:`hushsum.noise.geometric_digits.differences`."""
    columns, size = words.shape
    parts, padded = -(-columns // _LANE_BITS), -(-size // _PER_WORD) * _PER_WORD
    lanes = np.zeros((parts, size), np.uint16)
    equal = np.zeros((parts, padded), np.uint16)
    packed = equal.view(np.uint64)
    marked = _differences(table.first_words, words, lanes, equal, packed, values)
    ties = np.empty(marked * _PER_WORD * _LANE_BITS, np.int64)
    return np.sort(ties[: _find(table.first_words, words, packed, ties)])


@compiled
def _differences(
    first_words: UInt16, words: UInt16, lanes: UInt16, equal: UInt16, packed: UInt64, values: Int64
) -> int:
    """How many elements of ``packed``, which is ``equal`` seen as 64-bit words, hold ties."""
    nothing = np.uint16(0)
    for column in range(len(words)):
        row, threshold = words[column], first_words[column]
        lane, tied = lanes[column // _LANE_BITS], equal[column // _LANE_BITS]
        bit = np.uint16(1 << (column % _LANE_BITS))
        for i in range(len(row)):  # selections between 16-bit numbers stay 16 bits wide when this is vectorised
            w = row[i]
            lane[i] |= bit if w < threshold else nothing
            tied[i] |= bit if w == threshold else nothing
    n = len(values)
    for part in range(len(lanes)):
        added, subtracted = lanes[part, :n], lanes[part, n:]
        if part == 0:
            for i in range(n):
                values[i] = np.int64(added[i]) - np.int64(subtracted[i])
        else:
            for i in range(n):
                values[i] += (np.int64(added[i]) - np.int64(subtracted[i])) << np.int64(part * _LANE_BITS)
    marked = 0
    for part in range(len(packed)):
        for four in packed[part]:
            marked += four != 0
    return marked


@compiled
def _find(first_words: UInt16, words: UInt16, packed: UInt64, ties: Int64) -> int:
    """How many positions it wrote to ``ties``."""
    count = 0
    for part in range(len(packed)):
        for four in range(packed.shape[1]):
            if packed[part, four]:
                for i in range(four * _PER_WORD, min(words.shape[1], (four + 1) * _PER_WORD)):
                    for column in range(part * _LANE_BITS, min(len(words), (part + 1) * _LANE_BITS)):
                        if words[column, i] == first_words[column]:
                            ties[count] = column * words.shape[1] + i
                            count += 1
    return count
