"""What a fleet sent and which answers it received: the checks derive from it what each release must hold."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from edge_client import Counts
from hushsum.delta import DeltaId
from hushsum_proto.answers import Status
from hushsum_simulator.demo.evaluation import SentDelta
from hushsum_simulator.deployment import settings
from hushsum_simulator.errors import JourneyError

#: A client that received one of these answers may rely on the delta being in its release, once.
KEPT: Final = frozenset({Status.ACKNOWLEDGED.value, Status.COUNTED.value})
#: A client that received one of these answers may rely on the delta being in no release.
DROPPED: Final = frozenset({Status.LATE.value, Status.REFUSED.value})

_FORMAT: Final = 2
_PROGRAM: Final = "python -m hushsum_simulator.deployment fleet"


class Added(NamedTuple):
    """One batch of records that a client added.

    Attributes:
        window: Of its event time.
        batch: Its index in the client's share.
        sequence: Of its first delta.
        deltas: How many it became.
        records: Usable ones.
        reports: How many it became; 0 unless the plan is of reports.
    """

    window: int
    batch: int
    sequence: int
    deltas: int
    records: int
    reports: int = 0


@dataclass
class Account:
    """One client.

    Attributes:
        stream: Of its deltas.
        tallies: At its end: the spool's counts over all its lives, and what was sent in all of them.
        answers: The definitive answer to each delta or batch of reports.
        results: Secure mode and silos: the result of its submission for each window; ``""`` if none is known.
        lives: How often it was started.
    """

    stream: int = 0
    added: list[Added] = field(default_factory=list)
    tallies: Counts = field(default_factory=Counts)
    answers: dict[DeltaId, str] = field(default_factory=dict)
    results: dict[int, str] = field(default_factory=dict)
    lives: int = 0

    @property
    def told_dropped(self) -> set[DeltaId]:
        """Deltas that were answered as being in no release. The answer ``unknown`` says nothing about that."""
        return {id for id, answer in self.answers.items() if answer in DROPPED}

    def sent(self, client_id: str) -> Iterator[tuple[SentDelta, int]]:
        """The ids of its deltas, each with its window."""
        for added in self.added:
            for id in self.ids(added):
                yield SentDelta(client_id, id), added.window

    def ids(self, added: Added) -> Iterator[DeltaId]:
        for sequence in range(added.sequence, added.sequence + added.deltas):
            yield DeltaId(self.stream, sequence)


@dataclass(frozen=True)
class FleetJournal:
    """The whole fleet.

    Attributes:
        first_window: The first window that it filled.
        seconds: Duration of its run.
    """

    plan_id: str
    first_window: int
    windows: int
    seconds: float
    accounts: Mapping[str, Account]

    @property
    def window_range(self) -> range:
        return range(self.first_window, self.first_window + self.windows)

    def save(self, path: Path) -> None:
        accounts = {name: _account_fields(account) for name, account in self.accounts.items()}
        settings.write_json(path, {"format": _FORMAT, **self.__dict__, "accounts": accounts})

    @classmethod
    def load(cls, path: Path) -> Self:
        """Reads a saved journal.

        Raises:
            JourneyError: The file is missing or damaged.
        """
        read = settings.read_json(path, _PROGRAM)
        try:
            if read.pop("format") != _FORMAT:
                raise JourneyError(f"{path}: another version has written it")
            accounts = {name: _account(fields) for name, fields in read.pop("accounts").items()}
            return cls(**read, accounts=accounts)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise JourneyError(f"{path}: not a file of {_PROGRAM}: {error!r}") from error


def _account_fields(account: Account) -> dict[str, object]:
    return {
        **vars(account),
        "stream": str(account.stream),  # a stream has 64 bits, more than JSON numbers reliably hold
        "tallies": {**vars(account.tallies), "refused": dict(account.tallies.refused)},
        "answers": [[str(id.stream), id.sequence, answer] for id, answer in account.answers.items()],
        "results": [[window, result] for window, result in account.results.items()],
    }


def _account(fields: Mapping[str, Any]) -> Account:  # Any: JSON
    return Account(
        stream=int(fields["stream"]),
        added=[Added(*each) for each in fields["added"]],
        tallies=Counts(**fields["tallies"]),
        answers={DeltaId(int(stream), sequence): answer for stream, sequence, answer in fields["answers"]},
        results=dict(fields["results"]),
        lives=fields["lives"],
    )
