"""``/metrics`` over HTTP: exact counts, so the operator's alone, on this machine or by a certificate for it."""

import ssl
from collections.abc import Callable
from email.message import Message
from http import HTTPStatus
from pathlib import Path
from typing import Final, Self

from prometheus_client.exposition import choose_encoder

from aggregator.addresses import is_loopback
from aggregator.certificates import holder_of_der
from aggregator.config import Config
from aggregator.errors import ConfigError
from aggregator.journal import journal
from aggregator.ports import Scope
from aggregator.watching.http_page import HttpPage, Reply
from aggregator.watching.metrics import Metrics

_PATHS: Final = ("/metrics", "/")

_journal = journal("metrics")


class MutualTls:
    """TLS that asks clients for a certificate of the scope ``admin``; its files are read again when they change.

    What cannot be read then leaves everything as it was, is told in the journal, and is tried again. The scope is asked
    for as clients of gRPC may have certificates of the same authority.

    Args:
        certificate: The certificate that is shown, with its chain (PEM).
        key: Its private key.
        client_ca: The authority of the clients' certificates.

    Raises:
        ConfigError: A file cannot be used.
    """

    def __init__(self, certificate: Path, key: Path, client_ca: Path) -> None:
        self._certificate, self._key, self._client_ca = certificate, key, client_ca
        self._seen, self._trouble = self._stamps(), ""
        try:
            self._context = self._read()
        except (OSError, ValueError) as error:
            text = f"{certificate}, {key} or {client_ca} cannot be used: {error}"
            raise ConfigError(f"metrics_client_ca: {text}") from error

    @classmethod
    def of(cls, config: Config) -> Self | None:
        """As the settings say; None: plaintext.

        Raises:
            ConfigError: A file cannot be used, or there is no certificate.
        """
        if config.metrics_client_ca is None:
            return None
        if config.tls_cert is None or config.tls_key is None:
            raise ConfigError("metrics_client_ca: needs tls_cert and tls_key, which the page shows its callers")
        return cls(config.tls_cert, config.tls_key, config.metrics_client_ca)

    def context(self) -> ssl.SSLContext:
        """For the next connection."""
        stamps = self._stamps()  # before they are read: what is written while this reads changes them again
        if stamps == self._seen:
            self._trouble = ""
            return self._context
        try:
            self._context = self._read()
            self._seen, self._trouble = stamps, ""
        except (OSError, ValueError) as error:
            if str(error) != self._trouble:  # each connection tries it again
                self._trouble = str(error)
                _journal.error("the metrics page keeps its certificates: the new ones cannot be used", error=str(error))
        return self._context

    def admits(self, certificate: bytes) -> bool:
        """Whether a verified certificate (DER) is one for exact counts."""
        holder = holder_of_der(certificate)
        return holder is not None and Scope.ADMIN in holder.scopes

    def _read(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self._certificate, self._key, password=lambda: "")  # nobody is there to be asked
        context.load_verify_locations(self._client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _stamps(self) -> list[tuple[int, int, int]]:
        return [_stamp(path) for path in (self._certificate, self._key, self._client_ca)]


def metrics_page(metrics: Metrics, config: Config, clock: Callable[[], float]) -> HttpPage:
    """Shows them where the settings say.

    In plaintext on loopback only to who asks for it by a name of loopback: a web page that a browser of this machine
    shows could have given its own name this machine's address, and would read the counts (DNS rebinding).

    Raises:
        ConfigError: The address or a certificate cannot be used.
    """
    is_local = config.metrics_client_ca is None

    def answer(path: str, headers: "Message[str, str]") -> Reply | None:
        if path not in _PATHS:
            return None
        if is_local and not _is_own_name(headers.get("Host", "")):
            return Reply(HTTPStatus.FORBIDDEN, b"the Host header names another machine, expected this one\n")
        encode, kind = choose_encoder(headers.get("Accept", ""))
        return Reply(HTTPStatus.OK, encode(metrics.registry), kind)

    return HttpPage("metrics_listen", config.metrics_listen, answer, clock, MutualTls.of(config))


def _is_own_name(host: str) -> bool:
    """Whether a Host header names loopback; a port may follow."""
    name = host.rpartition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]
    return name.lower() == "localhost" or (bool(name) and is_loopback(name))


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        found = path.stat()  # through links, as secrets are mounted
    except OSError:
        return (0, 0, 0)
    return found.st_ino, found.st_mtime_ns, found.st_size
