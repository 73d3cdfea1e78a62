"""Local mode: clients randomise each record, or noise their sum; server and shuffler are killed.

A shuffler stands between clients and server if the plan asks for one. Whether a service keeps the names of clients is
checked at the end: every byte of its files, output and metrics is searched for them.
"""

import asyncio
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from typing_extensions import override

import hushsum as hs
from aggregator.shuffler.reports_file import close_ms
from hushsum.plan import Plan
from hushsum_simulator.data import Floats
from hushsum_simulator.demo.evaluation import (
    Accuracy,
    Residual,
    compare,
    in_bulk,
    measure,
    reconcile_number,
    residual_of,
)
from hushsum_simulator.demo.fleet import EndedClient, Fleet
from hushsum_simulator.demo.mode import Mode, Numbers, Outcome, delivery_numbers, require_one_window
from hushsum_simulator.demo.services import (
    Server,
    Service,
    Shuffler,
    make_shuffler_key,
    open_window,
    release_window,
    seal_window,
)
from hushsum_simulator.demo.summary import (
    NOISE_ALONE,
    Check,
    NoisedSummary,
    Row,
    error_ratio,
    percent,
    residual_checks,
    residual_rows,
    upper_numeral,
)
from hushsum_simulator.errors import JourneyError, SettingsConflictError
from hushsum_simulator.plans import CENTRAL_SIZES, central_twin_of_local
from hushsum_simulator.scenario import Material
from hushsum_simulator.testbed.tcp_proxy import TcpProxy

_ROUNDING: Final = 1e-5  # both are reported in six digits
_ERROR_MAX: Final = 6.0  # times what was expected: errors at queries near each other are correlated
_COPIES: Final = "copies of messages that were durable before the kill"


