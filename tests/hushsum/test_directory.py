"""The directory: every way to write it wrong is refused by the key's name."""

import hashlib
import json

import pytest

from hushsum.directory import KEYS_MAX, Directory, DirectoryKey, Role, toml_of
from hushsum.errors import DirectoryError
from hushsum.labels import DIRECTORY
from hushsum.signatures import SigningKey

A, B, C = (SigningKey(bytes([number]) * 32).verify_key for number in (1, 2, 3))
GATEWAY = f'[keys.gw-1]\nrole = "gateway"\npublic_key = "{A.hex}"\n'
RELEASER = f'[keys.rel]\nrole = "releaser"\npublic_key = "{B.hex}"\n'


def test_keys_are_read_with_their_roles() -> None:
    directory = Directory.from_toml(GATEWAY + RELEASER)
    assert directory.keys == {
        "gw-1": DirectoryKey("gw-1", Role.GATEWAY, A),
        "rel": DirectoryKey("rel", Role.RELEASER, B),
    }
    with pytest.raises(TypeError):
        directory.keys["x"] = directory.keys["rel"]  # type: ignore[index]  # that it cannot be written is the point


def test_several_keys_of_one_role_are_fine() -> None:
    second = GATEWAY.replace("gw-1", "gw-2").replace(A.hex, C.hex)
    assert [key.role for key in Directory.from_toml(GATEWAY + second).keys.values()] == [Role.GATEWAY] * 2


@pytest.mark.parametrize(
    ("text", "message"),
    (
        ("", r"keys: got 0, expected 1 to 16384, each as \[keys\.NAME\]"),
        ("keys = 5", r"keys: got 5, expected tables \[keys\.NAME\]"),
        ("[keys", "no TOML: "),
        (f"{GATEWAY}[other]\n", r"other: unknown, expected \[keys\.NAME\] alone"),
        ("[keys]\ngw = 5\n", "keys.gw: got 5, expected a table with role and public_key"),
        (f'{GATEWAY}note = "x"\n', "keys.gw-1.note: unknown, expected role and public_key alone"),
        (GATEWAY.replace('"gateway"', '"root"'), "keys.gw-1.role: got root, expected 'gateway' or 'releaser' or"),
        (GATEWAY.replace('"gateway"', "['gateway']"), "keys.gw-1.role: got "),
        (GATEWAY.replace('role = "gateway"', ""), "keys.gw-1.role: is missing, expected 'gateway'"),
        (GATEWAY.replace(f'"{A.hex}"', "7"), "keys.gw-1.public_key: got 7, expected hexadecimal digits or PEM"),
        (GATEWAY.replace(f'public_key = "{A.hex}"', ""), "keys.gw-1.public_key: is missing"),
        (GATEWAY.replace(A.hex, A.hex[:-1]), "keys.gw-1.public_key: expected an Ed25519 public key as 64"),
        (GATEWAY.replace(A.hex, "00" * 32), "keys.gw-1.public_key: .* no point of its main group"),
        (GATEWAY.replace("gw-1", '"gw 1"'), "keys.gw 1: not a name of a key, expected 1 to 64 of A-Z"),
        (GATEWAY.replace("gw-1", '""'), "keys.: not a name of a key"),
        (GATEWAY.replace("gw-1", '"ü"'), "keys.ü: not a name of a key"),
        (GATEWAY.replace("gw-1", '"gw-1\\n"'), "not a name of a key"),
        (GATEWAY.replace("gw-1", "a" * 65), "keys.a+: not a name of a key"),
        (GATEWAY + GATEWAY, "no TOML: "),
    ),
)
def test_a_wrong_directory_is_refused_by_the_keys_name(text: str, message: str) -> None:
    with pytest.raises(DirectoryError, match=message):
        Directory.from_toml(text)


def test_one_public_key_under_two_names_is_refused_for_a_role_could_be_dodged() -> None:
    with pytest.raises(DirectoryError, match=r"keys\.rel\.public_key: the same as of keys\.gw-1, expected a key of"):
        Directory.from_toml(GATEWAY + RELEASER.replace(B.hex, A.hex.upper()))


def test_too_many_keys_are_refused() -> None:
    key = DirectoryKey("a", Role.GATEWAY, A)
    with pytest.raises(DirectoryError, match="keys: got 16385, expected 1 to 16384"):
        Directory({str(number): key for number in range(KEYS_MAX + 1)})


def test_the_digest_is_of_what_is_said_and_not_of_how() -> None:
    digest = Directory.from_toml(GATEWAY + RELEASER).digest()
    fields = {"gw-1": {"public_key": A.hex, "role": "gateway"}, "rel": {"public_key": B.hex, "role": "releaser"}}
    canonical = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
    assert digest == hashlib.sha256(DIRECTORY + canonical).digest()
    assert digest == Directory.from_toml(f"# a note\n{RELEASER}\n\n{GATEWAY.replace(A.hex, A.hex.upper())}").digest()
    assert digest != Directory.from_toml(GATEWAY + RELEASER.replace("releaser", "producer")).digest()
    assert digest != Directory.from_toml(GATEWAY.replace("gw-1", "gw-2") + RELEASER).digest()
    assert digest != Directory.from_toml(GATEWAY + RELEASER.replace(B.hex, C.hex)).digest()


def test_a_key_is_expected_in_its_role() -> None:
    directory = Directory.from_toml(GATEWAY + RELEASER)
    assert directory.expect(A, Role.GATEWAY).id == "gw-1"
    assert directory.find(C) is None
    with pytest.raises(DirectoryError, match=r"keys\.gw-1: is a gateway key, and is used here as a releaser key"):
        directory.expect(A, Role.RELEASER)
    with pytest.raises(DirectoryError, match=rf"the gateway key {C.hex} is not in the directory"):
        directory.expect(C, Role.GATEWAY)


@pytest.mark.parametrize("id", ("gw-1", "gw_1", "gw.1", "7", "A" * 64))
def test_what_is_printed_of_a_key_is_read_as_it(id: str) -> None:
    key = DirectoryKey(id, Role.PRODUCER, A)
    assert Directory.from_toml(toml_of(key)).keys == {id: key}


def test_a_name_that_is_none_is_not_printed() -> None:
    with pytest.raises(DirectoryError, match="not a name of a key"):
        toml_of(DirectoryKey('a"]\n[keys.b', Role.GATEWAY, A))
