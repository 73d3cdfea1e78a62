"""What a deployment needs before its first process starts: made once, private where it must be, and usable."""

import json
import stat
from pathlib import Path

import numpy as np
import pytest

from aggregator.auth.authenticators import holder_of_pem
from aggregator.auth.tokens import read_table
from aggregator.config import Config
from aggregator.model import Scope
from aggregator.plan_loading import client_directory_of
from hushsum.plan import Plan
from hushsum.signing import SigningKey
from hushsum_simulator.deployment.prepare import dealt, prepare, prepared, source_of
from hushsum_simulator.deployment.settings import DeploymentSettings, client_credentials
from hushsum_simulator.errors import JourneyError, SettingsConflictError

SMALL = {"HUSHSUM_CLIENTS": "12", "HUSHSUM_RECORDS": "200", "HUSHSUM_ROWS": "8", "HUSHSUM_BUCKETS": "16"}
MODES = [
    pytest.param({"HUSHSUM_MODE": "central"}, id="central"),
    pytest.param({"HUSHSUM_MODE": "local"}, id="report"),
    pytest.param({"HUSHSUM_MODE": "local", "HUSHSUM_FORM": "silo"}, id="silo"),
    pytest.param({"HUSHSUM_MODE": "secure"}, id="secure"),
]


def settings_in(folder: Path, **more: str) -> DeploymentSettings:
    folders = {
        f"HUSHSUM_{name}": str(folder / name.lower()) for name in ("CONFIG", "SECRETS", "FLEET", "OPERATOR", "REPORTS")
    }
    np.save(folder / "points.npy", np.random.default_rng(1).integers(0, 256, (250, 2)).astype(float))
    data = {"HUSHSUM_DATA_FOLDER": str(folder), "HUSHSUM_DATA": "points.npy"}
    return DeploymentSettings.from_environment({**SMALL, **folders, **data, **more})


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("mode", MODES)
def test_a_service_takes_what_is_made(tmp_path: Path, mode: dict[str, str]) -> None:
    settings = settings_in(tmp_path, **mode)
    prepare(settings, lambda _: None)
    plan = prepared(settings)
    names = [f"client-{number:02}" for number in range(1, 13)]
    Config.of(
        plan=settings.plan_file,
        data=tmp_path / "data",
        listen="0.0.0.0:7443",
        tls_cert=settings.secrets / "server.pem",
        tls_key=settings.secrets / "server.key",
        authentication="token",
        tokens=settings.secrets / "tokens.jsonl",
        metrics_client_ca=settings.secrets / "metrics-ca.pem",
    )
    assert (plan.window.length_ms, plan.window.lateness_ms) == (1000 * settings.length_s, 1000 * settings.open_s)
    assert [share.client_id for share in dealt(settings, plan, source_of(settings)).shares] == names
    assert sorted(client_credentials(settings)) == names
    if settings.mode == "secure":
        held = client_directory_of(settings.config / "clients.toml", plan)
        assert held is not None
        keys = [SigningKey.load(settings.fleet / "keys" / f"{name}.pem").verify_key for name in names]
        assert [held.keys[name].public_key for name in names] == keys


def test_who_reads_the_metrics_shows_that_it_may(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    prepare(settings, lambda _: None)
    holder = holder_of_pem((settings.metrics / "client.pem").read_bytes())
    assert holder is not None
    assert (holder.name, holder.scopes) == ("prometheus", frozenset({Scope.ADMIN}))


def test_each_token_is_good_for_its_own_purpose_alone(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    prepare(settings, lambda _: None)
    table = read_table(settings.secrets / "tokens.jsonl")
    texts = json.loads((settings.fleet / "tokens.json").read_text())
    scopes = {entry.name: entry.scopes for text in texts.values() if (entry := table.find(text, 0)) is not None}
    assert scopes == dict.fromkeys(texts, frozenset({Scope.SUBMIT}))
    expected = {"reader": frozenset({Scope.READ}), "admin": frozenset({Scope.READ, Scope.ADMIN})}
    for name, wanted in expected.items():
        found = table.find((settings.operator / f"{name}.token").read_text(), 0)
        assert found is not None
        assert (found.name, found.scopes) == (name, wanted)
        held = [path for path, data in contents(settings.fleet).items() if found.id.encode() in data]
        assert held == [], "the devices have no other token than their own"


@pytest.mark.parametrize("mode", ["central", "local"])
def test_without_data_it_is_the_photographs_pixels(tmp_path: Path, mode: str) -> None:
    settings = settings_in(tmp_path, HUSHSUM_MODE=mode, HUSHSUM_DATA="")
    prepare(settings, lambda _: None)
    assert prepared(settings).name == "pixel-colours"
    assert len(source_of(settings).values) == 200


def test_secrets_are_for_their_owner_alone(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, HUSHSUM_MODE="secure")
    prepare(settings, lambda _: None)
    public = {"points.npy", "plan.json", "ca.pem", "clients.toml", "prepared.json", "server.pem", "metrics-ca.pem"}
    of_metrics = {path for path in settings.metrics.rglob("*") if path.is_file()}
    for path in contents(tmp_path).keys() - of_metrics:
        assert (stat.S_IMODE(path.stat().st_mode) & 0o077 == 0) != (path.name in public), path
    assert [path for path in contents(tmp_path) if "ca" in path.name and b"PRIVATE" in path.read_bytes()] == []


def test_it_does_nothing_where_all_is_there(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, HUSHSUM_MODE="secure")
    said: list[str] = []
    prepare(settings, said.append)
    made = contents(tmp_path)
    prepare(settings, said.append)
    assert contents(tmp_path) == made
    assert "nothing to do" in said[-1]


def test_what_was_cut_short_is_made_anew(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, HUSHSUM_MODE="secure")
    prepare(settings, lambda _: None)
    (settings.config / "prepared.json").unlink()
    prepare(settings, lambda _: None)
    assert isinstance(prepared(settings), Plan)
    assert client_directory_of(settings.config / "clients.toml", prepared(settings)) is not None


def test_other_settings_are_refused(tmp_path: Path) -> None:
    prepare(settings_in(tmp_path), lambda _: None)
    other = settings_in(tmp_path, HUSHSUM_MODE="local")
    with pytest.raises(
        SettingsConflictError, match="mode 'central' and not 'local'; remove the volumes of the deployment"
    ):
        prepare(other, lambda _: None)
    with pytest.raises(SettingsConflictError):
        prepared(other)


def test_nothing_starts_before_it(tmp_path: Path) -> None:
    with pytest.raises(JourneyError, match="deployment prepare writes it"):
        prepared(settings_in(tmp_path))
