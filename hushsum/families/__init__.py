"""The sketch families: each an LSQ pair (f, g) behind one protocol, one file a family (MATH: families as LSQ pairs).

``f`` maps a record to a few counters, ``g`` maps a query to a few weights, and the sketch answers with their inner
product. A family knows its own parameters and nothing of a plan: :mod:`hushsum.plan` looks it up here by name and
validates with it.
"""

from hushsum import acceleration
from hushsum.families.family import Answer, Family, Increments, Records, VectorRecords
from hushsum.families.hashed import Hashed

FAMILIES: dict[str, type[Family]] = {"hashed": Hashed}
#: Families that the design knows and this version does not offer yet.
NOT_BUILT = ("fourier", "hermite", "partition", "paired")

__all__ = ["FAMILIES", "NOT_BUILT", "Answer", "Family", "Hashed", "Increments", "Records", "VectorRecords", "warm_up"]


def warm_up() -> None:
    """Makes compiled loops ready where they are used: seconds once after an install, then a fraction of a second.

    Raises:
        AccelerationError: The environment asks for loops that cannot be compiled.
    """
    if acceleration.enabled():
        from hushsum.families.lsh import fast

        fast.warm_up()
