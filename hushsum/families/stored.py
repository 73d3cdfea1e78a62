"""What every family does alike with what it stores: its counters, and itself in a pickle."""

from dataclasses import dataclass, fields

import numpy as np

from hushsum.families.family import Counters


def check_counters(counters: Counters, shape: tuple[int, int]) -> None:
    """Refuses counters that records cannot be added to.

    Raises:
        ValueError: They have another shape, type or layout.
    """
    flags = counters.flags
    if counters.shape != shape or counters.dtype != np.int64 or not (flags.c_contiguous and flags.writeable):
        raise ValueError(
            f"counters: got {counters.dtype} of shape {counters.shape}, "
            f"expected C-contiguous int64 {shape} that may be written"
        )


@dataclass(frozen=True)
class FieldsAlone:
    """A dataclass that is pickled and copied without its cached tables: they are drawn again where they are needed."""

    def __getstate__(self) -> dict[str, object]:
        """The fields."""
        return {field.name: getattr(self, field.name) for field in fields(self)}
