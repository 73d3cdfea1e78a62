"""The directory of clients that a secure plan names by its digest: read at the start, and given to every client."""

from pathlib import Path
from typing import NamedTuple

from aggregator.errors import ConfigError
from hushsum.directory import Directory, Role
from hushsum.errors import DirectoryError
from hushsum.plan import Plan


class ClientDirectory(NamedTuple):
    """A directory of clients.

    Attributes:
        directory: What it says; None where the plan names none.
        toml: Its file as it is.
    """

    directory: Directory | None = None
    toml: bytes = b""


def client_directory_of(path: Path | None, plan: Plan) -> ClientDirectory:
    """The directory that a plan names.

    Args:
        path: The setting ``client_directory``.
        plan: What is collected.

    Raises:
        ConfigError: The plan names one and the setting does not, or the other way round; the file cannot be read, holds
            a key of another role than ``client``, or is not the one that the plan names.
    """
    cohort = plan.privacy.cohort
    named = "" if cohort is None else cohort.directory
    if path is None:
        if named:
            raise ConfigError(f"client_directory: required: plan {plan.name!r} names the directory {named}")
        return ClientDirectory()
    if not named:
        raise ConfigError(f"client_directory: got {path}, but plan {plan.name!r} names no directory of clients")
    try:
        toml = path.read_bytes()
        directory = Directory.from_toml(toml.decode())
    except (OSError, UnicodeDecodeError, DirectoryError) as error:
        raise ConfigError(f"client_directory: {path}: {error}") from error
    for key in directory.keys.values():
        if key.role is not Role.CLIENT:
            raise ConfigError(f"client_directory: {path}: keys.{key.id} is a {key.role} key, expected clients alone")
    if (digest := directory.digest().hex()) != named:
        raise ConfigError(
            f"client_directory: {path} has the digest {digest}, expected {named}, which plan {plan.name!r} names"
        )
    return ClientDirectory(directory, toml)
