"""What a shuffler says to who opens a session."""

from aggregator.ports import Runtime
from aggregator.refusals import check_plan, common_version
from aggregator.shuffler.reports_file import ReportsFile
from aggregator.shuffler.windows import taken_windows
from hushsum.plan import Plan
from hushsum_proto.messages import Hello, Welcome


class Greeter:
    """Opens sessions of one plan.

    Args:
        plan: What is collected.
        file: Knows which windows were cut.
        runtime: The clock.
        skew_ms: How far ahead of it a device's may be.
        in_flight_max: Unanswered batches that a session may have.
    """

    def __init__(self, plan: Plan, file: ReportsFile, *, runtime: Runtime, skew_ms: int, in_flight_max: int) -> None:
        self.in_flight_max = in_flight_max
        self._plan = plan
        self._file = file
        self._runtime = runtime
        self._skew_ms = skew_ms

    async def welcome(self, hello: Hello) -> Welcome:
        """Opens a session; the oldest window is the oldest that is not cut.

        Raises:
            RefusedError: No protocol version in common, or another plan.
        """
        version = common_version(hello.protocol_versions)
        check_plan(hello.plan_id, self._plan)
        now_ms, schedule = self._runtime.now_ms(), self._plan.window
        closed = await self._file.closed_through()
        windows = taken_windows(schedule, now_ms, skew_ms=self._skew_ms, closed_through=closed)
        return Welcome(
            protocol_version=version,
            plan_id=self._plan.id,
            window=schedule.index_at(now_ms),
            now_ms=now_ms,
            oldest_window=windows.start,
            newest_window=max(windows.start, windows.stop - 1),
            in_flight_max=self.in_flight_max,
            delta_bytes_max=self._plan.upload_bytes_max,
        )
