"""What a process keeps of those who owe it nothing any more, for tests."""

import pytest

from aggregator.rate_limits import RateLimits
from tests.pages import until


class Debts:
    """Every table of debts that is made from now on.

    Attributes:
        made: All of them.
        used: Those that had to remember somebody.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[RateLimits] = []
        self.used: list[RateLimits] = []
        begin, wait_ms = RateLimits.__init__, RateLimits.wait_ms

        def made(limits: RateLimits, rate: float, burst: int) -> None:
            begin(limits, rate, burst)
            self.made.append(limits)

        def used(limits: RateLimits, client_id: str, units: int, now_s: float) -> int | None:
            told = wait_ms(limits, client_id, units, now_s)
            if limits not in self.used and len(limits):
                self.used.append(limits)
            return told

        monkeypatch.setattr(RateLimits, "__init__", made)
        monkeypatch.setattr(RateLimits, "wait_ms", used)

    async def forgotten(self) -> None:
        """Returns once nobody is remembered any more, though all had to."""
        assert len(self.made) == 5, "of bytes, of calls, of reports, and of calls that fail: two"
        assert len(self.used) == 3

        async def none() -> bool:
            return not any(map(len, self.made))

        await until(none)
