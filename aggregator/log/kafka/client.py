"""Settings of Kafka clients, and the translation of their errors."""

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from aiokafka import AIOKafkaClient
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    IllegalSaslStateError,
    InvalidTimestampError,
    KafkaConnectionError,
    KafkaError,
    MessageSizeTooLargeError,
    RecordListTooLargeError,
    SaslAuthenticationFailed,
    TopicAuthorizationFailedError,
    UnsupportedSaslMechanismError,
    UnsupportedVersionError,
)

from aggregator.errors import ConfigError, LogError, LogUnavailableError
from aggregator.logs import journal

Security = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@dataclass(frozen=True)
class KafkaSettings:
    """The operator's settings. Passwords stay in their files, so that no repr can show one.

    Attributes:
        bootstrap: ``host:port`` of brokers, separated by commas.
        replication: Copies of a new topic; None: as many as there are brokers, up to 3.
        retention_s: Of a new topic of entries; None: as long as needed.
        recovery_s: The longest time that restoring a store may take: entries are kept for so long beyond their window.
        sasl_mechanism: One of :data:`MECHANISMS`.
        ca_file: PEM of the brokers' certificate authority; None: those that the system trusts.
        cert_file: PEM of the client certificate, if brokers ask for one.
        session_s: A member of the group without a heartbeat for so long loses its partitions.
        request_s: The longest time of one request, or of one append with all its repetitions.
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
        """Keyword arguments of every aiokafka client; ``name`` shows in the brokers' logs and metrics.

        Raises:
            ConfigError: A file cannot be read, or a setting that another one needs is missing.
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
            raise ConfigError("kafka_cert_file and kafka_key_file: expected both or neither")
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            if self.cert_file is not None:
                context.load_cert_chain(self.cert_file, self.key_file)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"kafka_ca_file, kafka_cert_file, kafka_key_file: {error}; expected PEM files") from error
        return context

    def _sasl(self) -> dict[str, Any]:
        if self.user is None or self.password_file is None:
            raise ConfigError(f"kafka_user, kafka_password_file: required with kafka_security = {self.security}")
        if self.sasl_mechanism not in MECHANISMS:
            expected = ", ".join(MECHANISMS)
            raise ConfigError(f"kafka_sasl_mechanism: got {self.sasl_mechanism}, expected one of {expected}")
        try:
            password = self.password_file.read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"kafka_password_file: {error}; expected a file of one line") from error
        return {
            "sasl_mechanism": self.sasl_mechanism,
            "sasl_plain_username": self.user,
            "sasl_plain_password": password,
        }


#: Errors that do not pass by waiting: an operator must act.
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

#: The longest time to connect to one broker.
CONNECT_S: Final = 3.0


class _Forwarded(logging.Handler):
    """Sends the library's log lines to our journal at debug level: the failures in them are counted as retries.

    Attributes:
        last: The last line. Only there, and in none of the library's errors, is the reason of a refused connection.
    """

    last = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.last = record.getMessage()
        journal("kafka").debug("client", level=record.levelname.lower(), line=self.last)


_forwarded: Final = _Forwarded()


def _quieten() -> None:
    """Keeps the library's log lines off the screen: a broker that restarts causes dozens."""
    logger = logging.getLogger("aiokafka")
    logger.addHandler(_forwarded)  # idempotent
    logger.propagate = False
    logger.setLevel(logging.WARNING)


@contextmanager
def translated_errors(what: str) -> Iterator[None]:
    """Translates errors of a Kafka client to ours.

    Raises:
        LogUnavailableError: The failure passes by itself.
        LogError: An operator must act.
    """
    try:
        yield
    except (TimeoutError, KafkaError, OSError) as error:
        raise translated_error(what, error) from error


def translated_error(what: str, error: BaseException) -> LogError:
    """The translation of a client's error."""
    said = _forwarded.last if isinstance(error, KafkaConnectionError) and _forwarded.last else str(error)
    said = _with_advice(said.rstrip())
    text = f"kafka, {what}: {type(error).__name__}" + (f": {said}" if said else "")
    return LogError(text) if isinstance(error, _LASTING) else LogUnavailableError(text)


async def via_reachable_broker(arguments: dict[str, Any]) -> dict[str, Any]:
    """The same arguments of a client, with a bootstrap broker that answers now.

    For a silent broker the library would wait as long as for any request before it asks the next.
    """
    _quieten()
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
        return {**arguments, "bootstrap_servers": [server]}  # it names the others; the library tries them in any order
    return arguments


def _with_advice(said: str) -> str:
    """Adds advice: wrong security settings look like a broker that closes the connection."""
    if said.endswith(":"):
        return f"{said} closed, or no response in time; check kafka_security for this listener"
    if any(word in said.lower() for word in ("sasl", "ssl", "certificate")):
        return f"{said}; check kafka_security, kafka_sasl_mechanism, kafka_user and kafka_ca_file"
    return said


@asynccontextmanager
async def administration(settings: KafkaSettings) -> AsyncIterator[AIOKafkaAdminClient]:
    """A started admin client; LogUnavailableError if no broker answers."""
    admin = AIOKafkaAdminClient(**await via_reachable_broker(settings.client("admin")))
    with translated_errors("administration"):
        try:
            await admin.start()
            yield admin
        finally:
            await admin.close()
