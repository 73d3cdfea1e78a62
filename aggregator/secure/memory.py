"""What became of this process's rounds, for those who ask later: bounded, and gone with the process."""

from collections import OrderedDict
from typing import Final, NamedTuple

from hushsum_proto.rounds import Fate, RoundOutcome

CLIENTS_MAX: Final = 1 << 18  # of all rounds that are remembered; the oldest rounds are forgotten first

DETAILS: Final = {
    Fate.COUNTED: "the vector is in a sum that is durable",
    Fate.LEFT_OUT: "the round went on without this client",
    Fate.ABORTED: "the round ended without a sum",
    Fate.LATE: "the window was sealed before a sum was in the log",
    Fate.UNKNOWN: "nothing is known here of what became of the round",
}


class Remembered(NamedTuple):
    """One round that is over.

    Attributes:
        window: Its window.
        fate: Of its sum.
        survivors: Clients whose vectors are in it; none where there is no sum.
        members: All clients of the round.
    """

    window: int
    fate: Fate
    survivors: frozenset[str]
    members: frozenset[str]

    def fate_of(self, client_id: str) -> Fate:
        """What became of a client's vector."""
        if client_id not in self.members:
            return Fate.UNKNOWN
        is_left_out = bool(self.survivors) and client_id not in self.survivors
        return Fate.LEFT_OUT if is_left_out else self.fate


class Memory:
    """Rounds of this process, by id.

    Args:
        clients_max: Of all that are remembered.
    """

    def __init__(self, clients_max: int = CLIENTS_MAX) -> None:
        self._clients_max = clients_max
        self._clients = 0
        self._rounds: OrderedDict[bytes, Remembered] = OrderedDict()

    def __len__(self) -> int:
        return len(self._rounds)

    def add(self, round_id: bytes, became: Remembered) -> None:
        """Remembers a round."""
        self._rounds[round_id] = became
        self._clients += len(became.members)
        while self._clients > self._clients_max and len(self._rounds) > 1:
            _, oldest = self._rounds.popitem(last=False)
            self._clients -= len(oldest.members)

    def fate_of(self, client_id: str, round_id: bytes, window: int) -> Fate:
        """What became of a client's vector, as far as it is known here."""
        became = self._rounds.get(round_id)
        return Fate.UNKNOWN if became is None or became.window != window else became.fate_of(client_id)

    def forget_before(self, window: int) -> None:
        """Forgets all rounds of older windows."""
        for round_id in [round_id for round_id, became in self._rounds.items() if became.window < window]:
            self._clients -= len(self._rounds.pop(round_id).members)


def outcome_of(round_id: bytes, fate: Fate, *, again: bool = False, retry_after_ms: int = 0) -> RoundOutcome:
    """The outcome in words."""
    return RoundOutcome(round_id, fate, DETAILS[fate], again, retry_after_ms)
