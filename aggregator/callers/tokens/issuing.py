"""New tokens: the only moment at which one is known; what is kept of it is its hash."""

import base64
from collections.abc import Collection
from dataclasses import dataclass, field

from aggregator.callers.tokens.table import ID_BYTES, SECRET_BYTES, Entry, TokenTableError, digest_of
from aggregator.ports import Scope
from hushsum.entropy import Entropy
from hushsum_proto.client_ids import CLIENT_ID_FORM, flaw_of


@dataclass(frozen=True, slots=True)
class Issued:
    """A token that was just made.

    Attributes:
        entry: Its line of the table.
        text: What its owner shows; it can be had here and now alone.
    """

    entry: Entry
    text: str = field(repr=False)


def issue(
    entropy: Entropy, name: str, scopes: Collection[Scope], *, now_ms: int, expires_ms: int | None = None
) -> Issued:
    """A new token.

    Args:
        entropy: The operating system's.
        name: Whose: the client id of one that submits.
        scopes: What it is good for, one at least.
        now_ms: When it is made.
        expires_ms: From when on it is good for nothing, in whole seconds, what is over cut off; None: never.

    Raises:
        TokenTableError: The name is none, or there is no scope.
    """
    if flaw := flaw_of(name):
        raise TokenTableError(f"name: expected {CLIENT_ID_FORM}, got {flaw}")
    if not scopes:
        raise TokenTableError("scopes: expected one at least")
    id = entropy.read(ID_BYTES).hex()
    secret = base64.urlsafe_b64encode(entropy.read(SECRET_BYTES)).rstrip(b"=").decode()
    whole_s = None if expires_ms is None else expires_ms // 1000 * 1000
    entry = Entry(id, name, frozenset(scopes), digest_of(secret), now_ms // 1000 * 1000, whole_s)
    return Issued(entry, f"hushsum_{id}_{secret}")
