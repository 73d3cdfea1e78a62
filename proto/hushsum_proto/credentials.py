"""How a client reaches a service over gRPC: TLS or not, whom it trusts, and what proves who it is."""

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio

from hushsum_proto.errors import CredentialsError
from hushsum_proto.metadata import AUTHORIZATION, BEARER

_HOST: Final = re.compile(
    r"(?:(?:dns|ipv4|ipv6):(?://[^/]*/)?)?(?:\[(?P<literal>[^\]]+)\]|(?P<name>[^\[\]:/]+))(?::\d+)?"
)


@dataclass(frozen=True)
class Credentials:
    """What a client shows, and whom it believes. Files are read at each connection: what is rotated is found.

    TLS is spoken to another machine, and to this one where ``ca``, ``certificate`` or ``tls`` says so.

    Attributes:
        token: A bearer token, or the path of the file that holds one; None: no token.
        ca: Authorities whose certificates are believed (PEM); None: those that the system trusts.
        certificate: This client's own, with its chain (PEM), where the service asks for one,
        key: and its private key (PEM).
        tls: Speak TLS to this machine, too.
        insecure: Speak plaintext to another machine, and show a token there.
        server_name: Whose certificate is expected, where that is not the target's host.
    """

    token: str | Path | None = field(default=None, repr=False)
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    tls: bool = False
    insecure: bool = False
    server_name: str | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise CredentialsError("certificate: a certificate and its private key belong together")

    def speaks_tls(self, target: str) -> bool:
        """Whether TLS is spoken to ``host:port``."""
        wanted = self.tls or self.ca is not None or self.certificate is not None
        return wanted or not (self.insecure or is_loopback(target))

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What goes with each call of a new connection.

        Raises:
            CredentialsError: The token's file cannot be read, or holds none.
        """
        if self.token is None:
            return ()
        token = self.token if isinstance(self.token, str) else _read(self.token, "token").decode("ascii", "replace")
        if not (token := token.strip()) or not token.isascii() or not token.isprintable():
            raise CredentialsError("token: expected a line of printable ASCII, got none")
        return ((AUTHORIZATION, BEARER + token),)

    def channel(self, target: str, options: Sequence[tuple[str, Any]]) -> grpc.aio.Channel:  # Any: gRPC's own form
        """A channel that connects at its first call.

        Raises:
            CredentialsError: A file cannot be read.
        """
        if not self.speaks_tls(target):
            return grpc.aio.insecure_channel(target, options=list(options))
        if self.server_name is not None:
            options = [*options, ("grpc.ssl_target_name_override", self.server_name)]
        shown = grpc.ssl_channel_credentials(
            None if self.ca is None else _read(self.ca, "ca"),
            None if self.key is None else _read(self.key, "key"),
            None if self.certificate is None else _read(self.certificate, "certificate"),
        )
        return grpc.aio.secure_channel(target, shown, options=list(options))


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


def _read(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CredentialsError(f"{what}: {path} cannot be read: {error.strerror}") from error
