"""Secure mode: clients draw the noise and sum in cohorts; some drop out, and nothing is killed."""

import asyncio
import math
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from typing_extensions import override

import hushsum as hs
from edge_client import Counts, EdgeClient
from edge_client.errors import FlushTimeoutError, NotCountedError
from hushsum import query
from hushsum.plan import Plan
from hushsum.secure_sum.client import ClientStep
from hushsum.sketch import Sketch
from hushsum_simulator import plans
from hushsum_simulator.data import ClientRecords, Floats
from hushsum_simulator.demo.evaluation import Accuracy, in_bulk, measure, residual_of
from hushsum_simulator.demo.fleet import Devices, together
from hushsum_simulator.demo.mode import Mode, Numbers, Outcome, require_one_window
from hushsum_simulator.demo.services import Server, open_window, release_window, seal_window
from hushsum_simulator.demo.summary import (
    NOISE_ALONE,
    Check,
    NoisedSummary,
    Row,
    error_ratio,
    percent,
    residual_checks,
    residual_rows,
)
from hushsum_simulator.errors import JourneyError
from hushsum_simulator.progress import ProgressRow, Stage
from hushsum_simulator.scenario import Material
from hushsum_simulator.testbed.tcp_proxy import TcpProxy


@dataclass(frozen=True, kw_only=True)
class SecureSummary(NoisedSummary):
    """The numbers of one run in secure mode, after those of every run.

    Attributes:
        cohort_size: N.
        clients_unspent: Clients that dropped out before their vector, or in no cohort: they sent no vector.
        submissions_counted: Vectors in the sum, by the answers to their clients.
        submissions_lost: Vectors that were spent and are in no sum, by the same answers.
        submissions_asked: Of both, clients that had vanished without an answer: they came back and asked when all
            rounds were over, before the window was sealed.
        stayed_uncounted: Clients that never vanished, and whose records are in no sum.
        vector_bytes: Of one packed vector, by the plan.
        rounds_seconds: From the first client that took part to the last answer.
        central_noise_std_error: The part of its answers' standard error that is noise, in records.
    """

    dropout_rate: float = 0.0
    cohort_size: int = 0
    clients_unspent: int = 0
    submissions_counted: int = 0
    submissions_lost: int = 0
    submissions_asked: int = 0
    stayed_uncounted: int = 0
    vector_bytes: int = 0
    rounds_seconds: float = 0.0
    central_noise_std_error: float = 0.0

    @property
    @override
    def title(self) -> str:
        return "Secure sum of masked vectors"

    @property
    @override
    def all_well(self) -> str:
        return NOISE_ALONE

    @override
    def checks(self) -> Iterable[Check]:
        counted, lost, spent = self.submissions_counted, self.submissions_lost, self.submissions_spent
        of_all = f"of {self.clients} clients {spent} have spent their window and {self.clients_unspent} have not"
        return (
            (
                counted == self.submissions_released,
                f"the release has {self.submissions_released} submissions, but the clients have answers for {counted}",
            ),
            (counted + lost == spent, f"{spent} submissions are spent, but {counted} are counted and {lost} lost"),
            (spent + self.clients_unspent == self.clients, f"{of_all}: these do not add up"),
            (self.stayed_uncounted == 0, f"{self.stayed_uncounted} clients that never dropped out are in no sum"),
            *residual_checks(self.residual, "vector"),
            (self.clients_dropped > 0 or self.dropout_rate == 0, "no client dropped out, so the test proves nothing"),
        )

    @override
    def rows(self) -> Iterable[Row]:
        aborted = "repeated without the clients that had dropped out" if self.rounds_aborted else ""
        beside = self.upload_bytes_per_client / self.vector_bytes - 1 if self.vector_bytes else 0.0
        packed = f"packed; keys, shares and signatures {100 * beside:+.1f} %"
        return [
            ("records", f"{self.records:,}", "only in the spools of their clients"),
            ("clients", f"{self.clients:,}", f"in {self.cohorts} cohorts of up to {self.cohort_size}"),
            ("  dropped", f"{self.clients_dropped}", "dropped out at a step of the round, and did not return"),
            ("submissions spent", f"{self.submissions_spent}", "masked vectors that were sent"),
            ("  counted", f"{self.submissions_counted}", f"the release has {self.submissions_released}"),
            (
                "  lost",
                f"{self.submissions_lost}",
                "spent, but in no sum: disconnected before the whole vector had arrived",
            ),
            ("  asked later", f"{self.submissions_asked}", "of both: dropped out before an answer arrived"),
            ("  never spent", f"{self.clients_unspent}", "dropped out before their vector, or in no cohort"),
            ("rounds aborted", f"{self.rounds_aborted}", aborted),
            ("bytes per client", f"{self.upload_bytes_per_client:,.0f}", "sent: messages and masked vector"),
            ("  of them the vector", f"{self.vector_bytes:,}", packed),
            ("seconds", f"{self.seconds:.1f}", f"the rounds took {self.rounds_seconds:.1f}"),
            *residual_rows(self.residual, "the plan's noise", f"{self.clients} vectors"),
            *self.answer_rows(),
            *self._central_rows(),
            *self.price_rows(),
            *self.ledger_rows(),
        ]

    def _central_rows(self) -> list[Row]:
        """The same records, with one trusted server that adds them and draws the noise."""
        ratio = error_ratio(self, self.central_relative_error)
        beside = "" if ratio is None else f"the error of this release is {ratio:.2f} × as large"
        noise = self.noise_std_error / self.central_noise_std_error if self.central_noise_std_error else 1.0
        why = "every cohort has the whole noise, and some excess" if self.cohorts > 1 else "there is excess noise"
        return [
            ("error, central", percent(self.central_relative_error), beside),
            ("noise, central", f"± {self.central_noise_std_error:,.1f}", f"× {noise:.2f} here: {why}"),
        ]


