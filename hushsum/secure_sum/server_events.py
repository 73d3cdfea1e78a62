"""What happens to the server of a round, and what its machine wants done about it."""

import enum
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt


class Step(enum.Enum):
    """What the members of a round are asked for."""

    ADVERTISE = "advertise"
    OPEN = "open"
    SHARE = "share"
    UPLOAD = "upload"
    CONSENT = "consent"
    UNMASK = "unmask"
    ENDED = "ended"


@dataclass(frozen=True)
class ClientMessage:
    """A message of a client."""

    client_id: str
    data: bytes = field(repr=False)


@dataclass(frozen=True)
class Uploaded:
    """A client's packed masked vector, whole."""

    client_id: str
    data: bytes = field(repr=False)


@dataclass(frozen=True)
class Vanished:
    """A client is gone, or too slow: nothing more will come of it."""

    client_id: str


@dataclass(frozen=True)
class Expired:
    """The time of a step is over; of no consequence where the step is."""

    step: Step


@dataclass(frozen=True)
class Tell:
    """A message for a client."""

    client_id: str
    data: bytes = field(repr=False)


@dataclass(frozen=True)
class Grant:
    """This client may upload from now on: its time begins. :class:`Uploaded` or :class:`Vanished` ends it."""

    client_id: str


@dataclass(frozen=True)
class Drop:
    """What this client sent is refused, and it is out."""

    client_id: str
    text: str


@dataclass(frozen=True)
class Await:
    """A step begins whose time is limited: :class:`Expired` when it is over. Uploads have times of their own."""

    step: Step


@dataclass(frozen=True)
class Sum:
    """What a round comes to.

    Attributes:
        words: The sum of the survivors' vectors, as the plan's ``Words`` hold them.
        submissions: How many they are, and so how many shares of noise are in it.
        survivors: Their ids, rising.
        spent: How many clients may have sent a vector: the survivors, and those whose upload did not end well.
        liars: Clients whose revealed shares were found to be wrong of more members than may be corrupt, and of two at
            least: they revealed others than they were given. Fewer accuse those who dealt them as much as those who
            hold them, and name nobody; nor is everybody looked at.
    """

    words: npt.NDArray[Any] = field(repr=False)  # of uint32 or uint64, as the plan's words are
    submissions: int
    survivors: tuple[str, ...]
    spent: int
    liars: tuple[str, ...] = ()


@dataclass(frozen=True)
class Done:
    """The round is over, and this is its sum."""

    sum: Sum


@dataclass(frozen=True)
class Failed:
    """The round is over without a sum.

    Attributes:
        reason: One sentence.
        spent: How many clients may have sent a vector: it is lost.
        again: Whether nothing was spent, so that those who are there may begin another round.
        suspects: Clients whose secret did not come out though enough shares of it were there: they dealt wrong ones, or
            some of those who hold them lied.
    """

    reason: str
    spent: int
    again: bool
    suspects: tuple[str, ...] = ()


Event = ClientMessage | Uploaded | Vanished | Expired
Effect = Tell | Grant | Drop | Await | Done | Failed
