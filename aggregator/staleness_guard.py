"""Whether the store lags behind the log, as one that was restored from an older copy does for a while. Pure.

Such a store calls a window open although the log holds its seal: a delta that is acknowledged on that word would be
late. The store knows every seal that stands before a partition's stored mark. So a gateway whose folds run elsewhere
accepts nothing until the marks of all partitions have passed the end that the log had at the gateway's first look. If a
mark is seen to go back, it accepts nothing again, until the marks have passed the end that the log has then.
"""

from collections.abc import Mapping
from typing import Final

from aggregator.errors import RefusedError
from hushsum_proto.answers import Refusal, ServiceReason

RETRY_AFTER_MS: Final = 1000
_SHOWN: Final = 8
_UNSEEN: Final = "the fold positions could not be read: this gateway accepts deltas once they are known"


class StalenessGuard:
    """The marks that one gateway has seen of P partitions. It starts closed."""

    def __init__(self, partitions: int) -> None:
        self._partitions = range(partitions)
        self._seen: Mapping[int, int] = {}
        self._ends: Mapping[int, int] | None = None  # to be passed; None: not known yet
        self._is_seen = False

    @property
    def needs_targets(self) -> bool:
        """Whether :meth:`set_targets` has to be called."""
        return self._ends is None

    @property
    def behind(self) -> tuple[int, ...]:
        """The partitions whose mark has not passed what it has to; all of them while that is not known."""
        if self._ends is None:
            return tuple(self._partitions)
        return tuple(each for each in self._partitions if self._seen.get(each, 0) < self._ends.get(each, 0))

    @property
    def why(self) -> str:
        """Why no delta is accepted; empty where deltas are."""
        if not self._is_seen:
            return _UNSEEN
        behind, some = self.behind, "" if len(self.behind) <= _SHOWN else " ..."
        if not behind:
            return ""
        shown = ", ".join(str(partition) for partition in behind[:_SHOWN])
        return (
            f"the folds of partitions {shown}{some} are behind the log: "
            "this gateway accepts deltas once they have caught up; check that workers run"
        )

    def set_targets(self, ends: Mapping[int, int]) -> None:
        """Sets the ends of the log that the marks have to pass, read after the last :meth:`update_positions`."""
        self._ends = dict(ends)

    def update_positions(self, marks: Mapping[int, int]) -> None:
        """Sets the marks as the store has them now: the position of each partition's latest checkpoint."""
        if any(marks.get(partition, 0) < before for partition, before in self._seen.items()):
            self._ends = None
        self._seen, self._is_seen = dict(marks), True

    def invalidate(self) -> None:
        """The store did not answer: another copy of it may answer next, so its marks have to be seen first."""
        self._is_seen = False

    def check(self) -> None:
        """Raises :class:`RefusedError` while no delta is accepted; it may be sent again."""
        if why := self.why:
            raise RefusedError(Refusal.of(ServiceReason.UNAVAILABLE, why, RETRY_AFTER_MS))
