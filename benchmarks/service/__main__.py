"""Runs the service's benchmarks, prints a table of each and writes ``benchmarks/results/service_*.json``.

Two cores, loopback; clients, servers and brokers all run on them, and each figure stands beside that of the bare
library in the same run.
"""

from benchmarks.command import Room
from benchmarks.service import appends, checkpoints, fold, latency, memory, outcomes, streaming, topics
from hushsum_simulator.testbed.kafka import missing_java
from hushsum_simulator.testbed.postgres import missing_postgres

SUBJECTS = {
    "streaming": streaming,
    "topics": topics,
    "appends": appends,
    "fold": fold,
    "latency": latency,
    "memory": memory,
    "checkpoints": checkpoints,
    "outcomes": outcomes,
}
NEEDS = {"topics": missing_java, "appends": missing_java, "checkpoints": missing_postgres, "outcomes": missing_postgres}

if __name__ == "__main__":
    Room("python -m benchmarks.service", __doc__, SUBJECTS, prefix="service_", needs=NEEDS).main()
