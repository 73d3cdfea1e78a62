"""Locality-sensitive hashes for the hashed family: one file a hash, and what they share.

A hash (:mod:`~hushsum.families.lsh.hash`: its keys, draws and closed form) draws a coder
(:mod:`~hushsum.families.lsh.coders`) that turns a record into one code vector a row: a rounded projection or its sign
(:mod:`~hushsum.families.lsh.projection`), bins (:mod:`~hushsum.families.lsh.bins`), first ids of sets
(:mod:`~hushsum.families.lsh.minhash`), or several of them (:mod:`~hushsum.families.lsh.joined`).
:mod:`~hushsum.families.lsh.placement` puts a code vector into a bucket; the engines
:mod:`~hushsum.families.lsh.plain` (NumPy) and :mod:`~hushsum.families.lsh.fast` (compiled) do the rest for all hashes
in blocks, with the same bytes.
"""
