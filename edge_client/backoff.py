"""How long to wait before the next attempt: exponential, with full jitter, so that a fleet comes back spread out."""

from typing import Final

from hushsum.entropy import Entropy

_DOUBLINGS_MAX: Final = 62


class BackOff:
    """Waits drawn uniformly from 0 to a limit that doubles with each failure.

    Args:
        first_s: The first limit, in seconds.
        longest_s: No limit is above it.
        entropy: Where the jitter comes from.
    """

    def __init__(self, first_s: float, longest_s: float, entropy: Entropy) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._entropy = entropy
        self._failures = 0

    def next_s(self) -> float:
        """The wait after one more failure, in seconds."""
        wait_s = self.jitter_s(self._failures)
        self._failures += 1
        return wait_s

    def jitter_s(self, failures: int) -> float:
        """A wait after this many earlier failures, in seconds; nothing is remembered of it."""
        limit = min(self._longest_s, self._first_s * 2.0 ** min(failures, _DOUBLINGS_MAX))
        return limit * int.from_bytes(self._entropy.read(4), "big") / 2**32

    def reset(self) -> None:
        """Something succeeded: the next wait is a first one again."""
        self._failures = 0
