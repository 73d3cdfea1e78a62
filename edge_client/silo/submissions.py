"""What a silo sends for a window, and the turns in which it does."""

from functools import partial

import numpy as np
import numpy.typing as npt

from edge_client.changes import NO_ID, Submit
from edge_client.submitted import number_in
from edge_client.turn_tables import bytes_of, integer
from edge_client.turns.pending import counters_of
from edge_client.turns.turns import Pending, Turns
from hushsum.delta import renumbered
from hushsum.entropy import Entropy
from hushsum.local import silo
from hushsum.plan import Plan

_Int64s = npt.NDArray[np.int64]


def prepared(plan: Plan, window: int, pending: Pending, entropy: Entropy) -> Submit:
    """The change that submits for a window: what waits, added up and noised, all counters and counts.

    It is drawn anew at each call: one alone may ever leave, which the spool sees to.

    Args:
        plan: Of silos.
        window: Its index.
        pending: What waits, maybe nothing.
        entropy: Private.
    """
    counters, counts = counters_of(plan, pending.deltas)
    shaped = counters.reshape(plan.counters_shape)
    data = silo.submission(plan, shaped, counts, window=window, id=NO_ID, entropy=entropy)
    return Submit(window, partial(renumbered, data), pending.upto)


class Submissions(Turns):
    """The turns of a spool of a silo: a turn is one submission."""

    def submitted(self, window: int) -> None:
        """The window is spent; its records may be erased (:meth:`erase`)."""
        with self._lock:
            self._entered.pop(window, None)
            self._unerased = True

    def numbers(self) -> dict[int, int]:
        """The window of each submission that has no answer yet, by the number of its delta."""
        rows = self._spool.rows("SELECT round, window FROM rounds WHERE fate IS NULL")
        return {number_in(bytes_of(name)): integer(window) for name, window in rows}
