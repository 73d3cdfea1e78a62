"""The TLS certificates of the gRPC server, and the authority of its clients: read again when the files change."""

import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

import grpc

from aggregator.config import Config
from aggregator.data_dir import ReloadedFiles, bytes_and_stat
from aggregator.errors import ConfigError
from aggregator.logs import journal
from hushsum.signing import accessible_to_others
from hushsum_proto.certificates import certificates_in, check_pair
from hushsum_proto.errors import CredentialsError

_FILE_BYTES_MAX: Final = 2**20
#: How long a connection lasts, about, where clients show certificates: these are checked when a connection is made. So
#: a certificate of a replaced authority soon stops working, and a renewed one is asked for.
CONNECTION_S_MAX: Final = 3600.0
_LAST_CALLS_S: Final = 600.0  # how long calls may go on after that: a round of a secure sum takes as long

_journal = journal("tls")


class RenewingTls:
    """The newest files that can be used. gRPC asks for them at each new connection, from threads of its own.

    Open connections keep the certificates that they began with. Clients are asked for a certificate of ``client_ca``;
    None: for none.

    Raises:
        ConfigError: A file cannot be read, others may read the key, or the files do not hold what they should.
    """

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None, clock: Callable[[], float]) -> None:
        self._certificate, self._key, self._client_ca = certificate, key, client_ca
        paths = [certificate, key] if client_ca is None else [certificate, key, client_ca]
        self._files = ReloadedFiles(paths, self._read, _log_failure, clock)
        self.first = self._files.value

    def __call__(self) -> grpc.ServerCertificateConfiguration | None:
        """What changed since the last call; None where nothing did, or the new files cannot be used."""
        if not self._files.refresh():
            return None
        _journal.info("TLS certificate reloaded", tls_cert=str(self._certificate))
        return self._files.value

    def _read(self) -> grpc.ServerCertificateConfiguration:
        certificate, key = _read("tls_cert", self._certificate), _read("tls_key", self._key, private=True)
        try:
            check_pair(certificate, key)
        except CredentialsError as error:
            raise ConfigError(f"tls_cert, tls_key: {self._certificate}, {self._key}: {error}") from error
        authority = None
        if self._client_ca is not None:
            authority = _read("tls_client_ca", self._client_ca)
            try:
                certificates_in(authority, str(self._client_ca))
            except CredentialsError as error:
                raise ConfigError(f"tls_client_ca: {error}") from error
        return grpc.ssl_server_certificate_configuration([(key, certificate)], authority)


def _log_failure(why: str) -> None:
    _journal.error("TLS certificate not reloaded: using the previous one", error=why)


def _read(setting: str, path: Path, *, private: bool = False) -> bytes:
    try:
        data, found = bytes_and_stat(path, _FILE_BYTES_MAX)
    except OSError as error:
        raise ConfigError(f"{setting}: {path}: {error.strerror}") from error
    if private and accessible_to_others(found):
        raise ConfigError(
            f"{setting}: {path}: mode {stat.S_IMODE(found.st_mode):03o}, the private key is accessible to other users: "
            f"chmod 600 {path}"
        )
    if len(data) > _FILE_BYTES_MAX:
        raise ConfigError(f"{setting}: {path}: larger than {_FILE_BYTES_MAX} bytes, expected certificates in PEM")
    return data


def connection_options(config: Config) -> list[tuple[str, int]]:
    """Options of gRPC that end connections after a time where clients show certificates."""
    if config.tls_client_ca is None:
        return []
    return [
        ("grpc.max_connection_age_ms", round(1000 * CONNECTION_S_MAX)),
        ("grpc.max_connection_age_grace_ms", round(1000 * _LAST_CALLS_S)),
    ]


def server_credentials(config: Config, clock: Callable[[], float]) -> grpc.ServerCredentials | None:
    """The server's credentials, or None for plaintext; ConfigError: a file cannot be used."""
    if config.tls_cert is None or config.tls_key is None:
        return None
    renewing = RenewingTls(config.tls_cert, config.tls_key, config.tls_client_ca, clock)
    return grpc.dynamic_ssl_server_credentials(
        renewing.first,
        renewing,  # type: ignore[arg-type]  # None is "no change", which the typings leave out
        require_client_authentication=config.tls_client_ca is not None,
    )
