"""Rounds of load under faults, on processes of this machine: two of each role, Kafka and PostgreSQL.

In each round a window is filled, sealed and released, and every delta is checked. The seed determines which process is
killed or paused, when, and for how long. The last line reports what was lost and what was counted twice.
"""

import asyncio
import json
import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from hushsum.plan import Plan
from hushsum.releases import Release
from hushsum_proto.messages import ReleaseInfo
from hushsum_simulator.demo.services import Operator
from hushsum_simulator.deployment.prepare import Say
from hushsum_simulator.deployment.senders import SenderFleet
from hushsum_simulator.deployment.verdicts import VerdictTally, by_id, read_from_release
from hushsum_simulator.errors import JourneyError, ServerError
from hushsum_simulator.testbed.kafka import KafkaBroker, missing_java
from hushsum_simulator.testbed.postgres import PostgresServer, missing_postgres
from hushsum_simulator.testbed.process import ServerProcess, free_port, is_listening, last_line

_DOWN_S_MAX: Final = 1.5
_PAUSED_S: Final = (0.3, 5.0)  # often longer than the leases of the run


class Means(StrEnum):
    """What a fault does to a process."""

    KILL = "kill -9"
    PAUSE = "SIGSTOP"


@dataclass(frozen=True)
class Strike:
    """One fault.

    Attributes:
        after_s: Since the start of the round.
        for_s: Until the process is started again, or continues.
    """

    victim: str
    means: Means
    after_s: float
    for_s: float

    def __str__(self) -> str:
        return f"{self.victim} {self.means} at {self.after_s:.1f} s for {self.for_s:.1f} s"

    async def carry_out(self, victim: ServerProcess) -> None:
        await asyncio.sleep(self.after_s)
        if not victim.is_running:
            return  # it ended by itself, which the run reports
        if self.means is Means.KILL:
            await asyncio.to_thread(victim.kill)
            await asyncio.sleep(self.for_s)
            await asyncio.to_thread(victim.start)
        else:
            await asyncio.to_thread(victim.pause)
            try:
                await asyncio.sleep(self.for_s)
            finally:
                await asyncio.to_thread(victim.resume)


class StrikeSampler:
    """Draws every victim with every means once, in random order, and then all of them again."""

    def __init__(self, victims: Sequence[str], seed: int) -> None:
        self._victims = list(victims)
        self._random = random.Random(seed)
        self._undrawn: list[tuple[str, Means]] = []

    def strikes(self, count: int, within_s: float) -> list[Strike]:
        """This many strikes on different victims, at random moments of this time, in their order."""
        assert count <= len(self._victims), "each at most once"
        drawn: dict[str, Means] = {}
        kept: list[tuple[str, Means]] = []
        while len(drawn) < count:
            if not self._undrawn:
                self._undrawn = [(victim, means) for victim in self._victims for means in Means]
                self._random.shuffle(self._undrawn)
            victim, means = self._undrawn.pop()
            if victim in drawn:
                kept.append((victim, means))
            else:
                drawn[victim] = means
        self._undrawn += kept  # they come first the next time
        strikes = [
            Strike(victim, means, self._random.uniform(0, within_s), self._for_s(means))
            for victim, means in drawn.items()
        ]
        return sorted(strikes, key=lambda strike: strike.after_s)

    def _for_s(self, means: Means) -> float:
        return self._random.uniform(0, _DOWN_S_MAX) if means is Means.KILL else self._random.uniform(*_PAUSED_S)


_ROLES: Final = ("gateway", "worker", "releaser")
_EACH: Final = 2  # processes of a role


class ServiceProcess(ServerProcess):
    """One process of the service, with its settings and its output in a folder."""

    def __init__(self, role: str, folder: Path, settings: Mapping[str, object]) -> None:
        folder.mkdir()
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        own = {"role": role, "listen": self.address, "metrics_listen": f"127.0.0.1:{free_port()}"}
        file = folder / "aggregator.toml"
        lines = [f"{key} = {json.dumps(value)}" for key, value in {**settings, **own}.items()]
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        command = [sys.executable, "-m", "aggregator", "--config", str(file)]
        # It runs in another folder, and must find the same packages from there.
        path = {"PYTHONPATH": ":".join(entry for entry in sys.path if entry)}
        super().__init__(f"the {role}", command, folder / "output.log", lambda: is_listening(port), environment=path)

    @property
    def wrote_trace(self) -> bool:
        return "Traceback (most recent call last)" in self.output.read_text(encoding="utf-8", errors="replace")


