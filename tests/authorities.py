"""Certificates for tests: an authority of the test's own, and the files of whoever it signs for."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from hushsum_proto.authority import Authority, Issued
from hushsum_proto.credentials import Credentials

HOSTS = ("localhost", "127.0.0.1")


class Certified:
    """A folder with an authority's certificate, and those that it has signed.

    Attributes:
        ca: The authority's certificate.
        certificate: The service's,
        key: and its key.
    """

    def __init__(self, folder: Path, *, valid_from: datetime | None = None, days: int = 2) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._authority = Authority.make(valid_from or datetime.now(UTC), days)
        self.ca = folder / "ca.pem"
        self.ca.write_bytes(self._authority.own.certificate)
        self.certificate, self.key = folder / "server.pem", folder / "server.key"
        self.serve()

    def serve(self, *hosts: str) -> Issued:
        """Gives the service a new certificate, in the same files."""
        issued = self._authority.server(hosts or HOSTS)
        replace(self.certificate, issued.certificate)
        replace(self.key, issued.key)
        return issued

    def client(self, name: str, *scopes: str, ca: Path | None = None) -> Credentials:
        """What a client of this name shows; it believes this authority, or another one."""
        issued = self._authority.client(name, scopes or ("submit",))
        certificate, key = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        replace(certificate, issued.certificate)
        replace(key, issued.key)
        return Credentials(ca=ca or self.ca, certificate=certificate, key=key)

    @property
    def believed(self) -> Credentials:
        """Of a client that believes this authority, and shows nothing."""
        return Credentials(ca=self.ca)

    @property
    def settings(self) -> dict[str, object]:
        """With which a service speaks TLS."""
        return {"tls_cert": str(self.certificate), "tls_key": str(self.key)}


def expired(folder: Path) -> Certified:
    """Certificates whose time was last year."""
    return Certified(folder, valid_from=datetime.now(UTC) - timedelta(days=400))


def replace(path: Path, data: bytes) -> None:
    """Gives a path new contents as those who rotate do: by another file, which takes its place at once."""
    new = path.with_suffix(".new")
    new.touch(mode=0o600)
    new.write_bytes(data)
    new.replace(path)
