"""The settings of the service, from a TOML file and overrides, and the checks that they fit together."""

import difflib
import ipaddress
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Final, Literal, Self
from urllib.parse import parse_qs, urlsplit

import pydantic
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, SecretStr

from aggregator.errors import ConfigError
from hushsum.release_format import COUNTERS_MAX

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
    """Whether only this machine can reach a host."""
    if host in LOOPBACK_NAMES:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class DatabaseAddress:
    """The address of a database without its password, for messages and checks; ValueError: it is no such address.

    ``dsn`` is ``postgresql://user:password@host:port/name?option=value``; without a host that of ``PGHOST`` is taken.
    """

    def __init__(self, dsn: str) -> None:
        try:
            parts = urlsplit(dsn)
        except ValueError:
            parts = urlsplit("")
        if parts.scheme not in {"postgresql", "postgres"}:
            raise ValueError("expected postgresql://user:password@host:port/name")
        options = parse_qs(parts.query)
        credentials, _, netloc = parts.netloc.rpartition("@")
        # Otherwise a piece of a password would be taken for a host or a name, and shown.
        if dsn.count("@") > parts.netloc.count("@") or "@" in credentials:
            raise ValueError("in user, password, name and options / is written %2F, ? %3F, # %23 and @ %40")
        if not all(_has_port_or_none(each) for each in netloc.split(",")):
            raise ValueError("a port is a number; expected postgresql://user:password@host:port/name")
        # In the order of asyncpg: an earlier place hides the later ones.
        for place in (netloc, ",".join(options.get("host", [])), _of_a_service(options), os.environ.get("PGHOST", "")):
            self.hosts = tuple(_host_of(each) for each in place.split(",") if each)
            if self.hosts:
                break
        self.name = parts.path.lstrip("/")
        self._ssl = options.get("sslmode", ["prefer"])[-1]

    @property
    def is_private(self) -> bool:
        """Whether the connection cannot be read on its way: it stays on this machine, or TLS is required."""
        here = all(host.startswith("/") or is_loopback(host) for host in self.hosts)
        return here or self._ssl in {"require", "verify-ca", "verify-full"}

    def __str__(self) -> str:
        return f"{','.join(self.hosts) or 'the local socket'}/{self.name}"


def _of_a_service(options: dict[str, list[str]]) -> str:
    """The host of a connection service file; the file is not read here, so the host may be any."""
    return f"service {options['service'][-1]}" if "service" in options else ""


def _has_port_or_none(address: str) -> bool:
    _, colon, port = address.rpartition("]")[2].partition(":")
    return not colon or port.isdecimal()


def _host_of(address: str) -> str:
    if address.startswith("["):
        return address[1:].partition("]")[0]
    host, colon, port = address.rpartition(":")
    return host if colon and port.isdecimal() else address


class ReceiptsTopicAddress:
    """``kafka://host:port,host:port/topic``, without hosts for the brokers of the log; ValueError: it is none."""

    PREFIX: Final = "kafka://"

    def __init__(self, url: str) -> None:
        hosts, slash, self.topic = url.removeprefix(self.PREFIX).partition("/")
        if not url.startswith(self.PREFIX) or not slash or re.fullmatch("[A-Za-z0-9._-]{1,249}", self.topic) is None:
            raise ValueError("expected kafka://HOST:PORT/TOPIC, or kafka:///TOPIC for a topic of kafka_bootstrap")
        self.bootstrap = _addresses(hosts) if hosts else ""


_MIB: Final = 2**20
_PORT_MAX: Final = 65_535
_WITHOUT_PLAN: Final = "without a plan"
DSN_VARIABLE: Final = "HUSHSUM_POSTGRES_DSN"
_SECRETS: Final = frozenset({"postgres_dsn"})  # a value is never shown, not even a wrong one


def _address(value: str) -> str:
    host_and_port(value)
    return value


def _address_or_off(value: str) -> str:
    return _address(value) if value else value


def _addresses(value: str) -> str:
    for address in value.split(","):
        host_and_port(address.strip())
    return value


