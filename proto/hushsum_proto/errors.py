"""Every error of the wire.

HushsumError
├── CredentialsError             what a client was given to show, or whom to believe
└── WireError                    the peer's, or the log's
    ├── MalformedMessageError    a message that no peer of this version writes
    ├── MalformedEntryError      bytes in the log that are not an entry: the fold counts them and passes on
    └── NewerEntryError          an entry of a newer format: the fold must stop, not guess
"""

from hushsum.errors import HushsumError


class CredentialsError(HushsumError):
    """A token, a certificate or a key that cannot be used."""


class WireError(HushsumError):
    """What came over the wire, or stood in the log, is not what its format allows."""


class MalformedMessageError(WireError):
    """A message that cannot be read as what it claims to be."""


class MalformedEntryError(WireError):
    """Bytes in the log that are not an entry of a format this version knows."""


class NewerEntryError(WireError):
    """An entry of a format newer than this version.

    Args:
        came: The format version of the entry.
        known: The newest that this version reads.
    """

    def __init__(self, came: int, known: int) -> None:
        super().__init__(f"log entry: got format version {came}, this version reads up to {known}: update the service")
        self.came = came
        self.known = known
