r"""A script that contributes the lines of its input and ends: from cron, or at the end of a pipe. No event loop.

hushsum serve --plan examples/plan.toml --data hushsum-data                   (in another terminal)
printf '1.5,2.5\n3,4\n' | python examples/script.py localhost:7443 spool.db
"""

import sys
from collections.abc import Iterable

from edge_client import Policy, UnreachableError
from edge_client.blocking import EdgeClient
from edge_client.transport.interface import Transport

POLICY = Policy(max_epsilon=1.0)


def contribute(lines: Iterable[str], target: str | Transport, spool: str) -> int:
    """Adds each line's numbers, and waits up to a minute for answers; returns how many deltas are still queued."""
    with EdgeClient(target, spool=spool, policy=POLICY) as client:
        for line in lines:
            client.add([float(number) for number in line.split(",")])
        try:
            client.flush(60)
        except UnreachableError as error:
            print(f"the rest is sent by the next run: {error}", file=sys.stderr)
        return client.status().queued


if __name__ == "__main__":
    contribute(sys.stdin, *(sys.argv[1:3] or ["localhost:7443", "spool.db"]))