def _text_or_off(value: object) -> object:
    return value or None  # an empty variable of compose/ means off


def _path(value: object) -> object:
    return Path(value) if isinstance(value, str) and value else value


_Path = Annotated[Path, BeforeValidator(_path)]
_Address = Annotated[str, AfterValidator(_address)]
_AddressOrOff = Annotated[str, AfterValidator(_address_or_off)]
_Addresses = Annotated[str, AfterValidator(_addresses)]


class Config(pydantic.BaseModel):
    """The settings of a service: docs/reference/settings.md. None of them changes privacy: the plan does."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    plan: _Path | None = None  # a shuffler without it asks upstream
    data: _Path | None = None  # optional with Kafka and PostgreSQL, where it only holds where this process listens
    receipts: _Path | None = None
    # Where a second copy of the receipts goes: a file, or kafka://HOST:PORT,…/TOPIC.
    receipts_copy: Annotated[str | None, BeforeValidator(_text_or_off)] = None
    role: Literal["all", "gateway", "worker", "releaser", "shuffler"] = "all"
    log: Literal["sqlite", "kafka"] = "sqlite"
    store: Literal["sqlite", "postgresql"] = "sqlite"
    listen: _Address = "127.0.0.1:7443"
    processes: Annotated[int, Field(ge=1, le=64)] = 1  # gateways of one machine that share `listen`
    # Metrics hold exact counts: off loopback the page speaks TLS, to client certificates of metrics_client_ca alone.
    metrics_listen: _AddressOrOff = "127.0.0.1:7444"
    metrics_client_ca: _Path | None = None
    health_listen: _AddressOrOff = ""
    page_listen: _AddressOrOff = ""
    page_hosts: str = ""
    page_proxy_header: Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{1,64}$")] | None = Field(
        None,
        description="Header in which a proxy names callers that it has signed on; they may read. It also sends "
        "`X-Hushsum-Proxy-Secret`.",
    )
    page_proxy_secret: _Path | None = Field(
        None, description="File with the secret of that proxy: one line of at least 16 characters, mode 600."
    )
    otlp: bool = False
    # Plaintext off loopback: gRPC, Kafka, PostgreSQL, and a shuffler's upstream if none of its credentials is set.
    insecure: bool = False
    tls_cert: _Path | None = None
    tls_key: _Path | None = None
    tls_client_ca: _Path | None = None
    authentication: Literal["declared", "token", "certificate"] = "declared"
    tokens: _Path | None = None
    partitions: Annotated[int, Field(ge=1, le=1024)] = 1
    skew_s: Annotated[float, Field(ge=0, le=86_400)] = Field(
        300.0, description="How far ahead of the service a device's clock may be, in seconds."
    )
    manual: bool = False
    publish: str | None = None  # the folder of copies of published releases, or the URL of an object store
    kafka_publish: bool = Field(default=False, description="Copy each published release to a Kafka topic.")
    keep_releases: Annotated[int, Field(ge=1)] | None = None
    # Keeps one verdict an entry in the store, for audits: a record of who contributed when.
    retain_verdicts: bool = False
    counters_max: Annotated[int, Field(ge=1)] = Field(
        COUNTERS_MAX,
        description="Largest number of counters of a plan in all its classes; each takes 8 bytes of memory for every "
        "open window.",
    )
    in_flight_max: Annotated[int, Field(ge=1, le=65_536)] = Field(
        256, description="Largest number of unanswered sketch deltas of a session."
    )
    sessions_max: Annotated[int, Field(ge=1, le=100_000)] = Field(
        1024,
        description="Largest number of sessions, and separately of clients of secure sums (always at least two "
        "cohorts).",
    )
    pending_entries_max: Annotated[int, Field(ge=1, le=10_000_000)] = Field(
        65_536,
        description="Largest number of unanswered sketch deltas of all sessions; above it the answer is `overloaded`.",
    )
    pending_bytes_max: Annotated[int, Field(ge=1)] = Field(
        64 * _MIB,
        description="Largest size of unanswered sketch deltas of all sessions, in bytes; above it the answer is "
        "`overloaded`.",
    )
    client_bytes_rate: Annotated[float, Field(gt=0, le=1e12)] = 4.0 * _MIB
    client_bytes_burst: Annotated[int, Field(ge=1, le=10**15)] = 256 * _MIB
    client_calls_rate: Annotated[float, Field(gt=0, le=1e6)] = 20.0
    client_calls_burst: Annotated[int, Field(ge=1, le=10**9)] = 1000
    client_sessions_max: Annotated[int, Field(ge=1, le=100_000)] = 16
    client_streams_max: Annotated[int, Field(ge=1, le=1_000_000)] = 1024
    # Against faulty clients, not malicious ones: where names are only declared, one client can use many.
    client_rate: Annotated[float, Field(gt=0, le=1e9)] = 1000.0
    client_burst: Annotated[int, Field(ge=1, le=10**12)] = 1_000_000
    group_entries_max: Annotated[int, Field(ge=1, le=65_536)] = Field(
        4096, description="Largest group commit, in entries."
    )
    group_bytes_max: Annotated[int, Field(ge=1)] = Field(16 * _MIB, description="Largest group commit, in bytes.")
    checkpoint_entries: Annotated[int, Field(ge=1)] = Field(
        5000, description="After how many entries the state of a fold is stored."
    )
    checkpoint_s: Annotated[float, Field(gt=0, le=3600)] = Field(
        5.0, description="After how many seconds the state of a fold is stored."
    )
    memory_max: Annotated[int, Field(ge=64 * _MIB)] | None = Field(
        None,
        description="Bytes of memory at which the process drains, logs the reason and exits with 1; on Linux only. "
        "Default: 90 % of the container's limit, if it has one.",
    )
    start_s: Annotated[float, Field(ge=0, le=86_400)] = Field(
        60.0, description="How long a start waits for brokers and database, in seconds."
    )
    stop_s: Annotated[float, Field(ge=0, le=3600)] = Field(
        30.0, description="How long a stop waits for operations in progress, in seconds."
    )
    lease_s: Annotated[float, Field(ge=1, le=3600)] = Field(
        10.0,
        description="Lease of the leading releaser, in seconds: so long it keeps others from releasing after it has "
        "stopped renewing.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["console", "json"] = "console"
    kafka_bootstrap: _Addresses | None = None
    kafka_prefix: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,100}$")] = "hushsum"
    kafka_replication: Annotated[int, Field(ge=1, le=32)] | None = Field(
        None, description="Replication of topics that the service creates. Default: the number of brokers, at most 3."
    )
    kafka_retention_s: Annotated[int, Field(ge=1)] | None = Field(
        None,
        description="Retention of topics that the service creates, in seconds. Default: derived from the plan and "
        "`kafka_recovery_s`.",
    )
    kafka_recovery_s: Annotated[int, Field(ge=0)] = Field(
        86_400, description="How long unfolded entries are kept at least, for recovery, in seconds."
    )
    kafka_security: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        "PLAINTEXT", description="Security protocol of the connections to Kafka."
    )
    kafka_sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = Field(
        None, description="SASL mechanism, with `SASL_PLAINTEXT` or `SASL_SSL`."
    )
    kafka_user: str | None = Field(None, description="User of SASL.")
    kafka_password_file: _Path | None = Field(None, description="File with the password of `kafka_user`.")
    kafka_ca_file: _Path | None = Field(
        None, description="CA certificates of the brokers, with SSL (PEM). Default: those of the system."
    )
    kafka_cert_file: _Path | None = Field(None, description="Client certificate for the brokers, with SSL (PEM).")
    kafka_key_file: _Path | None = Field(None, description="Private key of `kafka_cert_file` (PEM).")
    kafka_session_s: Annotated[float, Field(ge=1, le=1800)] = Field(
        10.0, description="Time without a heartbeat after which a worker loses its partitions, in seconds."
    )
    postgres_dsn: SecretStr | None = Field(
        None,
        description="Connection string of PostgreSQL. It is never shown and never an option; give it in the "
        "environment, `HUSHSUM_POSTGRES_DSN`.",
    )
    # One connection is left to what answers callers, one to erasing.
    postgres_pool: Annotated[int, Field(ge=3, le=1000)] = Field(
        8, description="Connections of a process to PostgreSQL."
    )
    directory: _Path | None = None
    gateway_key: _Path | None = None
    releaser_key: _Path | None = None
    client_directory: _Path | None = None
    secure_step_s: Annotated[float, Field(gt=0, le=3600)] = Field(
        20.0,
        description="How long a round of a secure sum waits for the messages of all clients in each step, in seconds.",
    )
    secure_upload_s: Annotated[float, Field(gt=0, le=86_400)] = Field(
        120.0,
        description="How long a round waits for a client's vector, from when this client may send it, in seconds.",
    )
    shufflers: _Path | None = None
    shuffler_key: _Path | None = None
    upstream: _Address | None = None
    upstream_ca: _Path | None = None
    upstream_token: _Path | None = None
    upstream_cert: _Path | None = None
    upstream_key: _Path | None = None
    direct_producers: bool = False

    @pydantic.model_validator(mode="after")
    def _fits_together(self, info: pydantic.ValidationInfo) -> Self:
        for refusal in _refusals(self, needs_plan=info.context != _WITHOUT_PLAN):  # the first thing that does not fit
            raise ValueError(refusal)
        return self

    @property
    def dsn(self) -> str:
        """The database's address with its password, only for opening it; empty if none is set."""
        return "" if self.postgres_dsn is None else self.postgres_dsn.get_secret_value()

    @property
    def folder(self) -> Path:
        assert self.data is not None, "required with log or store = sqlite"
        return self.data

    @property
    def needs_network(self) -> bool:
        """Whether the log or the store is on another machine, and may not answer."""
        return (self.log, self.store) != ("sqlite", "sqlite")

    @classmethod
    def of(cls, **settings: object) -> Self:
        """Settings from names and values.

        Raises:
            ConfigError: A key is unknown or missing, a value is not allowed, or settings do not fit together.
        """
        return cls._of(settings)

    @classmethod
    def _of(cls, settings: Mapping[str, object], context: str | None = None) -> Self:
        try:
            return cls.model_validate(settings, context=context)
        except pydantic.ValidationError as error:
            refused = _config_error(error)
        raise refused  # outside of the block, without its cause: that shows settings, perhaps a password

    @classmethod
    def load(
        cls,
        file: Path | None,
        overrides: Mapping[str, object],
        environment: Mapping[str, str] | None = None,
        *,
        needs_plan: bool = True,
    ) -> Self:
        """Settings from a TOML file and from overrides, where None means "not given".

        The database's address may also be in the environment (by default that of this process). Without ``needs_plan``
        for what reads the plans from a store.

        Raises:
            ConfigError: As :meth:`of`; or the file is no TOML.
        """
        settings: dict[str, object] = {}
        if file is not None:
            try:
                settings = tomllib.loads(file.read_text(encoding="utf-8"))
            except (OSError, ValueError, RecursionError) as error:
                raise ConfigError(f"{file}: cannot be read as TOML: {error}") from error
        settings |= {key: value for key, value in overrides.items() if value is not None}
        dsn = (os.environ if environment is None else environment).get(DSN_VARIABLE)
        if dsn and settings.get("store") == "postgresql":
            settings.setdefault("postgres_dsn", dsn)
        return cls._of(settings, None if needs_plan else _WITHOUT_PLAN)


