"""Locality-sensitive hashes for the hashed family: one file a hash, and what they share.

A hash turns a record into one code vector a row (:mod:`~hushsum.families.lsh.projection` defines the codes of hashes
that round a projection); :mod:`~hushsum.families.lsh.placement` puts a code vector into a bucket; the engines
:mod:`~hushsum.families.lsh.plain` (NumPy) and :mod:`~hushsum.families.lsh.fast` (compiled) do both in blocks, with the
same bytes.
"""
