"""How the rows of a hashed sketch are drawn (the keys ``draws``, ``sobol_sets`` and ``parameters``)."""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from hushsum import sobol
from hushsum.errors import PlanError
from hushsum.families.estimators import Division
from hushsum.families.hashed.product_kernel import NORMAL_KERNELS, Group, Product
from hushsum.families.lsh.codes import fastfood
from hushsum.families.lsh.given_directions import GivenDirections
from hushsum.families.lsh.hash import Domain, Wide, read_power
from hushsum.parameters import Parameters
from hushsum.schema import Table

_KINDS: Final = ("independent", "sobol", "orthogonal", "fastfood", "given")
_SETS: Final = 8
#: Float32 transforms may move a collision probability by so much, else they are refused. Codes stay far inside int32.
ROUNDING_MAX: Final = 0.02


@dataclass(frozen=True)
class RowDraws:
    """Where rows come from.

    Attributes:
        kind: ``independent``, ``sobol``, ``orthogonal``, ``fastfood`` or ``given``.
        sobol_sets: Independently scrambled sets, 0 with other draws.
        parameters: The digest of the matrix, empty with other draws.
    """

    kind: str = "independent"
    sobol_sets: int = 0
    parameters: str = ""

    @classmethod
    def from_table(cls, sketch: Table) -> "RowDraws":
        """Reads the keys.

        Raises:
            PlanError: With the key, what came and what was expected.
        """
        kind = sketch.choice("draws", built=_KINDS, default="independent")
        if kind == "given":
            return cls(kind, parameters=sketch.text("parameters"))
        if kind != "sobol":
            return cls(kind)
        sets = sketch.integer("sobol_sets", low=2, high=2**20, default=_SETS)
        return cls(kind, sobol_sets=sets)

    def to_fields(self) -> dict[str, object]:
        """``draws``, and the key that goes with it."""
        fields: dict[str, object] = {"draws": self.kind}
        if self.kind == "sobol":
            fields["sobol_sets"] = self.sobol_sets
        if self.kind == "given":
            fields["parameters"] = self.parameters
        return fields

    @property
    def digests(self) -> tuple[str, ...]:
        """Of the matrix."""
        return (self.parameters,) if self.parameters else ()

    def rounding(self, product: Product, domain: Domain) -> float:
        """How far float32 transforms may move the collision probability within the bounds; else 0."""
        if self.kind != "fastfood":
            return 0.0
        hashed = product.groups[0].hash
        if isinstance(hashed, Wide):
            reach = math.sqrt(math.fsum(size * size for size in domain.sizes.astype(np.float64).tolist()))
            return hashed.power * fastfood.rounding(domain.dim, reach / float(hashed.bandwidth))
        return hashed.power * fastfood.signs_rounding(domain.dim)

    def sets(self, product: Product, domain: Domain, rows: int) -> Division | None:
        """Independent sets of rows that depend on each other; None where every row is independent, or none is drawn."""
        if self.kind == "sobol":
            return Division.of("sets", rows, self.sobol_sets)
        if self.kind == "fastfood":
            return Division.of_blocks(rows, fastfood.block_rows(domain.dim, rows))
        block = product.block(domain) if self.kind == "orthogonal" else 1
        return Division.of_blocks(rows, block) if block > 1 else None

    def refuse(self, product: Product, domain: Domain, rows: int) -> None:
        """Refuses hashes that cannot be drawn so.

        Raises:
            PlanError: With the key, what came and what was expected.
        """
        if self.kind == "independent":
            return
        if "jaccard" in product.kernel_names:
            raise PlanError("sketch.draws", self.kind, "'independent' for the jaccard kernel")
        if self.kind in {"orthogonal", "fastfood"} and not product.kernel_names <= set(NORMAL_KERNELS):
            raise PlanError(
                "sketch.draws", self.kind, f"another value; only the kernels {' and '.join(NORMAL_KERNELS)} support it"
            )
        if self.kind == "fastfood":
            self._refuse_rotations(product, domain)
        if self.kind == "sobol":
            if rows % self.sobol_sets:
                raise PlanError("sketch.rows", rows, f"a multiple of sobol_sets = {self.sobol_sets}")
            if (dims := product.uniforms(domain)) > sobol.MAX_DIMS:
                expected = f"'independent': a row takes {dims} draws, Sobol points have {sobol.MAX_DIMS}"
                raise PlanError("sketch.draws", self.kind, expected)
            if rows > self.sobol_sets * sobol.MAX_POINTS:
                raise PlanError("sketch.rows", rows, f"at most {sobol.MAX_POINTS} rows a set of Sobol points")

    def _refuse_rotations(self, product: Product, domain: Domain) -> None:
        if product.grouped:
            raise PlanError("sketch.draws", self.kind, "'independent' or another value with groups")
        if not (error := self.rounding(product, domain)) <= ROUNDING_MAX:
            expected = f"'independent' with so small a bandwidth: rounding could move the kernel by {error:.2g}"
            raise PlanError("sketch.draws", self.kind, expected)


def read_given(sketch: Table, parameters: Parameters, digest: str, *, rows: int, dim: int) -> Product:
    """The hash whose directions and offsets the plan carries.

    Raises:
        PlanError: With the key, what came and what was expected.
    """
    kernel, power = sketch.choice("kernel", built=NORMAL_KERNELS), read_power(sketch)
    matrix = parameters.take("sketch.parameters", digest, columns=dim + 1)
    if len(matrix) != rows * power:
        raise PlanError("sketch.parameters", f"{len(matrix)} rows", f"rows x power = {rows * power}")
    return Product((Group(GivenDirections(kernel, power, digest, matrix)),))
