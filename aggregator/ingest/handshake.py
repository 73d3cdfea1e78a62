"""Opening a session."""

from collections.abc import Awaitable, Callable
from typing import Final

from aggregator.errors import RefusedError, check_plan, common_version
from aggregator.runtime import Runtime
from hushsum.errors import Reason
from hushsum.plan import Plan
from hushsum_proto.answers import Refusal
from hushsum_proto.messages import Hello, Welcome

VERSIONS_MAX: Final = 64
FEATURES_MAX: Final = 64


def check_number(count: int, most: int, what: str) -> None:
    """Bounds a list of one message, before it is converted.

    Raises:
        RefusedError: There are more.
    """
    if count > most:
        raise RefusedError(Refusal.of(Reason.TOO_LARGE, f"{count} {what} in one message, expected at most {most}"))


class Handshake:
    """Opens sessions for clients of one plan; each may have ``in_flight_max`` unanswered deltas."""

    def __init__(
        self, plan: Plan, *, span: Callable[[], Awaitable[tuple[int, int]]], runtime: Runtime, in_flight_max: int
    ) -> None:
        self.plan = plan
        self.in_flight_max = in_flight_max
        self._span = span  # of the oldest and the newest window that take deltas now
        self._runtime = runtime

    async def welcome(self, hello: Hello) -> Welcome:
        """Opens a session.

        Raises:
            RefusedError: No protocol version in common, or another plan.
        """
        version = common_version(hello.protocol_versions)
        check_plan(hello.plan_id, self.plan)
        oldest, newest = await self._span()
        now_ms = self._runtime.now_ms()
        return Welcome(
            protocol_version=version,
            plan_id=self.plan.id,
            window=self.plan.window.index_at(now_ms),
            now_ms=now_ms,
            oldest_window=oldest,
            newest_window=newest,
            in_flight_max=self.in_flight_max,
            delta_bytes_max=self.plan.upload_bytes_max,
        )