def _config_error(error: pydantic.ValidationError) -> ConfigError:
    """The first error, in one line: an unknown key before others, for it may be a missing key that is misspelt."""
    first = min(error.errors(include_url=False), key=lambda each: each["type"] != "extra_forbidden")
    key = str(first["loc"][0]) if first["loc"] else ""
    if first["type"] == "extra_forbidden":
        near = difflib.get_close_matches(key, Config.model_fields, n=1, cutoff=0.5)
        return ConfigError(f"{key}: unknown key" + (f"; did you mean {near[0]}?" if near else ""))
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "missing" or not key:
        return ConfigError(f"{key}: required" if key else message)
    value = "something else" if key in _SECRETS else repr(first["input"])
    return ConfigError(f"{key}: got {value}: {message}")


# Prefixes of settings that are refused without the part that they belong to, so that no setting is ignored silently.
_OF_KAFKA: Final = ("kafka_", "directory", "gateway_key", "releaser_key", "direct_producers")
_OF_POSTGRESQL: Final = ("postgres_",)
_OF_SHUFFLERS: Final = ("upstream", "upstream_ca", "upstream_token", "upstream_cert", "upstream_key", "shuffler_key")
# A shuffler has neither log nor store.
_NOT_OF_SHUFFLERS: Final = (
    *(
        "partitions",
        "processes",
        "manual",
        "publish",
        "keep_releases",
        "receipts",
        "receipts_copy",
        "retain_verdicts",
        "client_directory",
        "client_streams_max",
        "page_",
    ),
    *(*_OF_KAFKA, *_OF_POSTGRESQL),
)
_SIGNING_KEYS: Final = {
    "all": ("gateway_key", "releaser_key"),
    "gateway": ("gateway_key",),
    "worker": (),
    "releaser": ("releaser_key",),
}


