"""What may come as one message is bounded for every method, and nothing larger is parsed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.descriptor import MethodDescriptor
from grpc_health.v1 import health_pb2  # type: ignore[import-untyped]  # it ships no types
from grpc_reflection.v1alpha import reflection_pb2  # type: ignore[import-untyped]  # it ships no types

from aggregator.api.admission_control import QUESTION_BYTES_MAX, Malformed
from aggregator.api.server import _received_bytes_max
from hushsum_proto.v1 import wire_pb2 as pb
from tests.plans import small_plan
from tests.services import RawClient, config_of, service_of, trailing

PLAN = small_plan()
#: A new method is bounded like any question; these alone may bring more, and each says how much.
LARGER = {
    "Submit": _received_bytes_max(PLAN),
    "SubmitOne": _received_bytes_max(PLAN),
    "SubmitLarge": _received_bytes_max(PLAN),
    "TakePart": _received_bytes_max(PLAN),
}
FILES = (pb.DESCRIPTOR, health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR)


def methods() -> Iterator[MethodDescriptor]:
    for file in FILES:
        for service in file.services_by_name.values():
            yield from service.methods


def path_of(method: MethodDescriptor) -> str:
    return f"/{method.containing_service.full_name}/{method.name}"


def filler(method: MethodDescriptor, size: int) -> bytes:
    """The bytes of the largest object in memory: empty messages of a field that may come often, or unknown fields."""
    often = [
        field.number
        for field in method.input_type.fields
        if field.is_repeated and field.message_type is not None and field.number < 16
    ]
    tag = bytes([(often[0] if often else 15) << 3 | 2, 0])
    return tag * (size // 2)


async def test_no_method_of_any_service_parses_more_than_its_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handlers: dict[str, Any] = {}  # Any: a handler of each method's types
    real = grpc.method_handlers_generic_handler

    def noted(service: str, made: dict[str, Any]) -> Any:
        handlers.update({f"/{service}/{name}": handler for name, handler in made.items()})
        return real(service, made)

    monkeypatch.setattr(grpc, "method_handlers_generic_handler", noted)
    async with service_of(config_of(tmp_path, PLAN)):
        served = {path_of(method): method for method in methods()}
        assert handlers.keys() == served.keys(), "a method of the protocol that no server knows, or the other way round"
        for path, method in served.items():
            bound = LARGER.get(method.name, QUESTION_BYTES_MAX)
            read = handlers[path].request_deserializer
            assert read(filler(method, bound + 2)) == Malformed(bound + 2 - bound % 2, bound), path
            within = read(filler(method, min(bound, 1 << 16)))
            assert not isinstance(within, Malformed) or within.bytes_max is None, f"{path} refuses what it may take"


async def test_who_sends_too_much_is_told_how_much_may_come(tmp_path: Path) -> None:
    async with service_of(config_of(tmp_path, PLAN)) as service, RawClient(service.grpc) as client:
        call: Any = client.channel.unary_unary("/hushsum.v1.Collection/Hello")  # Any: its typings want a codec
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"\x12\x00" * QUESTION_BYTES_MAX, metadata=client.metadata)
    size = 2 * QUESTION_BYTES_MAX
    assert caught.value.details() == f"message of {size} bytes, expected at most {QUESTION_BYTES_MAX}"
    assert trailing(caught.value)["hushsum-reason"] == "malformed"
