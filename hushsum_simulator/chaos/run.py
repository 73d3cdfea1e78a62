"""Rounds of load under faults: `python -m hushsum_simulator.chaos.run --rounds 50 --seed 1`.

Each round has a seal, a release, and a verdict on every delta. Which process is struck, how, when, and for how long is
drawn from the seed. The last line says what was lost and what was counted twice.
"""

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from hushsum.errors import HushsumError
from hushsum.plan import Plan
from hushsum.releases import Release
from hushsum_proto.answers import Status
from hushsum_proto.messages import ReleaseInfo
from hushsum_simulator.chaos.cluster import Cluster, Operator
from hushsum_simulator.chaos.senders import Sender, SenderJournal, Verdict
from hushsum_simulator.errors import JourneyError
from hushsum_simulator.testbed.kafka import missing_java
from hushsum_simulator.testbed.postgres import missing_postgres
from hushsum_simulator.testbed.process import ServerProcess

_DOWN_S_MAX: Final = 1.5
_PAUSED_S: Final = (0.3, 5.0)  # often past the leases of the run


class Means(StrEnum):
    """How."""

    KILL = "kill -9"
    PAUSE = "SIGSTOP"


@dataclass(frozen=True)
class Strike:
    """One fault.

    Attributes:
        after_s: Since the round's begin.
        for_s: Until it is started again, or goes on.
    """

    victim: str
    means: Means
    after_s: float
    for_s: float

    def __str__(self) -> str:
        return f"{self.victim} {self.means} at {self.after_s:.1f} s for {self.for_s:.1f} s"


class Deck:
    """Every victim by every means once, in random order, and then all of them anew.

    Args:
        victims: Names.
        seed: Of everything that is drawn.
    """

    def __init__(self, victims: Sequence[str], seed: int) -> None:
        self._victims = list(victims)
        self._random = random.Random(seed)
        self._cards: list[tuple[str, Means]] = []

    def strikes(self, count: int, within_s: float) -> list[Strike]:
        """So many, of victims that all differ, at any moment of the given time, in their order."""
        assert count <= len(self._victims), "each at most once"
        drawn: dict[str, Means] = {}
        kept: list[tuple[str, Means]] = []
        while len(drawn) < count:
            if not self._cards:
                self._cards = [(victim, means) for victim in self._victims for means in Means]
                self._random.shuffle(self._cards)
            victim, means = self._cards.pop()
            if victim in drawn:
                kept.append((victim, means))
            else:
                drawn[victim] = means
        self._cards += kept  # they come first the next time
        strikes = [
            Strike(victim, means, self._random.uniform(0, within_s), self._for_s(means))
            for victim, means in drawn.items()
        ]
        return sorted(strikes, key=lambda strike: strike.after_s)

    def _for_s(self, means: Means) -> float:
        return self._random.uniform(0, _DOWN_S_MAX) if means is Means.KILL else self._random.uniform(*_PAUSED_S)


async def carry_out(strike: Strike, victim: ServerProcess) -> None:
    """Waits for its moment, strikes, and puts things right after its time."""
    await asyncio.sleep(strike.after_s)
    if not victim.is_running:
        return  # it has ended by itself: that is told elsewhere
    if strike.means is Means.KILL:
        await asyncio.to_thread(victim.kill)
        await asyncio.sleep(strike.for_s)
        await asyncio.to_thread(victim.start)
    else:
        await asyncio.to_thread(victim.pause)
        try:
            await asyncio.sleep(strike.for_s)
        finally:
            await asyncio.to_thread(victim.resume)


_CLIENTS: Final = 8
_RATE: Final = 30.0  # deltas a second of each
_AFTER_SEAL_S: Final = 0.5  # of load that comes while the window closes, or too late
_PATIENCE_S: Final = 90.0
_LOOK_S: Final = 0.05
_MINUTE_S: Final = 60


