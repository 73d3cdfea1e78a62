"""What senders were told, and what a release says: which deltas are lost, which count twice."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from hushsum.delta import DeltaId
from hushsum.plan import Plan
from hushsum_proto.answers import Status

Counters = npt.NDArray[np.int64]
#: Whoever is told this may rely on the delta being in the release, once.
KEPT: Final = frozenset({Status.ACKNOWLEDGED, Status.COUNTED})
#: Whoever is told this may rely on the delta being in no release.
DROPPED: Final = frozenset({Status.LATE, Status.REFUSED})


@dataclass(eq=False)
class Sent:
    """One delta of one record.

    Attributes:
        client_id: Whose.
        data: Its packed bytes.
        cells: The counters that it adds 1 to; where others are is as good as random, so it is known by them.
        status: The first definitive answer; None: none yet.
    """

    client_id: str
    id: DeltaId
    data: bytes
    cells: npt.NDArray[np.int64]
    status: Status | None = None


@dataclass(frozen=True)
class Verdict:
    """What a release says of the deltas of its window.

    Attributes:
        acknowledged: Deltas whose sender was told that they count.
        lost: Acknowledged, and not in the release.
        doubled: More than once in it; or once, although the sender was told that it is not.
        unexplained: Whether the release is no sum of what was sent at all.
    """

    acknowledged: int
    lost: int
    doubled: int
    unexplained: bool


class Journal:
    """All deltas that were sent for one window."""

    def __init__(self, plan: Plan, window: int) -> None:
        self._plan = plan
        self.window = window
        self.sent: list[Sent] = []
        self.contradicted = 0

    @property
    def unanswered(self) -> int:
        """Deltas whose sender was told nothing definitive yet."""
        return sum(sent.status is None for sent in self.sent)

    def count(self, *statuses: Status) -> int:
        """Deltas with one of these answers."""
        return sum(sent.status in statuses for sent in self.sent)

    def answered(self, sent: Sent, status: Status) -> None:
        """Notes an answer; one that takes back an earlier one is a fault of its own."""
        if sent.status is None:
            sent.status = status
        elif {sent.status, status} & KEPT and {sent.status, status} & DROPPED:
            self.contradicted += 1

    def judge(self, counters: Counters, counts: Counters) -> Verdict:
        """Compares with the release of the window, whose noise has rounded away."""
        kept = [sent for sent in self.sent if sent.status in KEPT]
        open_ends = any(sent.status is Status.UNKNOWN for sent in self.sent)
        scale = self._plan.privacy.mechanism.count_scale
        if (
            not open_ends
            and int(counts.sum()) == len(kept) * scale
            and np.array_equal(self._sum(kept), counters.ravel())
        ):
            return Verdict(len(kept), 0, 0, unexplained=False)
        return self._decompose(counters.ravel(), len(kept))

    def _sum(self, deltas: Iterable[Sent]) -> Counters:
        total = np.zeros(np.prod(self._plan.counters_shape), np.int64)
        for sent in deltas:
            total[sent.cells] += 1
        return total

    def _decompose(self, counters: Counters, acknowledged: int) -> Verdict:
        """How often each delta is in a sum: the least squares of a sparse system whose columns are all but random."""
        from scipy.sparse import csc_array
        from scipy.sparse.linalg import lsqr

        rows = np.concatenate([sent.cells for sent in self.sent])
        columns = np.repeat(np.arange(len(self.sent)), [len(sent.cells) for sent in self.sent])
        matrix = csc_array((np.ones(len(rows)), (rows, columns)), shape=(len(counters), len(self.sent)))
        times = np.rint(lsqr(matrix, counters.astype(np.float64), atol=1e-12, btol=1e-12, iter_lim=5000)[0])
        lost = doubled = 0
        for sent, found in zip(self.sent, times.astype(int).tolist(), strict=True):
            most = 0 if sent.status in DROPPED else 1
            lost += sent.status in KEPT and found < 1
            doubled += max(0, found - most)
        return Verdict(acknowledged, lost, doubled, unexplained=not np.array_equal(matrix @ times, counters))