_LOOK_S: Final = 0.005
_STARTING_MAX: Final = 32  # each fetches the plan
_ASK_S: Final = 30.0  # the rounds are over when a client asks, so that an answer is there
_STAGES: Final = {
    ClientStep.NEW: Stage.WAITING,
    ClientStep.ADVERTISED: Stage.KEYS,
    ClientStep.COUNTING: Stage.GRAPH,
    ClientStep.OPENED: Stage.GRAPH,
    ClientStep.SHARED: Stage.SHARES,
    ClientStep.READY: Stage.SHARES,
    ClientStep.SPENDING: Stage.SHARES,  # not durable yet
    ClientStep.SENT: Stage.UPLOAD,
    ClientStep.CONSENTED: Stage.CONSENT,
    ClientStep.REVEALED: Stage.REVEAL,
    ClientStep.REFUSED: Stage.WAITING,
}
# A client that drops out before its vector costs the others another attempt, of few: as all that drop out at one step
# do so in one round, three such steps are three more attempts.
_BEFORE: Final = (Stage.WAITING, Stage.KEYS, Stage.GRAPH, Stage.SHARES)
_AFTER: Final = (Stage.UPLOAD, Stage.CONSENT, Stage.REVEAL)


def draw_dropouts(clients: Sequence[str], rate: float, seed: int) -> dict[str, Stage]:
    """Draws which clients drop out, and at which step: every other one before it sends its vector.

    The share ``rate``, 0 to below 1, drops out, rounded to a number; the choice is uniform.
    """
    rng = np.random.default_rng([seed, 0x5A11])
    chosen = rng.permutation(len(clients))[: round(rate * len(clients))]
    return {
        clients[index]: Stage(int(rng.choice(_BEFORE if turn % 2 else _AFTER))) for turn, index in enumerate(chosen)
    }


