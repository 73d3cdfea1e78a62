"""Actions that wait for their confirmation: what is done is what was shown, and it is done once."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

from hushsum_page.operations import Action

#: An action that is not confirmed so long after it was shown is forgotten.
CONFIRM_S_MAX: Final = 600.0
#: Beyond them the oldest is forgotten; of one session earlier, so that nobody takes the place of others.
WAITING_MAX: Final = 256
WAITING_OF_ONE_MAX: Final = 32


class _Waiting(NamedTuple):
    action: Action
    session: str
    until_s: float


class Confirmations:
    """Actions by the random ids that their forms send back.

    Args:
        secret: Makes ids.
        clock: Seconds that never go back.
    """

    def __init__(self, secret: Callable[[], str], clock: Callable[[], float]) -> None:
        self._secret, self._clock = secret, clock
        self._waiting: OrderedDict[str, _Waiting] = OrderedDict()

    def ask(self, action: Action, session: str) -> str:
        """The id with which a session may confirm an action, once."""
        id = self._secret()
        own = [each for each, waiting in self._waiting.items() if waiting.session == session]
        for each in own[: max(0, len(own) + 1 - WAITING_OF_ONE_MAX)]:
            del self._waiting[each]
        self._waiting[id] = _Waiting(action, session, self._clock() + CONFIRM_S_MAX)
        while len(self._waiting) > WAITING_MAX:
            self._waiting.popitem(last=False)
        return id

    def take(self, id: str, session: str) -> Action | None:
        """The action of an id; None: it was confirmed before, is another session's, or was shown too long ago."""
        waiting = self._waiting.get(id)
        if waiting is None or waiting.session != session:
            return None
        del self._waiting[id]
        return waiting.action if self._clock() <= waiting.until_s else None
