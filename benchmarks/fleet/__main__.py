"""Runs the fleet's benchmarks, prints a table of each and writes ``benchmarks/results/fleet_*.json``.

Two cores, loopback, TLS with a token for each device; the service on SQLite, which syncs before it answers. Beside it,
in the same run and with the same client, stands a bare grpc.aio server with TLS that answers at once.
"""

from benchmarks.command import Room
from benchmarks.fleet import day, idle, storm, visits

SUBJECTS = {"visits": visits, "idle": idle, "storm": storm, "day": day}

if __name__ == "__main__":
    Room("python -m benchmarks.fleet", __doc__, SUBJECTS, prefix="fleet_").main()
