"""Who calls: client ids, peers, tokens with their table, their file and their metadata, certificates."""

import base64
import random
import re
import string
import tempfile
import unicodedata
import warnings
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import NameOID

from aggregator.auth.authenticators import _bearer, holder_of_der, holder_of_pem, is_loopback_peer
from aggregator.auth.tokens import TokenTable, TokenTableError, digest_of
from aggregator.model import Scope
from hushsum_proto.certificates import certificates_in
from hushsum_proto.client_ids import flaw_of
from hushsum_proto.credentials import Credentials
from hushsum_proto.entries import partition_of
from hushsum_proto.errors import CredentialsError, MalformedMessageError
from hushsum_proto.metadata import AUTHORIZATION, client_id_from_metadata, client_id_to_metadata
from tests.fuzz import octets
from tests.fuzz.tables import broken
from tests.fuzz.target import Kit, Refused, Target, Verdict, expect, judge, plainly

_DECOMPOSED: Final = "e\u0301"  # not in NFC


def _is_name(text: str) -> bool:
    """Whether text may be a client id, written down a second time."""
    return 0 < len(text) <= 128 and text.isprintable() and unicodedata.normalize("NFC", text) == text


def _client_ids() -> Kit:
    texts = ("alice", "é", "a b", "%", "a" * 128, "\U0001f600", "日本")
    wrong = ("", "a" * 129, "a\nb", "\u200b", _DECOMPOSED, "a\u0301", "\u212b", "\u1100\u1161")

    def read(data: bytes) -> str:
        text = client_id_from_metadata(data.decode("ascii", "replace"))
        flaw = flaw_of(text)
        if flaw:
            raise MalformedMessageError(flaw)
        return text

    def check(_: bytes, text: str) -> None:
        expect(_is_name(text), "a client id that may be none")
        expect(client_id_from_metadata(client_id_to_metadata(text)) == text, "a client id that is not read back")
        expect(0 <= partition_of(text, 7) < 7, "a client without a partition")

    return Kit(
        [client_id_to_metadata(text).encode() for text in texts],
        plainly(read, MalformedMessageError, check=check),
        octets.mutated,
        bad={repr(text): client_id_to_metadata(text).encode() for text in wrong} | {"no UTF-8": b"%ff"},
    )


def _peers() -> Kit:
    samples = [b"ipv4:127.0.0.1:80", b"ipv6:%5B::1%5D:80", b"ipv6:[::1]:80", b"unix:/tmp/x"]
    bad = ("ipv4:10.0.0.1:1", "ipv4:127.0.0.1.example.org:1", "ipv6:[::2]:1", "dns:localhost:1", "127.0.0.1:1", "")

    def attempt(data: bytes) -> Verdict:
        is_loopback: object = is_loopback_peer(data.decode("utf-8", "replace"))
        expect(isinstance(is_loopback, bool), "neither")
        return None if is_loopback else Refused("elsewhere", "")

    return Kit(samples, attempt, octets.mutated, bad={text: text.encode() for text in bad})


# ------------------------------------------------------------------------------------------------------------- tokens

_TOKEN_LINE: Final = (
    '{"id": "%s", "name": "%s", "scopes": ["submit"], "sha256": "%s", "made": "2026-01-31T12:00:00Z", "expires": %s}\n'
)


def _tokens() -> Kit:
    lines = [
        _TOKEN_LINE % (f"{n:016x}", name, f"{n:064x}", expires)
        for n, (name, expires) in enumerate((("edge-1", "null"), ("é", '"2030-01-31T12:00:00Z"'), ("a b", "null")))
    ]
    samples = [line.encode() for line in (*lines, "".join(lines), lines[0] + "\n" + lines[1])]
    samples += [lines[0].replace('"2026-', f'"{year:04}-').encode() for year in (1, 26, 9999)]
    good = ("0" * 16, "edge", "0" * 64, "null")
    bad = {
        "one id twice": "".join(lines[:1] * 2),
        "a name not in NFC": _TOKEN_LINE % (good[0], _DECOMPOSED, *good[2:]),
        "a short id": _TOKEN_LINE % ("0" * 15, *good[1:]),
        "a long hash": _TOKEN_LINE % (*good[:2], "0" * 65, "null"),
        "no such day": _TOKEN_LINE % (*good[:3], '"2030-02-31T12:00:00Z"'),
        "no scope": (_TOKEN_LINE % good).replace('"submit"', ""),
        "no such scope": (_TOKEN_LINE % good).replace('"submit"', '"root"'),
        "another key": (_TOKEN_LINE % good).replace('"made"', '"mode"'),
    }

    def check(_: bytes, table: TokenTable) -> None:
        again = TokenTable.from_bytes(table.to_bytes())
        expect(again == table and again.to_bytes() == table.to_bytes(), "a table of tokens that is not read back")
        expect(all(_is_name(entry.name) and entry.scopes for entry in table), "a token of nobody, or for nothing")

    def change(rng: random.Random, data: bytes, donors: Sequence[bytes]) -> bytes:
        return broken(rng, data, _TOKEN_SOUP) if rng.random() < 0.4 else octets.mutated(rng, data, donors)

    attempt = plainly(TokenTable.from_bytes, TokenTableError, check=check)
    wrong = {what: text.encode() for what, text in bad.items()}
    return Kit(samples, attempt, change, first=re.compile("expected one JSON object$"), bad=wrong)


