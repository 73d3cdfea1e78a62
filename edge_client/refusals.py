"""Refusals for good, until somebody was told of them."""

import warnings
from collections import Counter

from edge_client.errors import RefusalWarning, RefusedError
from edge_client.tallies import reason_name
from hushsum_proto.answers import Answer, Status


class Untold:
    """Refusals by reason that no flush has raised yet."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._details: dict[str, str] = {}

    def note(self, answer: Answer) -> None:
        """Hears a delta's definitive answer."""
        if answer.status is Status.REFUSED and answer.refusal is not None:
            name = reason_name(answer.refusal.reason)
            self._counts[name] += 1
            self._details.setdefault(name, answer.refusal.detail)

    def tell(self) -> None:
        """Raises what there is, once.

        Raises:
            RefusedError: Deltas were refused for good since the last time that this was raised.
        """
        if self._counts:
            refused, self._counts = self._counts, Counter()
            raise RefusedError(refused, self._details)

    def warn(self, stacklevel: int) -> None:
        """Warns of what there is."""
        if self._counts:
            warnings.warn(str(RefusedError(self._counts, self._details)), RefusalWarning, stacklevel=stacklevel + 1)
