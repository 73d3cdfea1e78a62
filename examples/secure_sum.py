"""Ten devices and a server that learns their noised sum and nothing else: one round, in one process.

python examples/secure_sum.py

The protocol's machines are plain objects, events in and effects out. A queue joins them here; `hushsum serve` and
`EdgeClient` join the same ones over gRPC, and make durable what this only counts.
"""

from collections import deque
from collections.abc import Iterator

import numpy as np

import hushsum as hs
from hushsum.entropy import OsEntropy
from hushsum.releases import of_sums
from hushsum.secure_sum import client, server
from hushsum.secure_sum.parameters import round_parameters
from hushsum.signing import SigningKey

plan = hs.Plan(
    name="points",
    record={"dim": 2, "lower": [0, 0], "upper": [10, 10]},
    sketch={"family": "hashed", "kernel": "euclidean", "bandwidth": 2, "rows": 200, "buckets": 256},
    # Of ten one may be corrupt and two may vanish: the noise that is promised is that of the other seven alone.
    privacy={
        "mode": "secure",
        "epsilon": 1,
        "total_epsilon": 10,
        "total_delta": "0.000000001",
        "secure": {"cohort": 10, "corrupt": "0.1", "dropout": "0.2"},
    },
)
WINDOW, ROUND = 0, bytes(OsEntropy().read(32))
PARAMETERS = round_parameters(plan, WINDOW, ROUND)
LOST = "device-3"  # its connection breaks as it sends its vector


def device(name: str, records: np.ndarray) -> client.ClientRound:
    """One client's part in the round: its counters never leave this machine as they are."""
    sketch = hs.Sketch(plan)
    sketch.add(records)
    return client.ClientRound(
        PARAMETERS,
        client_id=name,
        key=SigningKey.generate(OsEntropy()),
        directory=None,  # the weaker mode: the server is trusted to pass on everybody's keys
        counters=sketch.counters.ravel(),
        counts=sketch.counts.ravel(),
        share=plan.privacy.mechanism.share(),
        entropy=OsEntropy(),
    )


def said(name: str, machine: client.ClientRound, effects: list[client.Effect]) -> Iterator[server.Event]:
    """What reaches the server of one device's effects."""
    for effect in effects:
        match effect:
            case client.Send(data):
                yield server.ClientMessage(name, data)
            case client.CountAttempt():
                yield from said(name, machine, machine.handle(client.Opened()))
            case client.SpendWindow():  # a device writes to its disk here: no second vector in this window
                yield from said(name, machine, machine.handle(client.Spent()))
            case client.SendVector(data):
                yield server.Vanished(name) if name == LOST else server.Uploaded(name, data)


def run(hub: server.ServerRound, devices: dict[str, client.ClientRound]) -> tuple[server.Sum, dict[str, bytes]]:
    """Carries what everybody says until the server has its sum; gives that, and the vectors that it saw."""
    hub.begin()
    events = deque(event for name, machine in devices.items() for event in said(name, machine, machine.begin()))
    vectors: dict[str, bytes] = {}
    while events:
        event = events.popleft()
        if isinstance(event, server.Uploaded):
            vectors[event.client_id] = event.data
        for effect in hub.handle(event):
            match effect:
                case server.Tell(name, data):
                    events.extend(said(name, devices[name], devices[name].handle(client.ServerMessage(data))))
                case server.Done(total):
                    return total, vectors
    raise SystemExit("the round has ended without a sum")


records = {f"device-{number}": np.random.default_rng(number).normal(5, 1, (2000, 2)) for number in range(10)}
hub = server.ServerRound(PARAMETERS, tuple(records), None)
total, vectors = run(hub, {name: device(name, own) for name, own in records.items()})

first = hs.Sketch(plan)
first.add(records["device-0"])
print("device-0 holds", *first.counters.ravel()[:6])
print("it sends      ", *plan.words.unpack(vectors["device-0"])[:6], f"… modulo 2^{plan.words.bits}")
print(f"in the sum: {total.submissions} of {len(records)}, without {LOST}, whose masks the others' shares took off")

counters, counts = plan.words.centred(total.words)
shaped = counters.reshape(plan.counters_shape)
release = of_sums(plan, shaped, counts, window=WINDOW, cohorts=1, submissions=total.submissions)
queries = np.array([[5.0, 5.0], [6.5, 5.0], [9.0, 9.0]])
there = np.concatenate([own for name, own in records.items() if name in total.survivors])
answer = release.kernel_sum(queries)
exact = plan.family.kernel(there, queries).sum(axis=0)
for query, value, low, high, truth in zip(queries, answer.value, *answer.interval(0.95), exact, strict=True):
    print(f"at {query}: {value:6.0f}   95 % interval {low:6.0f} to {high:6.0f}   exact {truth:6.0f}")