@dataclass(eq=False, repr=False)  # it holds all records
class CohortClient:
    """One client of the fleet.

    Attributes:
        leaves: The step at which it drops out; None if it stays.
        proxy: Its connection goes through it; a client that drops out has a proxy of its own.
        stage: Where it was seen last.
        cohort: The number of its cohort, from 1; 0 until it is in one.
        dropped: Whether its connection was cut before it had an answer.
        asked: Whether it came back after all rounds, and asked for the result of its vector.
        stats: At its end; bytes are those of its first life.
    """

    share: ClientRecords
    leaves: Stage | None
    proxy: TcpProxy
    client: EdgeClient | None = None
    stage: Stage = Stage.ADDING
    cohort: int = 0
    dropped: bool = False
    asked: bool = False
    stats: Counts = field(default_factory=Counts)

    @property
    def is_unanswered(self) -> bool:
        """Whether its window is spent, and it does not know whether its vector counts."""
        answered = self.stats.submissions_counted + self.stats.submissions_lost
        return self.stats.submissions_spent > answered


class CohortFleet:
    """Clients that take part in one window; some of them drop out, see :func:`draw_dropouts`."""

    def __init__(
        self,
        plan: Plan,
        shares: Sequence[ClientRecords],
        dropouts: Mapping[str, Stage],
        *,
        target: str,
        folder: Path,
        time_ms: int,
    ) -> None:
        self._devices = Devices(plan, folder=folder, time_ms=time_ms)
        self._half_vector = plan.words.bytes // 2
        self._target = target
        self._starting = asyncio.Semaphore(_STARTING_MAX)
        self._cohorts: dict[bytes, int] = {}  # by round id: a round that starts again belongs to the same cohort
        self._proxies = AsyncExitStack()
        self._shared = TcpProxy(target)
        self.clients = [CohortClient(share, dropouts.get(share.client_id), self._shared) for share in shares]
        self.added = 0

    @property
    def only_waiting(self) -> bool:
        """Whether all clients that are left wait for a cohort."""
        left = [each.stage for each in self.clients if each.stage < Stage.DONE]
        return bool(left) and set(left) == {Stage.WAITING}

    async def add(self) -> None:
        """Starts every client, and adds all of its records."""
        await self._proxies.enter_async_context(self._shared)
        await together(self._add(each) for each in self.clients)

    async def take_part(self) -> None:
        """Returns when every client that stays has its answer, and the others have dropped out."""
        await together(self._take_part(each) for each in self.clients)

    async def ask(self) -> None:
        """Restarts the clients that have no answer, on their spools: they ask for the result of their vectors.

        The service knows it exactly, and answers as long as their window is open.
        """
        await together(self._ask(each) for each in self.clients if each.is_unanswered)

    async def close(self) -> None:
        """Ends every client; their answers stay in their spools."""
        for each in self.clients:
            await self._end(each)
        await self._proxies.aclose()
        self._devices.close()

    def look(self) -> list[ProgressRow]:
        """How many clients of each cohort are at which step, a row a cohort."""
        for each in self.clients:
            self._place(each)
        rows = []
        for number in sorted({each.cohort for each in self.clients}):
            inside = Counter(each.stage for each in self.clients if each.cohort == number)
            rows.append(ProgressRow(f"cohort {number}" if number else "none yet", inside))
        return rows

    async def _add(self, member: CohortClient) -> None:
        if member.leaves is not None:
            member.proxy = await self._proxies.enter_async_context(TcpProxy(self._target))
        client = self._devices.client(member.share.client_id, member.proxy.address)
        async with self._starting:
            await client.__aenter__()
            member.client = client
            for batch in range(len(member.share.batches)):
                await self._devices.add(client, member.share, batch)
        self.added += 1

    async def _take_part(self, member: CohortClient) -> None:
        assert member.client is not None, "added before"
        work = asyncio.create_task(_flush(member.client))
        try:
            if member.leaves is not None:
                await self._drop_out(member, member.leaves, work)
            else:
                await work
        finally:
            work.cancel()
            with suppress(asyncio.CancelledError):
                await work
        await self._end(member)
        member.stage = Stage.DROPPED if member.dropped else Stage.DONE

    async def _drop_out(self, member: CohortClient, at: Stage, work: "asyncio.Task[None]") -> None:
        """Cuts the connection once the client is at the step or past it; an upload is cut in the middle."""
        limited = False
        while not work.done():
            self._place(member)
            if at is Stage.UPLOAD and member.stage < Stage.CONSENT:
                if member.stage >= Stage.SHARES and not limited:
                    limited = True
                    member.proxy.carry(self._half_vector)
                member.dropped = member.proxy.is_spent
            elif at <= member.stage < Stage.DONE:
                member.proxy.aim(None)
                member.proxy.cut()
                member.dropped = True
            if member.dropped:
                return
            await asyncio.sleep(_LOOK_S)

    async def _ask(self, member: CohortClient) -> None:
        async with self._starting, self._devices.client(member.share.client_id, self._target) as client:
            with suppress(NotCountedError, FlushTimeoutError):  # its stats show it
                await client.flush(_ASK_S)
        member.stats = replace(client.status().counts, bytes_sent=member.stats.bytes_sent)
        member.asked = True

    async def _end(self, member: CohortClient) -> None:
        if member.client is not None:
            client, member.client = member.client, None
            await client.__aexit__(None, None, None)
            member.stats = client.status().counts

    def _place(self, member: CohortClient) -> None:
        if member.client is None or member.stage >= Stage.DONE:
            return
        standing = member.client.status().round
        if standing is None:
            if member.stage < Stage.UPLOAD:  # from then on it is in no other round, and soon has its answer
                member.stage = Stage.WAITING
            return
        member.stage = _STAGES[standing.step]
        if standing.round not in self._cohorts:
            self._cohorts[standing.round] = member.cohort or max(self._cohorts.values(), default=0) + 1
        member.cohort = self._cohorts[standing.round]


