"""A device that adds one-record batches, eight at a time and offline, until it is killed; tells which have returned."""

import asyncio
import itertools
import sys

import numpy as np
import numpy.typing as npt

from edge_client import EdgeClient
from tests.plans import small_plan

PLAN = small_plan(sketch={"rows": 60, "buckets": 4096, "bandwidth": 0.001})  # every record has its own buckets


def record(number: int) -> npt.NDArray[np.float64]:
    """The record of a number."""
    return np.random.default_rng([7, number]).uniform(0, 10, 2)


async def add_for_ever(client: EdgeClient, numbers: "itertools.count[int]") -> None:
    while True:
        number = next(numbers)
        await client.add(record(number), time=0)
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()


async def main(spool: str, first: int) -> None:
    numbers = itertools.count(first)
    async with EdgeClient("127.0.0.1:1", spool=spool) as client:  # nobody listens there
        await asyncio.gather(*(add_for_ever(client, numbers) for _ in range(8)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
