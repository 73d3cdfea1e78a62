"""Secure mode: clients draw the noise and sum in cohorts; some drop out, and nothing is killed."""

import asyncio
import math
import re
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from typing_extensions import override

import hushsum as hs
from hushsum import query
from hushsum.sketch import Sketch
from hushsum_simulator import plans
from hushsum_simulator.data import Floats
from hushsum_simulator.demo.cohort_fleet import CohortClient, CohortFleet, draw_dropouts
from hushsum_simulator.demo.evaluation import Accuracy, in_bulk, measure, residual_of
from hushsum_simulator.demo.mode import Mode, Numbers, Outcome, require_one_window
from hushsum_simulator.demo.secure_summary import SecureSummary
from hushsum_simulator.demo.services import Server, open_window, release_window, seal_window
from hushsum_simulator.errors import JourneyError
from hushsum_simulator.scenario import Material

_SHOW_S: Final = 0.2
_PATIENCE_S: Final = 60.0
_ROUNDS: Final = re.compile(rb'^hushsum_rounds_total\{outcome="(\w+)"\} ([0-9.e+]+)$', re.MULTILINE)
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
            f"corrupt, {cohort.size - cohort.survivors_min} may vanish, and the noise of {cohort.honest_survivors} is "
            "what counts"
        )
        self.progress.step(
            f"{math.prod(self.plan.counters_shape):,} counters as words of {words.bits} bits: {words.bytes:,} bytes "
            "from each client (central mode's own plan has a million counters: here every client masks and sends them "
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
            raise JourneyError(f"window {window} is released with no submission in it: no round came to its end")
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
        bar = self.progress.bar("clients whose records are hashed, and in their spools", len(fleet.clients))
        work = asyncio.create_task(fleet.add())
        while not work.done():
            await asyncio.wait([work], timeout=_SHOW_S)
            bar(fleet.added)
        work.result()
        self.progress.step(f"{fleet.added} clients hold their records; now all of them take part, and some vanish")

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
                    raise JourneyError(f"nothing has moved for {_PATIENCE_S:.0f} s: {where}")
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
                f"{len(asked)} clients that vanished without an answer have asked afterwards: {counted} of them are "
                "counted"
            )


def _twin(bulk: Sketch) -> Sketch:
    """The same counters under the plan of central mode."""
    plan, scale = plans.central_twin(bulk.plan), bulk.plan.privacy.mechanism.count_scale
    return Sketch.of_counters(plan, bulk.counters, bulk.counts // scale * plan.privacy.mechanism.count_scale)
