"""Loads the plan, directories of keys and private keys from the files that settings name."""

from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path

from aggregator.errors import ConfigError
from aggregator.store.store import Store
from hushsum.errors import DirectoryError, HushsumError, PlanError
from hushsum.plan import Plan
from hushsum.schema import tables_of
from hushsum.signed_plan import SignedPlan, signature_file
from hushsum.signing import Directory, Role, SigningKey


async def plan_of(path: Path, store: Store) -> Plan:
    """The plan of a file: ``plan.json`` as it is; ``plan.toml`` as it was made at the first start with this store.

    Raises:
        ConfigError: The file, or that of its signature, cannot be read; or it declares other fields than the stored
            plan of its name.
        PlanError: It is no plan, or the signature beside it is another plan's or none.
    """
    data = plan_file_bytes(path)
    if data.lstrip().startswith(b"{"):
        plan = Plan.from_bytes(data)
        signature_of(path, plan)
        return plan
    declared = _declared(path, data)
    name = declared.get("name")
    stored = await store.plan_named(name) if isinstance(name, str) else None
    if stored is None:
        return Plan.from_fields(declared)
    different = list(differences(declared, stored))
    if different:
        raise ConfigError(
            f"plan: {path} differs from plan {name!r} that this service compiled from it: {'; '.join(different)}. "
            "A plan cannot be changed: undo the changes, or give the new plan another name"
        )
    return stored


def signature_of(path: Path, plan: Plan) -> SignedPlan | None:
    """The plan with the signature in the file next to its own, ``plan.json.sig``; None if there is no such file.

    Raises:
        ConfigError: The file cannot be read.
        PlanError: It holds the signature of another plan, or no signature.
    """
    try:
        return SignedPlan.beside(path, plan.bundle)
    except OSError as error:
        raise ConfigError(f"plan: {signature_file(path)} cannot be read: {error.strerror}") from error


def check_size(plan: Plan, counters_max: int) -> None:
    """Refuses a plan with more than ``counters_max`` counters in all its classes (ConfigError)."""
    if (counters := prod(plan.counters_shape)) > counters_max:
        came = f"plan {plan.name!r} has {counters} counters in all its classes"
        raise ConfigError(f"{came}, expected at most counters_max = {counters_max}, 8 bytes each")


def differences(declared: Mapping[str, object], stored: Plan) -> Iterator[str]:
    """The keys that a plan file declares differently from the stored plan, with both values.

    The mechanism is compared only if the file states it: a stored plan is never calibrated again.
    """
    fields = Plan.from_fields(declared, stored.parameters).to_fields()
    privacy = declared.get("privacy")
    written = isinstance(privacy, Mapping) and "mechanism" in privacy
    old, new = dict(_flat(stored.to_fields())), dict(_flat(fields))
    for key in sorted(old.keys() | new.keys()):
        if old.get(key) != new.get(key) and (written or not key.startswith("privacy.mechanism.")):
            yield f"{key} is {_shown(old, key)}, the file says {_shown(new, key)}"


def plan_file_bytes(path: Path) -> bytes:
    """The bytes of the file of the setting ``plan``; ConfigError if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"plan: {path} cannot be read: {error.strerror}") from error


def _declared(path: Path, data: bytes) -> dict[str, object]:
    try:
        return tables_of(data.decode("utf-8"))
    except ValueError as error:
        raise PlanError("plan", str(path), f"a plan in TOML, or a compiled plan ({error})") from error


def _flat(fields: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in fields.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _shown(fields: Mapping[str, object], key: str) -> str:
    return repr(fields[key]) if key in fields else "not there"


def shufflers_of(path: Path | None, plan: Plan) -> Directory | None:
    """The keys that may sign a batch of reports, from the setting ``shufflers``; None if the plan has no shuffler.

    Raises:
        ConfigError: The plan has a shuffler and the setting is missing, or the other way round; the file cannot be
            read, or holds no shuffler's key.
    """
    least = plan.privacy.shuffle_min
    if path is None:
        if least:
            raise ConfigError(f"shufflers: required: plan {plan.name!r} accepts only shuffled reports")
        return None
    if not least:
        raise ConfigError(f"shufflers: got {path}, but plan {plan.name!r} has no shuffler (privacy.local.shuffle_min)")
    directory = directory_of("shufflers", path)
    if all(key.role is not Role.SHUFFLER for key in directory.keys.values()):
        raise ConfigError(f"shufflers: {path}: got no key of role shuffler, expected one or more")
    return directory


def directory_of(setting: str, path: Path) -> Directory:
    """The directory of keys in the file that a setting names; ConfigError if it cannot be read, or is none."""
    try:
        return Directory.from_toml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, DirectoryError) as error:
        raise ConfigError(f"{setting}: {path}: {error}") from error


def signing_key_of(setting: str, path: Path) -> SigningKey:
    """The private key in the file that a setting names; ConfigError if it is unreadable, open to others, or no key."""
    try:
        return SigningKey.load(path)
    except HushsumError as error:
        raise ConfigError(f"{setting}: {error}") from error


def client_directory_of(path: Path | None, plan: Plan) -> Directory | None:
    """The directory of clients that a plan names, from the setting ``client_directory``; None if it names none.

    Raises:
        ConfigError: The plan names one and the setting does not, or the other way round; the file cannot be read, holds
            a key of another role than ``client``, or is not the one that the plan names.
    """
    cohort = plan.privacy.cohort
    named = "" if cohort is None else cohort.directory
    if path is None:
        if named:
            raise ConfigError(f"client_directory: required: plan {plan.name!r} names the key registry {named}")
        return None
    if not named:
        raise ConfigError(f"client_directory: got {path}, but plan {plan.name!r} has no key registry of clients")
    directory = directory_of("client_directory", path)
    for key in directory.keys.values():
        if key.role is not Role.CLIENT:
            raise ConfigError(f"client_directory: {path}: keys.{key.id} is a {key.role} key, expected role client")
    if (digest := directory.digest().hex()) != named:
        raise ConfigError(
            f"client_directory: {path} has the digest {digest}, expected {named}, which plan {plan.name!r} names"
        )
    return directory
