"""The hashed family (RACE): rows of buckets; the hashes are in :mod:`hushsum.families.lsh`."""

from hushsum.families.hashed.family import Hashed

__all__ = ["Hashed"]