def fault_plan() -> Plan:
    """Short windows; keys so fine that every record is known by its cells; noise so small that it rounds away.

    The noise is drawn as ever. Its scale is (R + 1) / ε = 0.009, so that a counter gets any with probability 10^-48.
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
            "privacy": {"epsilon": 1000, "total_epsilon": 10_000_000},
            "window": {"length": "1m", "lateness": "0s"},
        }
    )


@dataclass
class ChaosTally:
    """Sums over all rounds, and what went wrong.

    Attributes:
        redrawn: Releases that were another one when they were fetched again at the end.
        ended: Processes that ended by themselves.
        traces: Processes that wrote a stack trace.
    """

    rounds: int = 0
    strikes: int = 0
    sent: int = 0
    resent: int = 0
    acknowledged: int = 0
    late: int = 0
    lost: int = 0
    doubled: int = 0
    contradicted: int = 0
    redrawn: int = 0
    unexplained: int = 0
    ended: list[str] = field(default_factory=list)
    traces: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Whether nothing at all went wrong."""
        wrong = self.lost + self.doubled + self.contradicted + self.redrawn + self.unexplained
        return not (wrong or self.ended or self.traces)

    def __str__(self) -> str:
        wrong = [f"; ended by itself: {line}" for line in self.ended]
        wrong += [f"; stack trace: {name}" for name in self.traces]
        return (
            f"rounds {self.rounds}, strikes {self.strikes}, deltas {self.sent}, sent again {self.resent}, "
            f"acknowledged {self.acknowledged}, late {self.late}, lost {self.lost}, doubled {self.doubled}, "
            f"contradicted {self.contradicted}, redrawn {self.redrawn}, unexplained {self.unexplained}{''.join(wrong)}"
        )


