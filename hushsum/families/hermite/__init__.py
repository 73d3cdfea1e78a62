"""The hermite family (LSQ): the fast Gauss transform on a bounded domain."""

from hushsum.families.hermite.family import Hermite

__all__ = ["Hermite"]
