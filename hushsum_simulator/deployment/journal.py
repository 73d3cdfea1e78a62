"""What a fleet has done and was told, from which ``check`` works out what must be in which release."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, Self

from edge_client import Stats
from hushsum.delta import DeltaId
from hushsum_proto.answers import Status
from hushsum_simulator.demo.evaluation import SentDelta
from hushsum_simulator.deployment import settings
from hushsum_simulator.errors import JourneyError

_FORMAT: Final = 2
_DROPPED: Final = frozenset({Status.LATE.value, Status.REFUSED.value})
_PROGRAM: Final = "python -m hushsum_simulator.deployment fleet"


class Added(NamedTuple):
    """One batch, when it was added.

    Attributes:
        window: That its time is in.
        batch: Its place in the client's share.
        sequence: Of the first delta that it became.
        deltas: How many it became.
        records: Usable ones.
        reports: That it became, where the plan is of reports.
    """

    window: int
    batch: int
    sequence: int
    deltas: int
    records: int
    reports: int = 0


@dataclass
class Account:
    """What one client has done, and was told.

    Attributes:
        stream: Of its deltas.
        added: Its batches.
        tallies: At its end, of its spool's whole life; what was sent, of all its lives.
        answers: What it was told of each delta or batch, for good.
        results: With a secure sum, or of a silo: what it was told of its submission for a window; ``""``: nothing.
        lives: How often it was started.
    """

    stream: int = 0
    added: list[Added] = field(default_factory=list)
    tallies: Stats = field(default_factory=Stats)
    answers: dict[DeltaId, str] = field(default_factory=dict)
    results: dict[int, str] = field(default_factory=dict)
    lives: int = 0

    @property
    def told_dropped(self) -> set[DeltaId]:
        """Deltas of which it was told that they are in no release. Of one that is unknown it was told nothing."""
        return {id for id, answer in self.answers.items() if answer in _DROPPED}

    def sent(self, client_id: str) -> Iterator[tuple[SentDelta, int]]:
        """The ids of its deltas, each with its window."""
        for added in self.added:
            for id in self.ids(added):
                yield SentDelta(client_id, id), added.window

    def ids(self, added: Added) -> Iterator[DeltaId]:
        """The ids of the deltas of a batch."""
        for sequence in range(added.sequence, added.sequence + added.deltas):
            yield DeltaId(self.stream, sequence)


@dataclass(frozen=True)
class FleetJournal:
    """What the whole fleet has.

    Attributes:
        plan_id: Of its plan, in hexadecimal.
        first_window: The first that it filled,
        windows: and how many.
        seconds: Of its run.
        accounts: By client.
    """

    plan_id: str
    first_window: int
    windows: int
    seconds: float
    accounts: Mapping[str, Account]

    @property
    def window_range(self) -> range:
        """All windows that it filled."""
        return range(self.first_window, self.first_window + self.windows)

    def save(self, path: Path) -> None:
        """Writes it."""
        accounts = {name: _account_fields(account) for name, account in self.accounts.items()}
        settings.write_json(path, {"format": _FORMAT, **self.__dict__, "accounts": accounts})

    @classmethod
    def load(cls, path: Path) -> Self:
        """Reads it.

        Raises:
            JourneyError: It is not there, or damaged.
        """
        read = settings.read_json(path, _PROGRAM)
        try:
            if read.pop("format") != _FORMAT:
                raise JourneyError(f"{path}: another version has written it")
            accounts = {name: _account(fields) for name, fields in read.pop("accounts").items()}
            return cls(**read, accounts=accounts)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise JourneyError(f"{path}: not what {_PROGRAM} writes: {error!r}") from error


def _account_fields(account: Account) -> dict[str, object]:
    tallies = {name: value for name, value in vars(account.tallies).items() if name != "refused"}
    told = {**tallies, "refused": dict(account.tallies.refused)}
    results = [[window, result] for window, result in account.results.items()]
    # A stream has 64 bits, more than numbers of JSON are sure to have.
    answers = [[str(id.stream), id.sequence, answer] for id, answer in account.answers.items()]
    return {**vars(account), "stream": str(account.stream), "tallies": told, "answers": answers, "results": results}


def _account(fields: Mapping[str, object]) -> Account:
    read: dict[str, object] = dict(fields)
    names = ("stream", "added", "tallies", "answers", "results")
    stream, added, tallies, answers, results = (read.pop(name) for name in names)
    assert isinstance(added, list)
    assert isinstance(answers, list)
    assert isinstance(tallies, dict)
    assert isinstance(results, list)
    return Account(
        **read,  # type: ignore[arg-type]  # the count of lives, or a TypeError
        stream=int(str(stream)),
        added=[Added(*each) for each in added],
        tallies=Stats(**tallies),
        answers={DeltaId(int(of), sequence): answer for of, sequence, answer in answers},
        results=dict(results),
    )
