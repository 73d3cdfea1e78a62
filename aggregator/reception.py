"""Opening a session, and the questions that a client may ask about itself."""

from typing import Final

from aggregator.fold.verdicts import VerdictKind
from aggregator.fold_view import FoldView
from aggregator.openings import Openings
from aggregator.ports import Runtime
from aggregator.refusals import RefusedError, check_plan, common_version, of_fold, refused
from hushsum.delta import DeltaId
from hushsum.errors import Reason
from hushsum.plan import Plan
from hushsum_proto.answers import Answer, Refusal, Status
from hushsum_proto.entries import partition_of
from hushsum_proto.messages import Hello, Welcome

VERDICTS_MAX: Final = 1024
VERSIONS_MAX: Final = 64
FEATURES_MAX: Final = 64


def check_number(count: int, most: int, what: str) -> None:
    """Allows so many of something in one message: to be asked before they are converted.

    Raises:
        RefusedError: There are more.
    """
    if count > most:
        raise RefusedError(Refusal.of(Reason.TOO_LARGE, f"{count} {what} in one message, expected at most {most}"))


class Reception:
    """Greets clients of one plan.

    Args:
        plan: What is collected.
        partitions: P of its log.
        openings: Which windows take deltas.
        folds: What is remembered of a client's ids.
        runtime: The clock.
        in_flight_max: Unanswered deltas that a session may have.
    """

    def __init__(
        self, plan: Plan, partitions: int, *, openings: Openings, folds: FoldView, runtime: Runtime, in_flight_max: int
    ) -> None:
        self.plan = plan
        self.in_flight_max = in_flight_max
        self._partitions = partitions
        self._openings = openings
        self._folds = folds
        self._runtime = runtime

    async def welcome(self, hello: Hello) -> Welcome:
        """Opens a session.

        Raises:
            RefusedError: No protocol version in common, or another plan.
        """
        version = common_version(hello.protocol_versions)
        check_plan(hello.plan_id, self.plan)
        oldest, newest = await self._openings.span()
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

    async def verdicts(self, client_id: str, plan_id: bytes, ids: list[DeltaId]) -> list[Answer]:
        """What the fold remembers of a client's own ids; nothing where reports are anonymous, and nobody's own.

        Raises:
            RefusedError: Another plan.
        """
        check_plan(plan_id, self.plan)
        if self.plan.privacy.reports is not None:
            return [Answer(delta_id, Status.UNKNOWN) for delta_id in ids]
        return [await self._verdict(client_id, delta_id) for delta_id in ids]

    async def _verdict(self, client_id: str, delta_id: DeltaId) -> Answer:
        remembered = await self._folds.remembered(partition_of(client_id, self._partitions), client_id, delta_id)
        if remembered is None:
            return Answer(delta_id, Status.UNKNOWN)
        if remembered.kind is VerdictKind.COUNTED:
            return Answer(delta_id, Status.COUNTED)
        assert remembered.reason is not None
        return refused(delta_id, of_fold(remembered.reason, delta_id, self.plan))
