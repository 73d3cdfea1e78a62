"""What the tests of a shuffler share: plans, batches, an aggregator's end of the wire, crashes."""

import shutil
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from aggregator.ingest.group_commit import CommitLimits
from aggregator.observability.metrics import Metrics
from aggregator.rate_limits import RateLimits
from aggregator.shuffler.forwarder import Forwarder, ShufflerMetrics, Upstream, UpstreamError
from aggregator.shuffler.intake import Intake, PoolWriter
from aggregator.shuffler.reports_file import OutgoingBatch, ReportsFile, TakenBatch
from hushsum.delta import DeltaId
from hushsum.entropy import Entropy, OsEntropy
from hushsum.errors import Reason
from hushsum.labels import SHUFFLED
from hushsum.local.report_batch import ReportBatch, unpack
from hushsum.plan import Plan
from hushsum.signing import SigningKey
from hushsum_proto.answers import Answer, Refusal, ServiceReason, Status
from tests.doubles import ManualRuntime
from tests.plans import small_plan

KEY = SigningKey(bytes(range(32)))
FILE = "shuffler.db"
LEAST = 20


def shuffled_plan(least: int = LEAST, **changes: Mapping[str, object]) -> Plan:
    """Reports through a shuffler, in windows of ten seconds and a lateness of as many."""
    local = {"shuffle_min": least, **changes.pop("local", {})}
    privacy = {"mode": "local", "delta": "0.000001", "total_delta": "0.001", "local": local}
    window = {"length": "10s", "lateness": "10s", **changes.pop("window", {})}
    return small_plan(privacy={**privacy, **changes.pop("privacy", {})}, window=window, **changes)


PLAN = shuffled_plan()


def packed(reports: Iterable[int], *, window: int, stream: int, plan: Plan = PLAN) -> bytes:
    """A batch as a device sends it."""
    return ReportBatch(plan.id, window, DeltaId(stream, 0), np.fromiter(reports, np.int64)).pack(plan)


def taken(reports: Iterable[int], *, window: int, stream: int, plan: Plan = PLAN) -> TakenBatch:
    """A batch as it comes to the file."""
    data = packed(reports, window=window, stream=stream, plan=plan)
    return TakenBatch(window, stream.to_bytes(8, "big"), data, unpack(data, plan).reports)


async def opened(folder: Path, runtime: ManualRuntime, entropy: Entropy | None = None) -> ReportsFile:
    return await ReportsFile.open(folder / FILE, runtime, entropy or OsEntropy())


def bytes_in(folder: Path) -> bytes:
    """All that stands in the files of a folder."""
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file())


class Counting(Upstream):
    """The aggregator's end of the wire: checks signatures, counts each stream once, and fails when it is told to.

    Attributes:
        reports: What it has counted, by window.
        sent: By stream, every copy that came.
        down: While set, nothing is answered.
        answer: What it says in place of counting, where it is set.
        loses_answers: How many of the next answers are lost after the batch was counted.
    """

    def __init__(self, plan: Plan = PLAN) -> None:
        self._plan = plan
        self.reports: dict[int, Counter[int]] = {}
        self.sent: dict[bytes, list[bytes]] = {}
        self.down = False
        self._counted: set[bytes] = set()
        self.answer: Answer | None = None
        self.loses_answers = 0

    async def submit(self, plan_id: bytes, outgoing: OutgoingBatch) -> Answer:
        if self.down:
            raise UpstreamError("nobody is there")
        assert plan_id == self._plan.id
        assert KEY.verify_key.verifies(outgoing.tag, SHUFFLED, outgoing.batch)
        batch = unpack(outgoing.batch, self._plan)
        copies = self.sent.setdefault(outgoing.stream, [])
        copies.append(outgoing.batch)
        if self.answer is not None:
            return self.answer
        if outgoing.stream not in self._counted:
            self._counted.add(outgoing.stream)
            self.reports.setdefault(batch.window, Counter()).update(batch.reports.tolist())
        if self.loses_answers:
            self.loses_answers -= 1
            raise UpstreamError("the answer was lost")
        return Answer(batch.id, Status.ACKNOWLEDGED)

    def sizes(self) -> list[int]:
        """How many reports were in each batch."""
        return [len(unpack(copies[0], self._plan).reports) for copies in self.sent.values()]


class Site:
    """The inner half of a shuffler on a folder: intake, file and forwarder, around a double of the aggregator."""

    def __init__(self, file: ReportsFile, receiver: Counting, runtime: ManualRuntime, plan: Plan = PLAN) -> None:
        self.file, self.receiver, self.runtime, self.plan = file, receiver, runtime, plan
        self.metrics = Metrics()
        self.window = plan.window.index_at(runtime.now_ms())
        limits = CommitLimits(100, 1 << 20, 64, 1 << 20)
        rates = RateLimits(1000.0, 1_000_000)
        writer = PoolWriter(plan, file, runtime, self.metrics, limits)
        self.intake = Intake(plan, writer, rates=rates, runtime=runtime, metrics=self.metrics, skew_ms=0)
        self.forwarder = Forwarder(
            plan,
            file,
            receiver,
            key=KEY,
            entropy=OsEntropy(),
            runtime=runtime,
            metrics=ShufflerMetrics(self.metrics.registry),
        )

    async def turn(self) -> bool:
        """All that the loops do at this moment."""
        await self.forwarder.close_windows()
        done = await self.forwarder.send()
        await self.forwarder.erase()
        return done

    def outcomes(self, outcome: str) -> float:
        value = self.metrics.registry.get_sample_value("hushsum_shuffler_windows_total", {"outcome": outcome})
        assert value is not None
        return value


def copied(folder: Path, to: Path) -> Path:
    """The files of a folder as a kill would leave them: nobody has closed anything."""
    return Path(shutil.copytree(folder, to))


BUSY = Answer(None, Status.REFUSED, Refusal.of(ServiceReason.UNAVAILABLE, "a moment"))
UNKNOWN_KEY = Answer(None, Status.REFUSED, Refusal.of(Reason.UNSHUFFLED, "no such key"))
LATE = Answer(None, Status.LATE)
