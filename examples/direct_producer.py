"""A trusted service that writes the deltas of its clients straight into the log of an aggregator on Kafka.

hushsum keys make --role producer --name billing --out billing.pem      (its TOML goes into the service's directory)
python examples/direct_producer.py localhost:9092 billing billing.pem
"""

import asyncio
import os
import sys
import time
from pathlib import Path

import numpy as np

import hushsum as hs
from edge_client.transport.kafka import DirectProducer
from hushsum.delta import DeltaId, encode
from hushsum.signing import SigningKey

PLAN = Path(__file__).with_name("plan.toml")


async def produce(bootstrap: str, key_id: str, key_file: Path, clients: int = 100) -> None:
    """Hashes ten records of each client here, and returns once the brokers have stored them all."""
    plan = hs.Plan.from_toml(PLAN)
    window = plan.window.index_at(time.time_ns() // 1_000_000)
    stream = int.from_bytes(os.urandom(8), "big")  # of this run; its numbers begin at 0, and each is used once
    rng = np.random.default_rng()
    deltas = []
    for number in range(clients):
        records = rng.normal(5, 1, (10, 2))
        delta, _ = encode(plan, records, window=window, id=DeltaId(stream, 0))
        if delta is not None:
            deltas.append((f"client-{number}", delta.pack(plan)))
    async with DirectProducer(bootstrap, plan, key_id, SigningKey.load(key_file)) as producer:
        await producer.submit_many(deltas)
    print(f"{len(deltas)} deltas are stored; whether each counts, the service's metrics say")


if __name__ == "__main__":
    asyncio.run(produce(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
