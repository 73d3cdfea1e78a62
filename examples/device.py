"""A device that contributes records to an aggregator on this machine.

hushsum serve --plan examples/plan.toml --data hushsum-data     (in another terminal)
python examples/device.py localhost:7443
"""

import asyncio
import sys

import numpy as np

from edge_client import EdgeClient, Policy


async def contribute(target: str, spool: str = "spool.db") -> None:
    """Hashes 1,000 records here, and returns once the service has answered for them."""
    records = np.random.default_rng().normal(5, 1, (1000, 2))
    async with EdgeClient(target, spool=spool, policy=Policy(max_epsilon=1.0)) as client:
        await client.add(records)
        await client.flush()
        print(client.status())


if __name__ == "__main__":
    asyncio.run(contribute(sys.argv[1] if len(sys.argv) > 1 else "localhost:7443"))
