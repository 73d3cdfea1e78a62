"""Many packed deltas at once: their headers, digests, and what they add, checked, in compiled loops.

Speed alone: whatever this does not say is good, :meth:`hushsum.delta.Delta.unpack` is asked about, and its word holds.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from types import ModuleType
from typing import Final

import numpy as np
import numpy.typing as npt

from hushsum import compiled
from hushsum.delta import Delta
from hushsum.families.base import RowsPacked
from hushsum.labels import DELTA_DIGEST
from hushsum.plan import Plan
from hushsum.privacy.guarantee import CENTRAL

Bytes = npt.NDArray[np.uint8]
Int64 = npt.NDArray[np.int64]
_READY: Final = 1 << 20  # numbers in memory: a delta that adds more is large enough for NumPy
_ENOUGH: Final = 1 << 16  # and about so many at once, for the cache
_BITS_MAX: Final = 24


@dataclass(eq=False)
class Batch:
    """What loops read of some deltas.

    Attributes:
        headers: (n, 2): sequence number and window; of a delta that is not GOOD, nothing.
        streams: (n,) uint64.
        states: (n,): as :mod:`hushsum.delta_decoder_loops` says.
        spans: (n, 3): where in ``ready`` each begins and ends, and its records.
        ready: Of each run its class, its records and how many numbers follow: its indices, or where that is negative
            so many of an index and a count each.
        packed: All bytes, one delta after another, and the same as big-endian words.
        offsets: (n + 1,) where each begins, and where the last one ends.
    """

    headers: Int64
    streams: npt.NDArray[np.uint64]
    states: Bytes
    spans: Int64
    ready: npt.NDArray[np.int32]
    packed: tuple[Bytes, npt.NDArray[np.uint32]]
    offsets: Int64


class DeltaReader:
    """Reads deltas of one plan whose family packs rows that sum to the number of records.

    Use :func:`reader_of`. Its memory is used again by the next batch: one at a time.

    Attributes:
        lessons: How often :meth:`learn` has learnt something: what was read before may be good after all.
    """

    def __init__(self, plan: Plan, loops: ModuleType) -> None:
        self._plan, self._loops = plan, loops
        rows, width = plan.family.shape
        self._shape = (rows, width, (width - 1).bit_length())
        self._plan_id = np.frombuffer(plan.id, ">u4").astype(np.uint32)
        most = plan.delta_records_max
        limits = [plan.counters_shape[0], most, *[0] * (most.bit_length() + 1)]
        self._limits = np.array([*limits, plan.delta_bytes_max], np.int64)
        self._ready = np.empty(0, np.int32)
        self.lessons = 0

    def batch(self, deltas: Sequence[bytes]) -> Batch:
        """A batch of which nothing is read yet."""
        offsets = np.array([0, *accumulate(map(len, deltas))], np.int64)
        return self._batch(np.frombuffer(bytearray().join((*deltas, self._slack(offsets))), np.uint8), offsets)

    def gathered(self, data: bytes, spans: Int64) -> Batch:
        """A batch of the deltas that begin and end at ``spans`` (n, 2) in ``data``; nothing is read yet."""
        offsets = np.zeros(len(spans) + 1, np.int64)
        np.cumsum(spans[:, 1] - spans[:, 0], out=offsets[1:])
        buffer = np.zeros(int(offsets[-1]) + len(self._slack(offsets)), np.uint8)
        self._loops.gather(np.frombuffer(data, np.uint8), spans, buffer)
        return self._batch(buffer, offsets)

    def _slack(self, offsets: Int64) -> bytes:
        return bytes(self._loops.SLACK + -int(offsets[-1]) % 4)

    def _batch(self, buffer: Bytes, offsets: Int64) -> Batch:
        n = len(offsets) - 1
        if not len(self._ready):
            self._ready = np.empty(_READY, np.int32)
        return Batch(
            np.zeros((n, 2), np.int64),
            np.zeros(n, np.uint64),
            np.zeros(n, np.uint8),
            np.zeros((n, 3), np.int64),
            self._ready,
            (buffer, buffer.view(">u4").astype(np.uint32)),
            offsets,
        )

    def read(self, batch: Batch, first: int) -> int:
        """Reads from number ``first`` on as many as fit into memory, at least one; the number of the next."""
        end: int = self._loops.decode(
            batch.packed, batch.offsets, first, self._plan_id, self._limits, self._shape,
            batch.headers, batch.streams, batch.states, batch.spans, batch.ready, _ENOUGH,
        )  # fmt: skip
        return end

    def check(self, data: bytes) -> int:
        """The records of one delta, after every check of :meth:`hushsum.delta.Delta.unpack`.

        Raises:
            DeltaError: As there.
        """
        batch = self.batch([data])
        self.read(batch, 0)
        if batch.states[0] == self._loops.GOOD:
            return int(batch.spans[0, 2])
        delta = Delta.unpack(data, self._plan)
        self.learn(delta)
        return delta.records

    def learn(self, delta: Delta) -> None:
        """Takes over what the plan says of the sizes of such runs, which is dear to find out; from a good delta."""
        for run in delta.runs:
            place = 2 + run.records.bit_length()
            if not self._limits[place]:
                self._limits[place] = self._plan.delta_sizes.run_bytes_max(run.records)
                self.lessons += 1


def reader_of(plan: Plan) -> DeltaReader | None:
    """What reads a plan's deltas in compiled loops; None where they do not run, or not for its family or mode.

    Raises:
        AccelerationError: See :func:`hushsum.compiled.enabled`.
    """
    if not isinstance(plan.family, RowsPacked) or not compiled.enabled():
        return None
    if plan.privacy.mode != CENTRAL:
        return None  # Delta.unpack refuses each
    rows, width = plan.family.shape
    if rows * width >= 2**31 or (width - 1).bit_length() > _BITS_MAX:
        return None
    from hushsum import delta_decoder_loops

    return DeltaReader(plan, delta_decoder_loops)


def digests(batch: Batch) -> Int64:
    """(n,): :func:`hushsum.delta.digest` of each delta, as a big-endian signed number."""
    sha256, data, bounds = hashlib.sha256, batch.packed[0].tobytes(), batch.offsets.tolist()
    deltas = map(data.__getitem__, map(slice, bounds, bounds[1:]))
    whole = b"".join([sha256(DELTA_DIGEST + delta).digest() for delta in deltas])
    return np.frombuffer(whole, ">i8")[::4].astype(np.int64)
