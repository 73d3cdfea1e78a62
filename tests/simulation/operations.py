"""What happens in a run: a list of operations, drawn from a seed, that can be printed, pasted and shrunk."""

from dataclasses import dataclass
from random import Random
from typing import Final

DEVICES: Final = 4
BUSY_S: Final = 12.0  # three windows of four seconds

CLUSTER: Final = ("gateway-1", "gateway-2", "worker-1", "worker-2", "releaser-1", "releaser-2")
ALONE: Final = ("all-1",)


@dataclass(frozen=True)
class Op:
    """One thing that happens.

    Attributes:
        at_s: When.
        what: Which kind (see :mod:`tests.simulation.world`).
        who: A host, a device or a server.
        amount: How long, how many, how likely: as the kind says.
    """

    at_s: float
    what: str
    who: str = ""
    amount: float = 0.0

    def __repr__(self) -> str:
        return f"Op({self.at_s!r}, {self.what!r}, {self.who!r}, {self.amount!r})"


@dataclass(frozen=True)
class Schedule:
    """All of one run: its seed decides what the operations leave open.

    Attributes:
        cumulative: Whether the plan's releases are steps of one sequence.
        arrival: Whether the plan's records belong to the window in which they are first sent.
    """

    seed: int
    cluster: bool
    partitions: int
    ops: tuple[Op, ...]
    cumulative: bool = False
    arrival: bool = False

    def __repr__(self) -> str:
        ops = "".join(f"\n        {op!r}," for op in self.ops)
        kind = "    cumulative=True,\n" if self.cumulative else ""
        kind += "    arrival=True,\n" if self.arrival else ""
        return f"Schedule(\n    {self.seed}, {self.cluster}, {self.partitions},\n    ({ops}\n    ),\n{kind})"


def drawn(seed: int) -> Schedule:
    """The schedule of a seed."""
    random = Random(f"schedule/{seed}")
    cluster = random.random() < 0.7
    ops = _deltas(random) + _troubles(random, cluster=cluster)
    cumulative = Random(f"plan/{seed}").random() < CUMULATIVES
    partitions = random.choice((1, 2, 2, 3))
    times = Random(f"time/{seed}")
    arrival = times.random() < ARRIVALS
    ops += _deaths(times) if arrival else []
    in_order = tuple(sorted(ops, key=lambda op: op.at_s))
    return Schedule(seed, cluster, partitions, in_order, cumulative=cumulative, arrival=arrival)


def _deltas(random: Random) -> list[Op]:
    ops = []
    for _ in range(random.randint(6, 14)):
        who = f"device-{random.randrange(DEVICES)}"
        what = "add" if random.random() < 0.85 else "add_before"
        ops.append(Op(_time(random), what, who, float(random.randint(1, 5))))
    return ops


def _deaths(random: Random) -> list[Op]:
    """Devices die, and reach nobody for a while when they are back: what they send again may be in another window."""
    ops = []
    for _ in range(random.randint(*DEATHS)):
        (who, amount), at_s = _aim(random, "kill_device", ()), _time(random)
        ops += [Op(at_s, "kill_device", who, amount), Op(_rounded(at_s + random.random()), "cut", who, 4.0)]
    return ops


def _troubles(random: Random, *, cluster: bool) -> list[Op]:
    kinds = _KINDS if cluster else _KINDS_ALONE
    ops = [_trouble(random, random.choice(kinds), cluster=cluster) for _ in range(random.randint(3, 8))]
    # After a restore little can be promised: it is rare, so that most schedules can lose something.
    ops = [op for op in ops if op.what not in {"restore", "lose_sink"} or random.random() < RESTORES]
    restores = [op for op in ops if op.what == "restore" and random.random() < MARKS]
    return ops + [Op(_rounded(op.at_s + 0.5 + random.random()), "mark_lost") for op in restores]


_KINDS: Final = (
    *("kill",) * 4,
    *("pause",) * 2,
    *("hold", "lose_reply", "power") * 3,
    "move",
    *("restore",) * 2,
    "lose_sink",
    *("drop", "lose", "slow") * 2,
    "cut",
    "skew",
    "breaks",
    "copies",
    "kill_device",
    "rebalance",
    "stop",
    "seal",
    "release",
    "slow_sync",
    "full",
    "look",
)
_KINDS_ALONE: Final = (
    *("kill",) * 4,
    *("restore",) * 2,
    "lose_sink",
    *("breaks", "copies") * 2,
    "full",
    "full",
    "slow",
    "pause",
    "cut",
    "skew",
    "kill_device",
    "stop",
    "seal",
    "release",
    "slow_sync",
    "look",
)
_CALLS: Final = (*("checkpoint",) * 4, "claim_partition", "mark_closing", "commit_outcome", "publish", "states")
RESTORES: Final = 0.3
MARKS: Final = 0.7  # of restores are followed by it
CUMULATIVES: Final = 0.3  # of plans
ARRIVALS: Final = 0.4
DEATHS: Final = (2, 6)  # of devices, where the window of a record is that of its first sending
#: The calls of a cumulative plan in place of those of others.
STEPS: Final = {"reserve_outcome": "reserve_step", "commit_outcome": "commit_step"}
_SERVERS: Final = ("log", "store", "receipts", "copy")
_SINKS: Final = ("receipts", "copy")


def _trouble(random: Random, what: str, *, cluster: bool) -> Op:
    hosts = CLUSTER if cluster else ALONE
    who, amount = _aim(random, what, hosts)
    return Op(_time(random), what, who, round(amount, 3))


def _aim(random: Random, what: str, hosts: tuple[str, ...]) -> tuple[str, float]:
    """At whom, and how much."""
    amount = 0.0
    match what:
        case "kill":  # at the callback of that number from then on
            who, amount = random.choice(hosts), float(int(random.expovariate(1 / 30)) + 1)
        case "kill_device":
            who, amount = f"device-{random.randrange(DEVICES)}", float(int(random.expovariate(1 / 10)) + 1)
        case "pause":
            who, amount = random.choice(hosts), random.expovariate(1 / 2.5)
        case "drop" | "lose" | "slow" | "full":
            who, amount = random.choice(_SERVERS), random.choice((0.1, 0.3, 0.8))
        case "cut":
            everybody = (*hosts, *(f"device-{number}" for number in range(DEVICES)))
            who, amount = random.choice(everybody), random.expovariate(1 / 2.0)
        case "skew":
            who, amount = random.choice(hosts), float(random.randint(-3000, 3000))
        case "power":  # after so many seconds of slow syncs
            who, amount = "", 0.2 + random.random()
        case "breaks" | "copies" | "slow_sync":
            who, amount = "", random.choice((0.1, 0.3))
        case "hold" | "lose_reply" | "move":  # the next call of that name
            who, amount = random.choice(_CALLS), random.random() * 6.0
        case "restore":  # what the store was so many seconds before; or store and log; or these and a sink
            who, amount = random.choice(("", "log", *_SINKS)), random.random() * 6.0
        case "lose_sink":
            who = random.choice(_SINKS)
        case _:
            who = random.choice(hosts)
    return who, amount


def _time(random: Random) -> float:
    return _rounded(random.random() * BUSY_S)


def _rounded(value: float) -> float:
    return round(value, 3)
