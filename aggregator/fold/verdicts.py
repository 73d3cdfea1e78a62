"""The fold's verdicts on entries of the log, and what it remembers of a delta after its window was closed."""

import enum
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Final, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from hushsum.delta import DeltaId
from hushsum.errors import Reason
from hushsum_proto.many_entries import DeltaColumns


class VerdictKind(enum.StrEnum):
    """The fold's verdict on an entry; stored and counted under these names."""

    COUNTED = "counted"
    DUPLICATE = "duplicate"
    LATE = "late"
    REFUSED = "refused"


class Verdict(NamedTuple):
    """The verdict on one delta, cohort sum or batch of reports, or on bytes in the log that are none.

    Attributes:
        id: None where it could not be read.
        client_id: None where the entry could not be read, and of a cohort sum or reports, which belong to no client.
        window: None where it could not be read.
    """

    kind: VerdictKind
    reason: Reason | None
    id: DeltaId | None
    client_id: str | None
    window: int | None
    position: int


#: What a code of a :class:`VerdictColumns` says.
Outcome = tuple[VerdictKind, Reason | None]
OUTCOMES: Final[tuple[Outcome, ...]] = (
    (VerdictKind.COUNTED, None),
    (VerdictKind.DUPLICATE, None),
    (VerdictKind.LATE, None),
    (VerdictKind.REFUSED, Reason.ID_REUSED),
    (VerdictKind.REFUSED, Reason.ID_OF_ANOTHER_WINDOW),
    (VerdictKind.REFUSED, Reason.TOO_MANY_RECORDS),
)


class VerdictColumns(NamedTuple):
    """Verdicts of deltas that were folded together, in columns; they become values when they are read.

    Attributes:
        codes: Indices into :data:`OUTCOMES`, a byte each.
        deltas: Their positions and clients.
        headers: (n, 2): sequence numbers and windows.
        others: By place, those that were folded one by one.
    """

    codes: bytes
    deltas: DeltaColumns
    streams: npt.NDArray[np.uint64]
    headers: npt.NDArray[np.int64]
    others: Mapping[int, Verdict]

    def values(self) -> Iterator[Verdict]:
        ids, headers = self.streams.tolist(), self.headers.tolist()
        clients = self.deltas.client_ids(0, len(self.deltas))
        columns = zip(self.codes, self.deltas.positions.tolist(), clients, ids, headers, strict=True)
        for place, (code, position, client_id, stream, (sequence, window)) in enumerate(columns):
            other = self.others.get(place)
            if other is None:
                kind, reason = OUTCOMES[code]
                other = Verdict(kind, reason, DeltaId(stream, sequence), client_id, window, position)
            yield other


class Verdicts(Sequence[Verdict]):
    """Verdicts on some entries, in their order: counting them is cheap, and reading one is not."""

    def __init__(self, parts: Sequence[VerdictColumns | Verdict]) -> None:
        self._parts = parts
        self._values: list[Verdict] | None = None

    def kinds(self) -> Counter[VerdictKind]:
        found: Counter[VerdictKind] = Counter()
        for part in self._parts:
            if isinstance(part, Verdict):
                found[part.kind] += 1
                continue
            for code, (kind, _) in enumerate(OUTCOMES):
                found[kind] += part.codes.count(code)
            for other, code in ((other, part.codes[place]) for place, other in part.others.items()):
                found[OUTCOMES[code][0]] -= 1
                found[other.kind] += 1
        return +found

    def __len__(self) -> int:
        return sum(1 if isinstance(part, Verdict) else len(part.codes) for part in self._parts)

    def __iter__(self) -> Iterator[Verdict]:
        return iter(self._all())

    @overload
    def __getitem__(self, index: int) -> Verdict: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Verdict]: ...
    def __getitem__(self, index: int | slice) -> Verdict | Sequence[Verdict]:
        return self._all()[index]

    def __eq__(self, other: object) -> bool:
        return self._all() == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # as of a list

    def __repr__(self) -> str:
        return f"Verdicts({self._all()!r})"

    def _all(self) -> list[Verdict]:
        if self._values is None:
            parts = ((part,) if isinstance(part, Verdict) else part.values() for part in self._parts)
            self._values = list(chain.from_iterable(parts))
        return self._values


class RememberedKind(enum.StrEnum):
    """What the fold remembers of a delta whose window it has closed."""

    COUNTED = "counted"
    REFUSED = "refused"
    LATE = "late"
    OUT_OF_REACH = "out_of_reach"  # an id so old that it was answered before; whatever its bytes, it never counts again
    UNKNOWN = "unknown"  # that knowledge is forgotten: it may have been counted
