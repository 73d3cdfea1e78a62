"""Kernels in closed form, for exact comparison, and exact kernel sums over many records in bounded memory.

Vectors are (n, d) arrays. Sets are pairs ``(starts, ids)``: set i holds ``ids[starts[i]:starts[i + 1]]``, ascending.
"""

from hushsum.kernels.closed_forms import (
    angular,
    cauchy,
    euclidean,
    exponential_p,
    gaussian,
    laplacian,
    manhattan,
)
from hushsum.kernels.distances import angles, euclidean_distances, manhattan_distances
from hushsum.kernels.sets import Sets, jaccard, merge_equal_sets
from hushsum.kernels.sums import (
    Kernel,
    SetKernel,
    kernel_sums,
    merge_equal,
    set_kernel_sums,
    weighted_kernel_sums,
)

__all__ = [
    "Kernel",
    "SetKernel",
    "Sets",
    "angles",
    "angular",
    "cauchy",
    "euclidean",
    "euclidean_distances",
    "exponential_p",
    "gaussian",
    "jaccard",
    "kernel_sums",
    "laplacian",
    "manhattan",
    "manhattan_distances",
    "merge_equal",
    "merge_equal_sets",
    "set_kernel_sums",
    "weighted_kernel_sums",
]
