"""What a process can say of itself and of the folds, wherever those run: for an operator's status."""

from typing import Final

from aggregator.ports import Lease, Log, Store
from aggregator.watching.metrics import Metrics
from aggregator.watching.observers import Observers
from hushsum_proto.messages import FoldStatus

LAGS_SHOWN: Final = 64  # each is a question to the log


class Standing:
    """Where a service stands, as seen from one process.

    Args:
        role: Of this process.
        plan_id: Of what.
        log: Where partitions end.
        store: How far folds have come; who releases.
        observers: Know which partitions cannot go on here, and why.
        metrics: Know what lies between two positions.
    """

    def __init__(
        self, role: str, plan_id: bytes, log: Log, store: Store, observers: Observers, metrics: Metrics
    ) -> None:
        self.role = role
        self._plan_id, self._log, self._store = plan_id, log, store
        self._observers, self._metrics = observers, metrics

    async def lease(self) -> Lease | None:
        """Who releases; None where nobody does now."""
        lease = await self._store.lease(self._plan_id)
        return None if lease is None or lease.left_s < 0 else lease

    async def folds(self) -> tuple[FoldStatus, ...]:
        """Where each partition's fold stands."""
        told = []
        for partition, mark in sorted((await self._store.fold_marks(self._plan_id)).items()):
            lag = None
            if partition < LAGS_SHOWN:
                lag = self._metrics.between(mark.position, await self._log.end(partition))
            told.append(FoldStatus(partition, mark.position, lag, self._observers.stopped.get(partition, "")))
        return tuple(told)
