"""The definition of MinHash codes once more, slow and plain: Python's own integers. And the codes of both engines."""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from hushsum.families.lsh.minhash import MinHash
from hushsum.families.lsh.one_permutation import TRIES, OnePermutation
from hushsum.families.sets import Sets

Int64 = npt.NDArray[np.int64]
Coder = MinHash | OnePermutation
Codes = Callable[[Coder, Sets], Int64]
WORD = 2**32


def packed(*sets: npt.ArrayLike) -> Sets:
    arrays = [np.unique(np.asarray(each, np.int64)).astype(np.uint32) for each in sets]
    return Sets(np.cumsum([0, *map(len, arrays)]).astype(np.int64), np.concatenate(arrays))


def unpacked(sets: Sets) -> list[list[int]]:
    return [sets.ids[start:stop].tolist() for start, stop in pairwise(sets.starts.tolist())]


def image(coder: Coder, part: int, each: int) -> int:
    order = coder.order
    w = (each ^ int(order.shared[0])) * int(order.shared[1]) % WORD
    w ^= w >> 16
    u = (w ^ int(order.keys[part])) * int(order.first[part]) % WORD
    return (u ^ (u >> 16)) * int(order.second[part]) % WORD


def scattered(coder: OnePermutation, claims: bool, step: int, place: int) -> int:
    word = int(coder.mixers[int(claims)]) ^ (step * WORD + place)
    word = word * int(coder.mixers[2]) % 2**64
    word = (word ^ (word >> 32)) * int(coder.mixers[3]) % 2**64
    return (word >> 32) * coder.bins >> 32


def densified(coder: OnePermutation, part: int, ids: list[int]) -> list[int]:
    own: dict[int, int] = {}
    for each in sorted(ids, key=lambda one: image(coder, part, one)):
        own.setdefault(image(coder, part, each) * coder.bins >> 32, each)
    codes = dict(own)
    for place in range(coder.bins):
        for step in range(1, TRIES + 1):
            codes.setdefault(place, own.get(scattered(coder, False, step, place), -1))
            if codes[place] < 0:
                del codes[place]
    step = 0
    while len(codes) < coder.bins:
        step += 1
        for source in sorted(own):
            codes.setdefault(scattered(coder, True, step, source), own[source])
    return [codes[place] for place in range(coder.bins)]


def defined(coder: Coder, sets: Sets) -> Int64:
    """(R·p, n)."""
    if isinstance(coder, MinHash):
        columns = [
            [min(ids, key=lambda one: image(coder, i, one)) for i in range(len(coder))] for ids in unpacked(sets)
        ]
        return np.array(columns, np.int64).T
    parts = range(len(coder.order))
    return np.array([np.array([densified(coder, p, ids) for p in parts]).T.reshape(-1) for ids in unpacked(sets)]).T


def plain_codes(coder: Coder, sets: Sets, parts: slice | None = None) -> Int64:
    engine = coder.plain()
    return engine.codes(parts or slice(0, len(coder)), engine.prepare(sets)).copy()


def fast_codes(coder: Coder, sets: Sets, parts: slice | None = None) -> Int64:
    engine = coder.fast(np.zeros(len(coder), np.int32))
    found = engine.codes(parts or slice(0, len(coder)), engine.prepare(sets))
    return found.view(np.uint32).astype(np.int64)
