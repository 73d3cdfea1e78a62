"""What clients of local plans send: batches of uniform reports, and noised whole deltas."""

from collections.abc import Iterable

import grpc.aio
import numpy as np

from hushsum.delta import DeltaId
from hushsum.entropy import OsEntropy
from hushsum.local import silo
from hushsum.local.report_batch import ReportBatch
from hushsum.plan import Plan
from hushsum_proto import convert
from hushsum_proto.answers import Answer
from hushsum_proto.convert_chunks import delta_chunk_to_wire
from hushsum_proto.messages import Authenticity, DeltaChunk, chunks_of
from hushsum_proto.v1 import wire_pb2 as pb
from tests.plans import small_plan
from tests.services import WINDOW, RawClient


def report_plan(**local: object) -> Plan:
    """A small plan of reports; through a shuffler where ``shuffle_min`` is given."""
    shuffled = {"delta": "0.000001", "total_delta": "0.001"} if local.get("shuffle_min") else {}
    return small_plan(privacy={"mode": "local", "epsilon": 2, "local": local, **shuffled})


def silo_plan(**sketch: object) -> Plan:
    """A small plan of noised whole deltas."""
    return small_plan(sketch=sketch, privacy={"mode": "local", "epsilon": 2, "local": {"form": "silo"}})


def batch_of(plan: Plan, stream: int, reports: int = 1, *, window: int = WINDOW) -> bytes:
    """A batch of its own stream, of random reports that the stream decides."""
    sizes = plan.report_sizes
    assert sizes is not None, "a plan of reports"
    values = np.random.default_rng(stream).integers(0, sizes.rows * sizes.outputs, reports)
    return ReportBatch(plan.id, window, DeltaId(stream, 0), values).pack(plan)


def noised(plan: Plan, id: DeltaId, *, window: int = WINDOW) -> bytes:
    """A noised whole delta without records."""
    counters = np.zeros(plan.counters_shape, np.int64)
    counts = np.zeros(plan.counters_shape[0], np.int64)
    return silo.submission(plan, counters, counts, window=window, id=id, entropy=OsEntropy())


async def submit_shuffled(client: RawClient, plan: Plan, data: bytes, shuffled: Authenticity | None) -> Answer:
    """The answer to one batch that says who has shuffled it."""
    request = convert.submission_to_wire(plan.id, data, shuffled)
    return convert.answer_from_wire(await client.collection.SubmitOne(request, metadata=client.metadata))


def large_call(
    client: RawClient, chunks: Iterable[DeltaChunk]
) -> "grpc.aio.StreamUnaryCall[pb.DeltaChunk, pb.SubmitReply]":
    """One call with these chunks."""
    return client.collection.SubmitLarge((delta_chunk_to_wire(chunk) for chunk in chunks), metadata=client.metadata)


async def submit_large(client: RawClient, plan: Plan, data: bytes) -> Answer:
    """The answer to one delta in chunks."""
    return convert.answer_from_wire(await large_call(client, chunks_of(plan.id, data)))