def _refusals(config: Config, *, needs_plan: bool) -> Iterator[str]:
    yield from _listening(config)
    yield from _authentication(config)
    yield from _metrics(config)
    yield from _page(config)
    if config.role == "shuffler":
        yield from _shuffler(config)
        return
    if config.plan is None and needs_plan:
        yield "plan: required"
    yield from _processes(config)
    for key in _OF_SHUFFLERS:
        if getattr(config, key) is not None:
            yield f"{key}: allowed only with role = shuffler, got role = {config.role}"
    yield from _parts(config)
    for part, value, prefixes in (("log", "kafka", _OF_KAFKA), ("store", "postgresql", _OF_POSTGRESQL)):
        if (got := getattr(config, part)) != value:
            for key in _given(config, prefixes):
                yield f"{key}: allowed only with {part} = {value}, got {part} = {got}"
    if config.log == "kafka":
        yield from _kafka(config)
    if config.store == "postgresql":
        yield from _postgresql(config)
    yield from _signing(config)
    yield from _copies(config)


def _processes(config: Config) -> Iterator[str]:
    if config.processes == 1:
        return
    if config.role != "gateway":
        yield f"processes: more than one is allowed only with role = gateway, got role = {config.role}"
    if config.page_listen:
        yield "page_listen: not allowed with processes above 1: run the page with a releaser"
    for key in ("metrics_listen", "health_listen"):
        port = host_and_port(getattr(config, key))[1] if getattr(config, key) else None
        if port == 0 or (port is not None and port + config.processes - 1 > _PORT_MAX):
            yield f"{key}: expected the first of {config.processes} ports, one for each of the processes, got {port}"


