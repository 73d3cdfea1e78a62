"""The service's settings: a small frozen value, from a TOML file and overrides; an unknown key is refused."""

import difflib
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal, Self

import pydantic
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, SecretStr

from aggregator.addresses import host_and_port
from aggregator.config_rules import check_together
from aggregator.errors import ConfigError
from hushsum.hush_format import COUNTERS_MAX

_MIB: Final = 2**20
DSN_VARIABLE: Final = "HUSHSUM_POSTGRES_DSN"
_SECRETS: Final = frozenset({"postgres_dsn"})  # what came is never shown, not even where it is wrong


def _address(value: str) -> str:
    host_and_port(value)
    return value


def _address_or_off(value: str) -> str:
    return _address(value) if value else value


def _addresses(value: str) -> str:
    for address in value.split(","):
        host_and_port(address.strip())
    return value


def _path(value: object) -> object:
    return Path(value) if isinstance(value, str) and value else value


_Path = Annotated[Path, BeforeValidator(_path)]
_Address = Annotated[str, AfterValidator(_address)]
_AddressOrOff = Annotated[str, AfterValidator(_address_or_off)]
_Addresses = Annotated[str, AfterValidator(_addresses)]


class Config(pydantic.BaseModel):
    """Everything that can be set of a service, and nothing that changes privacy: that is the plan's.

    Attributes:
        plan: A made ``plan.json``, or a ``plan.toml`` that is made once, at the first start, into the store.
        data: The folder of what lies in files (log, store, receipts); made where it does not exist. With Kafka and
            PostgreSQL it is optional, and says alone where this process listens.
            A shuffler without it asks ``upstream`` for it.
        receipts: The file of receipts, where the log is a file; by default ``receipts.jsonl`` in ``data``. On another
            volume than the store's it outlives that one. Its folder has to be there.
        role: What this process does: ``all``, one of ``gateway``, ``worker`` and ``releaser``, or ``shuffler``, which
            stands before them.
        log: ``sqlite``, a file, or ``kafka``.
        store: ``sqlite``, a file, or ``postgresql``.
        listen: Where gRPC listens; port 0 takes any free one.
        metrics_listen: Where ``/metrics`` answers over HTTP; empty turns it off. They hold exact counts: off loopback
            it speaks TLS with ``tls_cert``, and asks for a certificate
        metrics_client_ca: of this authority, with the scope ``admin``.
        health_listen: Where ``/livez`` and ``/readyz`` answer over plain HTTP, and say nothing else; empty: nowhere.
        traces: Whether spans go to the collector that the environment names (``OTEL_EXPORTER_OTLP_ENDPOINT``).
        insecure: Plaintext off loopback is refused without it, be it gRPC, Kafka or PostgreSQL. With it a shuffler
            speaks plaintext to its upstream, unless ``upstream_ca``, ``upstream_cert`` or ``upstream_token`` is set.
        tls_cert: The certificate that gRPC shows, with its chain (PEM); without it gRPC speaks plaintext. Certificate
            and key are read again when they change.
        tls_key: Its private key (PEM, mode 600).
        tls_client_ca: Clients must show a certificate of this authority: mutual TLS.
        authentication: How callers prove who they are: ``declared`` believes a name, of callers on this machine alone;
            ``token`` asks for a bearer token; ``certificate`` takes the name from the client's certificate.
        tokens: The file of hashed tokens (``hushsum admin tokens``), read again when it changes.
        partitions: P of the log, recorded at the first start.
        skew_s: How far ahead of this clock a device's may be.
        manual: Nothing is sealed or released by the clock, only through the administration.
        retain_verdicts: One verdict an entry is kept in the store, for audits of the service itself. Off by default:
            it is a record of who contributed when.
        counters_max: Counters of a plan in all its classes; each takes 8 bytes of memory for every open window.
        in_flight_max: Unanswered deltas of one session.
        sessions_max: Open sessions.
        pending_entries_max: Unanswered deltas of all sessions.
        pending_bytes_max: Their bytes.
        client_bytes_rate: Bytes of deltas a second that one client may send; each counts 1 KiB at least,
        client_bytes_burst: and so many that it may be ahead of that: then it is asked to wait.
        client_calls_rate: Other calls a second of one client,
        client_calls_burst: and so many it may be ahead of that.
        client_sessions_max: Open sessions of one client.
        client_streams_max: Streams of one client that may have deltas in one window. A spool has one.
        client_rate: Anonymous reports a second that one declared name may send; a batch costs 64 of them at least,
        client_burst: and so many that it may be ahead of that: then it is asked to wait. It holds mistakes, and nobody
            who lies where names are only declared: a liar takes another one.
        group_entries_max: Entries of one group commit.
        group_bytes_max: Their bytes.
        checkpoint_entries: The fold checkpoints after that many entries,
        checkpoint_s: or after that many seconds with any.
        memory_max: Bytes of memory at which the service drains and stops; by default 90 % of its container's limit.
        start_s: How long a start waits for brokers and a database that cannot be reached yet.
        stop_s: How long a stop waits for what is under way.
        lease_s: How long a releaser that is not heard of keeps others from releasing.
        log_level: The least level that is written.
        log_format: ``console`` for people, ``json`` for machines.
        kafka_bootstrap: Brokers to ask first, ``host:port,host:port``.
        kafka_prefix: What the names of topics begin with.
        kafka_replication: Copies of a topic; by default as many as there are brokers, up to 3.
        kafka_retention_s: How long the topic keeps entries; by default derived from the plan and ``kafka_recovery_s``.
        kafka_recovery_s: How long folding may stand still before what it needs may be deleted by the brokers.
        kafka_security: ``PLAINTEXT``, ``SSL``, ``SASL_PLAINTEXT`` or ``SASL_SSL``.
        kafka_sasl_mechanism: ``PLAIN``, ``SCRAM-SHA-256`` or ``SCRAM-SHA-512``.
        kafka_user: With SASL.
        kafka_password_file: With SASL; the file holds the password alone.
        kafka_ca_file: Whom to trust with SSL; by default whom the system trusts.
        kafka_cert_file: This process's own certificate, where the brokers ask for one,
        kafka_key_file: and its key.
        kafka_session_s: How long a worker that is not heard of keeps its partitions.
        postgres_dsn: ``postgresql://user:password@host:port/name``; better in the environment (HUSHSUM_POSTGRES_DSN).
        postgres_pool: Connections of this process, at most; one is left to what answers somebody, one to erasing.
        directory: A TOML file that says whose key is which. With it every entry of the log is signed.
        gateway_key: The gateway's private key (PEM, mode 600).
        releaser_key: The releaser's.
        client_directory: A TOML file with the keys of a secure plan's clients: the one that the plan names.
        secure_step_s: How long a round of a secure sum waits for every client's message of a step.
        secure_upload_s: The same for a client's vector, from the moment that it may send it.
        shufflers: A TOML file with the keys of the shufflers whose batches a plan with ``shuffle_min`` takes.
        shuffler_key: The shuffler's private key, in its role.
        upstream: Where the shuffler's batches go: a gateway, ``host:port``,
        upstream_ca: whose certificate is of this authority; by default of a public one that gRPC knows,
        upstream_token: and to whom the shuffler shows the token in this file, which is of the name of its key,
        upstream_cert: or this certificate (PEM), of that name as well,
        upstream_key: with its private key.
        direct_producers: Services whose key is in the directory may write into the topic themselves.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    plan: _Path | None = None
    data: _Path | None = None
    receipts: _Path | None = None
    role: Literal["all", "gateway", "worker", "releaser", "shuffler"] = "all"
    log: Literal["sqlite", "kafka"] = "sqlite"
    store: Literal["sqlite", "postgresql"] = "sqlite"
    listen: _Address = "127.0.0.1:7443"
    metrics_listen: _AddressOrOff = "127.0.0.1:7444"
    metrics_client_ca: _Path | None = None
    health_listen: _AddressOrOff = ""
    traces: bool = False
    insecure: bool = False
    tls_cert: _Path | None = None
    tls_key: _Path | None = None
    tls_client_ca: _Path | None = None
    authentication: Literal["declared", "token", "certificate"] = "declared"
    tokens: _Path | None = None
    partitions: Annotated[int, Field(ge=1, le=1024)] = 1
    skew_s: Annotated[float, Field(ge=0, le=86_400)] = 300.0
    manual: bool = False
    retain_verdicts: bool = False
    counters_max: Annotated[int, Field(ge=1)] = COUNTERS_MAX
    in_flight_max: Annotated[int, Field(ge=1, le=65_536)] = 256
    sessions_max: Annotated[int, Field(ge=1, le=100_000)] = 1024
    pending_entries_max: Annotated[int, Field(ge=1, le=10_000_000)] = 65_536
    pending_bytes_max: Annotated[int, Field(ge=1)] = 64 * _MIB
    client_bytes_rate: Annotated[float, Field(gt=0, le=1e12)] = 4.0 * _MIB
    client_bytes_burst: Annotated[int, Field(ge=1, le=10**15)] = 256 * _MIB
    client_calls_rate: Annotated[float, Field(gt=0, le=1e6)] = 20.0
    client_calls_burst: Annotated[int, Field(ge=1, le=10**9)] = 1000
    client_sessions_max: Annotated[int, Field(ge=1, le=100_000)] = 16
    client_streams_max: Annotated[int, Field(ge=1, le=1_000_000)] = 1024
    client_rate: Annotated[float, Field(gt=0, le=1e9)] = 1000.0
    client_burst: Annotated[int, Field(ge=1, le=10**12)] = 1_000_000
    group_entries_max: Annotated[int, Field(ge=1, le=65_536)] = 4096
    group_bytes_max: Annotated[int, Field(ge=1)] = 16 * _MIB
    checkpoint_entries: Annotated[int, Field(ge=1)] = 5000
    checkpoint_s: Annotated[float, Field(gt=0, le=3600)] = 5.0
    memory_max: Annotated[int, Field(ge=64 * _MIB)] | None = None
    start_s: Annotated[float, Field(ge=0, le=86_400)] = 60.0
    stop_s: Annotated[float, Field(ge=0, le=3600)] = 30.0
    lease_s: Annotated[float, Field(ge=1, le=3600)] = 10.0
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["console", "json"] = "console"
    kafka_bootstrap: _Addresses | None = None
    kafka_prefix: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,100}$")] = "hushsum"
    kafka_replication: Annotated[int, Field(ge=1, le=32)] | None = None
    kafka_retention_s: Annotated[int, Field(ge=1)] | None = None
    kafka_recovery_s: Annotated[int, Field(ge=0)] = 86_400
    kafka_security: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    kafka_sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = None
    kafka_user: str | None = None
    kafka_password_file: _Path | None = None
    kafka_ca_file: _Path | None = None
    kafka_cert_file: _Path | None = None
    kafka_key_file: _Path | None = None
    kafka_session_s: Annotated[float, Field(ge=1, le=1800)] = 10.0
    postgres_dsn: SecretStr | None = None
    postgres_pool: Annotated[int, Field(ge=3, le=1000)] = 8
    directory: _Path | None = None
    gateway_key: _Path | None = None
    releaser_key: _Path | None = None
    client_directory: _Path | None = None
    secure_step_s: Annotated[float, Field(gt=0, le=3600)] = 20.0
    secure_upload_s: Annotated[float, Field(gt=0, le=86_400)] = 120.0
    shufflers: _Path | None = None
    shuffler_key: _Path | None = None
    upstream: _Address | None = None
    upstream_ca: _Path | None = None
    upstream_token: _Path | None = None
    upstream_cert: _Path | None = None
    upstream_key: _Path | None = None
    direct_producers: bool = False

    @pydantic.model_validator(mode="after")
    def _fits_together(self) -> Self:
        given = {key: getattr(self, key) for key in self.model_fields_set}
        check_together({**self.model_dump(), "postgres_dsn": self.dsn}, given)
        return self

    @property
    def dsn(self) -> str:
        """The database's address with its password, for who opens it alone; empty where none is set."""
        return "" if self.postgres_dsn is None else self.postgres_dsn.get_secret_value()

    @property
    def folder(self) -> Path:
        """The data folder of a service that has files."""
        assert self.data is not None, "required above wherever log or store is a file"
        return self.data

    @property
    def needs_network(self) -> bool:
        """Whether its log or its store is somewhere else, and may not answer."""
        return (self.log, self.store) != ("sqlite", "sqlite")

    @classmethod
    def of(cls, **settings: object) -> Self:
        """Settings from names and values.

        Raises:
            ConfigError: A key is unknown or missing, or its value is not what it may be.
        """
        try:
            return cls.model_validate(settings)
        except pydantic.ValidationError as error:
            # Not as its cause: what it shows of the settings could hold a password.
            told = _config_error(error)
        raise told

    @classmethod
    def load(
        cls, file: Path | None, overrides: Mapping[str, object], environment: Mapping[str, str] | None = None
    ) -> Self:
        """Settings from a TOML file, where there is one, and from overrides, of which None means "not given".

        The database's address may also stand in the environment (this process's, where none is given).

        Raises:
            ConfigError: As :meth:`of`; or the file is no TOML.
        """
        settings: dict[str, object] = {}
        if file is not None:
            try:
                settings = tomllib.loads(file.read_text(encoding="utf-8"))
            except (OSError, ValueError, RecursionError) as error:
                raise ConfigError(f"{file}: expected a TOML file that can be read, got: {error}") from error
        settings |= {key: value for key, value in overrides.items() if value is not None}
        dsn = (os.environ if environment is None else environment).get(DSN_VARIABLE)
        if dsn and settings.get("store") == "postgresql":
            settings.setdefault("postgres_dsn", dsn)
        return cls.of(**settings)


def _config_error(error: pydantic.ValidationError) -> ConfigError:
    """The first thing that is wrong, in one line."""
    first = error.errors(include_url=False)[0]
    key = str(first["loc"][0]) if first["loc"] else ""
    if first["type"] == "extra_forbidden":
        near = difflib.get_close_matches(key, Config.model_fields, n=1, cutoff=0.5)
        return ConfigError(f"{key}: unknown key" + (f"; did you mean {near[0]}?" if near else ""))
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "missing" or not key:
        return ConfigError(f"{key}: required" if key else message)
    came = "something else" if key in _SECRETS else repr(first["input"])
    return ConfigError(f"{key}: got {came}: {message}")