class Run:
    """All rounds on one cluster.

    Args:
        cluster: That runs.
        plan: Its plan.
        seed: Of records, victims and moments.
        load_s: How long a round's load lasts before its window is sealed.
        strikes: Faults of a round.
        say: Gets a line now and then.
    """

    def __init__(
        self, cluster: Cluster, plan: Plan, *, seed: int, load_s: float, strikes: int, say: Callable[[str], None]
    ) -> None:
        self._cluster, self._plan, self._load_s, self._strikes, self._say = cluster, plan, load_s, strikes, say
        gateways = [member.address for member in cluster.of_role("gateway")]
        releasers = [member.address for member in cluster.of_role("releaser")]
        self._operator = Operator(gateways, releasers)
        self._senders = [Sender(plan, number, gateways, _RATE, seed) for number in range(_CLIENTS)]
        self._deck = Deck(sorted(cluster.victims), seed)
        self._digests: dict[int, bytes] = {}
        self.tally = ChaosTally()

    async def go(self, rounds: int) -> ChaosTally:
        """Runs so many rounds, and looks at every release once more.

        Raises:
            JourneyError: Something did not come to its end although every process was there again.
        """
        tasks = [asyncio.create_task(sender.run()) for sender in self._senders]
        try:
            first = await self._operator.first_window()
            for number in range(rounds):
                await self._round(number, first + number, tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for window, digest in self._digests.items():
            info, _ = await self._operator.fetch(window)
            self.tally.redrawn += info.sha256 != digest
        self.tally.resent = sum(sender.resent for sender in self._senders)
        self.tally.traces = self._cluster.traces()
        return self.tally

    async def _round(self, number: int, window: int, tasks: "list[asyncio.Task[None]]") -> None:
        journal = SenderJournal(self._plan, window)
        for sender in self._senders:
            sender.journal = journal
        # Some of them fall into the seal and the release.
        strikes = self._deck.strikes(self._strikes, 1.5 * self._load_s)
        began_s = time.monotonic()
        striking = asyncio.gather(*(self._strike(strike) for strike in strikes))
        await asyncio.sleep(self._load_s)
        sealing = asyncio.create_task(self._operator.seal(window))
        await asyncio.sleep(_AFTER_SEAL_S)
        for sender in self._senders:
            sender.journal = None
        releasing = asyncio.create_task(self._release_after(sealing, window))
        try:
            await striking
            self._restart_what_ended()
            await self._answered(tasks)
            info, release = await releasing
        finally:
            for task in (sealing, releasing):
                task.cancel()
                with suppress(asyncio.CancelledError, JourneyError):
                    await task
        self._digests[window] = info.sha256
        self._note(number, journal, journal.judge(release.counters, release.counts), strikes, began_s)

    async def _release_after(self, sealing: "asyncio.Task[None]", window: int) -> tuple[ReleaseInfo, Release]:
        await sealing
        return await self._operator.release(window)

    async def _strike(self, strike: Strike) -> None:
        self.tally.strikes += 1
        await carry_out(strike, self._cluster.victims[strike.victim])

    def _restart_what_ended(self) -> None:
        self.tally.ended += self._cluster.ended()
        for member in self._cluster.members.values():
            if not member.is_running:
                member.start()

    async def _answered(self, tasks: "list[asyncio.Task[None]]") -> None:
        """Returns once every sender has a definitive answer to everything."""
        deadline = time.monotonic() + _PATIENCE_S
        while not all(sender.idle for sender in self._senders):
            for task in tasks:
                if task.done():
                    task.result()
            if time.monotonic() > deadline:
                raise JourneyError(f"deltas without an answer {_PATIENCE_S:.0f} s after everything was there again")
            await asyncio.sleep(_LOOK_S)

    def _note(
        self, number: int, journal: SenderJournal, verdict: Verdict, strikes: list[Strike], began_s: float
    ) -> None:
        tally = self.tally
        tally.rounds += 1
        tally.sent += len(journal.sent)
        tally.acknowledged += verdict.acknowledged
        tally.late += journal.count(Status.LATE)
        tally.lost += verdict.lost
        tally.doubled += verdict.doubled
        tally.unexplained += verdict.unexplained
        tally.contradicted += journal.contradicted
        self._say(
            f"round {number + 1}: {len(journal.sent)} deltas, {verdict.acknowledged} acknowledged, "
            f"lost {verdict.lost}, doubled {verdict.doubled}, {time.monotonic() - began_s:.0f} s"
            + "".join(f"; {strike}" for strike in strikes)
        )


async def run(
    *, rounds: int, seed: int, jars: Path, folder: Path, load_s: float, strikes: int, say: Callable[[str], None]
) -> ChaosTally:
    """Starts everything, and runs so many rounds."""
    plan = fault_plan()
    settings = {
        "partitions": 4,
        "skew_s": float(min(86_400, _MINUTE_S * (rounds + 2))),  # every window of the run is open from the start
        "lease_s": 2.0,
        "kafka_session_s": 2.0,
        "checkpoint_s": 0.5,
        "checkpoint_entries": 200,
    }
    cluster = await asyncio.to_thread(Cluster(plan, jars, folder, settings).__enter__)
    try:
        say("two gateways, two workers, two releasers, Kafka and PostgreSQL are running")
        return await Run(cluster, plan, seed=seed, load_s=load_s, strikes=strikes, say=say).go(rounds)
    finally:
        await asyncio.to_thread(cluster.__exit__, None, None, None)


_JARS = Path(".cache/kafka/jars")


def main() -> int:
    """The command line; 0 where nothing went wrong."""
    parser = argparse.ArgumentParser(prog="python -m hushsum_simulator.chaos.run", description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--load-s", type=float, default=4.0, help="of load in a round, before its window is sealed")
    parser.add_argument("--strikes", type=int, default=3, help="processes that are killed or paused in a round, 0 to 8")
    parser.add_argument("--jars", type=Path, default=_JARS, help="the broker's files (make broker)")
    options = parser.parse_args()
    lacking = missing_java() or missing_postgres() or (None if options.jars.is_dir() else "run make broker first")
    if lacking is not None:
        sys.stderr.write(f"faults: {lacking}\n")
        return 1
    folder = Path(tempfile.mkdtemp(prefix="hushsum-faults-"))
    try:
        tally = asyncio.run(
            run(
                rounds=options.rounds,
                seed=options.seed,
                jars=options.jars,
                folder=folder,
                load_s=options.load_s,
                strikes=options.strikes,
                say=_say,
            )
        )
    except HushsumError as error:
        sys.stderr.write(f"faults: {error}; what the processes wrote is in {folder}\n")
        return 1
    _say(f"faults: seed {options.seed}, {tally}" + ("" if tally.clean else f"; what they wrote is in {folder}"))
    if tally.clean:
        shutil.rmtree(folder)
    return 0 if tally.clean else 1


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
