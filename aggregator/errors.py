"""Every error of the service.

HushsumError
└── AggregatorError
    ├── the operator's
    │   ├── ConfigError               a setting: its key, what came, what was expected
    │   ├── MemoryLimitError          more memory is in use than may be: the service stops
    │   └── ReleasingStoppedError     no outcome is taken until an operator has put something right
    ├── the caller's
    │   ├── UnauthenticatedError      nobody that this service accepts
    │   ├── ForbiddenError            somebody that it knows, who may not do this
    │   └── WindowOrderError          a window that cannot be sealed or released now
    └── nobody's, or ours
        ├── LogError                  the log: its file, its version, its entries
        │   ├── LogUnavailableError   it cannot be reached now; trying again helps
        │   └── LogGapError           positions that are gone, although a fold still needs them
        ├── StoreError                the store: its file, its version, what does not belong together in it
        │   ├── StoreUnavailableError it cannot be reached now; trying again helps
        │   │   └── OpenFilesError    no more files can be opened now
        │   ├── FencedError           a write by who has lost its partition or its lease
        │   ├── StaleCheckpointError  a checkpoint from before the one that is stored
        │   └── OutcomeExistsError    the window has its outcome
        ├── ReceiptsError             receipts that are damaged, or of a newer format, or not what the store knows
        │   └── ForeignReceiptsError  they are missing, or another store's: what they say counts for nothing here
        ├── FoldsBehindError          a fold of another process has not come so far yet
        └── PartitionStoppedError     a partition's fold has stopped and passes nothing more
"""

from hushsum.errors import HushsumError


class AggregatorError(HushsumError):
    """The root of the service's errors."""


class ConfigError(AggregatorError):
    """A setting that is unknown, or holds what it must not."""


class MemoryLimitError(AggregatorError):
    """More memory is in use than the operator, or the container, allows: the service drains and stops."""


class ReleasingStoppedError(AggregatorError):
    """Releasing has stopped: the text says why, and what an operator can do. Nothing is drawn again."""


class UnauthenticatedError(AggregatorError):
    """A call from nobody that this service accepts."""


class ForbiddenError(AggregatorError):
    """A call from somebody that this service knows, who may not do what was asked."""


class WindowOrderError(AggregatorError):
    """A window that cannot be sealed or released now: the text names the window that comes first."""


class WindowNotBegunError(WindowOrderError):
    """A window that begins later, by the store's clock.

    Args:
        window: Its index.
        wait_ms: How much later.
    """

    def __init__(self, window: int, wait_ms: int) -> None:
        super().__init__(f"window {window} takes no submissions yet: it begins in {wait_ms / 1000:g} s")
        self.wait_ms = wait_ms


class ClaimLostError(AggregatorError):
    """Members of a round take part in another round of the same window, through another gateway.

    Args:
        clients: Their ids.
    """

    def __init__(self, clients: frozenset[str]) -> None:
        super().__init__(f"{len(clients)} members of the round take part in the window through another gateway")
        self.clients = clients


class LogError(AggregatorError):
    """The log cannot be used: not our file, a newer format, or an entry that must not be skipped."""


class LogUnavailableError(LogError):
    """The log cannot be reached now: whether what was under way is done is not known, and it may be tried again."""


class LogGapError(LogError):
    """The log does not hold a position that a fold needs next.

    Args:
        partition: Whose entries.
        position: The one that is needed.
        found: The next one that the log holds, or the end where it holds none.
    """

    def __init__(self, partition: int, position: int, found: int) -> None:
        if found > position:
            what = f"entries {position} to {found - 1} are gone, although they are not folded yet"
        else:
            what = f"the log ends at {found}, although the fold has passed {position - 1}: an older copy of the log?"
        super().__init__(f"partition {partition}: {what}; restore the log, nothing is skipped")
        self.partition = partition
        self.position = position
        self.found = found


class StoreError(AggregatorError):
    """The store cannot be used: not our file, a newer format, or contents that do not belong together."""


class StoreUnavailableError(StoreError):
    """The store cannot be reached now: whether what was under way is done is not known, and it may be tried again."""


class OpenFilesError(StoreUnavailableError):
    """The process, or the machine, has as many files open as it may: that passes as connections end."""


class FencedError(StoreError):
    """A write by a process whose partition or lease another one has taken over: nothing was written."""


class StaleCheckpointError(StoreError):
    """A checkpoint from before the one that is stored: another worker owns this partition."""


class OutcomeExistsError(StoreError):
    """A window has its outcome already; what was drawn for it again is the same, and is dropped."""


class ReceiptsError(AggregatorError):
    """The receipts cannot be trusted: damaged in the middle, of a newer format, or fewer than the store knows."""


class ForeignReceiptsError(ReceiptsError):
    """The receipts of this store are missing, or others stand in their place."""


class FoldsBehindError(AggregatorError):
    """A fold that runs elsewhere has not come so far in the time that it was given; asking again helps."""


class PartitionStoppedError(AggregatorError):
    """A partition's fold has stopped; the error that stopped it is its cause."""
