"""The service's settings, and how they need or contradict each other; from a TOML file and overrides."""

import difflib
import ipaddress
import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Final, Literal, Self
from urllib.parse import parse_qs, urlsplit

import pydantic
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, SecretStr

from aggregator.errors import ConfigError
from hushsum.hush_format import COUNTERS_MAX

LOOPBACK_NAMES: Final = frozenset({"localhost", "ip6-localhost"})


def host_and_port(address: str) -> tuple[str, int]:
    """Host and port of ``host:port`` or ``[v6]:port``.

    Raises:
        ValueError: It is neither.
    """
    host, colon, port = address.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or not bare or (":" in bare and bare == host) or not port.isdecimal() or int(port) > 65535:
        raise ValueError("expected host:port, such as 127.0.0.1:7443 or [::1]:7443; port 0 takes any free one")
    return bare, int(port)


def is_loopback(host: str) -> bool:
    """Whether a host can be reached from this machine alone."""
    if host in LOOPBACK_NAMES:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class DatabaseAddress:
    """What may be said of the address of a database: where it is, never the password that stands in it.

    Args:
        dsn: ``postgresql://user:password@host:port/name?option=value``; without a host it is that of ``PGHOST``.

    Raises:
        ValueError: It is no such address.
    """

    def __init__(self, dsn: str) -> None:
        try:
            parts = urlsplit(dsn)
        except ValueError:
            parts = urlsplit("")
        if parts.scheme not in {"postgresql", "postgres"}:
            raise ValueError("expected postgresql://user:password@host:port/name")
        options = parse_qs(parts.query)
        before, _, netloc = parts.netloc.rpartition("@")
        if "@" in before:
            raise ValueError("an @ in user or password is written %40")
        # As asyncpg looks for it: what stands earlier hides what stands later.
        for place in (netloc, ",".join(options.get("host", [])), _of_a_service(options), os.environ.get("PGHOST", "")):
            self.hosts = tuple(_host_of(each) for each in place.split(",") if each)
            if self.hosts:
                break
        self.name = parts.path.lstrip("/")
        self._ssl = options.get("sslmode", ["prefer"])[-1]

    @property
    def is_private(self) -> bool:
        """Whether nobody between can read what passes: one machine's sockets, or TLS that is demanded."""
        here = all(host.startswith("/") or is_loopback(host) for host in self.hosts)
        return here or self._ssl in {"require", "verify-ca", "verify-full"}

    def __str__(self) -> str:
        return f"{','.join(self.hosts) or 'the local socket'}/{self.name}"


def _of_a_service(options: dict[str, list[str]]) -> str:
    """A host that a file names, which is not read here: it may be any."""
    return f"service {options['service'][-1]}" if "service" in options else ""


def _host_of(address: str) -> str:
    if address.startswith("["):
        return address[1:].partition("]")[0]
    host, colon, port = address.rpartition(":")
    return host if colon and port.isdecimal() else address


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


_Settings = Mapping[str, object]

# What means nothing without it, so that a setting that is not used is no surprise later.
_OF_KAFKA: Final = ("kafka_", "directory", "gateway_key", "releaser_key", "direct_producers")
_OF_POSTGRESQL: Final = ("postgres_",)
_OF_SHUFFLERS: Final = ("upstream", "upstream_ca", "upstream_token", "upstream_cert", "upstream_key", "shuffler_key")
# What a shuffler, which has neither log nor store, does not use.
_NOT_OF_SHUFFLERS: Final = (
    *("partitions", "manual", "receipts", "retain_verdicts", "client_directory", "client_streams_max"),
    *(*_OF_KAFKA, *_OF_POSTGRESQL),
)
_SIGNING_KEYS: Final = {
    "all": ("gateway_key", "releaser_key"),
    "gateway": ("gateway_key",),
    "worker": (),
    "releaser": ("releaser_key",),
}


def check_together(settings: _Settings, given: _Settings) -> None:
    """Allows settings that make up one service.

    Args:
        settings: All, defaults included; ``postgres_dsn`` as plain text, empty where there is none.
        given: Those that somebody has set.

    Raises:
        ValueError: The first thing that does not fit.
    """
    for refusal in _refusals(settings, given):
        raise ValueError(refusal)


def _refusals(settings: _Settings, given: _Settings) -> Iterator[str]:
    yield from _listening(settings)
    yield from _proofs(settings)
    yield from _metrics(settings)
    if settings["role"] == "shuffler":
        yield from _shuffler(settings, given)
        return
    if settings["plan"] is None:
        yield "plan: required"
    for key in _OF_SHUFFLERS:
        if settings[key] is not None:
            yield f"{key}: means something with role = shuffler alone; got role = {settings['role']}"
    yield from _parts(settings)
    yield from _needless(settings, given)
    if settings["log"] == "kafka":
        yield from _kafka(settings)
    if settings["store"] == "postgresql":
        yield from _postgresql(settings)
    if settings["directory"] is not None:
        yield from _signed(settings)
    yield from _unsigned(settings)


def _listening(settings: _Settings) -> Iterator[str]:
    for key, needed in (
        ("tls_cert", "tls_key"),
        ("tls_key", "tls_cert"),
        ("tls_client_ca", "tls_cert"),
        ("metrics_client_ca", "tls_cert"),
    ):
        if settings[key] is not None and settings[needed] is None:
            yield f"{key}: needs {needed}: TLS is spoken with tls_cert and tls_key, both"
    address = str(settings["listen"])
    if settings["tls_cert"] is None and not settings["insecure"] and not is_loopback(host_and_port(address)[0]):
        yield (
            f"listen: plaintext off loopback is refused: got {address}; take 127.0.0.1, set tls_cert and tls_key, or "
            "set insecure"
        )


