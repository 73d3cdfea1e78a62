"""What a client id may be, whoever vouches for it."""

import unicodedata
from typing import Final

CLIENT_ID_CHARACTERS_MAX: Final = 128
CLIENT_ID_FORM: Final = f"a client id of 1 to {CLIENT_ID_CHARACTERS_MAX} printable characters in NFC"


def flaw_of(client_id: str) -> str | None:
    """What keeps text from being a client id; None where nothing does."""
    if not 1 <= len(client_id) <= CLIENT_ID_CHARACTERS_MAX:
        return f"{len(client_id)} characters"
    if not client_id.isprintable():
        return "one that is not printable"
    if not unicodedata.is_normalized("NFC", client_id):
        return "one that is not in NFC"
    return None
