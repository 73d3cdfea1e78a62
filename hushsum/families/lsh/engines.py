"""Which engine counts and reads hashed rows: compiled loops where they run, else NumPy, with the same bytes."""

from collections.abc import Sequence
from typing import Protocol

from hushsum import compiled
from hushsum.families.lsh import numpy_engine
from hushsum.families.lsh.arrays import Float64, Int64, Points
from hushsum.families.lsh.placement import HashedRows


class RowEngine(Protocol):
    """What both modules offer: :mod:`~hushsum.families.lsh.numpy_engine` says what each function does."""

    def add(self, rows: HashedRows, counters: Int64, records: Points, which: slice | None = None) -> None:
        """Adds records to counters in place."""
        ...

    def encode(self, rows: HashedRows, records: Points, which: slice | None = None) -> tuple[Int64, Int64]:
        """Flat indices, strictly increasing, and counts of what :meth:`add` does to zeroes."""
        ...

    def sums(
        self, rows: HashedRows, counters: Int64, less: Float64, queries: Points, which: slice | None = None
    ) -> tuple[Float64, Float64, Float64]:
        """What rows read at queries."""
        ...

    def sums_of_sets(
        self, rows: HashedRows, counters: Int64, less: Float64, queries: Points, sets: Sequence[slice]
    ) -> list[tuple[Float64, Float64, Float64]]:
        """The same for each of several sets of rows."""
        ...


def engine() -> RowEngine:
    """The engine that the environment asks for, at every call.

    Raises:
        AccelerationError: The environment asks for loops that cannot be compiled.
    """
    if compiled.enabled():
        from hushsum.families.lsh.compiled import engine as compiled_engine

        return compiled_engine
    return numpy_engine
