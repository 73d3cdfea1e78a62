"""What gRPC shows to those who connect, and whose certificates it asks for: read again when the files change."""

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc

from aggregator.config import Config
from aggregator.errors import ConfigError
from aggregator.logs import journal
from hushsum_proto.certificates import certificates_in, check_pair
from hushsum_proto.errors import CredentialsError

_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_FILE_BYTES_MAX: Final = 2**20
#: How long a connection lasts where clients show certificates, about: they are looked at when it is made. So one of an
#: authority that was replaced is good for nothing soon after, and a renewed one is asked for.
CONNECTION_S_MAX: Final = 3600.0
_LAST_CALLS_S: Final = 600.0  # what is under way then may end for so long: a round of a secure sum does

_journal = journal("tls")

_Shown = grpc.ServerCertificateConfiguration
_Stamp = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class TlsFiles:
    """Where it lies.

    Attributes:
        certificate: With its chain,
        key: and its private key, which nobody but its owner may read.
        client_ca: The authority of clients; None: they are asked for no certificate.
    """

    certificate: Path
    key: Path
    client_ca: Path | None = None

    def stamp(self) -> _Stamp:
        """Changes when a file does; a file that is not there has one, too."""
        return tuple(_stamp(path) for path in (self.certificate, self.key, self.client_ca) if path is not None)

    def read(self) -> _Shown:
        """What is shown from now on.

        Raises:
            ConfigError: A file cannot be read, others may read the key, or the files do not hold what they should.
        """
        certificate, key = _read("tls_cert", self.certificate), _read("tls_key", self.key, private=True)
        try:
            check_pair(certificate, key)
        except CredentialsError as error:
            raise ConfigError(f"tls_cert, tls_key: {self.certificate}, {self.key}: {error}") from error
        authority = None
        if self.client_ca is not None:
            authority = _read("tls_client_ca", self.client_ca)
            try:
                certificates_in(authority, str(self.client_ca))
            except CredentialsError as error:
                raise ConfigError(f"tls_client_ca: {error}") from error
        return grpc.ssl_server_certificate_configuration([(key, certificate)], authority)


class RenewingTls:
    """The newest files that can be used. gRPC asks at each new connection, from threads of its own.

    Connections that stand keep what they began with.

    Args:
        files: Where they lie.

    Raises:
        ConfigError: They cannot be used at the start.
    """

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._stamp = files.stamp()
        self._trouble = ""
        self.first = files.read()

    def __call__(self) -> _Shown | None:
        """What is new since the last call; None where nothing is, or it cannot be used, which is tried again."""
        stamp = self._files.stamp()  # before they are read: what is written while this reads changes it again
        if stamp == self._stamp:
            self._trouble = ""
            return None
        try:
            shown = self._files.read()
        except ConfigError as error:
            self._failed(str(error))
            return None
        self._stamp, self._trouble = stamp, ""
        _journal.info("a new certificate is shown from now on", tls_cert=str(self._files.certificate))
        return shown

    def _failed(self, why: str) -> None:
        if why != self._trouble:  # as many connections as come try it again
            self._trouble = why
            _journal.error("the new certificate cannot be used, the last good one is still shown", error=why)


def connection_options(config: Config) -> list[tuple[str, int]]:
    """What gRPC is to do with connections, beside what it does anywhere: they end where they show certificates."""
    if config.tls_client_ca is None:
        return []
    return [
        ("grpc.max_connection_age_ms", round(1000 * CONNECTION_S_MAX)),
        ("grpc.max_connection_age_grace_ms", round(1000 * _LAST_CALLS_S)),
    ]


def server_credentials(config: Config) -> grpc.ServerCredentials | None:
    """What gRPC listens with; None: plaintext.

    Raises:
        ConfigError: A file cannot be used.
    """
    if config.tls_cert is None or config.tls_key is None:
        return None
    renewing = RenewingTls(TlsFiles(config.tls_cert, config.tls_key, config.tls_client_ca))
    return grpc.dynamic_ssl_server_credentials(
        renewing.first,
        renewing,  # type: ignore[arg-type]  # None is "no change", which the typings leave out
        require_client_authentication=config.tls_client_ca is not None,
    )


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        found = path.stat()
    except OSError:
        return (0, 0, 0)
    return (found.st_mtime_ns, found.st_ino, found.st_size)


def _read(setting: str, path: Path, *, private: bool = False) -> bytes:
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if private and mode & _OTHERS:
                raise ConfigError(f"{setting}: {path}: mode {mode:03o}, others may use this key: chmod 600 {path}")
            data = file.read(_FILE_BYTES_MAX + 1)
            if len(data) > _FILE_BYTES_MAX:
                raise ConfigError(f"{setting}: {path}: more than {_FILE_BYTES_MAX} bytes, which no certificates need")
            return data
    except OSError as error:
        raise ConfigError(f"{setting}: {path}: {error.strerror}") from error
