"""What operators see and do, and where it comes from: the port to a running service."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from hushsum.errors import HushsumError
from hushsum_page.sessions import Holder
from hushsum_proto.messages import LedgerPage, PlanInfo, ServiceStatus

#: What a token may permit, as the service names it.
SCOPES: Final = ("submit", "read", "admin")


class ActionError(HushsumError):
    """An action was not done, or failed: why."""


@dataclass(frozen=True)
class Certificates:
    """The certificates of one setting's file.

    Attributes:
        setting: Its name.
        ends_ms: When they end, in ms since 1970 UTC; None: they cannot be read.
        problem: Why not.
    """

    setting: str
    ends_ms: int | None
    problem: str = ""


@dataclass(frozen=True)
class Overview:
    """A service as one of its processes sees it.

    Attributes:
        status: What the administration says.
        plans: Every plan of its store.
        now_ms: The time, in ms since 1970 UTC.
        lease_left_s: How long the releaser holds its lease if it does not renew it; None: no process releases now.
        addresses: What this process answers, and where.
        refusals: How many deltas and calls this process has refused since its start, by reason, the most first.
        answers: How many deltas this process has answered since its start, by status.
        is_by_minutes: Whether these two are as of the last whole minute.
        certificates: Of each setting with certificates.
    """

    status: ServiceStatus
    plans: Sequence[PlanInfo]
    now_ms: int
    lease_left_s: float | None
    addresses: Sequence[tuple[str, str]]
    refusals: Sequence[tuple[str, int]]
    answers: Sequence[tuple[str, int]]
    is_by_minutes: bool
    certificates: Sequence[Certificates]


@dataclass(frozen=True)
class WindowEntry:
    """One window.

    Attributes:
        window: Its index.
        start_ms: Its first moment, in ms since 1970 UTC.
        end_ms: Its end.
        state: As the store has it.
        waits_for: What it waits for; empty for one that has its outcome.
        action: What an operator may do with it now: ``seal``, ``release``, or nothing.
        is_early: Whether its seal would be early, so that later submissions are lost.
    """

    window: int
    start_ms: int
    end_ms: int
    state: str
    waits_for: str
    action: str = ""
    is_early: bool = False


@dataclass(frozen=True)
class WindowList:
    """Windows, the newest first.

    Attributes:
        windows: Some of them.
        has_more: Whether there are older ones.
        unfinished: How many have no outcome, by state; of all of them.
        stopped: Why no outcome is drawn; empty while outcomes are drawn.
    """

    windows: Sequence[WindowEntry]
    has_more: bool
    unfinished: Mapping[str, int]
    stopped: str


@dataclass(frozen=True)
class SpendEntry:
    """The ledger after one spend.

    Attributes:
        at_ms: The end of its window, in ms since 1970 UTC; of one without a window that of the spend before; None: none
            is known.
        plan: The name of its plan, or the first digits of its id.
        window: Its window; None: it has none.
        kind: As of :class:`hushsum.privacy.events.Spend`.
        alone: What it costs alone, in words.
        epsilon: What is spent after it, to the nearest number; NaN where there is no total.
        spent: The same in words, rounded up.
    """

    at_ms: int | None
    plan: str
    window: int | None
    kind: str
    alone: str
    epsilon: float
    spent: str


@dataclass(frozen=True)
class LedgerHistory:
    """The ledger of a population, over time.

    Attributes:
        page: Its limits and totals.
        entries: Spends, the oldest first; of many some, the first and the last among them.
        epsilon_total: The limit, rounded down.
        windows_left: How many more windows of this plan it pays for; None: any number.
        last_paid: The last window that it pays for if each one from now on is charged; None: none, or no end.
        ends_ms: The end of that window in ms since 1970 UTC; None: as above, or nobody can date it.
        is_shared: Whether other plans spend from it, too.
    """

    page: LedgerPage
    entries: Sequence[SpendEntry]
    epsilon_total: float
    windows_left: int | None
    last_paid: int | None
    ends_ms: int | None
    is_shared: bool


@dataclass(frozen=True)
class TokenShown:
    """A token, without its secret; times are ms since 1970 UTC.

    Attributes:
        expires_ms: It is not valid from then on; None: it does not expire.
        is_expired: Whether that has come.
    """

    id: str
    name: str
    scopes: Sequence[str]
    made_ms: int
    expires_ms: int | None
    is_expired: bool


@dataclass(frozen=True)
class TokenList:
    """The tokens of a service.

    Attributes:
        tokens: Those that are shown.
        hidden: The number of those that only submit, where they are not shown one by one: see ``is_per_client``.
        is_per_client: Whether tokens of single clients are shown: in plans of mode central.
        problem: Why they cannot be changed here; empty where they can.
    """

    tokens: Sequence[TokenShown]
    hidden: int
    is_per_client: bool
    problem: str = ""


@dataclass(frozen=True)
class Action:
    """What an operator asks for.

    Attributes:
        what: ``seal window``, ``release window``, ``issue token`` or ``revoke token``.
        window: Of the first two.
        early: Whether the window is sealed before its end and lateness.
        name: Of a token to be issued.
        scopes: Of a token to be issued.
        days: So long is it valid; None: it does not expire.
        id: Of a token to be revoked.
    """

    what: str
    window: int | None = None
    early: bool = False
    name: str = ""
    scopes: tuple[str, ...] = ()
    days: int | None = None
    id: str = ""


SEAL: Final = "seal window"
RELEASE: Final = "release window"
ISSUE: Final = "issue token"
REVOKE: Final = "revoke token"


@dataclass(frozen=True)
class Done:
    """What came of an action.

    Attributes:
        text: For the operator, and for the audit log.
        secret: A new token, which is shown once.
        warning: What went wrong beside it.
    """

    text: str
    secret: str = field(default="", repr=False)
    warning: str = ""


@dataclass(frozen=True)
class AuditShown:
    """One action of the audit log; the attributes are those of its lines there.

    Attributes:
        outcome: ``done``, ``failed``, or ``begun``: how it ended is not known.
    """

    at_ms: int
    who: str
    token: str
    what: str
    about: Mapping[str, str]
    outcome: str
    detail: str


class Operations(Protocol):
    """A service for its operators. Its methods are called on the event loop of the page.

    Raises:
        HushsumError: From every method: the service cannot say it now.
    """

    async def overview(self) -> Overview:
        """Processes, partitions, refusals and certificates."""
        ...

    async def windows(self, before: int | None) -> WindowList:
        """The newest windows; with ``before`` only older ones."""
        ...

    async def ledger(self) -> LedgerHistory:
        """The ledger of this plan's population."""
        ...

    async def tokens(self) -> TokenList:
        """The tokens of the service."""
        ...

    async def audit(self) -> tuple[str, Sequence[AuditShown]]:
        """The file of the audit log, and its newest actions, the newest first."""
        ...

    async def check(self, action: Action) -> str:
        """What an action would do, in words, before it is confirmed.

        Raises:
            ActionError: It would fail.
        """
        ...

    async def act(self, action: Action, holder: Holder) -> Done:
        """Does it, between two lines of the audit log; it goes on where nobody waits for it any more.

        Raises:
            ActionError: It failed, which the log says, too; or the log cannot be written, and it was not done.
        """
        ...
