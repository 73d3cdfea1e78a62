"""The shufflers of a plan that takes reports from them alone: whose keys they are, read at the start."""

from pathlib import Path

from aggregator.errors import ConfigError
from hushsum.directory import Directory, Role
from hushsum.errors import DirectoryError
from hushsum.plan import Plan


def shufflers_of(path: Path | None, plan: Plan) -> Directory | None:
    """Whose signature a batch of reports must have; None where the plan has no shuffler.

    Args:
        path: The setting ``shufflers``.
        plan: What is collected.

    Raises:
        ConfigError: The plan has a shuffler and the setting is missing, or the other way round; the file cannot be
            read, or holds no shuffler's key.
    """
    least = plan.privacy.shuffle_min
    if path is None:
        if least:
            raise ConfigError(f"shufflers: required: plan {plan.name!r} takes shuffled reports alone")
        return None
    if not least:
        raise ConfigError(f"shufflers: got {path}, but plan {plan.name!r} has no shuffler (privacy.local.shuffle_min)")
    directory = directory_of(path)
    if all(key.role is not Role.SHUFFLER for key in directory.keys.values()):
        raise ConfigError(f"shufflers: {path}: got no key of role shuffler, expected one or more")
    return directory


def directory_of(path: Path) -> Directory:
    """What the file of the setting ``shufflers`` says.

    Raises:
        ConfigError: It cannot be read, or is no directory.
    """
    try:
        return Directory.from_toml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, DirectoryError) as error:
        raise ConfigError(f"shufflers: {path}: {error}") from error
