"""``prepare``: everything that a deployment needs before its first process starts, made once.

What is made belongs together, so all of it is made at once; ``prepared.json`` is written last and says what for.
"""

import json
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final

from aggregator.callers.tokens.file import change_table
from aggregator.callers.tokens.issuing import issue
from aggregator.callers.tokens.table import Table
from aggregator.ports import Scope
from hushsum.directory import Directory, DirectoryKey, Role, toml_of
from hushsum.entropy import OsEntropy
from hushsum.plan import Plan
from hushsum.privacy.guarantee import SECURE
from hushsum.signatures import SigningKey
from hushsum_proto.authority import Authority
from simulator.deployment import files
from simulator.deployment.material import dealt, made_plan, source_of
from simulator.deployment.settings import Settings
from simulator.errors import JourneyError, SettingsConflictError

_MARK: Final = "prepared.json"
_PROGRAM: Final = "python -m simulator.deployment prepare"

Say = Callable[[str], None]


def prepare(settings: Settings, say: Say) -> None:
    """Makes the plan, certificates, tokens and keys; nothing where they were made for the same settings.

    Raises:
        SettingsConflictError: They were made for other ones.
        HushsumError: The records or the plan cannot be used.
        OSError: A folder cannot be written.
    """
    mark = settings.config / _MARK
    if mark.exists():
        _require_same(settings)
        say(f"all is there, made earlier for mode {settings.mode} and {settings.clients} clients: nothing to do")
        return
    source = source_of(settings)
    names = [f"client-{number + 1:0{len(str(settings.clients))}}" for number in range(settings.clients)]
    directory = _keys(settings, names) if settings.mode == SECURE else ""
    digest = Directory.from_toml(directory).digest().hex() if directory else ""
    plan = made_plan(settings, source, digest)
    shares = dealt(settings, plan, source).shares
    assert [share.client_id for share in shares] == names, "each client has a record at least"
    files.write_public(settings.plan_file, plan.bundle)
    windows = f"windows of {settings.length_s} s that stay open for {settings.open_s} s more"
    say(f"plan {plan.name!r} of mode {settings.mode}: {windows}")
    _certificates(settings)
    say(f"certificates for {', '.join(_served(settings))}; the authorities' keys are gone")
    _tokens(settings, names)
    say(f"tokens of {len(names)} clients, a reader and an administrator")
    files.write_json(mark, {"plan": plan.hex_id, "made_for": settings.purpose})


def prepared(settings: Settings) -> Plan:
    """The plan that was made.

    Raises:
        JourneyError: There is none.
        SettingsConflictError: It was made for other settings.
        PlanError: It is damaged.
    """
    _require_same(settings)
    try:
        return Plan.from_bytes(settings.plan_file.read_bytes())
    except OSError as error:
        raise JourneyError(f"{settings.plan_file}: {error.strerror}; {_PROGRAM} writes it") from error


def _require_same(settings: Settings) -> None:
    path = settings.config / _MARK
    made_for = files.read_json(path, _PROGRAM)["made_for"]
    differing = [name for name, value in settings.purpose.items() if made_for.get(name) != value]
    if differing:
        told = ", ".join(f"{name} {made_for.get(name)!r} and not {settings.purpose[name]!r}" for name in differing)
        raise SettingsConflictError(f"{path}: made for {told}; remove the deployment's volumes to make it anew")


def _keys(settings: Settings, names: Sequence[str]) -> str:
    """Makes a key for each client; returns their directory."""
    tables = []
    for name in names:
        key = SigningKey.generate(OsEntropy())
        files.write_private(settings.fleet / "keys" / f"{name}.pem", key.to_pem())
        tables.append(toml_of(DirectoryKey(name, Role.CLIENT, key.verify_key)))
    directory = "\n".join(tables)
    files.write_public(settings.config / "clients.toml", directory.encode())
    return directory


def _served(settings: Settings) -> list[str]:
    """All names that the service is reached by."""
    hosts = (address.rpartition(":")[0].strip("[]") for address in settings.gateways)
    return list(dict.fromkeys([*settings.server_names, *hosts]))


def _certificates(settings: Settings) -> None:
    now = datetime.now(UTC)
    authority, of_metrics = Authority.make(now), Authority.make(now, name="Hushsum metrics")
    server, reader = authority.server(_served(settings)), of_metrics.client("prometheus", ("admin",))
    files.write_public(settings.config / "ca.pem", authority.own.certificate)
    files.write_public(settings.fleet / "ca.pem", authority.own.certificate)
    files.write_public(settings.secrets / "server.pem", server.certificate)
    files.write_private(settings.secrets / "server.key", server.key)
    files.write_public(settings.secrets / "metrics-ca.pem", of_metrics.own.certificate)
    files.write_public(settings.metrics / "ca.pem", authority.own.certificate)
    files.write_public(settings.metrics / "client.pem", reader.certificate)
    # Whatever user reads the metrics reads this; the folder is mounted where that runs, and nowhere else.
    files.write_public(settings.metrics / "client.key", reader.key)


def _tokens(settings: Settings, names: Sequence[str]) -> None:
    now_ms, entropy = time.time_ns() // 1_000_000, OsEntropy()
    reader = issue(entropy, "reader", [Scope.READ], now_ms=now_ms)
    admin = issue(entropy, "admin", [Scope.READ, Scope.ADMIN], now_ms=now_ms)
    clients = {name: issue(entropy, name, [Scope.SUBMIT], now_ms=now_ms) for name in names}
    table = Table(issued.entry for issued in (reader, admin, *clients.values()))
    change_table(settings.secrets / "tokens.jsonl", lambda _: table)
    texts = {name: issued.text for name, issued in clients.items()}
    files.write_private(settings.fleet / "tokens.json", json.dumps(texts).encode())
    files.write_private(settings.operator / "reader.token", reader.text.encode())
    files.write_private(settings.operator / "admin.token", admin.text.encode())
