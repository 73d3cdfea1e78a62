"""Plans with a secure sum, of cohorts that a test can run; directories and keys for their clients."""

from collections.abc import Iterable, Mapping

from hushsum import Plan
from hushsum.signing import Directory, DirectoryKey, Role, SigningKey, toml_of
from tests.plans import small_plan

WINDOW = {"length": "1h", "lateness": "20m"}


def secure_plan(**privacy: object) -> Plan:
    """A small plan of cohorts of 5, of whom one may vanish; ``cohort={...}`` changes keys of ``[privacy.secure]``."""
    changes = privacy.pop("cohort", {})
    assert isinstance(changes, Mapping)
    cohort: dict[str, object] = {"cohort": 5, "corrupt": 0, "dropout": 0.25, **changes}
    return small_plan(
        privacy={"mode": "secure", "total_delta": "0.000001", "secure": cohort, **privacy},
        sketch={"rows": 4, "buckets": 16},
        window=WINDOW,
    )


def keys_of(client_ids: Iterable[str]) -> dict[str, SigningKey]:
    """A key for each client, always the same."""
    return {client_id: SigningKey(client_id.encode().ljust(32, b".")) for client_id in client_ids}


def directory_of(keys: Mapping[str, SigningKey]) -> tuple[str, Directory]:
    """The directory of these clients, as TOML and read."""
    text = "".join(toml_of(DirectoryKey(id, Role.CLIENT, key.verify_key)) for id, key in keys.items())
    return text, Directory.from_toml(text)
