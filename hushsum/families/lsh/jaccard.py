"""The jaccard kernel of sets: MinHash."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Self

import numpy as np
import numpy.typing as npt

from hushsum import kernels
from hushsum.families.lsh.codes import minhash, one_permutation
from hushsum.families.lsh.codes.code import Code
from hushsum.families.lsh.hash import read_power
from hushsum.families.lsh.row_sources import Independent, Source
from hushsum.families.sets import Sets, Universe
from hushsum.schema import Table

_DRAWS: Final[dict[str, Callable[..., Code]]] = {"full": minhash.draw, "one-permutation": one_permutation.draw}


@dataclass(frozen=True)
class SetSpace:
    """From the caller's sets to those that are hashed: the same.

    Attributes:
        universe: Ids are below it.
    """

    universe: int

    @property
    def dim(self) -> int:
        """1: what a part is drawn from does not grow with the sets."""
        return 1

    @property
    def ends(self) -> tuple[()]:
        """Nothing."""
        return ()

    def accept(self, records: Any) -> tuple[Sets, npt.NDArray[np.bool_]]:
        """Usable sets, and the mask of those that were kept."""
        return Universe(self.universe).accept(records)

    def accepted(self, records: Any) -> Sets:
        """The same sets, once it is sure that they come from :meth:`accept`."""
        return Universe(self.universe).accepted(records)

    def queries(self, queries: Any) -> Sets:
        """Sets to ask about."""
        return Universe(self.universe).queries(queries)

    def exact(self, points: Any, *, clip: bool = False) -> kernels.Sets:
        """Sets for the kernel in closed form."""
        del clip
        sets = self.queries(points)
        return sets.starts, sets.ids


@dataclass(frozen=True)
class Jaccard:
    """The keys ``power`` and ``minhash``.

    Attributes:
        power: p, hashes concatenated in a row: the kernel to the power p.
        minhash: ``full`` or ``one-permutation``, which is faster for sets of more than about 150 ids.
    """

    kernel_name: ClassVar[str] = "jaccard"
    centred: ClassVar[bool] = True

    power: int = 1
    minhash: str = "full"

    @classmethod
    def from_table(cls, table: Table) -> Self:
        """Reads ``power`` and ``minhash``."""
        return cls(read_power(table), table.choice("minhash", built=tuple(_DRAWS), default="full"))

    def to_fields(self) -> dict[str, object]:
        """The keys."""
        return {"kernel": self.kernel_name, "power": self.power, "minhash": self.minhash}

    @property
    def together(self) -> bool:
        """Whether the codes of all rows are computed at once, from one order of the ids."""
        return self.minhash == "one-permutation"

    def codes(self, domain: SetSpace) -> int:
        """p, one a part."""
        del domain
        return self.power

    def uniforms(self, domain: SetSpace) -> int:
        """None: permutations are drawn from words."""
        del domain
        return 0

    def refuse_codes(self, domain: SetSpace, key: str, draws: str) -> None:
        """Nothing: ids fit into 32 bits."""
        del domain, key, draws

    def draw(self, source: Source, domain: SetSpace) -> Code:
        """The permutations of every part."""
        assert isinstance(source, Independent), "sets are hashed by independent rows"
        return _DRAWS[self.minhash](source.seed, rows=source.rows, power=self.power, universe=domain.universe)

    def kernel(self, x: kernels.Sets, y: kernels.Sets) -> npt.NDArray[np.float64]:
        """n and m sets to (n, m)."""
        return kernels.jaccard(x, y, self.power)

    def kernel_error(self, domain: SetSpace) -> float:
        """What permutations that are not quite uniform may make of p parts."""
        del domain
        return self.power * minhash.BIAS
