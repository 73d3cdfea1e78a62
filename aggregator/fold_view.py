"""What the gateway and the releaser ask of the folds, wherever those run."""

from collections.abc import Iterator
from typing import Final, NamedTuple, Protocol

from aggregator.fold.state import StreamUse
from aggregator.fold.verdicts import RememberedKind
from hushsum.delta import DeltaId
from hushsum.errors import Reason

SETTLE_S: Final = 20.0  #: how long a sender, or a cohort sum, waits for the fold's word


class Glance(NamedTuple):
    """What a fold of this process knows of a delta that has just come, before it is appended.

    Attributes:
        kind: As :meth:`FoldView.recall` says it.
        reason: Why the id is refused; None where it is not.
        contributed: Records of the client that are counted in the delta's window.
    """

    kind: RememberedKind
    reason: Reason | None
    contributed: int


class FoldView(Protocol):
    """What a gateway asks of the folds. A cohort sum has no client id: its is the empty one."""

    def glance(self, partition: int, client_id: str, id: DeltaId, digest: bytes, window: int) -> Glance | None:
        """What is known here and now; None where the partition is folded elsewhere.

        It only lets a gateway say sooner what the fold would say: every check is the fold's in the end.
        """

    def stream_uses(self) -> Iterator[StreamUse]:
        """Every stream that the folds here remember, with the latest window that it has a delta in."""

    async def passed(self, partition: int, position: int) -> None:
        """Returns once the partition's fold has passed ``position``, so that :meth:`recall` knows of it.

        A fold of this process need not be checkpointed: the entries up to ``position`` are durable in the log, and the
        fold is deterministic, so after a crash it comes to the same verdict again. Of a fold elsewhere its checkpoint
        tells.

        Raises:
            PartitionStoppedError: The partition's fold has stopped.
            StoreUnavailableError: It cannot be known now.
        """

    async def recall(
        self, partition: int, client_id: str, id: DeltaId, digest: bytes, window: int
    ) -> tuple[RememberedKind, Reason | None]:
        """What to tell the sender of a delta that the fold has passed, and whose window is no longer open.

        One look: asking for the id first and the window's state after it could call a forgotten delta *late*.
        """


class Folds(FoldView, Protocol):
    """What the releaser asks of the folds."""

    async def closed(self, partition: int, window: int) -> None:
        """Returns once the partition has stored the window's counters as sealed; durable.

        Raises:
            PartitionStoppedError: The partition's fold has stopped.
        """

    async def forget(self, window: int, *, fence: int) -> None:
        """Makes every fold forget windows up to this one; durable when it returns.

        Raises:
            PartitionStoppedError: A partition's fold has stopped.
            FoldsBehindError: A fold elsewhere has not done so yet; it goes on, and asking again helps.
        """
