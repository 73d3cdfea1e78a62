"""Clients of Kafka: settings, security, and errors as the log's."""

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

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

from aggregator.errors import ConfigError, LogError, LogUnavailableError
from aggregator.logs import journal
from aggregator.runtime import Runtime

Security = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@dataclass(frozen=True)
class KafkaSettings:
    """The operator's settings; passwords stay in their files, so no repr can show one.

    Attributes:
        bootstrap: ``host:port`` of brokers, with commas between them.
        prefix: Of the names of topics and groups.
        replication: Copies of a new topic; None: as many as there are brokers, up to 3.
        retention_s: Of a new topic of entries; None: as long as is needed.
        recovery_s: How long restoring a store may take at the worst: entries are kept for so long beyond their window.
        security: Whether the brokers are reached over TLS, and whether clients name themselves.
        sasl_mechanism: One of :data:`MECHANISMS`.
        user: Its name, where SASL is used.
        password_file: Holds its password.
        ca_file: PEM of who signed the brokers' certificates; None: those that this system trusts.
        cert_file: PEM of our certificate, where brokers ask for one.
        key_file: PEM of its key.
        session_s: A member of the group that says nothing for so long has lost its partitions.
        request_s: How long one request, or one append with all its repetitions, may take.
    """

    bootstrap: str
    prefix: str = "hushsum"
    replication: int | None = None
    retention_s: float | None = None
    recovery_s: float = 86_400.0
    security: Security = "PLAINTEXT"
    sasl_mechanism: str = "PLAIN"
    user: str | None = None
    password_file: Path | None = None
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    session_s: float = 10.0
    request_s: float = 20.0

    def client(self, name: str) -> dict[str, Any]:
        """What producers, consumers and administration have in common: keyword arguments of aiokafka's classes.

        Args:
            name: How the client is called in the brokers' own logs and metrics.

        Raises:
            ConfigError: A file cannot be read, or a setting is missing beside another.
        """
        arguments: dict[str, Any] = {
            "bootstrap_servers": [server.strip() for server in self.bootstrap.split(",")],
            "client_id": f"{self.prefix}-{name}",
            "security_protocol": self.security,
            "request_timeout_ms": round(self.request_s * 1000),
            "retry_backoff_ms": 200,
            "metadata_max_age_ms": 60_000,
        }
        if self.security in {"SSL", "SASL_SSL"}:
            arguments["ssl_context"] = self._ssl_context()
        if self.security in {"SASL_PLAINTEXT", "SASL_SSL"}:
            arguments |= self._sasl()
        return arguments

    def _ssl_context(self) -> ssl.SSLContext:
        if (self.cert_file is None) != (self.key_file is None):
            raise ConfigError("kafka_cert_file and kafka_key_file: one without the other; expected both, or neither")
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            if self.cert_file is not None:
                context.load_cert_chain(self.cert_file, self.key_file)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"kafka_ca_file, kafka_cert_file, kafka_key_file: {error}; expected readable PEM files"
            ) from error
        return context

    def _sasl(self) -> dict[str, Any]:
        if self.user is None or self.password_file is None:
            raise ConfigError(f"kafka_user, kafka_password_file: missing; kafka_security {self.security} needs both")
        if self.sasl_mechanism not in MECHANISMS:
            expected = ", ".join(MECHANISMS)
            raise ConfigError(f"kafka_sasl_mechanism: got {self.sasl_mechanism}, expected one of {expected}")
        try:
            password = self.password_file.read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"kafka_password_file: {error}; expected a readable file of one line") from error
        return {
            "sasl_mechanism": self.sasl_mechanism,
            "sasl_plain_username": self.user,
            "sasl_plain_password": password,
        }


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
        arguments: Of every client (:meth:`aggregator.log.kafka.client.KafkaSettings.client`).
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
