"""`hushsum keys`: what it makes is what the directory takes."""

import json
from pathlib import Path

from hushsum.signing import Directory, Role, SigningKey
from hushsum_cli import keys as command
from tests.hushsum_cli.calling import Hushsum


def test_the_roles_on_offer_are_the_directorys() -> None:
    assert list(command._ROLES) == [role.value for role in Role]


def test_keys_that_are_made_fill_a_directory_that_is_checked(hushsum: Hushsum, tmp_path: Path) -> None:
    text = ""
    for role in Role:
        names = ("--role", role.value, "--name", f"{role}-1", "--out", str(tmp_path / f"{role}.pem"))
        ended = hushsum("keys", "make", *names)
        assert ended.status == 0, ended.err
        text += ended.out
    directory = Directory.from_toml(text)
    for role in Role:
        path = tmp_path / f"{role}.pem"
        assert path.stat().st_mode & 0o777 == 0o600
        assert directory.expect(SigningKey.load(path).verify_key, role).id == f"{role}-1"
    file = tmp_path / "directory.toml"
    file.write_text(text)
    told = json.loads(hushsum("keys", "check", str(file), "--json").out)
    assert told["digest"] == directory.digest().hex()
    assert [key["name"] for key in told["keys"]] == [f"{role.value}-1" for role in Role]
    shown = hushsum("keys", "check", str(file)).out
    assert directory.digest().hex() in shown
    assert "releaser-1" in shown


def test_json_names_the_public_half_and_never_the_private_one(hushsum: Hushsum, tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    ended = hushsum("keys", "make", "--role", "gateway", "--name", "gw", "--out", str(path), "--json")
    key = SigningKey.load(path)
    assert json.loads(ended.out) == {
        "name": "gw",
        "role": "gateway",
        "public_key": key.verify_key.hex,
        "private_key_file": str(path),
    }


def test_a_key_that_is_there_is_not_overwritten(hushsum: Hushsum, tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    path.write_text("mine")
    ended = hushsum("keys", "make", "--role", "gateway", "--name", "gw", "--out", str(path))
    assert ended.status == 1
    assert "already exists: keys are not overwritten" in ended.err
    assert path.read_text() == "mine"


def test_a_name_that_the_directory_would_refuse_makes_no_file(hushsum: Hushsum, tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    ended = hushsum("keys", "make", "--role", "gateway", "--name", "gw 1", "--out", str(path))
    assert ended.status == 1
    assert "keys.gw 1: not a valid key name" in ended.err
    assert not path.exists()


def test_a_wrong_directory_is_refused_with_its_file_and_its_key(hushsum: Hushsum, tmp_path: Path) -> None:
    path = tmp_path / "directory.toml"
    path.write_text('[keys.gw]\nrole = "root"\n')
    ended = hushsum("keys", "check", str(path))
    assert ended.status == 1
    assert "directory.toml: keys.gw.role: got root, expected 'gateway'" in ended.err
    path.write_bytes(b"\xff")
    assert "directory.toml: not valid UTF-8" in hushsum("keys", "check", str(path)).err
