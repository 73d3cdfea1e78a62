"""The device's own privacy budget: what it has spent under its plan, window by window, and what it may still spend.

It is authoritative for the device (PRIVACY: the ledger): whatever a service says, what it does not pay for leaves
nothing of the device. It is read from the spool, and changes with it: in one transaction with what is spent.
"""

from collections.abc import Iterable

from edge_client.errors import AccountError, SpoolError
from hushsum.errors import BudgetError, HushsumError
from hushsum.plan import Plan
from hushsum.privacy.account import Account
from hushsum.privacy.event import TUMBLING, Spend
from hushsum.privacy.spending import spend_of


class DeviceBudget:
    """What is spent, as the spool holds it.

    Args:
        plan: Under which it is spent.
        spends: (window, spend) in the order in which they were written.

    Attributes:
        plan: Likewise.
        account: What was spent, and may still be.
        submits: Whether what the device sends are the submissions of a silo.

    Raises:
        SpoolError: A spend cannot be read.
    """

    def __init__(self, plan: Plan, spends: Iterable[tuple[int, bytes]]) -> None:
        kept = tuple(spends)
        try:
            read = [Spend.from_bytes(data) for _, data in kept]
        except HushsumError as error:
            raise SpoolError(f"spool: a spend in it cannot be read: {error}") from error
        self.plan = plan
        # What was spent is counted, whatever the limits say now: the account refuses what is new alone.
        self.account = Account(plan.limits).recorded(*read)
        self.submits = plan.privacy.is_silo
        self._windows = {window for window, _ in kept}

    def holds(self, window: int) -> bool:
        """Whether this window is charged."""
        return window in self._windows

    def note(self, account: Account, windows: Iterable[int]) -> None:
        """These windows are charged, durably: the account is this one."""
        self.account = account
        self._windows.update(windows)


class PendingSpends:
    """Further spends of one transaction; the books change once it is durable (:meth:`note_in`)."""

    def __init__(self, budget: DeviceBudget | None) -> None:
        self._budget = budget
        self._account = None if budget is None else budget.account
        self._spends: dict[int, Spend] = {}

    @property
    def submits(self) -> bool:
        """Whether what the device sends are the submissions of a silo."""
        return self._budget is not None and self._budget.submits

    def holds(self, window: int) -> bool:
        """Whether this window is charged already, or by this transaction."""
        assert self._budget is not None, "of a plan whose device keeps books"
        return window in self._spends or self._budget.holds(window)

    def charge(self, window: int) -> Spend:
        """Charges a window.

        Raises:
            AccountError: The account does not pay for it; nothing was charged.
        """
        assert self._budget is not None, "of a plan whose device keeps books"
        assert self._account is not None
        spend = spend_of(self._budget.plan, kind=TUMBLING, window=window)
        try:
            self._account = self._account.charge(spend)
        except BudgetError as error:
            raise AccountError(window, self._account.left, str(error)) from error
        self._spends[window] = spend
        return spend

    def note_in(self) -> None:
        """Notes what was written, once it is."""
        if self._budget is not None and self._account is not None and self._spends:
            self._budget.note(self._account, self._spends)
