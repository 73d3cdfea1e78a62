"""How a client reaches a service over gRPC: TLS or not, whom it trusts, and what proves who it is."""

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hushsum_proto.errors import CredentialsError
from hushsum_proto.handshakes import explanation
from hushsum_proto.metadata import AUTHORIZATION, BEARER

if TYPE_CHECKING:
    import grpc.aio

_HOST: Final = re.compile(
    r"(?:(?:dns|ipv4|ipv6):(?://[^/]*/)?)?(?:\[(?P<literal>[^\]]+)\]|(?P<name>[^\[\]:/]+))(?::\d+)?"
)
_PROXY: Final = "grpc.enable_http_proxy"


@dataclass(frozen=True)
class Credentials:
    """TLS and authentication settings of a client. Files are read at each connection, so rotation needs no restart.

    TLS is spoken to another machine, and to this one where ``ca``, ``certificate`` or ``tls`` says so.

    Attributes:
        token: A bearer token itself.
        token_file: The path of the file that holds one, instead.
        ca: Authorities whose certificates are believed (PEM); None: the public ones that gRPC comes with, or those of
            the file that GRPC_DEFAULT_SSL_ROOTS_FILE_PATH names.
        certificate: This client's own, with its chain (PEM), where the service asks for one,
        key: and its private key (PEM).
        tls: Speak TLS to this machine, too.
        insecure: Speak plaintext to another machine, and show a token there. Nothing else allows the latter.
        server_name: Whose certificate is expected, where that is not the target's host.
    """

    token: str | None = field(default=None, repr=False)
    token_file: str | PathLike[str] | None = None
    ca: str | PathLike[str] | None = None
    certificate: str | PathLike[str] | None = None
    key: str | PathLike[str] | None = None
    tls: bool = False
    insecure: bool = False
    server_name: str | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise CredentialsError("certificate: expected both a certificate and its private key")
        if self.token is not None and self.token_file is not None:
            raise CredentialsError("token: got both token and token_file, expected one of them")
        if isinstance(self.token, PathLike):
            raise CredentialsError("token: got a path, expected the token itself; use token_file for a file")

    @property
    def renewable(self) -> bool:
        """Whether the credentials are in files, which may be rotated."""
        return self.token is None and (self.token_file is not None or self.certificate is not None)

    @property
    def names_itself(self) -> bool:
        """Whether the credentials contain the client's identity."""
        return self._shows_token or self.certificate is not None

    @property
    def _shows_token(self) -> bool:
        return self.token is not None or self.token_file is not None

    def speaks_tls(self, target: str) -> bool:
        """Whether TLS is spoken to ``host:port``."""
        wanted = self.tls or self.ca is not None or self.certificate is not None
        return wanted or not (self.insecure or is_loopback(target))

    def in_plaintext(self, target: str) -> "Credentials":
        """A copy that allows unencrypted connections to other machines.

        Raises:
            CredentialsError: A token would go to ``target`` that way.
        """
        given = replace(self, insecure=True)
        if self._shows_token and not (self.insecure or is_loopback(target) or given.speaks_tls(target)):
            raise CredentialsError(
                f"token: it would be sent unencrypted to {target}: remove insecure, or give the credentials a ca "
                "(in Python, Credentials(insecure=True) allows it)"
            )
        return given

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The metadata of each call of a new connection.

        Raises:
            CredentialsError: The token's file cannot be read, or holds none.
        """
        token = self._token()
        return () if token is None else ((AUTHORIZATION, BEARER + token),)

    def fixed(self) -> "Credentials":
        """A copy with the current token of the file, which is not read again.

        Raises:
            CredentialsError: The token's file cannot be read, or holds none.
        """
        return replace(self, token=self._token(), token_file=None)

    def channel(self, target: str, options: Sequence[tuple[str, Any]]) -> "grpc.aio.Channel":  # Any: gRPC's own form
        """A channel that connects at its first call.

        A proxy of the environment is used for TLS to another machine alone: it passes on what it cannot read.

        Raises:
            CredentialsError: A file cannot be read, or does not hold what it should.
        """
        import grpc.aio

        is_tls = self.speaks_tls(target)
        options = [*(each for each in options if each[0] != _PROXY), (_PROXY, int(is_tls and not is_loopback(target)))]
        if not is_tls:
            return grpc.aio.insecure_channel(target, options=options)
        if self.server_name is not None:
            options = [*options, ("grpc.ssl_target_name_override", self.server_name)]
        return grpc.aio.secure_channel(target, self._shown(), options=options)

    def explained(self, target: str, details: str) -> str:
        """The message for a failed call, with TLS failures explained."""
        tls = self.speaks_tls(target)
        return explanation(details, target, tls=tls, expected=self.server_name) or details

    def _token(self) -> str | None:
        token = self.token
        if self.token_file is not None:
            token = _read(self.token_file, "token").decode("ascii", "replace")
        if token is None:
            return None
        if not (token := token.strip()) or not token.isascii() or not token.isprintable():
            raise CredentialsError("token: expected a line of printable ASCII, got something else")
        return token

    def _shown(self) -> "grpc.ChannelCredentials":
        import grpc

        from hushsum_proto.certificates import certificates_in, check_pair

        authorities, certificate, key = None, None, None
        if self.ca is not None:
            authorities = _read(self.ca, "ca")
            certificates_in(authorities, f"ca: {self.ca}")
        if self.certificate is not None and self.key is not None:
            certificate, key = _read(self.certificate, "certificate"), _read(self.key, "key")
            check_pair(certificate, key)
        return grpc.ssl_channel_credentials(authorities, key, certificate)


def is_loopback(target: str) -> bool:
    """Whether a gRPC target names this machine for certain: ``localhost``, an address of loopback, or ``unix:``."""
    if target.startswith(("unix:", "unix-abstract:")):
        return True
    match = _HOST.fullmatch(target)
    host = (match["literal"] or match["name"]) if match else ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _read(path: str | PathLike[str], what: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise CredentialsError(f"{what}: {path} cannot be read: {error.strerror}") from error
