"""Runs the fleet's benchmarks, prints a table of each and writes ``benchmarks/results/fleet_*.json``.

Two cores, loopback, TLS with a token for each device; the service on SQLite, which syncs before it answers. Beside it,
in the same run and with the same client, stands a bare grpc.aio server with TLS that answers at once. What a delta
costs behind the gateway is measured with Kafka and PostgreSQL.
"""

from benchmarks.command import Room
from benchmarks.fleet import costs, day, idle, storm, visits
from hushsum_simulator.testbed.kafka import missing_java
from hushsum_simulator.testbed.postgres import missing_postgres

SUBJECTS = {"visits": visits, "idle": idle, "storm": storm, "costs": costs, "day": day}
NEEDS = {"costs": lambda: missing_java() or missing_postgres()}

if __name__ == "__main__":
    Room("python -m benchmarks.fleet", __doc__, SUBJECTS, prefix="fleet_", needs=NEEDS).main()
