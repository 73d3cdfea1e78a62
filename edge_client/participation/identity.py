"""Who takes part in secure sums: a client with its key, and the directory that says whose key is which."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

from edge_client.config import Config
from edge_client.errors import SessionRefusedError, SettingsError, UnreachableError
from edge_client.runtime import BackOff, Runtime
from edge_client.spool.window_submissions import SecureSubmissions
from edge_client.transport.interface import ConnectionLostError, RoundTransport
from hushsum import labels
from hushsum.directory import Directory, Role, digest_of
from hushsum.entropy import Entropy, OsEntropy
from hushsum.errors import DirectoryError
from hushsum.plan import Plan
from hushsum.signatures import SigningKey
from hushsum_proto.rounds import Enter, entry_parts


@dataclass(frozen=True)
class Identity:
    """A client as the others of a cohort know it.

    Attributes:
        client_id: Its name.
        key: With which it signs.
        directory: Of all clients that may be members; None where the plan names none, and the service says whose key is
            which.
    """

    client_id: str
    key: SigningKey
    directory: Directory | None

    def enter(self, plan_id: bytes, window: int, spent_round: bytes = b"") -> Enter:
        """What it opens a call with; signed where a directory says whose key is which."""
        enter = Enter(plan_id, window, spent_round)
        if self.directory is None:
            return enter
        return replace(enter, signature=self.key.sign(labels.ENTRY, *entry_parts(enter, self.client_id)))


def key_of(key: str | os.PathLike[str] | SigningKey | None) -> SigningKey | None:
    """A client's key, from its file where it is none yet.

    Raises:
        KeyFileError: The file cannot be read, others may read it, or it holds no such key.
    """
    return key if key is None or isinstance(key, SigningKey) else SigningKey.load(Path(key))


async def member_of(
    plan: Plan,
    client_id: str,
    key: SigningKey | None,
    *,
    rounds: SecureSubmissions,
    calls: "Fetching",
    entropy: Entropy,
) -> Identity:
    """This client as a member of the plan's cohorts; the directory is fetched at the first start.

    Args:
        plan: With a secure sum.
        client_id: Its name.
        key: That was given; None takes the spool's own, where the plan names no directory.
        rounds: Where the directory and the spool's key are kept.
        calls: How the directory is fetched.
        entropy: Of waits. The spool's key is the operating system's, whatever this is.

    Raises:
        SettingsError: The plan names a directory and no key was given, or one that the directory does not hold under
            this client's id.
        UnreachableError: No service answered within ``first_contact_s``.
        SessionRefusedError: The service refuses, or its directory is not the plan's.
    """
    assert plan.privacy.cohort is not None
    digest = plan.privacy.cohort.directory
    blocking = calls.runtime.blocking
    if not digest:
        return Identity(client_id, await blocking(rounds.identity_key, OsEntropy()) if key is None else key, None)
    if key is None:
        raise SettingsError(
            "key: got None, expected this client's Ed25519 key (a path of a PEM file, or a SigningKey): the plan names "
            "a directory of clients"
        )
    data = await blocking(lambda: rounds.directory)
    is_kept = data is not None and digest_of(data).hex() == digest
    try:
        if data is None or not is_kept:
            data = await calls.directory(plan.id, entropy)
        directory = await blocking(_read, data, digest)
    except DirectoryError as error:
        raise SessionRefusedError(f"the service's directory of clients is refused: {error}") from error
    if not is_kept:
        await blocking(rounds.keep_directory, data)
    _check_own(directory, client_id, key)
    return Identity(client_id, key, directory)


@dataclass(frozen=True)
class Fetching:
    """How a directory is fetched: tried for ``first_contact_s`` seconds."""

    transport: RoundTransport
    runtime: Runtime
    config: Config

    async def directory(self, plan_id: bytes, entropy: Entropy) -> bytes:
        """The bytes of the plan's directory, unread.

        Raises:
            UnreachableError: Nobody answered in this time.
            SessionRefusedError: The service refuses for good.
            DirectoryError: They are more than any directory has.
        """
        backoff = BackOff(self.config.backoff_first_s, self.config.backoff_longest_s, entropy)
        deadline = self.runtime.monotonic() + self.config.first_contact_s
        while True:
            try:
                return await self.transport.fetch_directory(plan_id)
            except ConnectionLostError as error:
                loss = error.loss
            if loss.refusal is not None and not loss.refusal.retry:
                raise SessionRefusedError(f"the service gives this client no directory: {loss.detail}")
            wait_s = backoff.next_s()
            if self.runtime.monotonic() + wait_s >= deadline:
                raise UnreachableError(
                    f"no service gave the plan's directory of clients within {self.config.first_contact_s:g} s; the "
                    f"last attempt ended with: {loss.detail}"
                )
            await self.runtime.sleep(wait_s)


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
