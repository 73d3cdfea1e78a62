"""What a fold is, and what changed in it: the values that go into the store and come out of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from aggregator.fold.verdicts import Verdict

Counters = npt.NDArray[np.int64]
BLOCK: Final = 4096  # counters in a block: what a checkpoint writes or leaves alone as one
NOTHING_CLOSED: Final = -(2**63)  # below every window


@dataclass(frozen=True)
class WindowSum:
    """The counters of a window in one partition, (classes, ...) int64, and its count counters, (classes,) int64."""

    counters: Counters
    counts: Counters


class StreamKey(NamedTuple):
    """Whose stream, and which."""

    client_id: str
    stream: int


class StreamUse(NamedTuple):
    """A client's stream, and a window that it has a delta in. What is nobody's has an empty client id."""

    client_id: str
    stream: int
    window: int


class Contribution(NamedTuple):
    """What the contribution bound is kept for, and the number of clients is the number of; or a cohort."""

    window: int
    client_id: str


@dataclass(frozen=True)
class FoldState:
    """All that a fold is, as the store gives it back.

    Attributes:
        position: Of the next entry to fold.
        closed_through: Every window up to this one is closed here.
        forgotten_through: Of every window up to this one all is forgotten, but that it is closed.
        windows: Sums of the windows that are not closed.
        streams: Packed stream states.
        contributions: Records by client and window, where the plan bounds them or asks for a number of clients; of a
            secure plan submissions, by cohort and window; of noised whole deltas 1, by client and window.
    """

    position: int = 0
    closed_through: int = NOTHING_CLOSED
    forgotten_through: int = NOTHING_CLOSED
    windows: Mapping[int, WindowSum] = field(default_factory=dict)
    streams: Mapping[StreamKey, bytes] = field(default_factory=dict)
    contributions: Mapping[Contribution, int] = field(default_factory=dict)


class FoldMark(NamedTuple):
    """How far a fold has come, in its latest checkpoint (as in :class:`FoldState`)."""

    position: int
    closed_through: int
    forgotten_through: int


class Block(NamedTuple):
    """Counters ``number·BLOCK`` to below ``(number + 1)·BLOCK`` of one class of a window, flat; a copy."""

    window: int
    class_index: int
    number: int
    values: Counters


@dataclass(frozen=True)
class Checkpoint:
    """What changed since the last checkpoint: stored in one transaction, it makes the stored state the fold's.

    Attributes:
        position: Of the next entry to fold.
        closed_through: As in :class:`FoldState`. The blocks of a window up to here will never change again.
        forgotten_through: As in :class:`FoldState`: stream states whose last window is not above it, and contributions
            to windows not above it, are deleted.
        blocks: The touched blocks.
        counts: Count counters of the touched windows, (classes,).
        streams: Changed stream states, packed, with the last window that each touched.
        contributions: Changed contributions.
        verdicts: One for each delta, where they are retained.
        seals: Windows that a seal of their own has closed: they were open, whatever a restored store knows of them.
    """

    position: int
    closed_through: int
    forgotten_through: int
    blocks: tuple[Block, ...]
    counts: Mapping[int, Counters]
    streams: Mapping[StreamKey, tuple[int, bytes]]
    contributions: Mapping[Contribution, int]
    verdicts: tuple[Verdict, ...]
    seals: tuple[int, ...] = ()
