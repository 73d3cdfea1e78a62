"""The device's own privacy budget: what it has spent under its plan, window by window, and what it may still spend.

It is authoritative for the device (PRIVACY: the ledger): whatever a service says, what it does not pay for never leaves
the device. It is read from the spool, and changes with it, in one transaction with what is spent.
"""

from collections.abc import Iterable

from edge_client.errors import SpoolError
from hushsum.errors import HushsumError
from hushsum.plan import Plan
from hushsum.privacy.account import Account
from hushsum.privacy.event import TUMBLING, Spend
from hushsum.privacy.spending import spend_of


class DeviceBudget:
    """What is spent, as the spool holds it.

    Args:
        plan: Under which it is spent.
        spends: (window, spend) in the order in which they were written.

    Raises:
        SpoolError: A spend cannot be read.
    """

    def __init__(self, plan: Plan, spends: Iterable[tuple[int, bytes]]) -> None:
        kept = tuple(spends)
        try:
            read = [Spend.from_bytes(data) for _, data in kept]
        except HushsumError as error:
            raise SpoolError(f"spool: a spend in it cannot be read: {error}") from error
        # What was spent is counted, whatever the limits say now: the account refuses what is new alone.
        self.account = Account(plan.limits).recorded(*read)
        self._plan = plan
        self._windows = {window for window, _ in kept}

    def is_charged(self, window: int) -> bool:
        return window in self._windows

    def spend_of(self, window: int) -> Spend:
        """What a window costs; nothing is charged."""
        return spend_of(self._plan, kind=TUMBLING, window=window)

    def on_charged(self, account: Account, windows: Iterable[int]) -> None:
        """Takes over an account in which these windows are charged, once that is durable."""
        self.account = account
        self._windows.update(windows)
