"""What is said of a delta by what a fold remembers of its stream: one law, for the fold itself and for what is stored.

:class:`aggregator.fold.fold.Fold` asks it of its memory, :class:`aggregator.stored_folds.StoredFolds` of the latest
checkpoint of a fold that runs elsewhere, so that both say the same of the same moment.
"""

from typing import Final

from aggregator.fold.state import FoldMark
from aggregator.fold.streams import Observation, StreamState
from aggregator.fold.verdicts import RememberedKind
from hushsum.errors import Reason

#: What an id that was bound to something else is refused with.
REFUSALS: Final = {
    Observation.ID_REUSED: Reason.ID_REUSED,
    Observation.ID_OF_ANOTHER_WINDOW: Reason.ID_OF_ANOTHER_WINDOW,
}


def recall(
    stream: StreamState | None, mark: FoldMark, sequence: int, digest: bytes, window: int
) -> tuple[RememberedKind, Reason | None]:
    """What to tell the sender of a delta that the fold has passed, and whose window is no longer open.

    *late* is said only while an id that had been counted would still be known: it promises that the records were not
    counted and never will be. Where the fold cannot know, it says *unknown*.

    Args:
        stream: The state of the delta's stream; None where there is none.
        mark: How far the fold had come at that very moment.
        sequence: The delta's number in its stream.
        digest: 8 bytes of it.
        window: Its window.
    """
    if stream is not None:
        found = stream.observe(sequence, digest, window)
        if found in REFUSALS:
            return RememberedKind.REFUSED, REFUSALS[found]
        use = stream.use_of(sequence)
        if use is not None:
            return (RememberedKind.REFUSED, use.reason) if use.reason else (RememberedKind.COUNTED, None)
        if found is Observation.DUPLICATE:
            return RememberedKind.OUT_OF_REACH, None
    late = mark.forgotten_through < window <= mark.closed_through
    return (RememberedKind.LATE if late else RememberedKind.UNKNOWN), None
