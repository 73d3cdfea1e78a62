"""The directory of clients that a secure plan names by its digest: read at the start, and given to every client."""

from pathlib import Path

from aggregator.errors import ConfigError
from hushsum.directory import Directory, Role
from hushsum.errors import DirectoryError
from hushsum.plan import Plan


def client_directory_of(path: Path | None, plan: Plan) -> Directory | None:
    """The directory that a plan names; None where it names none.

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
        return None
    if not named:
        raise ConfigError(f"client_directory: got {path}, but plan {plan.name!r} names no directory of clients")
    try:
        directory = Directory.from_toml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, DirectoryError) as error:
        raise ConfigError(f"client_directory: {path}: {error}") from error
    for key in directory.keys.values():
        if key.role is not Role.CLIENT:
            raise ConfigError(f"client_directory: {path}: keys.{key.id} is a {key.role} key, expected clients alone")
    if (digest := directory.digest().hex()) != named:
        raise ConfigError(
            f"client_directory: {path} has the digest {digest}, expected {named}, which plan {plan.name!r} names"
        )
    return directory
