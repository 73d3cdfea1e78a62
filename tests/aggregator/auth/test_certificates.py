"""Whose a client certificate is; one that OpenSSL verifies and nobody can read is nobody's."""

import base64
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from aggregator.auth.authenticators import holder_of_der, holder_of_pem

BOOLEAN, INTEGER, BIT_STRING, OCTET_STRING, NULL, UTF8, IA5_STRING, SEQUENCE = 1, 2, 3, 4, 5, 12, 22, 48


def certificate(name: str) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = x509.CertificateBuilder(subject, subject, key.public_key(), 1, now, now + timedelta(days=1))
    return made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)


def with_type(data: bytes, name: str, kind: int) -> bytes:
    """The certificate with another ASN.1 type of the subject's value; its signature is not looked at here."""
    value = bytes([UTF8, len(name)]) + name.encode()
    assert data.count(value) == 2, "of issuer and subject"
    return data.replace(value, bytes([kind, len(name)]) + name.encode())


def test_a_usual_certificate_names_its_client() -> None:
    holder = holder_of_der(certificate("till-3"))
    assert holder is not None
    assert holder.name == "till-3"


@pytest.mark.parametrize("kind", (BIT_STRING, OCTET_STRING, INTEGER, BOOLEAN, NULL, IA5_STRING, SEQUENCE))
def test_a_subject_of_an_odd_type_is_nobody_and_no_failure_of_ours(kind: int) -> None:
    data = with_type(certificate("till-3"), "till-3", kind)
    holder = holder_of_der(data)
    assert holder is None or holder.name == "till-3", "another text type is a name as well"
    pem = b"-----BEGIN CERTIFICATE-----\n" + base64.encodebytes(data) + b"-----END CERTIFICATE-----\n"
    assert holder_of_pem(pem) == holder
