"""The demo: gathers records, runs one mode, compares the release with the truth, writes the results."""

import asyncio
import tempfile
import time
import warnings
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import numpy as np
from typing_extensions import override

from aggregator.store.store import read_sealed
from hushsum import HushsumWarning, query
from hushsum.privacy.guarantee import CENTRAL, LOCAL, SECURE
from hushsum.sketch import Sketch
from hushsum_simulator.data import ExactSums, Floats
from hushsum_simulator.demo.evaluation import Accuracy, asked, draw, in_bulk, measure, reconcile
from hushsum_simulator.demo.local import Local
from hushsum_simulator.demo.mode import Mode, Numbers, Outcome, delivery_numbers
from hushsum_simulator.demo.secure import Secure
from hushsum_simulator.demo.services import Server, open_window, release_window, seal_window
from hushsum_simulator.demo.summary import Summary
from hushsum_simulator.errors import JourneyError
from hushsum_simulator.progress import Progress
from hushsum_simulator.scenario import Material, RunSettings, gather
from hushsum_simulator.testbed.tcp_proxy import TcpProxy


class Central(Mode):
    """A run in which every delta is followed by its id, and every counter is compared."""

    summary = Summary
    _folded: Sketch  # the exact counters that the server has sealed

    @override
    async def run(self, folder: Path) -> Outcome:
        plan, progress = self.plan, self.progress
        async with (
            Server(folder, folder / "plan.json", self.settings.partitions) as server,
            TcpProxy(server.address) as proxy,
        ):
            window = await open_window(server.address)
            fleet, unacknowledged = await self.deliver(server, proxy, folder=folder, window=window)
            await seal_window(window, server.address, progress)
            # The release erases the exact counters.
            folded = await asyncio.to_thread(read_sealed, server.data / "store.db", plan, window)
            if folded is None:
                raise JourneyError(f"window {window} is sealed, but the store contains no sum of it")
            verdicts = await server.verdicts(plan)
            withheld = "too few clients by the plan's test"
            released, release = await release_window(window, server.address, progress, withheld=withheld)
        self._folded = folded
        found, stats = reconcile(fleet.sent, verdicts), [each.stats for each in fleet.ended.values()]
        return Outcome(release, released, stats, delivery_numbers(fleet, unacknowledged, found, server.starts - 1))

    @override
    def compare(self, outcome: Outcome, counted: Material, queries: Floats, exact: Floats) -> tuple[Accuracy, Numbers]:
        bulk, folded = in_bulk(counted), self._folded
        equal = np.array_equal(folded.counters, bulk.counters) and np.array_equal(folded.counts, bulk.counts)
        return measure(outcome.release, bulk, queries, exact), {"counters_equal": equal}


_MODES: Final[Mapping[str, type[Mode]]] = {CENTRAL: Central, SECURE: Secure, LOCAL: Local}


def simulate(settings: RunSettings, progress: Progress) -> Summary:
    """Runs the demo, and writes summary.json, density.png, plan.json and the release to ``settings.out``.

    Raises:
        HushsumError: A step failed, and there is no summary. A run that lost, doubled or changed something does end:
            see :meth:`~hushsum_simulator.Summary.violations`.
    """
    began = time.monotonic()
    material = gather(settings, progress)
    settings.out.mkdir(parents=True, exist_ok=True)
    mode = _MODES[settings.mode](settings, material, progress)
    mode.announce()
    outcome = _run(mode)
    counted = material if outcome.inside is None else material.only(outcome.inside)
    truth = ExactSums(counted.plan, counted.labelled)
    accuracy, numbers = mode.compare(outcome, counted, *asked(counted, truth, progress))
    draw(settings, outcome.release, truth, progress)
    summary = mode.summary(
        seed=settings.seed,
        seconds=time.monotonic() - began,
        **_common_numbers(material, outcome, accuracy),
        **outcome.numbers,
        **numbers,
    )
    (settings.out / "plan.json").write_bytes(material.plan.bundle)
    (settings.out / "summary.json").write_text(summary.to_json(), encoding="utf-8")
    outcome.release.save(settings.out / "release.hush")
    return summary


def _run(mode: Mode) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="hushsum-", ignore_cleanup_errors=True) as name, warnings.catch_warnings():
        warnings.simplefilter("ignore", HushsumWarning)  # the summary says the same
        folder = Path(name)
        (folder / "plan.json").write_bytes(mode.plan.bundle)
        (folder / "spools").mkdir()
        return asyncio.run(mode.run(folder))


def _common_numbers(material: Material, outcome: Outcome, accuracy: Accuracy) -> dict[str, Any]:
    """The fields of a summary that every mode computes the same way."""
    plan, privacy, release, stats = material.plan, material.plan.privacy, outcome.release, outcome.stats
    records = sum(each.records for each in stats)
    return {
        "mode": privacy.mode,
        "records": records,
        "records_dropped": sum(each.records_dropped for each in stats),
        "bytes_per_record": sum(each.bytes_sent for each in stats) / max(records, 1),
        "mean_relative_error": accuracy.mean_relative,
        "expected_relative_error": accuracy.expected_relative,
        "epsilon_spent": float(Fraction(outcome.released.epsilon_spent)),
        "epsilon_left": float(Fraction(outcome.released.epsilon_left)),
        "clients": len(material.shares),
        "queries": accuracy.queries,
        "queries_held_out": len(material.queries),
        "error_floor": accuracy.floor,
        "mean_kernel_sum": accuracy.mean_kernel_sum,
        "noise_std_error": query.noise_std_error(plan, draws=int(release.count) if privacy.reports else release.draws),
        "epsilon": float(privacy.epsilon),
        "delta": float(privacy.delta),
        "unit": privacy.unit,
        "records_per_client": privacy.records_per_client,
        "plan_id": plan.hex_id,
    }
