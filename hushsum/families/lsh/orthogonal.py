"""Orthogonal Gaussian directions, the same bits on every platform.

Choromanski, Rowland and Weller, The unreasonable effectiveness of structured random orthogonal embeddings, 2017: rows
of a Gaussian matrix are made orthogonal, which leaves each uniform on the sphere, and get the lengths of independent
Gaussian vectors: each row alone is N(0, I), and no two of a block look the same way.
"""

import numpy as np

from hushsum.families.lsh.arrays import Float64


def orthogonal_normals(raw: Float64, lengths: Float64) -> Float64:
    """(n, d): rows are orthogonal within each block of d, the last one of fewer.

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
