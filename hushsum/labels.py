"""Every context string of a hash, key derivation, PRF or signature, once each, and none a prefix of another.

A label ends in a zero byte, which no label holds elsewhere: that makes the set prefix-free, whatever is added.
"""

from typing import Final

PUBLIC_DRAWS: Final = b"hushsum/v1/public-draws\0"
DELTA_DIGEST: Final = b"hushsum/v1/delta-digest\0"
REPLAYABLE_ENTROPY: Final = b"hushsum/v1/replayable-entropy\0"
KEYED_ENTROPY: Final = b"hushsum/v1/keyed-entropy\0"
SEALED_WINDOW: Final = b"hushsum/v1/sealed-window\0"
PARAMETERS: Final = b"hushsum/v1/parameters\0"
LOG_MESSAGE: Final = b"hushsum/v1/log-message\0"
DIRECTORY: Final = b"hushsum/v1/directory\0"

ALL: Final = (
    PUBLIC_DRAWS,
    DELTA_DIGEST,
    REPLAYABLE_ENTROPY,
    KEYED_ENTROPY,
    SEALED_WINDOW,
    PARAMETERS,
    LOG_MESSAGE,
    DIRECTORY,
)
