"""Locality-sensitive hashes for the hashed family: one file a kind of hash, and what they share.

A hash (:mod:`~hushsum.families.lsh.hash`: its keys, draws and closed form) draws a code, the frozen parameters by which
a record has one code vector a row (:mod:`~hushsum.families.lsh.codes`: a rounded projection or its sign, bins, first
ids of sets, or several of them joined). :mod:`~hushsum.families.lsh.placement` puts a code vector into a bucket.

Codes know no engines. Each of the two engines has a table from the type of a code to what computes it:
:mod:`~hushsum.families.lsh.numpy_engine`, and :mod:`~hushsum.families.lsh.compiled.engine` with the same bytes. Which
runs is decided in :mod:`~hushsum.families.lsh.engines`. Local reports, about one row each, are hashed by
:mod:`~hushsum.families.lsh.single_row`.
"""