def _copies(config: Config) -> Iterator[str]:
    for key in ("publish", "kafka_publish"):
        if getattr(config, key) and config.role not in {"all", "releaser"}:
            yield f"{key}: allowed only with role = all or releaser, got role = {config.role}"


def _given(config: Config, prefixes: tuple[str, ...]) -> list[str]:
    """The settings with one of these prefixes that are set to something."""
    keys = (key for key in config.model_fields_set if key.startswith(prefixes))
    return sorted(key for key in keys if getattr(config, key) not in (None, False))


def _listening(config: Config) -> Iterator[str]:
    for key, needed in (
        ("tls_cert", "tls_key"),
        ("tls_key", "tls_cert"),
        ("tls_client_ca", "tls_cert"),
        ("metrics_client_ca", "tls_cert"),
    ):
        if getattr(config, key) is not None and getattr(config, needed) is None:
            yield f"{key}: requires {needed}: TLS needs both tls_cert and tls_key"
    if config.tls_cert is None and not config.insecure and not is_loopback(host_and_port(config.listen)[0]):
        yield (
            f"listen: unencrypted connections are allowed only on loopback, got {config.listen}; use 127.0.0.1, set "
            "tls_cert and tls_key, or set insecure"
        )


def _authentication(config: Config) -> Iterator[str]:
    authentication = config.authentication
    if authentication == "token" and config.tokens is None:
        yield "tokens: required with authentication = token; see `hushsum admin tokens`"
    if authentication != "token" and config.tokens is not None and not config.page_listen:
        yield (
            f"tokens: allowed only with authentication = token or with page_listen, got authentication = "
            f"{authentication}"
        )
    if authentication == "certificate" and config.tls_client_ca is None:
        yield "tls_client_ca: required with authentication = certificate (the CA of the client certificates)"


