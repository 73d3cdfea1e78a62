"""The sketch families: each an LSQ pair (f, g) behind one protocol, one file a family (Wagner, Naamad and Mishra 2023).

``f`` maps a record to a few counters, ``g`` maps a query to a few weights, and the sketch answers with their inner
product. A family knows its own parameters and nothing of a plan: :mod:`hushsum.plan` looks it up here by name and
validates with it.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from hushsum import compiled
from hushsum.families.base import Answer, Family, Increments, Interval, Records, RecordSchema, SetRecords, VectorRecords
from hushsum.schema import Table

if TYPE_CHECKING:
    from hushsum.families.hashed import Hashed


def _fourier() -> type[Family]:
    from hushsum.families.fourier import Fourier

    return Fourier


def _hashed() -> "type[Hashed]":
    from hushsum.families.hashed import Hashed

    return Hashed


def _hermite() -> type[Family]:
    from hushsum.families.hermite import Hermite

    return Hermite


def _paired() -> type[Family]:
    from hushsum.families.paired import Paired

    return Paired


def _partition() -> type[Family]:
    from hushsum.families.partition import Partition

    return Partition


class _LoadedFamilies(Mapping[str, type[Family]]):
    """Each family by its name, loaded when it is looked up: a plan has one, and the others cost a device time."""

    def __init__(self, loaders: Mapping[str, Callable[[], type[Family]]]) -> None:
        self._loaders = loaders

    def __getitem__(self, name: str) -> type[Family]:
        return self._loaders[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._loaders)

    def __len__(self) -> int:
        return len(self._loaders)


FAMILIES: Final[Mapping[str, type[Family]]] = _LoadedFamilies(
    {"hashed": _hashed, "fourier": _fourier, "hermite": _hermite, "partition": _partition, "paired": _paired}
)

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
    "alternatives",
    "warm_up",
]


def alternatives(sketch: Table) -> list[Table]:
    """The tables of ``[sketch]`` among which the plan's maker takes the one with the least noise; mostly one, as it is.

    Of the hermite family with ``weights = "auto"`` they are one for each of its weights.
    """
    if sketch.has("weights") and sketch.choice("family", built=list(FAMILIES)) == "hermite":
        from hushsum.families.hermite.weights import AUTO, WEIGHTS

        if sketch.value("weights") == AUTO:
            return [sketch.replaced(weights=each) for each in WEIGHTS]
    return [sketch]


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


if not TYPE_CHECKING:  # a type checker knows the class above, and reports all other names

    def __getattr__(name: str) -> object:
        if name != "Hashed":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return _hashed()
