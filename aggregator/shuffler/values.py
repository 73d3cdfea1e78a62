"""What goes into a shuffler's file, and what comes out of it, as values."""

from dataclasses import dataclass
from typing import NamedTuple

from aggregator.shuffler.pool import Int64
from aggregator.shuffler.windows import WindowState


class Taken(NamedTuple):
    """A batch that somebody sent: what of it is still known when it comes here.

    Attributes:
        window: Its window.
        stream: Its id: random, 8 bytes.
        data: Its packed bytes, of which a keyed digest is kept.
        reports: What is in it.
    """

    window: int
    stream: bytes
    data: bytes
    reports: Int64


class Cut(NamedTuple):
    """A batch of a window that was cut.

    Attributes:
        is_open: The window was not cut yet: the batch is in its pool.
        known: Its id was taken in its time.
        state: Of a window that was cut.
    """

    is_open: bool
    known: bool
    state: WindowState | None


@dataclass(frozen=True)
class Outgoing:
    """A batch that is forwarded: its bytes are fixed, and so is its signature."""

    window: int
    stream: bytes
    batch: bytes
    tag: bytes


@dataclass(frozen=True)
class KeptPlan:
    """The plan of this shuffler: its bundle, with the signature that came with it (suite 0: none)."""

    bundle: bytes
    key_id: str
    suite: int
    signature: bytes