def _metrics(config: Config) -> Iterator[str]:
    address = config.metrics_listen
    if config.metrics_client_ca is not None and not address:
        yield "metrics_client_ca: allowed only with metrics_listen"
    if address and config.metrics_client_ca is None and not is_loopback(host_and_port(address)[0]):
        yield (
            f"metrics_listen: metrics contain exact counts, so other machines need a client certificate, "
            f"got {address}; use 127.0.0.1, or set metrics_client_ca"
        )


def _page(config: Config) -> Iterator[str]:
    address = config.page_listen
    if not address:
        for key in _given(config, ("page_",)):
            yield f"{key}: allowed only with page_listen"
        return
    for key, needed in (("page_proxy_header", "page_proxy_secret"), ("page_proxy_secret", "page_proxy_header")):
        if getattr(config, key) is not None and getattr(config, needed) is None:
            yield f"{key}: requires {needed}: a proxy proves itself with its secret"
    if config.tokens is None and config.page_proxy_header is None:
        yield (
            "page_listen: requires tokens, with which callers sign in (see `hushsum admin tokens`), or "
            "page_proxy_header"
        )
    if config.role == "worker":
        yield "page_listen: allowed only with role = all, gateway or releaser, got role = worker"
    host = host_and_port(address)[0]
    if config.tls_cert is None and not config.insecure and not is_loopback(host):
        yield (
            f"page_listen: unencrypted connections are allowed only on loopback, got {address}; use 127.0.0.1, set "
            "tls_cert and tls_key, or set insecure"
        )
    if host in {"0.0.0.0", "::"} and not config.page_hosts:  # noqa: S104  it is compared, nothing listens on it here
        yield f"page_hosts: required with page_listen = {address}: the names that browsers reach the page by"


def _shuffler(config: Config) -> Iterator[str]:
    for key in ("data", "upstream", "shuffler_key", "shufflers"):
        if getattr(config, key) is None:
            yield f"{key}: required with role = shuffler"
    for key, needed in (("upstream_cert", "upstream_key"), ("upstream_key", "upstream_cert")):
        if getattr(config, key) is not None and getattr(config, needed) is None:
            yield f"{key}: requires {needed}: a certificate and its private key"
    for key in ("log", "store"):
        if getattr(config, key) != "sqlite":
            yield f"{key}: not allowed with role = shuffler"
    for key in _given(config, _NOT_OF_SHUFFLERS):
        yield f"{key}: not allowed with role = shuffler"


def _parts(config: Config) -> Iterator[str]:
    role, log, store = config.role, config.log, config.store
    if role != "all" and (log, store) != ("kafka", "postgresql"):
        yield (
            f"role: {role} requires log = kafka and store = postgresql, which several processes can share, got "
            f"log = {log} and store = {store}"
        )
    if log == "sqlite" and store == "postgresql":
        yield "store: postgresql requires log = kafka: several processes cannot share a log file"
    if "sqlite" in (log, store) and config.data is None:
        yield "data: required"
    if log == "kafka" and config.receipts is not None:
        yield "receipts: allowed only with log = sqlite; with log = kafka receipts are a topic"
    if config.receipts_copy is not None:
        yield from _receipts_copy(config, config.receipts_copy)


