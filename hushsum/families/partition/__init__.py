"""The partition family: a density sketch, count sketches of the cells of space."""

from hushsum.families.partition.family import Partition

__all__ = ["Partition"]
