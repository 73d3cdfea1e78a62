"""``python -m benchmarks.fleet.bare PORT CERTIFICATE KEY``: greets, answers each delta at once, and keeps nothing."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from hushsum_proto.v1 import wire_pb2 as pb

_SERVICE = pb.DESCRIPTOR.services_by_name["Collection"].full_name
_REPLY = pb.SubmitReply(id=pb.DeltaId(stream=2**60, sequence=1000), status=pb.STATUS_ACKNOWLEDGED)


async def _hello(request: pb.HelloRequest, _: object) -> pb.HelloReply:
    return pb.HelloReply(
        protocol_version=1,
        plan_id=request.plan_id,
        now_ms=time.time_ns() // 1_000_000,
        in_flight_max=63,
        delta_bytes_max=1 << 20,
        client_id="a-device-of-the-fleet",
    )


async def _submit(requests: AsyncIterator[pb.SubmitRequest], _: object) -> AsyncIterator[pb.SubmitReply]:
    async for _ in requests:
        yield _REPLY


async def main(port: int, certificate: bytes, key: bytes) -> None:
    """Serves until it is killed."""
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {  # Any: one dictionary for all messages
        "Hello": grpc.unary_unary_rpc_method_handler(
            _hello, pb.HelloRequest.FromString, pb.HelloReply.SerializeToString
        ),
        "Submit": grpc.stream_stream_rpc_method_handler(
            _submit, pb.SubmitRequest.FromString, pb.SubmitReply.SerializeToString
        ),
    }
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(_SERVICE, methods)])
    credentials = grpc.ssl_server_credentials([(key, certificate)])
    server.add_secure_port(f"127.0.0.1:{port}", credentials)
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), Path(sys.argv[2]).read_bytes(), Path(sys.argv[3]).read_bytes()))