def _receipts_copy(config: Config, copy: str) -> Iterator[str]:
    """Both sinks are files, or both are topics: then their lines have the same bytes."""
    if config.log == "sqlite":
        if "://" in copy:
            yield f"receipts_copy: got {copy}: a topic is allowed only with log = kafka; expected the path of a file"
        elif is_one_file(Path(copy), config.receipts or config.folder / "receipts.jsonl"):
            yield f"receipts_copy: {copy} is the file of the receipts themselves"
        return
    if "://" not in copy:
        yield (
            f"receipts_copy: got {copy}: a file is allowed only with log = sqlite; with log = kafka expected "
            "kafka://HOST:PORT/TOPIC"
        )
        return
    try:
        address = ReceiptsTopicAddress(copy)
    except ValueError as error:
        yield f"receipts_copy: got {copy}: {error}"
        return
    own, named = addresses_of(config.kafka_bootstrap or ""), addresses_of(address.bootstrap)
    if address.topic == f"{config.kafka_prefix}.receipts" and (not named or named & own):
        yield f"receipts_copy: {copy} is the topic of the receipts themselves"
    yield from _plaintext("receipts_copy", address.bootstrap, config)


def is_one_file(one: Path, other: Path) -> bool:
    """Whether two paths lead to one file, by links or hard links; False if that cannot be told now."""
    if os.path.realpath(one) == os.path.realpath(other):
        return True
    try:
        return one.samefile(other)
    except OSError:  # one is missing, or on a disk that does not answer
        return False


def addresses_of(addresses: str) -> set[str]:
    """Those of a list that is parted by commas, such as Kafka's bootstrap servers."""
    return {address.strip() for address in addresses.split(",") if address.strip()}


def _kafka(config: Config) -> Iterator[str]:
    security = config.kafka_security
    if config.kafka_bootstrap is None:
        yield "kafka_bootstrap: required with log = kafka: host:port of a broker"
        return
    yield from _plaintext("kafka_security", config.kafka_bootstrap, config)
    yield from _kafka_credentials(config, security)


def _plaintext(key: str, bootstrap: str, config: Config) -> Iterator[str]:
    security = config.kafka_security
    if security.endswith("PLAINTEXT") and not config.insecure:
        for address in filter(None, bootstrap.split(",")):
            if not is_loopback(host_and_port(address.strip())[0]):
                yield (
                    f"{key}: {security} is allowed only on loopback, got {address.strip()}; use "
                    f"{security.removesuffix('PLAINTEXT')}SSL, or set insecure"
                )


def _kafka_credentials(config: Config, security: str) -> Iterator[str]:
    wanted = security.startswith("SASL")
    for key in ("kafka_sasl_mechanism", "kafka_user", "kafka_password_file"):
        if (getattr(config, key) is None) == wanted:
            need = "required with" if wanted else "allowed only with"
            yield f"{key}: {need} kafka_security = SASL_SSL or SASL_PLAINTEXT"
    if not security.endswith("SSL"):
        for key in ("kafka_ca_file", "kafka_cert_file", "kafka_key_file"):
            if getattr(config, key) is not None:
                yield f"{key}: allowed only with kafka_security = SSL or SASL_SSL"
    elif (config.kafka_cert_file is None) != (config.kafka_key_file is None):
        yield "kafka_cert_file: set both kafka_cert_file and kafka_key_file"


def _postgresql(config: Config) -> Iterator[str]:
    if not config.dsn:
        yield "postgres_dsn: required with store = postgresql, here or in the environment as HUSHSUM_POSTGRES_DSN"
        return
    try:
        database = DatabaseAddress(config.dsn)
    except ValueError as error:
        yield f"postgres_dsn: {error}"
        return
    if not database.is_private and not config.insecure:
        yield (
            f"postgres_dsn: unencrypted connections are allowed only on loopback, and {database} may not use TLS; "
            "add ?sslmode=verify-full (or require), or set insecure"
        )


def _signing(config: Config) -> Iterator[str]:
    if config.directory is None:
        for key in ("direct_producers", "gateway_key", "releaser_key"):
            if getattr(config, key):
                yield f"{key}: requires directory, the key registry"
        return
    for key in _SIGNING_KEYS[config.role]:
        if getattr(config, key) is None:
            yield f"{key}: required with directory in role {config.role}, to sign log entries"
