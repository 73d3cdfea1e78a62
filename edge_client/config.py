"""Limits and waits of a client. None of them changes a privacy guarantee."""

import math
from dataclasses import dataclass
from typing import Final

from edge_client.errors import SettingsError

#: A sequence number this far above the lowest unanswered one is never sent.
SEQUENCE_WINDOW: Final = 64

#: What is longer is sent in chunks of this, each delta in a call of its own.
LARGE_BYTES: Final = 256 * 1024

#: No service holds a client for longer than an hour at a time.
ASKED_WAIT_MAX_MS: Final = 3_600_000


@dataclass(frozen=True)
class Config:
    """Settings of one client.

    Attributes:
        insecure: Speak plaintext to a target that is not on loopback, too; no token ever goes there by this.
        in_flight_max: Unanswered deltas on a connection, 1 to 64; the service's own limit holds as well.
        backoff_first_s: The longest first wait after a lost connection; it doubles with each further one.
        backoff_longest_s: No wait is longer.
        first_contact_s: How long a client without a plan tries to get one before it gives up.
        close_flush_s: How long leaving ``async with`` waits for answers; 0 does not wait.
        call_timeout_s: For one call that is not a stream.
        answer_wait_s: A connection on which no answer came for so long is given up and made anew.
        idle_s: A connection on which nothing has been unanswered for so long is ended: the next delta makes a new one.
        keepalive_s: A ping after so much silence while a stream is open.
        commits_max: Adds and answers that share one transaction of the spool.
        spool_bytes_max: Bytes that the spool may set aside for what is unanswered; an add beyond it is refused. Each
            counts with the most that as many records could take, whatever they are, and each report that is memoised
            with 128 bytes, for good, whether its record is new or not: the file is smaller.
        own_connection: A TCP connection of its own; False shares one of plaintext among the clients of a process, of
            which there may be 500: a service takes 512 calls on a connection, and each client has one while it runs.
        unary: Send each delta as a call of its own, where a network lets no stream through.
    """

    insecure: bool = False
    in_flight_max: int = SEQUENCE_WINDOW
    backoff_first_s: float = 0.25
    backoff_longest_s: float = 30.0
    first_contact_s: float = 10.0
    close_flush_s: float = 5.0
    call_timeout_s: float = 10.0
    answer_wait_s: float = 60.0
    idle_s: float = 60.0
    keepalive_s: float = 60.0
    commits_max: int = 512
    spool_bytes_max: int = 2**30
    own_connection: bool = True
    unary: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.in_flight_max <= SEQUENCE_WINDOW:
            raise SettingsError(f"in_flight_max: got {self.in_flight_max!r}, expected 1 to {SEQUENCE_WINDOW}")
        for name in ("commits_max", "spool_bytes_max"):
            if getattr(self, name) < 1:
                raise SettingsError(f"{name}: got {getattr(self, name)!r}, expected at least 1")
        for name in ("backoff_first_s", "backoff_longest_s", "first_contact_s", "call_timeout_s", "answer_wait_s"):
            self._check_seconds(name, above_zero=True)
        for name in ("idle_s", "keepalive_s"):
            self._check_seconds(name, above_zero=True)
        self._check_seconds("close_flush_s", above_zero=False)

    def _check_seconds(self, name: str, *, above_zero: bool) -> None:
        value = getattr(self, name)
        if not math.isfinite(value) or value < 0 or (above_zero and value == 0):
            raise SettingsError(f"{name}: got {value!r}, expected seconds {'above' if above_zero else 'of at least'} 0")
