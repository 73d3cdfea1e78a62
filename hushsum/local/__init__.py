"""Local mode: what a device makes of records so that nothing else may leave it, and what is read of many devices.

``report``: :mod:`~hushsum.local.encoding` (records to reports), :mod:`~hushsum.local.batches` (their bytes and their
counts), :mod:`~hushsum.local.decoding` (counts to answers), :mod:`~hushsum.local.errors` (how large errors will be).
``silo``: :mod:`hushsum.local.silo`.
"""
