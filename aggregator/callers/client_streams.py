"""How many streams one client may use in a window: each takes a row of the fold's memory and of the store.

What decides about a delta is which streams its own client has used in its window, and nothing that others sent. What is
nobody's has no client to be counted under; its sender has a rate of its own (:mod:`aggregator.callers.rate_limits`).
"""

from collections.abc import Callable, Iterable

from aggregator.fold.state import StreamUse
from aggregator.fold.sums import NOBODY


class ClientStreams:
    """The streams of each client that have deltas in a window; some 150 bytes a client of one stream.

    Args:
        most: Streams of one client in one window; None: any number, and none is remembered.

    Attributes:
        most: As it came.
    """

    def __init__(self, most: int | None = None) -> None:
        self.most = most
        # Most clients have one stream, and a number takes less memory than a set of one.
        self._windows: dict[int, dict[str, int | set[int]]] = {}

    def restore(self, uses: Iterable[StreamUse], is_over: Callable[[int], bool]) -> None:
        """Counts what was there before this process, beyond the bound too.

        Args:
            uses: What the folds remember.
            is_over: Whether nothing of a window counts any more.
        """
        for use in uses:
            if not is_over(use.window):
                self.add(*use)

    def of(self, client_id: str, window: int) -> int:
        """How many of a client are counted in a window."""
        known = self._known(client_id, window)
        return len(known) if isinstance(known, set) else int(known is not None)

    def clients(self, window: int) -> int:
        """How many clients are counted in a window."""
        return len(self._windows.get(window, ()))

    def is_known(self, client_id: str, stream: int, window: int) -> bool:
        """Whether it is counted already, or needs not be."""
        if self.most is None or client_id == NOBODY:
            return True
        known = self._known(client_id, window)
        return stream in known if isinstance(known, set) else known == stream

    def has_room(self, client_id: str, window: int) -> bool:
        """Whether the client may use one that is not known yet."""
        return self.most is None or self.of(client_id, window) < self.most

    def add(self, client_id: str, stream: int, window: int) -> None:
        """Counts one; what is counted already, or needs not be, changes nothing."""
        if self.is_known(client_id, stream, window):
            return
        known = self._known(client_id, window)
        if known is None:
            self._windows.setdefault(window, {})[client_id] = stream
        elif isinstance(known, set):
            known.add(stream)
        else:
            self._windows[window][client_id] = {known, stream}

    def forget(self, is_over: Callable[[int], bool]) -> None:
        """Forgets windows that are over."""
        for window in [window for window in self._windows if is_over(window)]:
            del self._windows[window]

    def _known(self, client_id: str, window: int) -> int | set[int] | None:
        clients = self._windows.get(window)
        return None if clients is None else clients.get(client_id)
