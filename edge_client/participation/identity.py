"""The identity of a client in secure sums: its key, and the directory of all clients' keys."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

from edge_client.errors import SessionRefusedError, SettingsError
from edge_client.participation.mode import ClientContext
from edge_client.spool.window_submissions import SecureSubmissions
from hushsum import labels
from hushsum.directory import Directory, Role, digest_of
from hushsum.entropy import OsEntropy
from hushsum.errors import DirectoryError
from hushsum.signatures import SigningKey
from hushsum_proto.rounds import Enter, entry_parts


@dataclass(frozen=True)
class Identity:
    """A client as the others of a cohort know it.

    Attributes:
        client_id: Its name.
        key: With which it signs.
        directory: Of all clients that may be members; None where the plan names none, and the service vouches for
            their keys.
    """

    client_id: str
    key: SigningKey
    directory: Directory | None

    def enter(self, plan_id: bytes, window: int, spent_round: bytes = b"") -> Enter:
        """The first request of a call; signed where there is a directory."""
        enter = Enter(plan_id, window, spent_round)
        if self.directory is None:
            return enter
        return replace(enter, signature=self.key.sign(labels.ENTRY, *entry_parts(enter, self.client_id)))


def key_of(key: str | os.PathLike[str] | SigningKey | None) -> SigningKey | None:
    """A client's key, loaded if a file is given.

    Raises:
        KeyFileError: The file cannot be read, others may read it, or it holds no such key.
    """
    return key if key is None or isinstance(key, SigningKey) else SigningKey.load(Path(key))


async def identity_of(context: ClientContext, submissions: SecureSubmissions) -> Identity:
    """This client as a member of the plan's cohorts; the directory is fetched at the first start.

    Args:
        context: Of the client. Without a key the spool's own is used, if the plan names no directory.
        submissions: Where the directory and the spool's key are kept.

    Raises:
        SettingsError: The plan names a directory and no key was given, or one that the directory does not hold under
            this client's id.
        UnreachableError: No service answered within ``first_contact_s``.
        SessionRefusedError: The service refuses, or its directory is not the plan's.
    """
    plan, key, client_id = context.plan, context.key, context.spool.client_id
    assert plan.privacy.cohort is not None
    digest = plan.privacy.cohort.directory
    blocking = context.retry.runtime.blocking
    if not digest:
        if key is None:  # the spool's key is the operating system's, whatever the jitter is drawn from
            key = await blocking(submissions.identity_key, OsEntropy())
        return Identity(client_id, key, None)
    if key is None:
        raise SettingsError(
            "key: got None, expected this client's Ed25519 key (a path of a PEM file, or a SigningKey): the plan names "
            "a directory of clients"
        )
    data = await blocking(lambda: submissions.directory)
    is_kept = data is not None and digest_of(data).hex() == digest
    try:
        if data is None or not is_kept:
            data = await context.retry.fetch(
                lambda: context.transport.fetch_directory(plan.id),
                refused="the service gives this client no directory",
                missing="no service gave the plan's directory of clients within {}",
            )
        directory = await blocking(_read, data, digest)
    except DirectoryError as error:
        raise SessionRefusedError(f"the service's directory of clients is refused: {error}") from error
    if not is_kept:
        await blocking(submissions.keep_directory, data)
    _check_own(directory, client_id, key)
    return Identity(client_id, key, directory)


def _read(data: bytes, digest: str) -> Directory:
    """The directory of these bytes, of which nothing is read unless they have the digest that the plan names."""
    came = digest_of(data).hex()
    if came != digest:
        raise DirectoryError(f"got the digest {came[:12]}…, expected {digest[:12]}…, which the plan names")
    return Directory.from_bytes(data)


def _check_own(directory: Directory, client_id: str, key: SigningKey) -> None:
    entry = directory.keys.get(client_id)
    if entry is None or entry.role is not Role.CLIENT:
        raise SettingsError(
            f"client_id: got {client_id!r}, expected one of a client in the plan's directory: it may be given as "
            "client_id= at the spool's first use alone"
        )
    if entry.public_key != key.verify_key:
        raise SettingsError(
            f"key: got the key {key.verify_key.hex}, expected {entry.public_key.hex}, which the plan's directory holds "
            f"for client {client_id!r}"
        )
