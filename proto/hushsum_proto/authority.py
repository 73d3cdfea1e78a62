"""A small certificate authority: for trying TLS out, for tests, and for deployments that have none of their own.

ECDSA on P-256 throughout. A client's certificate names it (CN) and what it may do (O ``hushsum:submit`` and so on).
"""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

from hushsum_proto.certificates import certificates_in, check_pair
from hushsum_proto.errors import CredentialsError

#: What an organisation of a client's certificate begins with where it stands for a scope.
SCOPE_PREFIX: Final = "hushsum:"
#: How long a certificate is valid where nobody says how long.
DAYS: Final = 365
SCOPES: Final = ("submit", "read", "admin")
_SLACK: Final = timedelta(minutes=10)  # clocks of machines differ
_NAME_MAX: Final = 64  # X.520's upper bound of a common name


@dataclass(frozen=True)
class Issued:
    """A certificate and its private key, in PEM."""

    certificate: bytes
    key: bytes = field(repr=False)


class Authority:
    """An authority that signs certificates of services and clients, and no other authority's.

    Args:
        own: Its certificate and key.
        now: When the certificates that it signs begin to be valid.
        days: How long they are valid.

    Raises:
        CredentialsError: These are no certificate and its key.
    """

    def __init__(self, own: Issued, now: datetime, days: int = DAYS) -> None:
        check_pair(own.certificate, own.key)
        key = load_pem_private_key(own.key, None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise CredentialsError("key: expected one on an elliptic curve")
        self.own = own
        self._key = key
        self._name = certificates_in(own.certificate, "certificate")[0].subject
        self._valid = (now - _SLACK, now + timedelta(days=days))

    @classmethod
    def make(cls, now: datetime, days: int = DAYS, name: str = "Hushsum authority") -> Self:
        """A new one, which is valid as long as the certificates that it signs now."""
        key, subject = ec.generate_private_key(ec.SECP256R1()), _named(name)
        builder = _begun(subject, subject, key, (now - _SLACK, now + timedelta(days=days)))
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        signed = builder.add_extension(_usage(signs=True), critical=True).sign(key, hashes.SHA256())
        return cls(Issued(signed.public_bytes(Encoding.PEM), _pem_of(key)), now, days)

    def server(self, hosts: Sequence[str]) -> Issued:
        """Of a service that is reached under these names and addresses.

        Raises:
            CredentialsError: There is none, or one that is no host.
        """
        if not hosts:
            raise CredentialsError("host: expected at least one name or address of the service")
        names = x509.SubjectAlternativeName([_host(each) for each in hosts])
        # Those who connect look at the alternative names alone; this one is for people, and may be cut.
        return self._sign(_named(hosts[0][:_NAME_MAX]), ExtendedKeyUsageOID.SERVER_AUTH, names)

    def client(self, name: str, scopes: Sequence[str] = ("submit",)) -> Issued:
        """Of a client of this name that may do what these scopes stand for.

        Raises:
            CredentialsError: The name is empty or too long for a certificate, or there is no such scope.
        """
        for scope in scopes:
            if scope not in SCOPES:
                raise CredentialsError(f"scope: got {scope!r}, expected {', '.join(SCOPES)}")
        return self._sign(_named(name, scopes), ExtendedKeyUsageOID.CLIENT_AUTH)

    def _sign(
        self, subject: x509.Name, purpose: ObjectIdentifier, names: x509.SubjectAlternativeName | None = None
    ) -> Issued:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _begun(subject, self._name, key, self._valid)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_usage(signs=False), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        above = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(above, critical=False)
        if names is not None:
            builder = builder.add_extension(names, critical=False)
        return Issued(builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM), _pem_of(key))


def _begun(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, valid: tuple[datetime, datetime]
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer)
    builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(valid[0]).not_valid_after(valid[1])
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)


def _named(name: str, scopes: Sequence[str] = ()) -> x509.Name:
    if not 1 <= len(name) <= _NAME_MAX:
        raise CredentialsError(f"name: got {name!r}, expected 1 to {_NAME_MAX} characters: the limit of a certificate")
    organisations = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, SCOPE_PREFIX + scope) for scope in scopes]
    return x509.Name([*organisations, x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not host or not host.isascii() or not host.replace("-", "").replace(".", "").replace("_", "").isalnum():
        raise CredentialsError(f"host: got {host!r}, expected a host name or an IP address, without a port")
    return x509.DNSName(host)


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _pem_of(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
