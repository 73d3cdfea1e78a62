"""What the gateway and the releaser ask of the folds."""

from typing import Protocol

from aggregator.verdicts import Remembered, RememberedKind
from hushsum.delta import DeltaId
from hushsum.errors import Reason


class FoldView(Protocol):
    """What a gateway asks of the folds."""

    async def passed(self, partition: int, position: int) -> None:
        """Returns once the partition's fold has passed ``position``: applied, not yet checkpointed.

        That is enough for an answer after a seal: the entries up to ``position`` are durable in the log, and the fold
        is deterministic, so after a crash it comes to the same verdict again, from whichever checkpoint.

        Raises:
            PartitionStoppedError: The partition's fold has stopped.
        """

    def remembered(self, partition: int, client_id: str, id: DeltaId) -> Remembered | None:
        """What the fold remembers of an id; None when nothing."""

    def recall(
        self, partition: int, client_id: str, id: DeltaId, digest: bytes, window: int
    ) -> tuple[RememberedKind, Reason | None]:
        """What to tell the sender of a delta that the fold has passed, and whose window is no longer open.

        One look: asking for the id first and the window's state after it could call a forgotten delta *late*.
        """

    def contributed(self, partition: int, client_id: str, window: int) -> int:
        """Records of a client that the fold has counted in a window; 0 where the plan has no reason to tally them."""


class Folds(FoldView, Protocol):
    """What the releaser asks of the folds."""

    async def closed(self, partition: int, window: int) -> None:
        """Returns once the partition has stored the window's counters as sealed; durable.

        Raises:
            PartitionStoppedError: The partition's fold has stopped.
        """

    async def forget(self, window: int) -> None:
        """Makes every fold forget windows up to this one; durable when it returns.

        Raises:
            PartitionStoppedError: A partition's fold has stopped.
        """
