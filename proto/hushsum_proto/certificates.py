"""Certificates and keys in PEM, looked at before they are used: gRPC says of what it cannot use next to nothing."""

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from hushsum_proto.errors import CredentialsError


def check_pair(certificate: bytes, key: bytes) -> None:
    """Allows a certificate, with its chain, and the private key that belongs to it.

    Raises:
        CredentialsError: One of them is none, or they do not belong together.
    """
    own = certificates_in(certificate, "certificate")[0].public_key()
    try:
        public = load_pem_private_key(key, None).public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm):
        # Not as the cause: what it shows could be of the key.
        public = None
    if public is None:
        raise CredentialsError("key: expected a private key in PEM without a password, got something else")
    whole = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    if own.public_bytes(*whole) != public.public_bytes(*whole):
        raise CredentialsError("key: this is not the private key of the certificate")


def certificates_in(data: bytes, what: str) -> list[x509.Certificate]:
    """The certificates of a PEM file, at least one.

    Raises:
        CredentialsError: There is none, or one that cannot be read.
    """
    try:
        found = x509.load_pem_x509_certificates(data)
        for each in found:
            each.public_key()
    except (ValueError, UnsupportedAlgorithm, x509.InvalidVersion) as error:
        raise CredentialsError(f"{what}: expected certificates in PEM, got something else") from error
    return found
