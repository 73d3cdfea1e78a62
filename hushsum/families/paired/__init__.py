"""The paired family (RACE, section 4): surrogate losses of linear models."""

from hushsum.families.paired.family import Paired

__all__ = ["Paired"]