@dataclass(frozen=True)
class LocalDeployment:
    """A deployment of local processes.

    Attributes:
        members: The processes of the service, by name.
        victims: Everything that can be killed and paused: these, Kafka and PostgreSQL.
    """

    members: Mapping[str, ServiceProcess]
    victims: Mapping[str, ServerProcess]

    def addresses(self, role: str) -> list[str]:
        return [member.address for name, member in self.members.items() if name.startswith(role)]


@contextmanager
def local_deployment(plan: Plan, jars: Path, folder: Path, settings: Mapping[str, object]) -> Iterator[LocalDeployment]:
    """Starts all processes, and kills them at the end.

    The folder is empty. ``settings`` of the service replace ours, or are added to them.
    """
    with ExitStack() as closing:
        broker = closing.enter_context(KafkaBroker(jars))
        database = closing.enter_context(PostgresServer())
        (folder / "plan.json").write_bytes(plan.bundle)
        shared = {
            "plan": str(folder / "plan.json"),
            "log": "kafka",
            "store": "postgresql",
            "kafka_bootstrap": broker.bootstrap,
            "postgres_dsn": database.fresh_database(),
            "manual": True,
            "log_format": "json",
            **settings,
        }
        members = {
            f"{role} {number}": closing.enter_context(ServiceProcess(role, folder / f"{role}-{number}", shared))
            for role in _ROLES
            for number in range(1, _EACH + 1)
        }
        yield LocalDeployment(members, {**members, "Kafka": broker, "PostgreSQL": database})


_CLIENTS: Final = 8
_RATE: Final = 30.0  # deltas a second of each
_AFTER_SEAL_S: Final = 0.5  # of load that arrives while the window closes, or too late
_PATIENCE_S: Final = 180.0
_MINUTE_S: Final = 60


def fault_plan() -> Plan:
    """A plan with short windows, cells so small that they identify a record, and noise that rounds away.

    The noise is drawn as always. Its scale is (R + 1) / ε = 0.009: it changes a counter with probability 10^-48.
    """
    return Plan.from_fields(
        {
            "name": "faults",
            "record": {"kind": "vector", "dim": 2, "lower": [0, 0], "upper": [10, 10]},
            "sketch": {
                "family": "hashed",
                "kernel": "euclidean",
                "bandwidth": "0.01",
                "rows": 8,
                "buckets": 1024,
                "seed": 3,
            },
            "privacy": {
                "epsilon": 1000,
                "total_epsilon": 10_000_000,
                "mechanism": {"name": "discrete-laplace", "scale": "0.009", "count_scale": 1},  # its count is checked
            },
            "window": {"length": "1m", "lateness": "0s"},
        }
    )


@dataclass
class FaultSummary:
    """Sums over all rounds, and every violation.

    Attributes:
        contradicted: Answers that contradict an earlier one to the same delta.
        redrawn: Releases that differed when they were fetched again at the end.
        unexplained: Releases that are no sum of the deltas that were sent.
        ended: Processes that ended by themselves.
        traces: Processes that wrote a stack trace.
    """

    rounds: int = 0
    strikes: int = 0
    resent: int = 0
    deltas: VerdictTally = field(default_factory=VerdictTally)
    contradicted: int = 0
    redrawn: int = 0
    unexplained: int = 0
    ended: list[str] = field(default_factory=list)
    traces: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        """Whether no promise was broken."""
        wrong = self.deltas.lost + self.deltas.doubled + self.contradicted + self.redrawn + self.unexplained
        return not (wrong or self.ended or self.traces)

    def __str__(self) -> str:
        deltas = self.deltas
        wrong = [f"; ended by itself: {line}" for line in self.ended]
        wrong += [f"; stack trace: {name}" for name in self.traces]
        return (
            f"rounds {self.rounds}, strikes {self.strikes}, deltas {deltas.sent}, sent again {self.resent}, "
            f"counted {deltas.counted}, late {deltas.dropped}, lost {deltas.lost}, doubled {deltas.doubled}, "
            f"contradicted {self.contradicted}, redrawn {self.redrawn}, unexplained {self.unexplained}{''.join(wrong)}"
        )


