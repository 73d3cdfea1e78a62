"""What a service shows of its tokens: how many, and whether their file can be read. Never whose they are."""

from typing import Any

from prometheus_client import CollectorRegistry, Gauge


class TokenMetrics:
    """Two gauges.

    Args:
        registry: The service's.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        make: Any = {"registry": registry}  # Any: the constructor takes more than one type by keyword
        self._tokens = Gauge("hushsum_tokens", "Tokens of the table that counts now, expired ones included", **make)
        self._unreadable = Gauge(
            "hushsum_tokens_unreadable", "1 while the file of tokens cannot be read: the last good one counts", **make
        )

    def read(self, tokens: int) -> None:
        """The file was read."""
        self._tokens.set(tokens)
        self._unreadable.set(0)

    def unreadable(self) -> None:
        """It could not be."""
        self._unreadable.set(1)
