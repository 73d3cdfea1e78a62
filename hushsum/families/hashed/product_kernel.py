"""The hashes of a sketch: one of all columns, or the product of several, each of a group of columns."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hushsum.errors import PlanError
from hushsum.families import vectors
from hushsum.families.base import Float32
from hushsum.families.limits import NORMAL, ORTHOGONAL, QUANTILE, read_kernel, refuse_draws
from hushsum.families.lsh.angular import Angular
from hushsum.families.lsh.codes.code import Code
from hushsum.families.lsh.codes.fastfood import Rotated
from hushsum.families.lsh.codes.joined import Joined
from hushsum.families.lsh.codes.projection import DIM_MAX
from hushsum.families.lsh.hash import Domain, Hash, Wide
from hushsum.families.lsh.jaccard import Jaccard
from hushsum.families.lsh.p_stable import Euclidean, Manhattan
from hushsum.families.lsh.random_binning import Laplacian
from hushsum.families.lsh.row_sources import Independent, Orthogonal, Sobol, Source
from hushsum.families.transforms import Float64
from hushsum.families.vectors import VectorSpace
from hushsum.public_random import PublicSeed
from hushsum.schema import Table

VECTOR_HASHES: Final[dict[str, type[Hash]]] = {
    "euclidean": Euclidean,
    "manhattan": Manhattan,
    "laplacian": Laplacian,
    "angular": Angular,
}
SET_HASHES: Final[dict[str, type[Hash]]] = {"jaccard": Jaccard}
#: Kernels whose directions are normal vectors, which may be made orthogonal.
NORMAL_KERNELS: Final = ("euclidean", "angular")
_COUNTERS_MAX: Final = 2**31
_GROUPS_MAX: Final = 64
_FASTFOOD_MAX: Final = 2**28  # codes' directions, which are never written down
_SOURCES: Final[dict[str, type[Independent]]] = {"orthogonal": Orthogonal, "fastfood": Rotated}
_REPLACED: Final = ("kernel", "bandwidth", "power", "minhash")


@dataclass(frozen=True)
class Columns:
    """Some columns of a space.

    Attributes:
        space: All of them.
        columns: Which.
    """

    space: VectorSpace
    columns: tuple[int, ...]

    @property
    def dim(self) -> int:
        """Their number."""
        return len(self.columns)

    @cached_property
    def sizes(self) -> Float32:
        """See :attr:`VectorSpace.sizes`."""
        return self.space.sizes[list(self.columns)]

    @property
    def rounding(self) -> Float64:
        """See :attr:`VectorSpace.rounding`."""
        return np.asarray(self.space.rounding[list(self.columns)], np.float64)


@dataclass(frozen=True)
class Group:
    """A hash of some columns.

    Attributes:
        hash: It.
        columns: Rising, of the vectors that are hashed; None: all, and no group in the plan.
    """

    hash: Hash
    columns: tuple[int, ...] | None = None

    def domain(self, whole: Domain) -> Domain:
        """What the hash sees of the records."""
        return whole if self.columns is None else Columns(whole, self.columns)


@dataclass(frozen=True)
class Product:
    """Hashes whose codes make up one code vector: the kernel is the product of theirs.

    Attributes:
        groups: One alone where the plan has no ``groups``.
    """

    groups: tuple[Group, ...]

    @classmethod
    def from_table(cls, sketch: Table, *, dim: int, sets: bool) -> "Product":
        """Reads ``groups``, or the keys of one hash.

        Raises:
            PlanError: With the key, what came and what was expected.
        """
        tables = sketch.tables("groups")
        if not sketch.has("groups"):
            return cls((Group(_read(sketch, sets=sets)),))
        if sets or not tables:
            raise PlanError("sketch.groups", len(tables), "no value for sets" if sets else "at least one group")
        for key in _REPLACED:
            if sketch.has(key):
                raise PlanError(sketch.name(key), sketch.value(key), "no value with groups: each group has its own")
        if len(tables) > _GROUPS_MAX:
            raise PlanError("sketch.groups", len(tables), f"at most {_GROUPS_MAX} groups")
        groups, taken = [], 0
        for table in tables:
            columns = table.integers("columns", low=0, high=dim - 1)
            taken += len(columns)
            if taken > DIM_MAX:
                raise PlanError("sketch.groups", f"{taken} columns or more", f"at most {DIM_MAX} in all groups")
            groups.append(Group(_read(table, sets=False), columns))
            table.finish()
        return cls(tuple(groups))

    def to_fields(self) -> dict[str, object]:
        """The keys of the one hash, or ``groups``."""
        if not self.grouped:
            return self.groups[0].hash.to_fields()
        return {"groups": [{"columns": list(group.columns or ()), **group.hash.to_fields()} for group in self.groups]}

    @property
    def grouped(self) -> bool:
        """Whether the plan has ``groups``."""
        return self.groups[0].columns is not None

    @property
    def rows_together(self) -> bool:
        """Whether the codes of all rows come of one computation, so that rows depend on each other."""
        return any(isinstance(group.hash, Jaccard) and group.hash.together for group in self.groups)

    @property
    def centred(self) -> bool:
        """Whether records may be moved: where no hash minds."""
        return all(group.hash.centred for group in self.groups)

    @property
    def kernel_names(self) -> set[str]:
        """Of the hashes."""
        return {group.hash.kernel_name for group in self.groups}

    def codes(self, whole: Domain) -> int:
        """Codes of a row."""
        return sum(group.hash.codes(group.domain(whole)) for group in self.groups)

    def uniforms(self, whole: Domain) -> int:
        """Coordinates of a Sobol point."""
        return sum(group.hash.uniforms(group.domain(whole)) for group in self.groups)

    def refuse_sizes(self, whole: Domain, *, rows: int, buckets: int, draws: str) -> None:
        """Refuses more counters or draws than memory.

        Raises:
            PlanError: With the rows that would do.
        """
        if whole.dim > DIM_MAX:
            raise PlanError("record.dim", whole.dim, f"at most {DIM_MAX} for the hashed family")
        if rows * buckets > _COUNTERS_MAX:
            most = _COUNTERS_MAX // buckets
            raise PlanError("sketch.rows", rows, f"at most {most} with buckets = {buckets}: 2^31 counters in all")
        self._refuse_draws(whole, rows, draws)

    def _refuse_draws(self, whole: Domain, rows: int, draws: str) -> None:
        sizes = [(group.hash, group.hash.power * int(group.domain(whole).dim), group) for group in self.groups]
        if draws == "fastfood":
            numbers = sum(size for _, size, _ in sizes)
            if rows * numbers > _FASTFOOD_MAX:
                most = _FASTFOOD_MAX // numbers
                raise PlanError("sketch.rows", rows, f"at most {most} with power x dim = {numbers}: 2^28 in all")
            return
        steps = sum(size * int(group.domain(whole).dim) for _, size, group in sizes) if draws == "orthogonal" else 0
        each = 0
        for hashed, size, _ in sizes:
            quantiles = draws == "sobol" or hashed.kernel_name in {"manhattan", "laplacian"}
            each += size * (QUANTILE if quantiles else ORTHOGONAL if draws == "orthogonal" else NORMAL)
        refuse_draws(rows, each, "power, dim and draws", steps=steps)

    def refuse_codes(self, whole: Domain, draws: str) -> None:
        """Refuses parameters with which codes might leave int32, or follow the rounding of coordinates.

        Raises:
            PlanError: With the key and the least that would do.
        """
        for index, group in enumerate(self.groups):
            key = f"sketch.groups[{index}]" if self.grouped else "sketch"
            group.hash.refuse_codes(group.domain(whole), key, draws)
            if isinstance(group.hash, Wide):
                vectors.refuse(group.hash.rounding(group.domain(whole)), group.hash.bandwidth, key)

    def draw(self, seed: PublicSeed, whole: Domain, *, rows: int, draws: str, sets: int) -> Code:
        """The parameters of every row."""
        points = Sobol(seed, rows=rows, dims=self.uniforms(whole), sets=sets) if draws == "sobol" else None
        codes, columns = [], []
        for index, group in enumerate(self.groups):
            prefix = f"hashed/{index}" if self.grouped else "hashed"
            source: Source = points or _SOURCES.get(draws, Independent)(seed, prefix, rows)
            codes.append(group.hash.draw(source, group.domain(whole)))
            columns.append(np.array(group.columns or (), np.int64))
        if not self.grouped:
            return codes[0]
        return Joined(tuple(codes), tuple(g.hash.codes(g.domain(whole)) for g in self.groups), tuple(columns))

    def block(self, whole: Domain) -> int:
        """Rows of a block of orthogonal directions, of all hashes: blocks are independent of each other."""
        return math.lcm(*(int(group.domain(whole).dim) for group in self.groups))

    def kernel(self, whole: Domain, x: Any, y: Any) -> npt.NDArray[np.float64]:
        """The product of the kernels in closed form, of n records and m queries to (n, m)."""
        x, y = whole.exact(x, clip=True), whole.exact(y)
        if not self.grouped:
            return self.groups[0].hash.kernel(x, y)
        value = np.ones((len(x), len(y)))
        for group in self.groups:
            some = list(group.columns or ())
            value *= group.hash.kernel(x[:, some], y[:, some])
        return value

    def kernel_error(self, whole: Domain) -> float:
        """At most the sum of those of the hashes."""
        return min(1.0, sum(group.hash.kernel_error(group.domain(whole)) for group in self.groups))


def _read(table: Table, *, sets: bool) -> Hash:
    hashes = SET_HASHES if sets else VECTOR_HASHES
    return hashes[read_kernel(table, hashes, sets=sets)].from_table(table)
