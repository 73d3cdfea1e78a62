"""``prepare``: makes everything that a deployment needs before its first process starts, once.

All files are made together; ``prepared.json`` is written last, with the settings that they were made for. The records
and their distribution over clients are computed again in each program.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from fractions import Fraction
from typing import Final

import numpy as np

from aggregator.auth.tokens import TokenTable, change_table, issue
from aggregator.model import Scope
from hushsum.delta_sizes import RECORDS_MAX
from hushsum.entropy import OsEntropy
from hushsum.plan import Plan
from hushsum.privacy.cohort import Cohort
from hushsum.privacy.guarantee import CENTRAL, LOCAL, SECURE
from hushsum.privacy.local_mode import SILO
from hushsum.schedule import duration_text
from hushsum.signing import Directory, DirectoryKey, Role, SigningKey, toml_of
from hushsum_proto.authority import Authority
from hushsum_simulator import data, plans
from hushsum_simulator.data import Records, deal
from hushsum_simulator.deployment.settings import DeploymentSettings, read_json, write_json, write_private, write_public
from hushsum_simulator.errors import JourneyError, SettingsConflictError, VariableError
from hushsum_simulator.plans import fit
from hushsum_simulator.scenario import Material

_QUERIES: Final = 1000
# Noise of pure ε grows with the rows: with so many, in a window of 4,000 records it equals the error of the hash.
_CENTRAL_ROWS: Final = 64
_SECURE_DELTA: Final = Fraction(1, 10**6)
# Records of a delta, on average: with many small ones, some are being sent when a process is killed.
_RECORDS_OF_DELTA: Final = 4
_RECORDS_OF_BATCH: Final = 20  # of reports
_BATCHES: Final = 3  # of a client and window, of a secure sum or a silo
# Clients arrive over a quarter of the rest of the lateness: all are there before this wait is over.
_WAIT_SHARE: Final = 0.3


def source_of(settings: DeploymentSettings) -> Records:
    """The records; if there are more than the settings ask for, a random part of them.

    Raises:
        RecordsError: They cannot be used.
    """
    source = data.load(settings.data_folder / settings.data, settings.columns) if settings.data else data.photograph()
    if len(source.values) <= settings.records:
        return source
    chosen = np.random.default_rng(settings.seed).choice(len(source.values), settings.records, replace=False)
    return replace(source, values=source.values[np.sort(chosen)])


def made_plan(settings: DeploymentSettings, source: Records, directory: str) -> Plan:
    """The plan that fits the deployment; in mode secure ``directory`` is the digest of its clients' keys.

    Raises:
        PlanError: There is none.
        VariableError: Too many clients are offline for a cohort.
    """
    sizes = {
        "rows": settings.rows or (_CENTRAL_ROWS if settings.mode == CENTRAL else None),
        "buckets": settings.buckets,
    }
    tables: Mapping[str, Mapping[str, object]] = {
        "sketch": {key: value for key, value in sizes.items() if value is not None},
        "window": {"length": f"{settings.length_s}s", "lateness": f"{settings.open_s}s"},
    }
    privacy = _privacy(settings, directory)
    if not settings.data:
        return plans.of_photograph(privacy, settings.seed, tables)
    return plans.of_file(source, privacy, settings.seed, tables)


def dealt(settings: DeploymentSettings, plan: Plan, source: Records) -> Material:
    """The records by client and in batches, and those that are held out as queries.

    Raises:
        RecordsError: There are too few.
    """
    rest, queries = data.hold_out(source, _QUERIES, settings.seed)
    bound = RECORDS_MAX if plan.privacy.mode == SECURE or plan.privacy.is_silo else None
    deltas = settings.clients * settings.windows * _BATCHES
    if bound is None:
        deltas = max(deltas, len(rest.values) // (_RECORDS_OF_BATCH if plan.privacy.reports else _RECORDS_OF_DELTA))
    shares = deal(rest.values, clients=settings.clients, deltas=deltas, seed=settings.seed, records_per_client=bound)
    return Material(plan, shares, np.concatenate([batch for share in shares for batch in share.batches]), queries)


def _privacy(settings: DeploymentSettings, directory: str) -> Mapping[str, object]:
    """The table ``[privacy]``, of unit ``record``."""
    if settings.mode == LOCAL:
        delta = None if settings.form == SILO else Fraction(0)
        keys = plans.local_privacy_keys(form=settings.form, randomiser=None, delta=delta, shuffled=False, reports=1)
        return {**plans.privacy_table(plans.LOCAL_EPSILON[settings.form], "record", None), **keys}
    if settings.mode != SECURE:
        return plans.privacy_table(Fraction(1), "record", None)
    cohort = _cohort(settings)
    table = plans.secure_table(Fraction(1), "record", None, delta=_SECURE_DELTA, cohort=cohort)
    wait_ms = max(1, int(1000 * _WAIT_SHARE * settings.open_s))
    secure = table["secure"]
    assert isinstance(secure, dict), "as it was just made"
    return {**table, "secure": {**secure, "directory": directory, "cohort_wait": duration_text(wait_ms)}}


def _cohort(settings: DeploymentSettings) -> Cohort:
    """A cohort of all clients of a gateway: each gateway forms its own."""
    size = settings.clients_of_gateway
    away = round(settings.churn * size) + (settings.clients % len(settings.gateways) > 0)
    try:
        return fit(size, size=size, dropout_rate=away / size)
    except SettingsConflictError as error:
        expected = f"fewer offline clients, or more clients: no cohort of {size} can lose {away}"
        raise VariableError("HUSHSUM_CHURN", f"{settings.churn:g}", expected) from error


_MARK: Final = "prepared.json"
_PROGRAM: Final = "python -m hushsum_simulator.deployment prepare"

Say = Callable[[str], None]


def prepare(settings: DeploymentSettings, say: Say) -> None:
    """Makes the plan, certificates, tokens and keys, unless they were made for the same settings before.

    Raises:
        SettingsConflictError: They were made for other settings.
        HushsumError: The records or the plan cannot be used.
        OSError: A folder cannot be written.
    """
    mark = settings.config / _MARK
    if mark.exists():
        _require_same(settings)
        say(f"already prepared for mode {settings.mode} and {settings.clients} clients: nothing to do")
        return
    source = source_of(settings)
    names = [f"client-{number + 1:0{len(str(settings.clients))}}" for number in range(settings.clients)]
    directory = _keys(settings, names) if settings.mode == SECURE else ""
    digest = Directory.from_toml(directory).digest().hex() if directory else ""
    plan = made_plan(settings, source, digest)
    shares = dealt(settings, plan, source).shares
    assert [share.client_id for share in shares] == names, "each client has a record at least"
    write_public(settings.plan_file, plan.bundle)
    windows = f"windows of {settings.length_s} s that stay open for {settings.open_s} s more"
    say(f"plan {plan.name!r} of mode {settings.mode}: {windows}")
    _certificates(settings)
    say(f"certificates for {', '.join(_served(settings))}; the keys of their CAs are deleted")
    _tokens(settings, names)
    say(f"tokens of {len(names)} clients, a reader and an administrator")
    write_json(mark, {"plan": plan.hex_id, "made_for": settings.purpose})


def prepared(settings: DeploymentSettings) -> Plan:
    """The plan that ``prepare`` made.

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


