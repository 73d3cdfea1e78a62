"""Random Fourier features for the fourier family: from a record to one phase a frequency, and from phases to counters.

:mod:`~hushsum.families.rff.phases` defines phases, :mod:`~hushsum.families.rff.waves` the cosines and sines that are
added up, :mod:`~hushsum.families.rff.spectrum` kernels and where frequencies come from; the engines
:mod:`~hushsum.families.rff.plain` (NumPy) and :mod:`~hushsum.families.rff.fast` (compiled) work in blocks, with the
same bytes.
"""
