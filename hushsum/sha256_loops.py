"""SHA-256 (FIPS 180-4) of many short messages at once, in a compiled loop that the compiler vectorises.

:func:`hashlib.sha256` takes up to three times as long for a message of some hundred bytes, most of it for its objects.
:mod:`hushsum.delta_decoder` alone calls it.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hushsum.compiled import compiled, inlined

Bytes = npt.NDArray[np.uint8]
Int64 = npt.NDArray[np.int64]
UInt32 = npt.NDArray[np.uint32]
Number = Any  # an int64, or what the compiler makes one

LANES: Final = 64  # messages that are hashed side by side: enough that a loop over them costs more than its start
_BLOCK_WORDS: Final = 16
_STATE_WORDS: Final = 8


def _roots(count: int, root: int) -> list[int]:
    """The first 32 bits of the fractional parts of the square (2) or cube (3) roots of the first primes."""
    primes = [n for n in range(2, 312) if all(n % k for k in range(2, n))][:count]
    found = []
    for prime in primes:
        low, high = 0, prime << 32
        while low < high:  # the largest x with x^root ≤ prime·2^(32·root)
            middle = (low + high + 1) // 2
            low, high = (middle, high) if middle**root <= prime << 32 * root else (low, middle - 1)
        found.append(low & 0xFFFFFFFF)
    return found


_INITIAL: Final = np.array(_roots(_STATE_WORDS, 2), np.uint32)
_ROUND: Final = np.array(_roots(64, 3), np.uint32)


@inlined
def _rotated(word: Number, bits: Number) -> Number:
    return np.uint32((word >> np.uint32(bits)) | np.uint32(word << np.uint32(32 - bits)))


@inlined
def _compress(schedule: UInt32, state: UInt32, work: UInt32) -> None:
    """One block of each lane: section 6.2.2. ``schedule`` (64, LANES) begins with the blocks."""
    for t in range(_BLOCK_WORDS, 64):
        for lane in range(LANES):
            early, late = schedule[t - 15, lane], schedule[t - 2, lane]
            small0 = _rotated(early, 7) ^ _rotated(early, 18) ^ (early >> np.uint32(3))
            small1 = _rotated(late, 17) ^ _rotated(late, 19) ^ (late >> np.uint32(10))
            schedule[t, lane] = np.uint32(small1 + schedule[t - 7, lane] + small0 + schedule[t - 16, lane])
    for word in range(_STATE_WORDS):
        for lane in range(LANES):
            work[word, lane] = state[word, lane]
    for t in range(64):
        # The roles a to h move by one row each round; only d and h change.
        a, b, c, d = (0 - t) & 7, (1 - t) & 7, (2 - t) & 7, (3 - t) & 7
        e, f, g, h = (4 - t) & 7, (5 - t) & 7, (6 - t) & 7, (7 - t) & 7
        constant = _ROUND[t]
        for lane in range(LANES):
            of_e, of_a, of_b = work[e, lane], work[a, lane], work[b, lane]
            large1 = _rotated(of_e, 6) ^ _rotated(of_e, 11) ^ _rotated(of_e, 25)
            choice = (of_e & work[f, lane]) ^ (~of_e & work[g, lane])
            first = np.uint32(work[h, lane] + large1 + choice + constant + schedule[t, lane])
            large0 = _rotated(of_a, 2) ^ _rotated(of_a, 13) ^ _rotated(of_a, 22)
            majority = (of_a & of_b) ^ (of_a & work[c, lane]) ^ (of_b & work[c, lane])
            work[d, lane] = np.uint32(work[d, lane] + first)
            work[h, lane] = np.uint32(first + large0 + majority)


@inlined
def _word(words: UInt32, at: Number, last: Number) -> Number:
    """The 4 bytes from place ``at`` on of a message that ends at ``last``, with the bit that follows it, and zeroes."""
    if at > last:
        return np.uint32(0)
    number, shift = np.uint64(at) >> np.uint64(2), np.uint64(32 - 8 * (at & 3))
    both = np.uint64(words[number]) << np.uint64(32) | np.uint64(words[number + np.uint64(1)])
    word = (both >> shift) & np.uint64(0xFFFFFFFF)
    if last - at < 4:  # the rest is not of this message
        rest = np.uint64(8 * (last - at))
        word = (word & ~(np.uint64(0xFFFFFFFF) >> rest)) | (np.uint64(0x80000000) >> rest)
    return np.uint32(word)


@inlined
def _fill(
    schedule: UInt32, lane: Number, words: UInt32, span: tuple[Number, Number], prefix: UInt32, block: Number
) -> None:
    """The words of one block of a message: the prefix, what begins and ends at ``span``, and the padding."""
    first, last = span
    at = first + 64 * block - 4 * len(prefix)  # where the bytes of the block's first word lie
    begin = len(prefix) if block == 0 else 0
    for word in range(begin):
        schedule[word, lane] = prefix[word]
    if at + 64 <= last:
        shift = np.uint64(32 - 8 * (at & 3))
        for word in range(begin, _BLOCK_WORDS):
            number = np.uint64((at >> 2) + word)
            both = np.uint64(words[number]) << np.uint64(32) | np.uint64(words[number + np.uint64(1)])
            schedule[word, lane] = np.uint32(both >> shift)
        return
    for word in range(begin, _BLOCK_WORDS):
        schedule[word, lane] = _word(words, at + 4 * word, last)
    if at + 64 >= last + 9:  # the last block ends with the number of bits
        bits = np.uint64(8 * (4 * len(prefix) + last - first))
        schedule[14, lane] = np.uint32(bits >> np.uint64(32))
        schedule[15, lane] = np.uint32(bits & np.uint64(0xFFFFFFFF))


@inlined
def _add(state: UInt32, work: UInt32, lane: Number) -> None:
    for word in range(_STATE_WORDS):
        state[word, lane] += work[word, lane]


@inlined
def _blocks(offsets: Int64, number: Number, prefix: UInt32) -> Number:
    """Of a message: the prefix, its bytes, a bit, and 8 bytes of its length."""
    return (4 * len(prefix) + offsets[number + 1] - offsets[number] + 9 + 63) >> 6


@compiled
def first_words(words: UInt32, offsets: Int64, prefix: UInt32, found: Int64) -> None:
    """The first 64 bits of the SHA-256 of each message, as a big-endian signed number.

    Args:
        words: All messages, one after another, as big-endian words, and at least two words after them.
        offsets: (n + 1,) the byte where each begins, and where the last one ends.
        prefix: Words that are hashed before each of them, at most 13.
        found: (n,) to be filled.
    """
    schedule = np.zeros((64, LANES), np.uint32)
    state = np.empty((_STATE_WORDS, LANES), np.uint32)
    work = np.empty((_STATE_WORDS, LANES), np.uint32)
    n = len(offsets) - 1
    for start in range(0, n, LANES):
        count, most = min(LANES, n - start), np.int64(0)
        for lane in range(count):
            most = max(most, _blocks(offsets, start + lane, prefix))
        for word in range(_STATE_WORDS):
            state[word] = _INITIAL[word]
        for block in range(most):  # lanes whose message has fewer compute what nobody adds
            for lane in range(count):
                if block < _blocks(offsets, start + lane, prefix):
                    span = offsets[start + lane], offsets[start + lane + 1]
                    _fill(schedule, lane, words, span, prefix, block)
            _compress(schedule, state, work)
            for lane in range(count):
                if block < _blocks(offsets, start + lane, prefix):
                    _add(state, work, lane)
        for lane in range(count):
            found[start + lane] = np.int64(np.uint64(state[0, lane]) << np.uint64(32) | np.uint64(state[1, lane]))
