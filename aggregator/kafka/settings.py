"""How Kafka is reached, and what its topics are to hold: one frozen value that every Kafka module takes."""

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from aggregator.errors import ConfigError

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
