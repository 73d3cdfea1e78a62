"""The transport of deltas as protocols, which gRPC and the simulation implement; and how a connection is lost."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from hushsum.signed_plan import SignedPlan
from hushsum_proto.answers import Answer, Refusal
from hushsum_proto.messages import Welcome


@dataclass(frozen=True)
class Disconnect:
    """Why a connection ended.

    Attributes:
        detail: One sentence for people.
        refusal: What the service said, where it was the service that ended it.
        no_stream: The service, or something on the way, does not offer the stream at all.
        identity_refused: The service does not accept what shows who this client is; its files are read again.
    """

    detail: str
    refusal: Refusal | None = None
    no_stream: bool = False
    identity_refused: bool = False


class ConnectionLostError(Exception):
    """A call or a stream ended without what it was made for."""

    def __init__(self, loss: Disconnect) -> None:
        super().__init__(loss.detail)
        self.loss = loss


class PlanReply(NamedTuple):
    """A plan as a service sent it, unchecked.

    Attributes:
        bundle: Canonical bytes.
        signed: With the signature that came with it; None where there is none that this version reads.
    """

    bundle: bytes
    signed: SignedPlan | None


class Connection(Protocol):
    """One connection to a service; every method raises :class:`ConnectionLostError` when it breaks."""

    async def greet(self, plan_id: bytes) -> Welcome:
        """Says hello; the plan id is empty where none is known yet."""

    async def fetch_plan(self, plan_id: bytes) -> PlanReply:
        """A plan as the service has it; the caller checks that it hashes to its id."""

    def open(self, *, unary: bool) -> None:
        """Makes ready to send: one stream, or a call for each delta; at any time before the reply to Hello, or after.

        What is sent comes after Hello was called.
        """

    async def send(self, delta: bytes) -> None:
        """Writes a packed delta; its answer comes in :meth:`answers`."""

    def answers(self) -> AsyncGenerator[Answer, None]:
        """Answers as they come, in any order; ends when the service ends the stream. For an opened connection."""

    async def close(self) -> None:
        """Ends everything at once; never raises."""


class Transport(Protocol):
    """How to get connections."""

    def connect(self) -> Connection:
        """A new connection; nothing is sent before it is used."""