_TOKEN_SOUP: Final = (
    "NaN", "1e999", "9" * 5000, "[" * 100_000, '"\\ud800"', '"submit","submit"', '"0000-00-00T00:00:00Z"', "null", "[]",
    '"9999-12-31T23:59:60Z"', '"admin"', '"0001-01-01T00:00:00Z"', "{}", "true", "1", '"\\u0000"', "\u0661", '"SUBMIT"',
)  # fmt: skip
_NOW_MS: Final = 1_900_000_000_000  # in 2030
_PAST, _FUTURE = '"2030-01-01T00:00:00Z"', '"2031-01-01T00:00:00Z"'


def _token_text(number: int) -> str:
    return f"hushsum_{number:016x}_{string.ascii_letters[number] * 43}"


def _tokens_found() -> Kit:
    expiring = ("null", _FUTURE, _PAST)
    lines = [
        _TOKEN_LINE % (f"{number:016x}", f"edge-{number}", digest_of(_token_text(number)[-43:]).hex(), expires)
        for number, expires in enumerate(expiring)
    ]
    table = TokenTable.from_bytes("".join(lines).encode())
    # Nothing but these two texts is a token, for what else has such a hash?
    good = {_token_text(number): f"edge-{number}" for number in (0, 1)}
    bad = {
        "expired": _token_text(2),
        "another's secret": _token_text(0)[:-43] + _token_text(1)[-43:],
        "a wrong secret": _token_text(0)[:-1] + "b",
        "an id that nobody has": _token_text(3),
        "nobody's secret": "hushsum_" + "0" * 16 + "_" + "A" * 43,
        "a line more": _token_text(0) + "\n",
        "no token": "",
    }

    def attempt(data: bytes) -> Verdict:
        text = data.decode("utf-8", "surrogateescape")
        entry = table.find(text, _NOW_MS)
        expect((None if entry is None else entry.name) == good.get(text), "a token of somebody else, or of nobody")
        return Refused("none", "no token that is good") if entry is None else None

    wrong = {what: text.encode() for what, text in bad.items()}
    return Kit([text.encode() for text in good], attempt, octets.mutated, bad=wrong)


_BEARER_FORM: Final = re.compile(r"bearer (.*)", re.ASCII | re.IGNORECASE | re.DOTALL)


def _bearers() -> Kit:
    samples = [f"{scheme} {_token_text(0)}".encode() for scheme in ("Bearer", "bearer", "BEARER", "bEARER  ")]
    bad = {text: text.encode() for text in ("", "Bearer", "Basic abc", " Bearer abc", "Bearer\tabc", "Bearer  ")}

    def attempt(data: bytes) -> Verdict:
        text = data.decode("utf-8", "surrogateescape")
        found = _bearer({AUTHORIZATION: text})
        match = _BEARER_FORM.fullmatch(text)
        expect(found == (match[1].strip(" ") if match else ""), "a token that is not what stands behind its scheme")
        return None if found else Refused("none", "no bearer token")

    return Kit(samples, attempt, octets.mutated, bad=bad)


# -------------------------------------------------------------------------------------------------------- certificates

_UNTIL: Final = datetime(2031, 1, 1, tzinfo=UTC)


def _certificate(names: Sequence[str], marks: Sequence[str] = ()) -> bytes:
    """The DER of one, signed by itself: whether an authority vouches for it is the transport's business."""
    key = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # names that are too long, or empty, are meant
        subject = x509.Name(
            [
                *(x509.NameAttribute(NameOID.COMMON_NAME, name, _validate=False) for name in names),
                *(x509.NameAttribute(NameOID.ORGANIZATION_NAME, mark, _validate=False) for mark in marks),
            ]
        )
    builder = x509.CertificateBuilder(subject, subject, key.public_key(), 1, _UNTIL - timedelta(days=9), _UNTIL)
    return builder.sign(key, None).public_bytes(serialization.Encoding.DER)


