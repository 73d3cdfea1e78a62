"""Spools for tests: opened with replayable entropy, filled with deltas of chosen bytes."""

from functools import partial
from pathlib import Path
from typing import Final

from edge_client.spool.changes import Add, PackedDelta
from edge_client.spool.spool import Spool
from hushsum.delta import DeltaId
from hushsum.entropy import OsEntropy
from hushsum.usable_records import RecordProblems

_OPENED: Final[list[Spool]] = []


def opened(path: Path, client_id: str | None = None, bytes_max: int = 2**30) -> Spool:
    """A spool that is closed at the end of the test, if not before."""
    spool = Spool(path, client_id=client_id, entropy=OsEntropy(), bytes_max=bytes_max)
    _OPENED.append(spool)
    return spool


def close_all() -> None:
    """Closes every spool that was opened here; one that is closed stays so."""
    while _OPENED:
        _OPENED.pop().close()


def bytes_of(id: DeltaId, text: str = "") -> bytes:
    """What the test deltas hold: their own id, and a text."""
    return f"{id.stream:016x}/{id.sequence}/{text}".encode()


def addition(*texts: str, window: int = 0, records_max: int | None = None, dropped: int = 0) -> Add:
    """Deltas of one record each."""
    deltas = tuple(PackedDelta(1, partial(bytes_of, text=text)) for text in texts)
    records = sum(delta.records for delta in deltas) + dropped
    return Add(window, deltas, RecordProblems(records, unreadable=dropped), records_max)
