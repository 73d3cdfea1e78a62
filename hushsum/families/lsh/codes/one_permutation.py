"""One-permutation hashing with densification: all codes of a set from one order of its ids, or one a part.

Li, Owen and Zhang 2012, One permutation hashing. The 32-bit words are cut into R ranges, the *bins*, one a row: a set's
code in a bin is its id that comes first in it. So a large set costs one step an id, not R.

**Definition.** With the permutation π of :mod:`hushsum.families.lsh.codes.minhash`, one for each of the p parts of a
row, an id lies in bin ⌊π(id)·R / 2³²⌋, and the code of a bin is the id in it whose π is least. A bin without ids
borrows the code of one with ids, in an order that depends on the seed alone:

1. of bins t(1, b), …, t(TRIES, b) the first that has ids (Shrivastava 2017, Optimal densification for fast and
   accurate minwise hashing, section 4);
2. else, round after round, every bin i with ids, in order, claims bin c(round, i), and a bin takes the first claim on
   it (Mai et al. 2019, On densification for minwise hashing). Tries alone need R²/n steps for a small set of n ids,
   claims alone R ln R for every set.

t(s, b) and c(s, i) are ⌊mix(key ⊕ (2³²·s + b))·R / 2³²⌋, mix(u) the upper half of fold(u·M)·M' modulo 2⁶⁴, fold(u) =
u ⊕ ⌊u / 2³²⌋, with one key for tries and another for claims, the same for all parts.

**Why it is the kernel.** Let u be the code of a bin for the set A ∪ B: the first id of the first bin in its order that
has any. If u is in both sets, both have it as their code; if in one alone, the other has another code. Under a random
order u is any id of A ∪ B with the same chance: a part's collision probability is the Jaccard similarity, whatever the
sizes, as exactly as π is random. Parts have permutations of their own, so they are independent.

**Rows depend on each other**, unlike those of full MinHash. Bins that share an id, or borrow from one that does, err
together: answers vary up to √2 times as much as the spread of the rows says where sets have fewer ids than R, and less
than it says where they have more. Error bars are that spread times √2: cautious for large sets.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from hushsum.families.lsh.arrays import Bools, Int64, UInt32, UInt64
from hushsum.families.lsh.codes.minhash import Order, orders
from hushsum.families.sets import Sets
from hushsum.public_random import PublicSeed, PublicStream

#: Bins that an empty bin tries before it waits for a claim.
TRIES: Final = 8


@dataclass(frozen=True, eq=False)
class OnePermutation:
    """R bins for each of p parts.

    Attributes:
        order: p permutations.
        mixers: (4,) uint64: the keys of tries and of claims, and the odd multipliers M and M'.
        bins: R.
        universe: Ids are below it.
    """

    order: Order
    mixers: UInt64
    bins: int
    universe: int

    def __len__(self) -> int:
        """R·p."""
        return self.bins * len(self.order)

    def ends(self, *_bounds: object) -> tuple[Int64, Int64]:
        """(R·p,) int64, twice: 0, and the last id of the universe."""
        return np.zeros(len(self), np.int64), np.full(len(self), self.universe - 1, np.int64)

    def far(self, queries: Sets) -> Bools:
        """(m,): none; codes always fit into 32 bits."""
        return np.zeros(len(queries), np.bool_)

    @cached_property
    def tries(self) -> UInt32:
        """(R, TRIES) uint32: t(1, b) … t(TRIES, b) of each bin."""
        steps, bins = np.arange(1, TRIES + 1, dtype=np.uint64), np.arange(self.bins, dtype=np.uint64)
        return self._scattered(self.mixers[0], steps, bins).T.copy()

    def claims(self, first: int, count: int, sources: Int64) -> UInt32:
        """(count, k) uint32: c(s, i) in rounds s from ``first`` on, of each of k bins."""
        return self._scattered(self.mixers[1], np.arange(first, first + count, dtype=np.uint64), sources)

    def _scattered(self, key: np.uint64, steps: UInt64, bins: npt.NDArray[np.integer]) -> UInt32:
        words = key ^ ((steps[:, None] << np.uint64(32)) + bins.astype(np.uint64))
        words *= self.mixers[2]
        words ^= words >> np.uint64(32)
        words *= self.mixers[3]
        return np.asarray(((words >> np.uint64(32)) * np.uint64(self.bins)) >> np.uint64(32), np.uint32)


def draw(seed: PublicSeed, *, rows: int, power: int, universe: int) -> OnePermutation:
    """The permutations and the mixers, from the seed alone. Every code changes with R: no rows are a prefix of more.

    Args:
        seed: The plan's.
        rows: R.
        power: p, parts of a row.
        universe: At most 2³².
    """
    mixers = PublicStream(seed, "hashed/jaccard/one-permutation/mixers").words(4)
    mixers[2:] |= np.uint64(1)
    return OnePermutation(orders(seed, "hashed/jaccard/one-permutation", power), mixers, rows, universe)
