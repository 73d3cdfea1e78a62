"""Counts of everything that a client was given and of its answers: every record and delta is in one of them."""

import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Final, Self

from edge_client.errors import RefusalWarning, RefusedError, UncountedWarning
from hushsum_proto.answers import Answer, AnyReason, Status


class UnreportedRejections:
    """Deltas that count nowhere, and that no flush has told of yet: refused ones by reason, late and unknown ones."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._details: dict[str, str] = {}
        self._uncounted: Counter[Status] = Counter()

    def add(self, answer: Answer) -> None:
        """Adds a definitive answer, if its delta does not count."""
        if answer.status in (Status.LATE, Status.UNKNOWN):
            self._uncounted[answer.status] += 1
        if answer.status is Status.REFUSED and answer.refusal is not None:
            name = reason_name(answer.refusal.reason)
            self._counts[name] += 1
            self._details.setdefault(name, answer.refusal.detail)

    def raise_all(self, stacklevel: int) -> None:
        """Tells of what there is, once.

        Warns:
            UncountedWarning: Deltas came too late, or their window is forgotten.

        Raises:
            RefusedError: Deltas were refused for good since the last time that this was raised.
        """
        self._warn_uncounted(stacklevel + 1)
        if self._counts:
            refused, self._counts = self._counts, Counter()
            raise RefusedError(refused, self._details)

    def warn(self, stacklevel: int) -> None:
        """Warns of what there is."""
        self._warn_uncounted(stacklevel + 1)
        if self._counts:
            warnings.warn(str(RefusedError(self._counts, self._details)), RefusalWarning, stacklevel=stacklevel + 1)

    def _warn_uncounted(self, stacklevel: int) -> None:
        uncounted, self._uncounted = self._uncounted, Counter()
        if uncounted:
            each = "; ".join(f"{count} {_UNCOUNTED[status]}" for status, count in uncounted.items())
            which = "1 delta is" if uncounted.total() == 1 else f"{uncounted.total()} deltas are"
            text = f"{which} not counted: {each}"
            warnings.warn(text, UncountedWarning, stacklevel=stacklevel + 1)


_UNCOUNTED: Final = {
    Status.LATE: "arrived after their window was sealed (late)",
    Status.UNKNOWN: "belong to an ended window whose data is erased (unknown)",
}


RECORDS: Final = "records"
RECORDS_DROPPED: Final = "records_dropped"
RECORDS_CLIPPED: Final = "records_clipped"
RECORDS_ABSENT: Final = "records_absent"
RECORDS_REFUSED: Final = "records_refused"
DELTAS: Final = "deltas"
REPORTS: Final = "reports"
SUBMISSIONS_SPENT: Final = "submissions_spent"
SUBMISSIONS_COUNTED: Final = "submissions_counted"
SUBMISSIONS_LOST: Final = "submissions_lost"
WINDOWS_UNSPENT: Final = "windows_unspent"
RECORDS_UNSPENT: Final = "records_unspent"
#: Answers to a delta that counts.
COUNTED: Final = frozenset({Status.ACKNOWLEDGED, Status.COUNTED})
_REFUSED: Final = "refused:"
_OTHER: Final = "other"  # a reason that only a newer service knows


@dataclass(frozen=True)
class SendStats:
    """What a client has written to its connections since it started.

    Attributes:
        first: Deltas that were sent at least once.
        again: Sends of a delta that had been sent before.
        bytes: Of packed deltas, resends too; of a plan with a secure sum, of masked vectors.
    """

    first: int = 0
    again: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class Stats:
    """Everything that was given, and what became of it.

    What was added and answered is kept in the spool and counts its whole life; what was sent counts since this client
    started.

    Attributes:
        records: Usable records that were added.
        records_dropped: Records that were left out, because they could not be read or had no label of the plan.
        records_clipped: Usable records outside the plan's bounds, which were moved to them.
        records_absent: With a secure sum, or of a silo: usable records that were left out, for in their window this
            client did not run, or it was spent or over already.
        records_refused: Records that were left out because they were more than the plan allows a client in the window,
            of batches whose first ones were added: usable ones; of reports, unusable ones too.
        records_unspent: With a secure sum, or of a silo: records that had been added and are in nothing that was
            submitted, for their window passed without it, or they came while it was under way.
        reports: Randomised reports that records became, those of dropped ones included, which tell nothing.
        deltas: Deltas that the records became.
        deltas_sent: Deltas that were sent at least once since this client started.
        deltas_resent: Further sends of those.
        bytes_sent: Of packed deltas, resends too; of a plan with a secure sum, of masked vectors.
        acknowledged: Deltas that were durable at the service before their window's seal. Each is counted exactly once,
            unless the fold's verdict says otherwise: this client's other spools had used up the window's bound of
            records, or the id had come before with other bytes.
        counted: Deltas of a closed window that the service had counted.
        late: Deltas that came after their window's seal and count nowhere.
        unknown: Deltas whose window is over and forgotten: treated as spent.
        refused: Deltas that were refused for good, by the reason's name.
        submissions_spent: Windows whose privacy this device has spent, with a secure sum or as a silo: its masked
            vector, or its noised sum, was sent, or was about to be.
        submissions_counted: Of those, the ones whose sum is durable at the service.
        submissions_lost: Of those, the ones that count nowhere, or whose result is unknown.
        windows_unspent: Windows in which this client ran, and for which it never submitted.
    """

    records: int = 0
    records_dropped: int = 0
    records_clipped: int = 0
    records_absent: int = 0
    records_refused: int = 0
    deltas: int = 0
    deltas_sent: int = 0
    deltas_resent: int = 0
    bytes_sent: int = 0
    acknowledged: int = 0
    counted: int = 0
    late: int = 0
    unknown: int = 0
    records_unspent: int = 0
    submissions_spent: int = 0
    submissions_counted: int = 0
    submissions_lost: int = 0
    windows_unspent: int = 0
    reports: int = 0
    refused: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))

    @classmethod
    def of(cls, kept: Mapping[str, int], sends: SendStats) -> Self:
        """From what the spool keeps, and what was sent since the start."""
        refused = {name.removeprefix(_REFUSED): count for name, count in kept.items() if name.startswith(_REFUSED)}
        return cls(
            deltas_sent=sends.first,
            deltas_resent=sends.again,
            bytes_sent=sends.bytes,
            refused=MappingProxyType(refused),
            **{field.name: kept[field.name] for field in fields(cls) if field.name in kept},
        )


def submission_count_of(result: str) -> str:
    """The count of a window's submission with this result: an answer to a silo's delta, or the result of a round."""
    return SUBMISSIONS_COUNTED if result in COUNTED else SUBMISSIONS_LOST


def reason_name(reason: AnyReason | None) -> str:
    """The name under which refusals for a reason are counted."""
    return _OTHER if reason is None else reason.value


def answer_name(answer: Answer) -> str:
    """The name under which the spool counts an answer."""
    reason = None if answer.refusal is None else answer.refusal.reason
    return _REFUSED + reason_name(reason) if answer.status is Status.REFUSED else answer.status.value