@dataclass(frozen=True, kw_only=True)
class LocalSummary(NoisedSummary):
    """The numbers of one run in local mode, after those of every run.

    Attributes:
        form: ``report`` or ``silo``.
        randomiser: Of reports; empty for ``silo``.
        sketch: The shape of the plan's counters, for people.
        shuffle_min: The plan's; 0: no shuffler.
        shuffler_restarts: How often it was killed and started again.
        shuffled_batches: Batches that left it.
        amplified_epsilon: Of the release; None where nothing is proven, and without a shuffler.
        amplified_delta: The δ at which that holds.
        reports_sent: Reports that devices made, of unusable records too.
        reports_acknowledged: Of those, the reports of devices that have all acknowledgements.
        reports_counted: The release's own exact number.
        report_bytes_max: The bound on it: ⌈log2(R·K)/8⌉ + 1.
        submissions_acknowledged: Noised sums that silos know to be durable.
        submission_bytes: Of one noised sum, packed.
        names_found: Clients with their name in a file, the output or the metrics of a service.
        names_control: Whether the same search found what is known to be there.
        account_spent: The largest ε that a device's own account has spent.
        account_left: The smallest that one has left.
    """

    form: str = "report"
    randomiser: str = ""
    sketch: str = ""
    shuffle_min: int = 0
    shuffler_restarts: int = 0
    shuffled_batches: int = 0
    amplified_epsilon: float | None = None
    amplified_delta: float = 0.0
    reports_sent: int = 0
    reports_acknowledged: int = 0
    reports_counted: int = 0
    report_bytes: int = 0
    report_bytes_max: int = 0
    submissions_acknowledged: int = 0
    submission_bytes: int = 0
    names_found: int = 0
    bytes_searched: int = 0
    names_control: bool = False
    account_spent: float = 0.0
    account_left: float = 0.0
    central_sketch: str = ""

    @property
    def is_silo(self) -> bool:
        return self.form != "report"

    @property
    @override
    def title(self) -> str:
        return "Records that stay on their devices"

    @property
    @override
    def all_well(self) -> str:
        if self.is_silo:
            return NOISE_ALONE
        return "Nothing was lost, nothing was counted twice, and the service stored the sender of no report."

    @property
    def reports_lost(self) -> int:
        """Acknowledged, and not in the release."""
        return max(0, self.reports_acknowledged - self.reports_counted)

    @property
    def reports_doubled(self) -> int:
        """In the release, and never acknowledged: counted twice, or sent by no device."""
        return max(0, self.reports_counted - self.reports_acknowledged)

    @override
    def checks(self) -> Iterator[Check]:
        yield from self._silo_checks() if self.is_silo else self._report_checks()
        what, expected = "submissions" if self.is_silo else "batches", self.expected_relative_error
        yield self.deltas_lost == 0, f"{self.deltas_lost} {what} were lost: sent, and not counted"
        yield self.deltas_double_counted == 0, f"{self.deltas_double_counted} {what} were counted twice"
        yield self.restarts > 0, "the server was never killed, so the test proves nothing"
        yield self.kill_led_to_resends, f"none of the {what} was resent, so the kill tested nothing"
        yield self.duplicates_dropped > 0, "no duplicate arrived at the server, so the kill tested nothing"
        yield (
            abs(self.account_spent - self.epsilon_spent) <= _ROUNDING * self.epsilon,
            f"the ledger shows ε = {self.epsilon_spent:g} spent, a device ledger {self.account_spent:g}",
        )
        yield self.epsilon_spent <= self.epsilon, f"more than ε = {self.epsilon:g} is spent"
        yield self.epsilon_spent > 0, "nothing was spent by the population's ledger"
        if self.mean_relative_error is not None and expected is not None:
            yield (
                self.mean_relative_error <= _ERROR_MAX * expected,
                f"the relative error is {self.mean_relative_error:.3g}, expected {expected:.3g}",
            )

    def _report_checks(self) -> Iterator[Check]:
        sent, known, counted = self.reports_sent, self.reports_acknowledged, self.reports_counted
        yield known == sent, f"{known:,} of {sent:,} reports were acknowledged"
        yield counted >= known, f"{self.reports_lost:,} reports were lost: acknowledged, but not in the release"
        yield counted <= known, f"{self.reports_doubled:,} reports were counted twice, or were never sent"
        yield (
            self.report_bytes <= self.report_bytes_max,
            f"a report has {self.report_bytes} bytes, and may have {self.report_bytes_max}",
        )
        yield self.names_found == 0, f"{self.names_found} names of clients are in the data or output of the service"
        yield self.names_control, "the search for names did not find a known string, so it proves nothing"
        if self.shuffle_min:
            yield self.shuffler_restarts > 0, "the shuffler was never killed, so the test proves nothing"
            yield self.shuffled_batches > 0, "no batch left the shuffler"

    def _silo_checks(self) -> Iterator[Check]:
        known, released = self.submissions_acknowledged, self.submissions_released
        yield (
            known == self.clients,
            f"{self.clients} clients submit, and {known} have the answer that theirs is counted",
        )
        yield released == known, f"the release has {released} submissions, but the clients have answers for {known}"
        yield from residual_checks(self.residual, "sum")

    @override
    def rows(self) -> Iterable[Row]:
        ratio = error_ratio(self, self.central_relative_error)
        beside = "" if ratio is None else f"; this release errs × {ratio:.1f} as much"
        server = f"one trusted server, {self.central_sketch}{beside}"
        return [
            *(self._silo_rows() if self.is_silo else self._report_rows()),
            *self.answer_rows(),
            ("error, central", percent(self.central_relative_error), server),
            *self.ledger_rows(),
            *self._account_rows(),
        ]

    def _report_rows(self) -> list[Row]:
        unusable = f"{self.records_dropped:,} more could not be used: each sent a uniformly random report"
        searched = f"in {self.bytes_searched / 1e6:,.1f} MB of files, output and metrics, while it ran and after"
        return [
            ("records", f"{self.records:,}", unusable if self.records_dropped else f"of {self.clients:,} clients"),
            ("reports sent", f"{self.reports_sent:,}", f"one for each record, {self.randomiser}, {self.sketch}"),
            ("  acknowledged", f"{self.reports_acknowledged:,}", "acknowledged to their devices"),
            ("  counted", f"{self.reports_counted:,}", "exact number in the release"),
            ("  lost", f"{self.reports_lost:,}", ""),
            ("  double counted", f"{self.reports_doubled:,}", ""),
            ("batches sent", f"{self.deltas_sent:,}", "each with a random id and without a name"),
            ("  sent again", f"{self.deltas_resent:,}", "after the kill, because no answer had arrived"),
            *self._restart_rows(),
            ("bytes per record", f"{self.bytes_per_record:.2f}", "packed, with batches' headers and resends"),
            ("  of a report", f"{self.report_bytes}", f"a report alone; the limit is {self.report_bytes_max}"),
            ("seconds", f"{self.seconds:.1f}", ""),
            ("clients' names found", f"{self.names_found:,}", searched),
        ]

    def _restart_rows(self) -> list[Row]:
        killed = f"SIGKILL; durable batches without an acknowledgement: {self.unacknowledged_at_kill}"
        if not self.shuffle_min:
            return [
                ("  duplicates dropped", f"{self.duplicates_dropped:,}", _COPIES),
                ("restarts", f"{self.restarts}", killed),
            ]
        return [
            ("shuffler restarts", f"{self.shuffler_restarts}", killed),
            ("  batches shuffled", f"{self.shuffled_batches}", f"of at least {self.shuffle_min:,} reports each"),
            ("server restarts", f"{self.restarts}", "SIGKILL with a shuffled batch that it had not answered"),
            ("  duplicates dropped", f"{self.duplicates_dropped}", "the shuffler sent the same bytes again"),
        ]

    def _silo_rows(self) -> list[Row]:
        killed = f"SIGKILL; durable submissions without an acknowledgement: {self.unacknowledged_at_kill}"
        average = self.deltas_sent and f"{self.records / self.deltas_sent:,.0f} records each, on average"
        records = self.dropped or f"only in the spools of {self.clients:,} clients"
        names = "in the service's files: participation is not hidden, and each client submits once"
        return [
            ("records", f"{self.records:,}", records),
            ("submissions sent", f"{self.deltas_sent:,}", f"noised sums, {self.sketch}; of {average}"),
            (
                "  sent again",
                f"{self.deltas_resent:,}",
                "after the kill, because no answer had arrived; the same bytes",
            ),
            ("  duplicates dropped", f"{self.duplicates_dropped:,}", _COPIES),
            ("  acknowledged", f"{self.submissions_acknowledged:,}", f"the release has {self.submissions_released}"),
            ("  lost", f"{self.deltas_lost:,}", ""),
            ("  double counted", f"{self.deltas_double_counted:,}", ""),
            ("bytes per client", f"{self.submission_bytes:,}", "a noised sum, with any number of records"),
            ("bytes per record", f"{self.bytes_per_record:,.0f}", "resends too"),
            ("restarts", f"{self.restarts}", killed),
            ("seconds", f"{self.seconds:.1f}", ""),
            *residual_rows(self.residual, "all clients' noise", f"{self.clients}"),
            ("clients' names found", f"{self.names_found:,}", names),
        ]

    def _account_rows(self) -> list[Row]:
        """What devices have spent by their own accounts, and the guarantee behind a shuffler."""
        own = f"at most, by a device ledger, which has {self.account_left:g} left"
        rows = [("  of a device", f"{self.account_spent:g}", own)]
        if not self.shuffle_min:
            return rows
        least = f"{self.shuffle_min:,}"
        if self.amplified_epsilon is None:
            return [*rows, ("ε, shuffled", "none", f"{least} reports are too few to prove a smaller ε")]
        delta = upper_numeral(self.amplified_delta)
        who = f"δ = {delta}, against observers after the shuffler, if {least} reports are honest"
        return [*rows, ("ε, shuffled", f"{self.amplified_epsilon:.3g}", who)]


