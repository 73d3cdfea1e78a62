"""What the service Collection is served by: a gateway and its reception, or a shuffler that stands before one."""

from collections.abc import Callable
from typing import Protocol

from hushsum_proto.answers import Answer
from hushsum_proto.messages import Authenticity, Hello, Welcome


class Uploads(Protocol):
    """Takes what clients send."""

    def check_running(self) -> None:
        """Refuses new work where none is taken now.

        Raises:
            RefusedError: None is.
        """

    async def submit(self, client_id: str, plan_id: bytes, data: bytes, shuffled: Authenticity | None = None) -> Answer:
        """The answer to one delta, whose whole call is waited for.

        Args:
            client_id: From the authenticator.
            plan_id: As the envelope names it.
            data: The packed delta.
            shuffled: Who says to have shuffled it; nobody has checked that yet.
        """

    def send(
        self,
        client_id: str,
        plan_id: bytes,
        data: bytes,
        tell: Callable[[Answer], None],
        shuffled: Authenticity | None = None,
    ) -> None:
        """The same for one of many; ``tell`` is called once, later, with the answer, and must not raise."""


class Greeter(Protocol):
    """Opens sessions."""

    @property
    def in_flight_max(self) -> int:
        """Unanswered deltas that a session may have."""

    async def welcome(self, hello: Hello) -> Welcome:
        """Opens a session.

        Raises:
            RefusedError: No protocol version in common, or another plan.
        """
