"""Which settings need each other, and which contradict each other; each refusal names the key and what to do."""

from collections.abc import Iterator, Mapping
from typing import Final

from aggregator.addresses import Database, host_and_port, is_loopback

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
        database = Database(str(settings["postgres_dsn"]))
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
