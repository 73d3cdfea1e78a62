"""The sketch families: each an LSQ pair (f, g) behind one protocol, one file a family (Wagner, Naamad and Mishra 2023).

``f`` maps a record to a few counters, ``g`` maps a query to a few weights, and the sketch answers with their inner
product. A family knows its own parameters and nothing of a plan: :mod:`hushsum.plan` looks it up here by name and
validates with it.
"""

from hushsum import compiled
from hushsum.families.base import Answer, Family, Increments, Interval, Records, RecordSchema, SetRecords, VectorRecords
from hushsum.families.fourier import Fourier
from hushsum.families.hashed import Hashed
from hushsum.families.hermite import Hermite
from hushsum.families.paired import Paired
from hushsum.families.partition import Partition

FAMILIES: dict[str, type[Family]] = {
    "hashed": Hashed,
    "fourier": Fourier,
    "hermite": Hermite,
    "partition": Partition,
    "paired": Paired,
}

__all__ = [
    "FAMILIES",
    "Answer",
    "Family",
    "Hashed",
    "Increments",
    "Interval",
    "RecordSchema",
    "Records",
    "SetRecords",
    "VectorRecords",
    "warm_up",
]


def warm_up() -> None:
    """Makes compiled loops ready where they are used: seconds once after an install, then a fraction of a second.

    Raises:
        AccelerationError: The environment asks for loops that cannot be compiled.
    """
    if compiled.enabled():
        from hushsum.families import vector_loops
        from hushsum.families.fourier import engine_compiled as fourier_fast
        from hushsum.families.hermite import loops as hermite_loops
        from hushsum.families.lsh.compiled import engine as lsh_engine
        from hushsum.families.lsh.compiled import single_row
        from hushsum.families.partition import engine_compiled as partition_fast

        for loops in (vector_loops, lsh_engine, single_row, fourier_fast, hermite_loops, partition_fast):
            loops.warm_up()
