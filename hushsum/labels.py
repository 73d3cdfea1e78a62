"""Every context string of a hash, key derivation, PRF or signature, once each, and none a prefix of another.

A label ends in a zero byte, which no label holds elsewhere: that makes the set prefix-free, whatever is added.
"""

from typing import Final

PUBLIC_DRAWS: Final = b"hushsum/v1/public-draws\0"
DELTA_DIGEST: Final = b"hushsum/v1/delta-digest\0"
REPLAYABLE_ENTROPY: Final = b"hushsum/v1/replayable-entropy\0"
KEYED_ENTROPY: Final = b"hushsum/v1/keyed-entropy\0"
SEALED_WINDOW: Final = b"hushsum/v1/sealed-window\0"
CHAINED_WINDOWS: Final = b"hushsum/v1/chained-windows\0"
PARAMETERS: Final = b"hushsum/v1/parameters\0"
LOG_MESSAGE: Final = b"hushsum/v1/log-message\0"
DIRECTORY: Final = b"hushsum/v1/directory\0"
COHORT_SUM: Final = b"hushsum/v1/cohort-sum\0"
ENTRY: Final = b"hushsum/v1/secure-sum/entry\0"
ADVERTISEMENT: Final = b"hushsum/v1/secure-sum/advertisement\0"
CONTRIBUTION: Final = b"hushsum/v1/secure-sum/contribution\0"
ROSTER: Final = b"hushsum/v1/secure-sum/roster\0"
GRAPH: Final = b"hushsum/v1/secure-sum/graph\0"
SHARE_KEY: Final = b"hushsum/v1/secure-sum/share-key\0"
PAIR_MASK: Final = b"hushsum/v1/secure-sum/pair-mask\0"
SELF_MASK: Final = b"hushsum/v1/secure-sum/self-mask\0"
SELF_MASK_CHECK: Final = b"hushsum/v1/secure-sum/self-mask-check\0"
MASK_KEY: Final = b"hushsum/v1/secure-sum/mask-key\0"
CONSENT: Final = b"hushsum/v1/secure-sum/consent\0"
SHUFFLED: Final = b"hushsum/v1/shuffled\0"
SIGNED_PLAN: Final = b"hushsum/v1/signed-plan\0"
MEMO: Final = b"hushsum/v1/memo\0"
TOKEN: Final = b"hushsum/v1/token\0"
SEQUENCE_STEP: Final = b"hushsum/v1/sequence-step\0"

ALL: Final = (
    PUBLIC_DRAWS,
    DELTA_DIGEST,
    REPLAYABLE_ENTROPY,
    KEYED_ENTROPY,
    SEALED_WINDOW,
    CHAINED_WINDOWS,
    PARAMETERS,
    LOG_MESSAGE,
    DIRECTORY,
    COHORT_SUM,
    ENTRY,
    ADVERTISEMENT,
    CONTRIBUTION,
    ROSTER,
    GRAPH,
    SHARE_KEY,
    PAIR_MASK,
    SELF_MASK,
    SELF_MASK_CHECK,
    MASK_KEY,
    CONSENT,
    SHUFFLED,
    SIGNED_PLAN,
    MEMO,
    TOKEN,
    SEQUENCE_STEP,
)
