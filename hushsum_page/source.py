"""What the page shows, and where it comes from: the port that files and a running service have in common."""

from dataclasses import dataclass
from typing import Final, Protocol

from hushsum.errors import HushsumError
from hushsum.plan import Plan
from hushsum_proto.messages import NextOutcome

RELEASED: Final = "released"
WITHHELD: Final = "withheld"
REMOVED: Final = "removed"
#: Digits of the checksum that name a release in an address.
ID_DIGITS: Final = 16


class MissingReleaseError(HushsumError):
    """There is no such release, or its file has changed: what to do about it."""


@dataclass(frozen=True)
class OutcomeEntry:
    """One published outcome.

    Attributes:
        id: The first 16 hex digits of the SHA-256 of its bytes; empty for one that cannot be shown.
        state: ``released``; ``withheld``: it had too few clients; ``removed``: it is older than the service keeps.
        kind: As of :class:`hushsum.Release`.
        window: The window that it is of, of a cumulative one the last; None without windows.
        size_bytes: Of its file; 0 for one that cannot be shown.
        file: The name of its file; empty for those of a service.
    """

    id: str
    state: str
    kind: str
    window: int | None
    size_bytes: int
    file: str = ""


@dataclass(frozen=True)
class PlanEntry:
    """One plan with its outcomes.

    Attributes:
        plan: The plan.
        outcomes: The newest first.
        next_outcome: The one that is published next; None: there is none.
    """

    plan: Plan
    outcomes: tuple[OutcomeEntry, ...]
    next_outcome: NextOutcome | None = None


class Source(Protocol):
    """Plans and published releases. Its methods are called on the event loop of the page."""

    @property
    def title(self) -> str:
        """What is shown, in a few words."""
        ...

    async def plans(self) -> list[PlanEntry]:
        """All plans with their outcomes."""
        ...

    async def data(self, plan: Plan, outcome: OutcomeEntry) -> bytes:
        """The bytes of a release.

        Raises:
            MissingReleaseError: It is not there any more.
        """
        ...
