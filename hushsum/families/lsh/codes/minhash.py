"""MinHash, the hash of the jaccard kernel: the code of a set is its id that comes first in a random order.

Broder 1997, On the resemblance and containment of documents, section 3. Two sets A and B share the code of a part
where the first id of A ∪ B lies in A ∩ B: with probability |A ∩ B| / |A ∪ B|, were all orders equally likely.

**Definition.** Part i orders ids by a permutation of the 32-bit words, all modulo 2³²::

    w = fold((id ⊕ K)·M)    π(id) = fold((w ⊕ k)·m)·m'    fold(u) = u ⊕ ⌊u / 2¹⁶⌋    M, m, m' odd

with K and M the same for all parts, k, m and m' a part's own. The code of a set is the id whose π is least: no two
different ids have the same π, and no two sets share a code but by sharing an id.

**Bias.** A linear order (id·m + k alone) is pairwise independent and still wrong: of three consecutive ids the middle
one comes first in 1/4 of such orders instead of 1/3. One fold mends that for most sets, not for {0, 2³⁰, 2³¹}, whose
ids differ in their highest bits alone (1.3·10⁻² is left), so w comes before; once an id, it costs next to nothing. No
proof bounds what is left, so it was measured, with 4·10⁶ draws a set on 150 sets of 3 to 256 ids (progressions of every
stride, powers of two, grids, subspaces, runs with a point far away), and with 10⁸ on the worst of them: no id came
first more often or more rarely than its share by more than 1.3·10⁻⁴, and no part of a set by more than 2·10⁻⁴, which is
what chance alone does. :data:`BIAS` leaves room.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from hushsum.families.lsh.arrays import Bools, Int64, UInt32
from hushsum.families.sets import Sets
from hushsum.public_random import PublicSeed, PublicStream

#: What a part's collision probability may differ from the Jaccard similarity by.
BIAS: Final = 5e-4

_HALF: Final = np.uint32(16)


@dataclass(frozen=True, eq=False)
class Order:
    """Permutations of the 32-bit words, k of them.

    Attributes:
        shared: (2,) uint32: K and M.
        keys: (k,) uint32.
        first: (k,) uint32, odd: m.
        second: (k,) uint32, odd: m'.
    """

    shared: UInt32
    keys: UInt32
    first: UInt32
    second: UInt32

    def __len__(self) -> int:
        """k."""
        return len(self.keys)

    @cached_property
    def undo(self) -> tuple[UInt32, UInt32, UInt32]:
        """(2,), (k,) and (k,) uint32: K and the inverse of M modulo 2³², and the inverses of m and of m'."""
        shared = np.array([self.shared[0], *_inverses(self.shared[1:])], np.uint32)
        return shared, _inverses(self.first), _inverses(self.second)

    def mixed(self, ids: UInt32) -> UInt32:
        """w of each id."""
        words = (ids ^ self.shared[0]) * self.shared[1]
        words ^= words >> _HALF
        return np.asarray(words, np.uint32)

    def images(self, part: int, mixed: UInt32) -> UInt32:
        """π of each id, from its w."""
        words = (mixed ^ self.keys[part]) * self.first[part]
        words ^= words >> _HALF
        words *= self.second[part]
        return np.asarray(words, np.uint32)

    def ids(self, part: int, images: UInt32) -> UInt32:
        """The id of each π."""
        (key, undo_shared), undo_first, undo_second = self.undo
        words = images * undo_second[part]
        words ^= words >> _HALF
        words = (words * undo_first[part]) ^ self.keys[part]
        words ^= words >> _HALF
        return np.asarray((words * undo_shared) ^ key, np.uint32)


@dataclass(frozen=True, eq=False)
class MinHash:
    """R·p parts.

    Attributes:
        order: One permutation a part.
        universe: Ids are below it.
    """

    order: Order
    universe: int

    def __len__(self) -> int:
        """R·p."""
        return len(self.order)

    def ends(self, *_bounds: object) -> tuple[Int64, Int64]:
        """(R·p,) int64, twice: 0, and the last id of the universe."""
        return np.zeros(len(self), np.int64), np.full(len(self), self.universe - 1, np.int64)

    def far(self, queries: Sets) -> Bools:
        """(m,): none; codes always fit into 32 bits."""
        return np.zeros(len(queries), np.bool_)


def draw(seed: PublicSeed, *, rows: int, power: int, universe: int) -> MinHash:
    """R·p parts, from the seed alone; fewer rows are a prefix of more.

    Args:
        seed: The plan's.
        rows: R.
        power: p, parts of a row.
        universe: At most 2³².
    """
    return MinHash(orders(seed, "hashed/jaccard/permutations", rows * power), universe)


def orders(seed: PublicSeed, purpose: str, parts: int) -> Order:
    """Permutations, two words each and two words for what they share; fewer are a prefix of more.

    The first word's upper half is K and its lower half M, the second word is not used; then part by part: the first
    word's upper half is k and its lower half m, the second one's upper half m'. Multipliers are made odd.
    """
    words = PublicStream(seed, purpose).words(2 * parts + 2).reshape(-1, 2)
    keys, first = (words[:, 0] >> np.uint64(32)).astype(np.uint32), words[:, 0].astype(np.uint32) | np.uint32(1)
    second = (words[:, 1] >> np.uint64(32)).astype(np.uint32) | np.uint32(1)
    return Order(np.array([keys[0], first[0]]), keys[1:], first[1:], second[1:])


def _inverses(odd: UInt32) -> UInt32:
    """Of odd numbers modulo 2³² (Newton: each step doubles the bits that are right, from 3)."""
    inverse = odd.copy()
    for _ in range(4):
        inverse *= np.uint32(2) - odd * inverse
    return inverse