def _require_same(settings: DeploymentSettings) -> None:
    path = settings.config / _MARK
    made_for = read_json(path, _PROGRAM)["made_for"]
    differing = [name for name, value in settings.purpose.items() if made_for.get(name) != value]
    if differing:
        told = ", ".join(f"{name} {made_for.get(name)!r} and not {settings.purpose[name]!r}" for name in differing)
        raise SettingsConflictError(
            f"{path}: prepared for {told}; remove the volumes of the deployment to prepare it again"
        )


def _keys(settings: DeploymentSettings, names: Sequence[str]) -> str:
    """Makes a key for each client, and returns their directory."""
    tables = []
    for name in names:
        key = SigningKey.generate(OsEntropy())
        write_private(settings.fleet / "keys" / f"{name}.pem", key.to_pem())
        tables.append(toml_of(DirectoryKey(name, Role.CLIENT, key.verify_key)))
    directory = "\n".join(tables)
    write_public(settings.config / "clients.toml", directory.encode())
    return directory


def _served(settings: DeploymentSettings) -> list[str]:
    hosts = (address.rpartition(":")[0].strip("[]") for address in settings.gateways)
    return list(dict.fromkeys([*settings.server_names, *hosts]))


def _certificates(settings: DeploymentSettings) -> None:
    now = datetime.now(UTC)
    authority, of_metrics = Authority.make(now), Authority.make(now, name="Hushsum metrics")
    server, reader = authority.server(_served(settings)), of_metrics.client("prometheus", ("admin",))
    write_public(settings.config / "ca.pem", authority.own.certificate)
    write_public(settings.fleet / "ca.pem", authority.own.certificate)
    write_public(settings.secrets / "server.pem", server.certificate)
    write_private(settings.secrets / "server.key", server.key)
    write_public(settings.secrets / "metrics-ca.pem", of_metrics.own.certificate)
    write_public(settings.metrics / "ca.pem", authority.own.certificate)
    write_public(settings.metrics / "client.pem", reader.certificate)
    # Prometheus runs as an unknown user; the folder is mounted there, and nowhere else.
    write_public(settings.metrics / "client.key", reader.key)


def _tokens(settings: DeploymentSettings, names: Sequence[str]) -> None:
    now_ms, entropy = time.time_ns() // 1_000_000, OsEntropy()
    reader = issue(entropy, "reader", [Scope.READ], now_ms=now_ms)
    admin = issue(entropy, "admin", [Scope.READ, Scope.ADMIN], now_ms=now_ms)
    clients = {name: issue(entropy, name, [Scope.SUBMIT], now_ms=now_ms) for name in names}
    table = TokenTable(issued.entry for issued in (reader, admin, *clients.values()))
    change_table(settings.secrets / "tokens.jsonl", lambda _: table)
    texts = {name: issued.text for name, issued in clients.items()}
    write_private(settings.fleet / "tokens.json", json.dumps(texts).encode())
    write_private(settings.operator / "reader.token", reader.text.encode())
    write_private(settings.operator / "admin.token", admin.text.encode())
