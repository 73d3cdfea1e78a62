"""What every client of Kafka shares: its errors as ours, its own log lines in our journal, its administration."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    IllegalSaslStateError,
    InvalidTimestampError,
    KafkaConnectionError,
    KafkaError,
    MessageSizeTooLargeError,
    NodeNotReadyError,
    RecordListTooLargeError,
    SaslAuthenticationFailed,
    TopicAuthorizationFailedError,
    UnsupportedSaslMechanismError,
    UnsupportedVersionError,
)

from aggregator.errors import LogError, LogUnavailableError
from aggregator.journal import journal
from aggregator.kafka.settings import KafkaSettings
from aggregator.ports import Runtime

#: Waiting changes nothing about them: an operator has to.
_LASTING: Final = (
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    IllegalSaslStateError,
    InvalidTimestampError,
    MessageSizeTooLargeError,
    RecordListTooLargeError,
    SaslAuthenticationFailed,
    TopicAuthorizationFailedError,
    UnsupportedSaslMechanismError,
    UnsupportedVersionError,
)

#: How long one broker may take to be connected to.
CONNECT_S: Final = 3.0
_STOP_S: Final = 5.0


class _Forwarded(logging.Handler):
    """The library's lines, in our journal, where debugging asks for them: what they tell is counted as retries.

    Attributes:
        last: The last one. Why a connection was refused stands there alone, and in none of the library's errors.
    """

    last = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.last = record.getMessage()
        journal("kafka").debug("client", level=record.levelname.lower(), line=self.last)


_forwarded: Final = _Forwarded()


def quieten() -> None:
    """Takes the library's own log lines from everybody's screen: a broker that restarts is worth dozens of them."""
    logger = logging.getLogger("aiokafka")
    logger.addHandler(_forwarded)  # once, however often it is added
    logger.propagate = False
    logger.setLevel(logging.WARNING)


@contextmanager
def told_as_ours(what: str) -> Iterator[None]:
    """Raises what a client of Kafka raises as our own errors.

    Raises:
        LogUnavailableError: It passes by itself.
        LogError: An operator has to act.
    """
    try:
        yield
    except (TimeoutError, KafkaError, OSError) as error:
        raise our_error(what, error) from error


def our_error(what: str, error: BaseException) -> LogError:
    """A client's error as one of ours."""
    said = _forwarded.last if isinstance(error, KafkaConnectionError) and _forwarded.last else str(error)
    said = _with_advice(said.rstrip())
    text = f"kafka, {what}: {type(error).__name__}" + (f": {said}" if said else "")
    return LogError(text) if isinstance(error, _LASTING) else LogUnavailableError(text)


async def answering(arguments: dict[str, Any]) -> dict[str, Any]:
    """The same arguments of a client, with one broker to begin at that answers now.

    For one that is silent, the library would wait as long as for any request, before it asks the next.

    Args:
        arguments: Of every client (:meth:`aggregator.kafka.settings.KafkaSettings.client`).
    """
    quieten()
    servers: list[str] = arguments["bootstrap_servers"]
    for server in servers if len(servers) > 1 else ():
        client = AIOKafkaClient(**{**arguments, "bootstrap_servers": [server]})
        try:
            async with asyncio.timeout(CONNECT_S):
                await client.bootstrap()
        except (TimeoutError, KafkaError, OSError):
            continue
        finally:
            await client.close()
        return {**arguments, "bootstrap_servers": [server]}  # the others are named by it; the library asks in any order
    return arguments


async def connect_to(client: AIOKafkaClient, node: int) -> None:
    """Connects to one broker.

    Raises:
        TimeoutError: It is silent.
        KafkaError: It refuses.
    """
    async with asyncio.timeout(CONNECT_S):
        if not await client.ready(node):
            raise NodeNotReadyError(f"broker {node} cannot be connected to")


async def end_client(client: AIOKafkaConsumer | AIOKafkaProducer, runtime: Runtime) -> None:
    """Stops a consumer or a producer whatever state it is in, in bounded time, and raises nothing.

    Stopping one whose broker is away can raise, or cancel who stops it, or wait for the broker: so a task of its own
    does it, and the connections are closed whatever became of it.
    """
    stopping = runtime.spawn(client.stop(), "kafka-stop")
    await asyncio.wait([stopping], timeout=_STOP_S)
    if not stopping.done():
        stopping.cancel()
        await asyncio.wait([stopping], timeout=_STOP_S)
    if not stopping.cancelled() and stopping.done() and (error := stopping.exception()) is not None:
        journal("kafka").debug("client did not stop in order", error=repr(error))
    connections = client.client if isinstance(client, AIOKafkaProducer) else client._client  # noqa: SLF001  no other way
    with suppress(KafkaError, OSError):
        await connections.close()


def _with_advice(said: str) -> str:
    """Security that is not the listener's looks like a broker that hangs up, in words that help nobody."""
    if said.endswith(":"):
        return f"{said} closed, or no answer in time; is kafka_security this listener's?"
    if any(word in said.lower() for word in ("sasl", "ssl", "certificate")):
        return f"{said}; see kafka_security, kafka_sasl_mechanism, kafka_user and kafka_ca_file"
    return said


@asynccontextmanager
async def administration(settings: KafkaSettings) -> AsyncIterator[AIOKafkaAdminClient]:
    """A client for topics and their settings.

    Raises:
        LogUnavailableError: No broker answers.
    """
    quieten()
    admin = AIOKafkaAdminClient(**await answering(settings.client("admin")))
    with told_as_ours("administration"):
        try:
            await admin.start()
            yield admin
        finally:
            await admin.close()
