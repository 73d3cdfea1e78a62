"""What passes through the ports of log and store."""

import hashlib
from dataclasses import dataclass

import numpy as np

from hushsum.labels import SEALED_WINDOW
from hushsum.sketch import Sketch


@dataclass(frozen=True)
class Appended:
    """An entry on its way into the log: its partition, its window (for forgetting), its encoded bytes."""

    partition: int
    window: int
    data: bytes


@dataclass(frozen=True)
class SealedWindow:
    """What the folds have made of a sealed window, over all partitions: exact.

    Attributes:
        sketch: Its sum.
        clients: How many are in it; 0 where the plan gives nobody a reason to count them.
    """

    sketch: Sketch
    clients: int

    def digest(self) -> bytes:
        """SHA-256 of all that its outcome is drawn from; as secret as the counters, for who guesses them can check."""
        hashed = hashlib.sha256(SEALED_WINDOW + self.clients.to_bytes(8, "big"))
        for values in (self.sketch.counters, self.sketch.counts):
            hashed.update(np.ascontiguousarray(values, "<i8").data)
        return hashed.digest()


@dataclass(frozen=True)
class StoredOutcome:
    """An outcome as the store keeps it.

    Attributes:
        data: Of a release the bytes of its .hush file; of a withheld window those that say so.
        sha256: Of ``data``.
        withheld: Whether nothing is released of the window.
    """

    plan_id: bytes
    kind: str
    window: int
    data: bytes
    sha256: bytes
    withheld: bool = False

    @property
    def size_bytes(self) -> int:
        """Of ``data``."""
        return len(self.data)


@dataclass(frozen=True)
class Outcome:
    """What is known of a stored outcome without reading it.

    Attributes:
        size_bytes: Of its data.
        sha256: Of its data.
        published: Whether anybody may see it yet.
        withheld: Whether nothing is released of the window.
    """

    plan_id: bytes
    kind: str
    window: int
    size_bytes: int
    sha256: bytes
    published: bool
    withheld: bool = False
