"""Where the numbers of the rows come from: drawn independently, from scrambled Sobol sets, or orthogonal.

Hashes ask for them by purpose, and get (R, count) numbers: R rows that are each distributed alike, however they depend
on each other. Within a row all numbers are independent, so answers are unbiased with every source.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from hushsum import distributions
from hushsum.families.lsh.arrays import Float64
from hushsum.public_random import PublicSeed, PublicStream


class Source(Protocol):
    """The draws of one hash."""

    @property
    def rows(self) -> int:
        """R."""
        ...

    def uniforms(self, purpose: str, count: int) -> Float64:
        """(R, count) float64 in (0, 1)."""
        ...

    def normals(self, purpose: str, power: int, dim: int) -> Float64:
        """(R·p, d) standard normals: of the directions of the p parts of row after row."""
        ...


@dataclass(frozen=True)
class Independent:
    """Fresh streams: fewer rows are a prefix of more.

    Attributes:
        seed: The plan's.
        prefix: Of the purposes: ``hashed``, or ``hashed/g`` for group g of a product.
        rows: R.
    """

    seed: PublicSeed
    prefix: str
    rows: int

    def uniforms(self, purpose: str, count: int) -> Float64:
        """(R, count) in the order of the stream."""
        purpose = f"{self.prefix}/{purpose}"
        return distributions.uniforms(self.seed, purpose, rows=self.rows, dims=count, draws="independent")

    def normals(self, purpose: str, power: int, dim: int) -> Float64:
        """(R·p, d) by the polar method, in the order of the stream."""
        stream = PublicStream(self.seed, f"{self.prefix}/{purpose}")
        return stream.normal(self.rows * power * dim).reshape(self.rows * power, dim)


class Orthogonal(Independent):
    """Directions of up to d rows are orthogonal to each other, part by part; each alone is standard normal."""

    def normals(self, purpose: str, power: int, dim: int) -> Float64:
        """(R·p, d): see :func:`orthogonal_normals`."""
        raw, lengths = super().normals(purpose, power, dim), super().normals(f"{purpose}/lengths", power, dim)
        parts = [orthogonal_normals(raw[part::power], lengths[part::power]) for part in range(power)]
        return np.stack(parts, axis=1).reshape(self.rows * power, dim)


class Sobol:
    """Coordinates of scrambled Sobol points, one point a row: the next ones at each call, whatever the purpose.

    Args:
        seed: The plan's.
        rows: R, a multiple of ``sets``.
        dims: Coordinates that all hashes of a row take together.
        sets: Independently scrambled sets, of R/sets rows each, one after the other.
    """

    def __init__(self, seed: PublicSeed, *, rows: int, dims: int, sets: int) -> None:
        self.rows, self._taken = rows, 0
        self._points = distributions.uniforms(seed, "hashed/points", rows=rows, dims=dims, draws="sobol", sets=sets)

    def uniforms(self, purpose: str, count: int) -> Float64:
        """(R, count)."""
        del purpose
        taken = self._points[:, self._taken : self._taken + count]
        assert taken.shape[1] == count, "a hash takes the coordinates that it said"
        self._taken += count
        return taken

    def normals(self, purpose: str, power: int, dim: int) -> Float64:
        """(R·p, d): quantiles."""
        return distributions.normal(self.uniforms(purpose, power * dim)).reshape(self.rows * power, dim)


def orthogonal_normals(raw: Float64, lengths: Float64) -> Float64:
    """(n, d): rows are orthogonal within each block of d, the last one of fewer; the same bits on every platform.

    Choromanski, Rowland and Weller, The unreasonable effectiveness of structured random orthogonal embeddings, 2017:
    rows of a Gaussian matrix are made orthogonal, which leaves each uniform on the sphere, and get the lengths of
    independent Gaussian vectors: each row alone is N(0, I), and no two of a block look the same way.

    Gram–Schmidt in its modified form: Gaussian matrices are well-conditioned, cosines stay far below 10⁻⁹. Each step
    is one float64 operation of arrays, and sums are in the order of the coordinates.

    Args:
        raw: (n, d) standard normals, whose directions are made orthogonal.
        lengths: (n, d) others, whose norms are taken.
    """
    n, d = raw.shape
    blocks = np.zeros((-(-n // d), d, d))
    blocks.reshape(-1, d)[:n] = raw
    blocks.reshape(-1, d)[n:] = np.eye(d)[: len(blocks) * d - n]  # cut off again; rows before never see them
    for i in range(d):
        unit = blocks[:, i]
        unit /= np.sqrt(_dots(unit, unit))[:, None]
        later = blocks[:, i + 1 :]
        if later.shape[1]:
            later -= _dots(later, unit[:, None])[..., None] * unit[:, None]
    units = blocks.reshape(-1, d)[:n]
    return units * np.sqrt(_dots(lengths, lengths))[:, None]


def _dots(x: Float64, y: Float64) -> Float64:
    products = x * y
    np.add.accumulate(products, axis=-1, out=products)  # every partial sum, hence in order
    return np.asarray(products[..., -1], np.float64)


def offsets(source: Source, purpose: str, power: int) -> Float64:
    """(R·p,) in [0, 1): the upper 24 bits of a uniform, times 2⁻²⁴, which float32 holds exactly."""
    return np.asarray(np.floor(source.uniforms(purpose, power) * 2.0**24) * 2.0**-24, np.float64).reshape(-1)