# What a fleet needs that is killed half way, in starts of a process: these show how busy the machine is.
_SPARE_STARTS: Final = 6
_SPARE_S: Final = (15.0, 90.0)
_WAIT_MAX_MS: Final = 120_000
_LOOK_S: Final = 0.1
_PATIENCE_S: Final = 180.0
_CONTROL: Final = 256  # bytes of the plan: of a longer text SQLite may keep the parts in different places


class Local(Mode):
    """A run over fleet → proxy → (shuffler → proxy →) server; the server and the shuffler are killed."""

    summary = LocalSummary

    @override
    def announce(self) -> None:
        plan, sizes = self.plan, self.plan.report_sizes
        local, mechanism = plan.privacy.local, plan.privacy.mechanism
        if sizes is None:
            size = math.prod(plan.counters_shape)
            self.progress.step(
                f"{size:,} counters, each with separate noise on every client: {plan.words.bytes:,} bytes from each"
            )
            return
        self.progress.step(
            f"{_shape(plan)}; a record becomes one of {sizes.rows * sizes.outputs:,} values, in {sizes.width} bytes, "
            f"each at most {float(mechanism.scale):.6g} times as likely as for another record ({mechanism.name})"
        )
        if local is not None and local.shuffle_min:
            self.progress.step(
                f"a shuffler before the server forwards batches of at least {local.shuffle_min:,} reports"
            )

    @override
    async def run(self, folder: Path) -> Outcome:
        plan, progress = self.plan, self.progress
        async with AsyncExitStack() as stack:
            key = make_shuffler_key(folder) if plan.privacy.shuffle_min else None
            settings = {} if key is None else {"shufflers": str(key)}
            server, began = Server(folder, folder / "plan.json", self.settings.partitions, settings), time.monotonic()
            await stack.enter_async_context(server)
            started_s = time.monotonic() - began
            behind = await stack.enter_async_context(TcpProxy(server.address))
            shuffler = None if key is None else Shuffler(folder, key, behind.address)
            if shuffler is not None:
                await stack.enter_async_context(shuffler)
            front = shuffler or server
            proxy = await stack.enter_async_context(TcpProxy(front.address))
            window = await self._window(server, started_s, shuffled=shuffler is not None)
            fleet, unacknowledged = await self.deliver(front, proxy, folder=folder, window=window)
            shuffled, batches = None, 0
            if shuffler is not None:
                shuffled = shuffler.durable()
                batches = await self._forward(shuffler, behind, server, self._batch_bytes(fleet))
            services = [server] if shuffler is None else [shuffler, server]
            searched = await self._search(services)
            await seal_window(window, server.address, progress)
            withheld = "fewer submissions than the plan's minimum"
            released, release = await release_window(window, server.address, progress, withheld=withheld)
            verdicts = await server.verdicts(plan)
            searched |= await self._search(services)
            for each in services:
                await each.stop()
            searched |= await self._search(services, running=False)
        found = reconcile_number(fleet.totals.spooled, verdicts, shuffled=shuffled)
        numbers = {
            **delivery_numbers(fleet, unacknowledged, found, server.starts - 1),
            **_client_numbers(list(fleet.ended.values())),
            "shuffler_restarts": 0 if shuffler is None else shuffler.starts - 1,
            "shuffled_batches": batches,
            "names_found": len(searched.names),
            "bytes_searched": searched.bytes,
            "names_control": searched.control,
        }
        return Outcome(release, released, [each.stats for each in fleet.ended.values()], numbers)

    @override
    def compare(self, outcome: Outcome, counted: Material, queries: Floats, exact: Floats) -> tuple[Accuracy, Numbers]:
        plan, release, amplified = self.plan, outcome.release, outcome.release.amplified
        local, reports, sizes = plan.privacy.local, plan.privacy.reports, plan.report_sizes
        assert local is not None, "gathered for local mode"
        own_sizes = CENTRAL_SIZES if self.settings.plan is None and plan.family.name == "hashed" else {}
        twin = in_bulk(replace(counted, plan=central_twin_of_local(plan, own_sizes)))
        answer = release.kernel_sum(queries)
        residual = Residual() if reports else residual_of(counted, release, counted.shares)
        return compare(answer.value, answer.std_error, exact, twin.records), {
            "form": local.form,
            "randomiser": local.randomiser or "",
            "sketch": _shape(plan),
            "shuffle_min": local.shuffle_min,
            "amplified_epsilon": None if amplified is None else float(amplified.epsilon),
            "amplified_delta": 0.0 if amplified is None else float(amplified.delta),
            "reports_counted": int(release.count) if reports else 0,
            "report_bytes": 0 if sizes is None else sizes.width,
            "report_bytes_max": 0 if reports is None else reports.bytes_max,
            "submissions_released": release.submissions or 0,
            "submission_bytes": 0 if reports else plan.words.bytes,
            **asdict(residual),
            "central_relative_error": measure(hs.release(twin), twin, queries, exact).mean_relative,
            "central_sketch": _shape(twin.plan),
        }

    async def _window(self, server: Server, started_s: float, *, shuffled: bool) -> int:
        """The window of all records, where a process has just taken so long to start."""
        now_ms = time.time_ns() // 1_000_000
        if shuffled:
            return window_to_shuffle(self.plan, now_ms, started_s)
        if self.plan.privacy.is_silo:
            require_one_window(self.plan, now_ms)
        return await open_window(server.address)

    def _batch_bytes(self, fleet: Fleet) -> int:
        """Bytes of the reports in each batch that leaves the shuffler."""
        sizes = self.plan.report_sizes
        assert sizes is not None, "of reports"
        reports = sum(each.stats.reports for each in fleet.ended.values())
        return sizes.width * (reports // max(1, -(-reports // sizes.records_max)))

    async def _forward(self, shuffler: Shuffler, behind: TcpProxy, server: Server, size: int) -> int:
        """Lets the shuffler forward, kills the server with the first batch, and returns the number of batches."""
        progress = self.progress
        progress.step("the shuffler has all batches; it waits for the window's end and half of the lateness")
        waiting = progress.bar("the window's end", None)
        behind.hold_replies(size)
        services = (server, shuffler)
        await _until(lambda: not shuffler.pooled(), services, math.inf, "")
        waiting(1)
        batches = shuffler.waiting()
        await _until(lambda: server.durable() > 0, services, _PATIENCE_S, "the server has no batch of the shuffler")
        await server.kill()
        behind.aim(None)
        behind.cut()
        progress.step(f"the window is cut into {batches} batches; killed the server with the first, unacknowledged")
        await server.start()
        behind.aim(server.address)
        behind.release_replies()
        await _until(lambda: not shuffler.waiting(), services, _PATIENCE_S, "the shuffler still has batches")
        progress.step("restarted it; the shuffler has sent the same bytes again, and has all answers")
        return batches

    async def _search(self, services: Iterable[Service], *, running: bool = True) -> "Searched":
        """Searches each service's files and output, and its metrics page while it runs."""
        names = [share.client_id for share in self.material.shares]
        found = Searched(frozenset(), 0, control=True)
        for each in services:
            page = await each.metrics_page() if running else b""
            paths = [each.data, each.output]
            found |= await asyncio.to_thread(search, paths, names, self.plan.bundle[:_CONTROL], page=page)
        return found


def _client_numbers(clients: Sequence[EndedClient]) -> dict[str, Any]:
    """The fields of a summary that the clients know."""
    accounts = [each.account for each in clients if each.account is not None]
    return {
        "reports_sent": sum(each.stats.reports for each in clients),
        "reports_acknowledged": sum(each.stats.reports for each in clients if each.is_acknowledged),
        "submissions_acknowledged": sum(each.stats.submissions_counted for each in clients),
        "account_spent": max((float(each.spent.epsilon) for each in accounts), default=0.0),
        "account_left": min((float(each.left.epsilon) for each in accounts), default=0.0),
    }


async def _until(done: Callable[[], bool], services: Sequence[Service], patience_s: float, otherwise: str) -> None:
    """Returns once it is done.

    Raises:
        JourneyError: Not within this time; the text begins with ``otherwise``.
        ServerError: A service has ended.
    """
    deadline = time.monotonic() + patience_s
    while not done():
        for each in services:
            each.check_running()
        if time.monotonic() > deadline:
            raise JourneyError(f"{otherwise} after {patience_s:.0f} s")
        await asyncio.sleep(_LOOK_S)


def window_to_shuffle(plan: Plan, now_ms: int, started_s: float) -> int:
    """The first window whose cut leaves the fleet enough time, where a process takes so long to start.

    Raises:
        SettingsConflictError: It is too far away.
    """
    schedule, window = plan.window, plan.window.index_at(now_ms)
    least, most = _SPARE_S
    spare_ms = 1000 * min(most, max(least, _SPARE_STARTS * started_s))
    while close_ms(schedule, window) < now_ms + spare_ms:
        window += 1
    wait_ms = close_ms(schedule, window) - now_ms
    if wait_ms > _WAIT_MAX_MS:
        raise SettingsConflictError(
            f"a shuffler forwards after the end of a window, and the plan's next window ends in {wait_ms / 60_000:.0f} "
            'minutes: use windows of seconds, such as window.length = "10s" and window.lateness = "8s"'
        )
    return window


@dataclass(frozen=True)
class Searched:
    """The result of a search for clients' names.

    Attributes:
        bytes: Size of all that was searched.
        control: Whether bytes that are known to be there were found: if not, the search is worth nothing.
    """

    names: frozenset[str]
    bytes: int
    control: bool

    def __or__(self, other: "Searched") -> "Searched":
        return Searched(self.names | other.names, self.bytes + other.bytes, self.control and other.control)


def search(paths: Iterable[Path], names: Collection[str], control: bytes, *, page: bytes = b"") -> Searched:
    """Searches files, and all files of folders, for names in UTF-8.

    A file that vanishes meanwhile is left out. The bytes ``control`` are known to be in one of the files; those of
    ``page`` are searched, too.
    """
    found: set[str] = set()
    size, controlled = 0, False
    for content in (*_contents(paths), page):
        size += len(content)
        controlled = controlled or control in content
        found |= {name for name in names if name.encode() in content}
    return Searched(frozenset(found), size, controlled)


def _contents(paths: Iterable[Path]) -> Iterable[bytes]:
    for path in paths:
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file():
                try:
                    yield file.read_bytes()
                except FileNotFoundError:  # a write-ahead log whose last connection was closed
                    continue


def _shape(plan: Plan) -> str:
    """The shape of the plan's counters, for people."""
    fields = plan.family.to_fields()
    if "buckets" in fields:
        return f"{fields['rows']:,} rows of {fields['buckets']:,} buckets"
    return f"{fields.get('rows', 0):,} rows, {plan.family.name}"
