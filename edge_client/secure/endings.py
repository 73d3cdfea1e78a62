"""How an attempt to take part in a window ended, and whether another one may help."""

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Final

from edge_client.errors import NoPartError, SessionRefusedError, SpoolError
from edge_client.ports import ConnectionLostError
from edge_client.session_events import ENDS_SESSION, Loss
from hushsum.errors import Reason, SecureSumError
from hushsum_proto.rounds import RoundOutcome

# The service's clock and this one's differ, or its gateways do: this passes.
_PASSES: Final = frozenset({Reason.WINDOW_IN_FUTURE, Reason.MALFORMED})


@dataclass(frozen=True)
class Ended:
    """How an attempt ended.

    Attributes:
        why: One sentence.
        outcome: What the service said, where it did.
        again: Whether it may be tried again, where it has cost nothing.
        least_ms: Not before.
    """

    why: str
    outcome: RoundOutcome | None = None
    again: bool = True
    least_ms: int = 0


async def ending_of(attempt: Awaitable[RoundOutcome]) -> Ended:
    """Waits for an attempt, and says how it ended.

    Raises:
        SessionRefusedError: The service wants nothing of this client.
    """
    try:
        outcome = await attempt
    except ConnectionLostError as error:
        return _of_loss(error.loss)
    except SecureSumError as error:
        return Ended(f"the service did not keep to the protocol: {error}")
    except NoPartError as error:
        return Ended(str(error), again=False)
    except SpoolError as error:
        return Ended(str(error))
    return Ended(outcome.detail or outcome.fate.value, outcome, outcome.again, outcome.retry_after_ms)


def _of_loss(loss: Loss) -> Ended:
    refusal = loss.refusal
    if refusal is None:
        return Ended(loss.detail)
    if refusal.reason in ENDS_SESSION:
        raise SessionRefusedError(f"the service wants no part of this client: {loss.detail}")
    return Ended(loss.detail, None, refusal.retry or refusal.reason in _PASSES, refusal.retry_after_ms)
