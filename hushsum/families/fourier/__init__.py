"""The fourier family (LSQ): random Fourier features, from a record to one phase a frequency, from phases to counters.

:mod:`~hushsum.families.fourier.parameters` defines phases, :mod:`~hushsum.families.fourier.parameters` the cosines and
sines that are added up, :mod:`~hushsum.families.fourier.kernels` kernels and where frequencies come from; the engines
:mod:`~hushsum.families.fourier.engine_numpy` (NumPy) and :mod:`~hushsum.families.fourier.engine_compiled` (compiled)
work in blocks, with the same bytes.
"""

from hushsum.families.fourier.family import Fourier

__all__ = ["Fourier"]
