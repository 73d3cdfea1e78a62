"""The definition of MinHash codes once more, slow and plain: Python's own integers. And the codes of both engines."""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from hushsum.families.lsh import numpy_engine
from hushsum.families.lsh.codes.minhash import MinHash
from hushsum.families.lsh.codes.one_permutation import TRIES, OnePermutation
from hushsum.families.lsh.compiled import engine as compiled_engine
from hushsum.families.sets import Sets

Int64 = npt.NDArray[np.int64]
Definition = MinHash | OnePermutation
Codes = Callable[[Definition, Sets], Int64]
WORD = 2**32


def packed(*sets: npt.ArrayLike) -> Sets:
    arrays = [np.unique(np.asarray(each, np.int64)).astype(np.uint32) for each in sets]
    return Sets(np.cumsum([0, *map(len, arrays)]).astype(np.int64), np.concatenate(arrays))


def unpacked(sets: Sets) -> list[list[int]]:
    return [sets.ids[start:stop].tolist() for start, stop in pairwise(sets.starts.tolist())]


def image(code: Definition, part: int, each: int) -> int:
    order = code.order
    w = (each ^ int(order.shared[0])) * int(order.shared[1]) % WORD
    w ^= w >> 16
    u = (w ^ int(order.keys[part])) * int(order.first[part]) % WORD
    return (u ^ (u >> 16)) * int(order.second[part]) % WORD


def scattered(code: OnePermutation, claims: bool, step: int, place: int) -> int:
    word = int(code.mixers[int(claims)]) ^ (step * WORD + place)
    word = word * int(code.mixers[2]) % 2**64
    word = (word ^ (word >> 32)) * int(code.mixers[3]) % 2**64
    return (word >> 32) * code.bins >> 32


def densified(code: OnePermutation, part: int, ids: list[int]) -> list[int]:
    own: dict[int, int] = {}
    for each in sorted(ids, key=lambda one: image(code, part, one)):
        own.setdefault(image(code, part, each) * code.bins >> 32, each)
    codes = dict(own)
    for place in range(code.bins):
        for step in range(1, TRIES + 1):
            codes.setdefault(place, own.get(scattered(code, False, step, place), -1))
            if codes[place] < 0:
                del codes[place]
    step = 0
    while len(codes) < code.bins:
        step += 1
        for source in sorted(own):
            codes.setdefault(scattered(code, True, step, source), own[source])
    return [codes[place] for place in range(code.bins)]


def defined(code: Definition, sets: Sets) -> Int64:
    """(R·p, n)."""
    if isinstance(code, MinHash):
        columns = [[min(ids, key=lambda one: image(code, i, one)) for i in range(len(code))] for ids in unpacked(sets)]
        return np.array(columns, np.int64).T
    parts = range(len(code.order))
    return np.array([np.array([densified(code, p, ids) for p in parts]).T.reshape(-1) for ids in unpacked(sets)]).T


def plain_codes(code: Definition, sets: Sets, parts: slice | None = None) -> Int64:
    engine = numpy_engine.coder(code)
    return engine.codes(parts or slice(0, len(code)), engine.prepare(sets)).copy()


def fast_codes(code: Definition, sets: Sets, parts: slice | None = None) -> Int64:
    engine = compiled_engine.coder(code, np.zeros(len(code), np.int32))
    found = engine.codes(parts or slice(0, len(code)), engine.prepare(sets))
    return found.view(np.uint32).astype(np.int64)
