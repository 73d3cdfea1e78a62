"""The least that a device needs: NumPy hashes, a file keeps, a stream sends.

A record is durable in a log before it is sent, and so is a mark of its answer; after some seconds without a record the
log is emptied, as the client erases what was answered. Nothing is checked, counted, resent or read back.
"""

import asyncio
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import grpc.aio
import numpy as np
import numpy.typing as npt

from hushsum_proto.v1 import wire_pb2 as pb
from hushsum_proto.v1 import wire_pb2_grpc as stubs

_ERASED_AFTER_S: Final = 5.0
_WIDTH: Final = 1024
_MARK: Final = bytes(8)


class BareHashing:
    """R hash functions of the euclidean family, in NumPy."""

    def __init__(self, rows: int) -> None:
        generator = np.random.default_rng(1)
        self._directions = generator.normal(size=(rows, 2)).astype(np.float32)
        self._offsets = generator.uniform(size=rows).astype(np.float32)

    def hashed(self, records: list[float] | npt.NDArray[np.float64]) -> npt.NDArray[np.uint16]:
        """(R,) buckets of one record, or (n, R) of n records."""
        products = np.asarray(records, np.float32) @ self._directions.T
        buckets: npt.NDArray[np.uint16] = (np.floor(products + self._offsets).astype(np.int64) % _WIDTH).astype(
            np.uint16
        )
        return buckets


class BareDevice:
    """A device that does the least.

    Args:
        address: Of a bare stream (:mod:`benchmarks.service.bare_stream`).
        path: Its log.
        rows: R.
        own_connection: Whether it shares no connection.
    """

    def __init__(self, address: str, path: Path, rows: int, *, own_connection: bool) -> None:
        self._hashing = BareHashing(rows)
        self._log = os.open(path, os.O_RDWR | os.O_CREAT)
        self._end = 0
        self._emptied_at = time.monotonic()
        options = (("grpc.use_local_subchannel_pool", int(own_connection)), ("grpc.enable_http_proxy", 0))
        self._channel = grpc.aio.insecure_channel(address, options=options)
        self._bytes = rows * 10 // 8  # log2(1024) bits a row
        self._emptying: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._call = stubs.CollectionStub(self._channel).Submit()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._emptying is not None:
            self._emptying.cancel()
        await self._channel.close()
        os.close(self._log)

    async def add(self, record: list[float]) -> None:
        """Hashes, keeps and sends a record, and keeps its answer."""
        data = self._hashing.hashed(record).tobytes()[: self._bytes]
        self._keep(data)
        await self._call.write(pb.SubmitRequest(delta=data))
        await self._call.read()
        self._keep(_MARK)
        if self._emptying is None:
            self._emptying = asyncio.create_task(self._empty())

    async def flush(self, timeout_s: float) -> None:
        """Every answer has come."""

    def _keep(self, data: bytes) -> None:
        self._end += os.pwrite(self._log, data, self._end)
        os.fdatasync(self._log)

    async def _empty(self) -> None:
        await asyncio.sleep(max(0.0, self._emptied_at + _ERASED_AFTER_S - time.monotonic()))
        os.ftruncate(self._log, 0)
        os.fdatasync(self._log)
        self._end, self._emptied_at, self._emptying = 0, time.monotonic(), None
