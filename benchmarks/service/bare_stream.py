"""`python -m benchmarks.service.bare_stream PORT`: answers each message of a stream with one of the right size."""

import asyncio
import sys
from collections.abc import AsyncIterator

import grpc
import grpc.aio

from hushsum_proto.v1 import wire_pb2 as pb

_SERVICE = pb.DESCRIPTOR.services_by_name["Collection"].full_name
_REPLY = pb.SubmitReply(id=pb.DeltaId(stream=2**60, sequence=1000), status=pb.STATUS_ACKNOWLEDGED)


async def _submit(requests: AsyncIterator[pb.SubmitRequest], _: object) -> AsyncIterator[pb.SubmitReply]:
    async for _ in requests:
        yield _REPLY


async def main(port: int) -> None:
    """Serves until it is killed."""
    server = grpc.aio.server()
    method = grpc.stream_stream_rpc_method_handler(
        _submit, pb.SubmitRequest.FromString, pb.SubmitReply.SerializeToString
    )
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(_SERVICE, {"Submit": method})])
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