def _proofs(settings: _Settings) -> Iterator[str]:
    authentication = settings["authentication"]
    if authentication == "token" and settings["tokens"] is None:
        yield "tokens: required with authentication = token: the file that `hushsum admin tokens` writes"
    if authentication != "token" and settings["tokens"] is not None:
        yield f"tokens: means something with authentication = token alone; got authentication = {authentication}"
    if authentication == "certificate" and settings["tls_client_ca"] is None:
        yield "tls_client_ca: required with authentication = certificate: the authority of the clients' certificates"


def _metrics(settings: _Settings) -> Iterator[str]:
    address = str(settings["metrics_listen"])
    if settings["metrics_client_ca"] is not None and not address:
        yield "metrics_client_ca: means something with metrics_listen alone"
    if address and settings["metrics_client_ca"] is None and not is_loopback(host_and_port(address)[0]):
        yield (
            f"metrics_listen: metrics hold exact counts, which no analyst may see: got {address}; take 127.0.0.1, or "
            "set metrics_client_ca, whose certificates alone are then answered"
        )


def _shuffler(settings: _Settings, given: _Settings) -> Iterator[str]:
    for key in ("data", "upstream", "shuffler_key", "shufflers"):
        if settings[key] is None:
            yield f"{key}: required with role = shuffler"
            return
    for key, needed in (("upstream_cert", "upstream_key"), ("upstream_key", "upstream_cert")):
        if settings[key] is not None and settings[needed] is None:
            yield f"{key}: needs {needed}: a certificate and its private key belong together"
    for key in ("log", "store"):
        if settings[key] != "sqlite":
            yield f"{key}: means nothing with role = shuffler"
    for key in sorted(key for key in given if key.startswith(_NOT_OF_SHUFFLERS)):
        if given[key] not in (None, False):
            yield f"{key}: means nothing with role = shuffler"


def _parts(settings: _Settings) -> Iterator[str]:
    role, log, store = settings["role"], settings["log"], settings["store"]
    if role != "all" and (log, store) != ("kafka", "postgresql"):
        yield (
            f"role: {role} shares its work with other processes, which needs log = kafka and store = postgresql; "
            f"got log = {log} and store = {store}"
        )
    if log == "sqlite" and store == "postgresql":
        yield "store: postgresql needs log = kafka: a log in a file belongs to one machine, the store to all"
    if "sqlite" in (log, store) and settings["data"] is None:
        yield "data: required"
    if log == "kafka" and settings["receipts"] is not None:
        yield "receipts: means something with log = sqlite alone; with log = kafka receipts are a topic"


def _needless(settings: _Settings, given: _Settings) -> Iterator[str]:
    for part, value, prefixes in (("log", "kafka", _OF_KAFKA), ("store", "postgresql", _OF_POSTGRESQL)):
        if settings[part] != value:
            for key in sorted(key for key in given if key.startswith(prefixes)):
                if given[key] not in (None, False):
                    yield f"{key}: means something with {part} = {value} alone; got {part} = {settings[part]}"


def _kafka(settings: _Settings) -> Iterator[str]:
    bootstrap, security = settings["kafka_bootstrap"], str(settings["kafka_security"])
    if bootstrap is None:
        yield "kafka_bootstrap: required with log = kafka: host:port of a broker"
        return
    if security.endswith("PLAINTEXT") and not settings["insecure"]:
        for address in str(bootstrap).split(","):
            if not is_loopback(host_and_port(address.strip())[0]):
                yield (
                    f"kafka_security: {security} off loopback is refused: got {address.strip()}; take "
                    f"{security.removesuffix('PLAINTEXT')}SSL, or set insecure"
                )
    of_sasl = ("kafka_sasl_mechanism", "kafka_user", "kafka_password_file")
    sasl = "kafka_security = SASL_SSL or SASL_PLAINTEXT"
    yield from _all_or_none(settings, of_sasl, wanted=security.startswith("SASL"), where=sasl)
    of_ssl = ("kafka_ca_file", "kafka_cert_file", "kafka_key_file")
    if not security.endswith("SSL"):
        yield from _all_or_none(settings, of_ssl, wanted=False, where="kafka_security = SSL or SASL_SSL")
    elif (settings["kafka_cert_file"] is None) != (settings["kafka_key_file"] is None):
        yield "kafka_cert_file: a certificate and its key belong together: set kafka_cert_file and kafka_key_file"


def _all_or_none(settings: _Settings, keys: tuple[str, ...], *, wanted: bool, where: str) -> Iterator[str]:
    for key in keys:
        if wanted and settings[key] is None:
            yield f"{key}: required with {where}"
        if not wanted and settings[key] is not None:
            yield f"{key}: means something with {where} alone"


def _postgresql(settings: _Settings) -> Iterator[str]:
    if not settings["postgres_dsn"]:
        yield "postgres_dsn: required with store = postgresql, here or in the environment as HUSHSUM_POSTGRES_DSN"
        return
    try:
        database = DatabaseAddress(str(settings["postgres_dsn"]))
    except ValueError as error:
        yield f"postgres_dsn: {error}"
        return
    if not database.is_private and not settings["insecure"]:
        yield (
            f"postgres_dsn: plaintext off loopback is refused: {database} may answer without TLS; add "
            "?sslmode=verify-full (or require), or set insecure"
        )


def _signed(settings: _Settings) -> Iterator[str]:
    for key in _SIGNING_KEYS[str(settings["role"])]:
        if settings[key] is None:
            yield f"{key}: required with a directory in role {settings['role']}: what it writes is signed"


def _unsigned(settings: _Settings) -> Iterator[str]:
    if settings["directory"] is None:
        for key in ("direct_producers", "gateway_key", "releaser_key"):
            if settings[key]:
                yield f"{key}: needs a directory, which says whose key is which"