async def _flush(client: EdgeClient) -> None:
    with suppress(NotCountedError):  # its stats show it
        await client.flush()


_SHOW_S: Final = 0.2
_PATIENCE_S: Final = 180.0
_ROUNDS: Final = re.compile(rb'^hushsum_rounds_total\{outcome="(\w+)",[^}]*\} ([0-9.e+]+)$', re.MULTILINE)
_SUMMED: Final = b"counted"  # the server's word for a round whose sum counts


class Secure(Mode):
    """A run in which some clients drop out at a step of the round, and stay away."""

    summary = SecureSummary

    @override
    def announce(self) -> None:
        cohort, words = self.plan.privacy.cohort, self.plan.words
        assert cohort is not None, "gathered for secure mode"
        self.progress.step(
            f"{self.settings.clients} clients in cohorts of {cohort.size}: {cohort.corrupt_clients} of each may be "
            f"corrupt, {cohort.size - cohort.survivors_min} may drop out, and the "
            f"guarantee counts the noise of {cohort.honest_survivors}"
        )
        self.progress.step(
            f"{math.prod(self.plan.counters_shape):,} counters as words of {words.bits} bits: {words.bytes:,} bytes "
            "from each client (the plan of mode central has a million counters: here every client masks and sends them "
            "all)"
        )

    @override
    async def run(self, folder: Path) -> Outcome:
        plan, progress, settings = self.plan, self.progress, self.settings
        shares = self.material.shares
        require_one_window(plan, time.time_ns() // 1_000_000)
        dropouts = draw_dropouts([share.client_id for share in shares], settings.dropout_rate, settings.seed)
        async with Server(folder, folder / "plan.json", settings.partitions) as server:
            window = await open_window(server.address)
            time_ms = plan.window.start_ms(window)
            fleet = CohortFleet(
                plan, shares, dropouts, target=server.address, folder=folder / "spools", time_ms=time_ms
            )
            try:
                await self._add(fleet)
                began = time.monotonic()
                await self._rounds(fleet, server)
                rounds_s = time.monotonic() - began
                await self._ask(fleet)
            finally:
                await fleet.close()
            rounds = _ROUNDS.findall(await server.metrics_page())
            await seal_window(window, server.address, progress)
            released, release = await release_window(
                window, server.address, progress, withheld="as no secure window is"
            )
        if not release.submissions:
            raise JourneyError(f"window {window} was released without a submission: no round was completed")
        inside = {each.share.client_id for each in fleet.clients if each.stats.submissions_counted}
        numbers = self._client_numbers(fleet.clients)
        numbers["rounds_aborted"] = sum(int(float(count)) for outcome, count in rounds if outcome != _SUMMED)
        numbers["rounds_seconds"] = rounds_s
        return Outcome(release, released, [each.stats for each in fleet.clients], numbers, frozenset(inside))

    @override
    def compare(self, outcome: Outcome, counted: Material, queries: Floats, exact: Floats) -> tuple[Accuracy, Numbers]:
        plan, release = self.plan, outcome.release
        residual = residual_of(self.material, release, counted.shares)
        bulk = in_bulk(counted)
        twin = _twin(bulk)
        return measure(release, bulk, queries, exact), {
            "cohorts": release.cohorts or 0,
            "cohort_size": 0 if plan.privacy.cohort is None else plan.privacy.cohort.size,
            "submissions_released": release.submissions or 0,
            **asdict(residual),
            "vector_bytes": plan.words.bytes,
            "central_relative_error": measure(hs.release(twin), twin, queries, exact).mean_relative,
            "central_noise_std_error": query.noise_std_error(twin.plan),
        }

    def _client_numbers(self, clients: Sequence[CohortClient]) -> dict[str, Any]:
        """The fields of a summary that the clients know."""
        stats = [each.stats for each in clients]
        uploads = [each.bytes_sent for each in stats if each.submissions_counted]
        return {
            "dropout_rate": self.settings.dropout_rate,
            "clients_dropped": sum(each.dropped for each in clients),
            "submissions_spent": sum(each.submissions_spent for each in stats),
            "upload_bytes_per_client": sum(uploads) / max(len(uploads), 1),
            "clients_unspent": sum(not each.submissions_spent for each in stats),
            "submissions_counted": sum(each.submissions_counted for each in stats),
            "submissions_lost": sum(each.submissions_lost for each in stats),
            "submissions_asked": sum(each.asked for each in clients),
            "stayed_uncounted": sum(not (each.dropped or each.stats.submissions_counted) for each in clients),
        }

    async def _add(self, fleet: CohortFleet) -> None:
        bar = self.progress.bar("clients with hashed records in their spools", len(fleet.clients))
        work = asyncio.create_task(fleet.add())
        while not work.done():
            await asyncio.wait([work], timeout=_SHOW_S)
            bar(fleet.added)
        work.result()
        self.progress.step(f"{fleet.added} clients have stored their records; now all participate, and some drop out")

    async def _rounds(self, fleet: CohortFleet, server: Server) -> None:
        """Shows the rounds, and ends them when nothing moves any more."""
        board = self.progress.board()
        work = asyncio.create_task(fleet.take_part())
        rows, moved = fleet.look(), time.monotonic()
        try:
            while not work.done():
                await asyncio.wait([work], timeout=_SHOW_S)
                server.check_running()
                if (now := fleet.look()) != rows:
                    rows, moved = now, time.monotonic()
                    board(rows)
                elif time.monotonic() - moved > _PATIENCE_S:
                    if fleet.only_waiting:
                        return  # too few are left for another cohort: they would try until their window is over
                    where = "; ".join(map(str, rows))
                    raise JourneyError(f"no progress for {_PATIENCE_S:.0f} s: {where}")
            work.result()
            board(fleet.look())
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)

    async def _ask(self, fleet: CohortFleet) -> None:
        """Completes the clients' knowledge: what the release will hold is known exactly before it is drawn."""
        await fleet.ask()
        if asked := [each.stats for each in fleet.clients if each.asked]:
            counted = sum(stats.submissions_counted for stats in asked)
            self.progress.step(
                f"{len(asked)} clients that had dropped out without an answer asked afterwards: {counted} of them are "
                "counted"
            )


def _twin(bulk: Sketch) -> Sketch:
    """The same counters under the plan of central mode."""
    return bulk.under(plans.central_twin(bulk.plan))