def _certificates() -> Kit:
    every = [f"hushsum:{scope}" for scope in Scope]
    made: Mapping[bytes, tuple[str, set[Scope]]] = {
        _certificate(["alice"]): ("alice", {Scope.SUBMIT}),
        _certificate(["é"], ["Ward 7"]): ("é", {Scope.SUBMIT}),
        _certificate(["日本"], ["hushsum:read"]): ("日本", {Scope.READ}),
        _certificate(["operator"], [*every, "Ward 7"]): ("operator", set(Scope)),
        _certificate(["a" * 64], ["hushsum:admin", "hushsum:root"]): ("a" * 64, {Scope.ADMIN}),
        _certificate(["eve"], ["hushsum:ADMIN"]): ("eve", set()),
        _certificate(["mallory"], ["hushsum:admin "]): ("mallory", set()),
    }
    bad = {
        "no name": _certificate([], ["hushsum:admin"]),
        "two names": _certificate(["alice", "bob"]),
        "a name not in NFC": _certificate([_DECOMPOSED]),
        "a name that is not printable": _certificate(["a\nb"]),
        "an empty name": _certificate([""]),
        "a long name": _certificate(["a" * 129]),
        "a name that is a bit string": _certificate(["alice"]).replace(b"\x0c\x05alice", b"\x03\x05alice"),
        "nothing": b"",
    }

    def attempt(data: bytes) -> Verdict:
        pem = b"-----BEGIN CERTIFICATE-----\n" + base64.encodebytes(data) + b"-----END CERTIFICATE-----\n"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a service goes on after it
            holder = holder_of_pem(pem)
            judge(lambda pem: certificates_in(pem, "ca"), CredentialsError)(pem)
            expect(holder == holder_of_der(data), "a certificate that is another one in PEM")
        if holder is None:
            return Refused("none", "no client's certificate")
        name, scopes = made.get(data, (holder.name, holder.scopes))
        expect((holder.name, holder.scopes) == (name, scopes), "another client than the certificate names")
        expect(_is_name(holder.name), "a client id that may be none")
        for scope in holder.scopes - {Scope.SUBMIT}:
            marks = (f"hushsum:{scope}".encode(form) for form in ("utf-8", "utf-16-be", "utf-32-be"))
            expect(any(mark in data for mark in marks), "a scope that nobody gave")
        return None

    return Kit([*made], attempt, octets.mutated, bad=bad)


def _token_files() -> Kit:
    samples = [text.encode() for text in ("abc", _token_text(0), _token_text(1) + "\n", "\n  a b \r\n")]
    bad = {"empty": b"", "blanks": b" \n", "two lines": b"a\nb", "no ASCII": "é".encode(), "a zero": b"a\0b"}
    path = Path(tempfile.mkdtemp(prefix="hushsum-fuzz-token-")) / "token"

    def read(data: bytes) -> Any:
        path.write_bytes(data)
        return Credentials(token_file=path).metadata()

    def attempt(data: bytes) -> Verdict:
        verdict, value = judge(read, CredentialsError)(data)
        if verdict is None:
            ((key, text),) = value
            token = data.strip(b" \t\n\v\f\r\x1c\x1d\x1e\x1f")
            expect((key, text) == (AUTHORIZATION, "Bearer " + token.decode("ascii")), "another token than the file's")
            expect(all(0x20 <= octet < 0x7F for octet in token), "a token that no metadata may carry")
        return verdict

    return Kit(samples, attempt, octets.mutated, bad=bad)


TARGETS: Final = (
    Target(
        "client-id",
        ("hushsum_proto.metadata.client_id_from_metadata", "hushsum_proto.client_ids.flaw_of"),
        _client_ids,
        2,
    ),
    Target("peer", ("aggregator.auth.authenticators.is_loopback_peer",), _peers, 1),
    Target("token-table", ("aggregator.auth.tokens.TokenTable.from_bytes",), _tokens, 2),
    Target("token", ("aggregator.auth.tokens.TokenTable.find",), _tokens_found, 1),
    Target("bearer", ("aggregator.auth.authenticators._bearer",), _bearers, 1),
    Target(
        "certificate",
        ("aggregator.auth.authenticators", "hushsum_proto.certificates.certificates_in"),
        _certificates,
        2,
    ),
    Target("token-file", ("hushsum_proto.credentials.Credentials.metadata",), _token_files, 0.5),
)