class FaultRun:
    """All rounds on one deployment.

    seed: Of records, victims and moments.
    load_s: How long a window is filled before it is sealed.
    strikes: Faults in a round.
    """

    def __init__(
        self, deployment: LocalDeployment, plan: Plan, *, seed: int, load_s: float, strikes: int, say: Say
    ) -> None:
        self._deployment, self._plan, self._load_s, self._strikes, self._say = deployment, plan, load_s, strikes, say
        gateways = deployment.addresses("gateway")
        self._operator = Operator(gateways, deployment.addresses("releaser"))
        self._fleet = SenderFleet(plan, gateways, clients=_CLIENTS, rate=_RATE, seed=seed)
        self._sampler = StrikeSampler(sorted(deployment.victims), seed)
        self._summary = FaultSummary()

    async def run(self, rounds: int) -> FaultSummary:
        """Runs all rounds, and fetches every release once more.

        Raises:
            JourneyError: A request or a delta was not answered although every process was running again.
        """
        summary, digests = self._summary, dict[int, bytes]()
        async with self._fleet:
            first = await self._operator.first_window()
            for window in range(first, first + rounds):
                digests[window] = await self._round(window)
        for window, digest in digests.items():
            info, _ = await self._operator.outcome(window)
            summary.redrawn += info.sha256 != digest
        summary.resent, summary.contradicted = self._fleet.resent, self._fleet.contradicted
        summary.traces = [name for name, member in self._deployment.members.items() if member.wrote_trace]
        return summary

    async def _round(self, window: int) -> bytes:
        """Fills, seals, releases and checks a window under faults; returns its release's digest."""
        began_s = time.monotonic()
        strikes = self._sampler.strikes(self._strikes, 1.5 * self._load_s)  # some during the seal and the release
        self._summary.strikes += len(strikes)
        victims = self._deployment.victims
        striking = asyncio.gather(*(strike.carry_out(victims[strike.victim]) for strike in strikes))
        self._fleet.fill(window)
        await asyncio.sleep(self._load_s)
        releasing = asyncio.create_task(self._seal_and_release(window))
        await asyncio.sleep(_AFTER_SEAL_S)
        self._fleet.fill(None)
        try:
            await striking
            self._restart_ended()
            await self._fleet.answered(_PATIENCE_S)
            info, release = await releasing
        finally:
            releasing.cancel()
            with suppress(asyncio.CancelledError, JourneyError):
                await releasing
        deltas = self._check(window, release)
        self._say(
            f"round {self._summary.rounds}: {deltas.sent} deltas, {deltas.counted} counted, lost {deltas.lost}, "
            f"doubled {deltas.doubled}, {time.monotonic() - began_s:.0f} s" + "".join(f"; {each}" for each in strikes)
        )
        return info.sha256

    async def _seal_and_release(self, window: int) -> tuple[ReleaseInfo, Release]:
        await self._operator.seal(window)
        return await self._operator.release(window)

    def _restart_ended(self) -> None:
        for name, member in self._deployment.members.items():
            if not member.is_running:
                self._summary.ended.append(f"{name}: {last_line(member.output)}")
                member.start()

    def _check(self, window: int, release: Release) -> VerdictTally:
        journal, cells = self._fleet.journal(window), self._fleet.cells()
        verdicts, is_explained = read_from_release(self._plan, journal, cells, release.counters, release.counts)
        deltas = by_id(journal, verdicts, lenient=True)[window]
        self._summary.rounds += 1
        self._summary.deltas += deltas
        self._summary.unexplained += not is_explained
        return deltas


def require_servers(jars: Path) -> None:
    """Refuses to go on where Kafka or PostgreSQL cannot run.

    Raises:
        ServerError: The text says what is missing.
    """
    lacking = missing_java() or missing_postgres() or (None if jars.is_dir() else "run make broker first")
    if lacking is not None:
        raise ServerError(lacking)


def run_faults(
    *, rounds: int, seed: int, jars: Path, folder: Path, load_s: float, strikes: int, say: Say
) -> FaultSummary:
    """Starts everything, and runs all rounds.

    Raises:
        ServerError: A process does not start.
        JourneyError: A request or a delta was not answered although every process was running again.
    """
    plan = fault_plan()
    settings = {
        "partitions": 4,
        "skew_s": float(min(86_400, _MINUTE_S * (rounds + 2))),  # every window of the run is open from the start
        "lease_s": 2.0,
        "kafka_session_s": 2.0,
        "checkpoint_s": 0.5,
        "checkpoint_entries": 200,
    }
    with local_deployment(plan, jars, folder, settings) as deployment:
        say("two gateways, two workers, two releasers, Kafka and PostgreSQL are running")
        run = FaultRun(deployment, plan, seed=seed, load_s=load_s, strikes=strikes, say=say)
        return asyncio.run(run.run(rounds))
