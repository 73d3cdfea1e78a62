"""The fourier family (LSQ): random Fourier features, from a record to one phase a frequency, from phases to counters.

:mod:`~hushsum.families.fourier.phases` defines phases, :mod:`~hushsum.families.fourier.waves` the cosines and sines
that are added up, :mod:`~hushsum.families.fourier.spectrum` kernels and where frequencies come from; the engines
:mod:`~hushsum.families.fourier.plain` (NumPy) and :mod:`~hushsum.families.fourier.fast` (compiled) work in blocks, with
the same bytes.
"""

from hushsum.families.fourier.family import Fourier

__all__ = ["Fourier"]
