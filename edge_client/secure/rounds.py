"""What a spool knows of secure sums: in which windows this client takes part, what waits for them, and what is spent.

A window is *spent* from the transaction on that :meth:`Rounds.spend` makes, before the masked vector leaves: it holds
the spend, charged to this device's own account, and the window's records are never given out again. No later word of
anybody makes the window unspent, and a second vector for it cannot be had from here (PRIVACY: secure sum).
"""

import sqlite3
from collections import Counter
from functools import partial

from edge_client.errors import NoPartError
from edge_client.secure.round_tables import count_attempt, draw_key, write_fate
from edge_client.turn_tables import bytes_of, write_spend
from edge_client.turns.turns import Look, Pending, Turns
from hushsum.entropy import Entropy
from hushsum.errors import BudgetError
from hushsum.privacy.event import TUMBLING
from hushsum.privacy.spending import spend_of
from hushsum.signatures import KEY_BYTES, SigningKey
from hushsum_proto.rounds import Fate

__all__ = ["Look", "Pending", "Rounds"]


class Rounds(Turns):
    """The turns of a spool whose plan has a secure sum: a turn is a round."""

    def identity_key(self, entropy: Entropy) -> SigningKey:
        """The key that the spool holds for this client, drawn at its first use."""
        self._spool.change(partial(draw_key, entropy.read(KEY_BYTES)))
        ((seed,),) = self._spool.rows("SELECT seed FROM identity_key")
        return SigningKey(bytes_of(seed))

    @property
    def directory(self) -> bytes | None:
        """The bytes of the directory of clients, once they were fetched. Versions before kept TOML."""
        return next((bytes_of(data) for (data,) in self._spool.rows("SELECT bytes FROM directory")), None)

    def keep_directory(self, directory: bytes) -> None:
        """Keeps the canonical bytes of the directory, which the plan names by their digest."""
        self._spool.change(
            lambda database, _: database.execute("INSERT OR REPLACE INTO directory VALUES (1, ?)", (directory,))
        )

    def count_attempt(self, window: int) -> int:
        """Counts one more round in which this client opens its contribution, durably; returns how many there were.

        Raises:
            NoPartError: There were as many as a window may have, or it is spent or over.
            SpoolError: The spool cannot be written; nothing was counted.
        """
        return self._spool.change(partial(count_attempt, window), weigh=False)

    def spend(self, window: int, round_id: bytes, upto: int) -> None:
        """Spends a window, durably. To be called before the vector leaves; :meth:`erase` once it has.

        Args:
            window: Its index.
            round_id: 32 bytes: of the round that takes the vector.
            upto: What the vector holds of what waits; the rest came too late for it and is left out for ever.

        Raises:
            NoPartError: The window is spent or over, or this device's account does not pay for it, whatever the service
                says. Nothing was changed.
            SpoolError: The spool cannot be written; nothing was changed, as far as it can be told.
        """
        with self._lock:
            spend = spend_of(self._plan, kind=TUMBLING, window=window)
            try:
                charged = self._books.account.charge(spend)
            except BudgetError as error:
                raise NoPartError(window, str(error)) from error
            self._spool.change(partial(write_spend, window, round_id, spend.to_bytes(), upto), weigh=False)
            self._books.note(charged, (window,))
            self._unerased = True
            if window in self._entered:
                self._entered[window] = None

    def settle(self, window: int, fate: Fate) -> bool:
        """Keeps what became of a submission; the first word stands.

        Returns:
            Whether this is it.
        """
        return self._spool.change(partial(write_fate, window, fate), weigh=False)

    def _is_news(self, windows: range) -> bool:
        untold = "SELECT 1 FROM rounds WHERE window < ? AND fate IS NULL LIMIT 1"
        return super()._is_news(windows) or bool(self._spool.rows(untold, windows.start))

    def _give_up_before(self, window: int, database: sqlite3.Connection, counts: Counter[str]) -> None:
        untold = database.execute("SELECT window FROM rounds WHERE window < ? AND fate IS NULL", (window,))
        for (each,) in untold.fetchall():
            write_fate(each, Fate.UNKNOWN, database, counts)
