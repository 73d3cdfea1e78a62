"""The directory: every way to write it wrong is refused by the key's name."""

import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hushsum.canonical import encode
from hushsum.errors import DirectoryError
from hushsum.labels import DIRECTORY
from hushsum.signing import DIRECTORY_BYTES_MAX, KEYS_MAX, Directory, DirectoryKey, Role, SigningKey, digest_of, toml_of

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
        ("[keys", "invalid TOML: "),
        (f"{GATEWAY}[other]\n", r"other: unknown key, expected tables \[keys\.NAME\]"),
        ("[keys]\ngw = 5\n", "keys.gw: got 5, expected a table with role and public_key"),
        (f'{GATEWAY}note = "x"\n', "keys.gw-1.note: unknown key, expected role and public_key"),
        (GATEWAY.replace('"gateway"', '"root"'), "keys.gw-1.role: got root, expected 'gateway' or 'releaser' or"),
        (GATEWAY.replace('"gateway"', "['gateway']"), "keys.gw-1.role: got "),
        (GATEWAY.replace('role = "gateway"', ""), "keys.gw-1.role: is missing, expected 'gateway'"),
        (GATEWAY.replace(f'"{A.hex}"', "7"), "keys.gw-1.public_key: got 7, expected hexadecimal digits or PEM"),
        (GATEWAY.replace(f'public_key = "{A.hex}"', ""), "keys.gw-1.public_key: is missing"),
        (GATEWAY.replace(A.hex, A.hex[:-1]), "keys.gw-1.public_key: expected an Ed25519 public key as 64"),
        (GATEWAY.replace(A.hex, "00" * 32), "keys.gw-1.public_key: .* an invalid point"),
        (GATEWAY.replace("gw-1", '"gw 1"'), "keys.gw 1: not a valid key name, expected 1 to 64 of A-Z"),
        (GATEWAY.replace("gw-1", '""'), "keys.: not a valid key name"),
        (GATEWAY.replace("gw-1", '"ü"'), "keys.ü: not a valid key name"),
        (GATEWAY.replace("gw-1", '"gw-1\\n"'), "not a valid key name"),
        (GATEWAY.replace("gw-1", "a" * 65), "keys.a+: not a valid key name"),
        (GATEWAY + GATEWAY, "invalid TOML: "),
    ),
)
def test_a_wrong_directory_is_refused_by_the_keys_name(text: str, message: str) -> None:
    with pytest.raises(DirectoryError, match=message):
        Directory.from_toml(text)


def test_one_public_key_under_two_names_is_refused_for_a_role_could_be_dodged() -> None:
    with pytest.raises(DirectoryError, match=r"keys\.rel\.public_key: the same as keys\.gw-1, expected a unique key"):
        Directory.from_toml(GATEWAY + RELEASER.replace(B.hex, A.hex.upper()))


def test_too_many_keys_are_refused() -> None:
    key = DirectoryKey("a", Role.GATEWAY, A)
    with pytest.raises(DirectoryError, match="keys: got 16385, expected 1 to 16384"):
        Directory({str(number): key for number in range(KEYS_MAX + 1)})


def test_the_digest_is_of_what_is_said_and_not_of_how() -> None:
    digest = Directory.from_toml(GATEWAY + RELEASER).digest()
    fields = {"gw-1": {"public_key": A.hex, "role": "gateway"}, "rel": {"public_key": B.hex, "role": "releaser"}}
    canonical = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
    assert digest == hashlib.sha256(DIRECTORY + canonical).digest() == digest_of(canonical)
    assert Directory.from_toml(GATEWAY + RELEASER).to_bytes() == canonical
    assert digest == Directory.from_toml(f"# a note\n{RELEASER}\n\n{GATEWAY.replace(A.hex, A.hex.upper())}").digest()
    assert digest != Directory.from_toml(GATEWAY + RELEASER.replace("releaser", "producer")).digest()
    assert digest != Directory.from_toml(GATEWAY.replace("gw-1", "gw-2") + RELEASER).digest()
    assert digest != Directory.from_toml(GATEWAY + RELEASER.replace(B.hex, C.hex)).digest()


def test_no_directory_has_more_bytes_than_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hushsum.signing.KEYS_MAX", 3)
    keys = [DirectoryKey(key.hex, max(Role, key=len), key) for key in (A, B, C)]
    longest = Directory({key.id: key for key in keys}).to_bytes()
    assert (len(longest) - 1) * KEYS_MAX == 3 * (DIRECTORY_BYTES_MAX - 1)
    with pytest.raises(DirectoryError, match=f"got {DIRECTORY_BYTES_MAX + 1} bytes, expected at most"):
        Directory.from_bytes(b"[" * (DIRECTORY_BYTES_MAX + 1))


IDS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True)
#: What may stand in place of a value: JSON of a directory's own parts, and others.
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from([A.hex, B.hex.upper(), "client"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["role", "public_key", "x"]) | IDS, inner, max_size=3)
    ),
)


@given(st.dictionaries(IDS, st.sampled_from(Role), min_size=1, max_size=3))
def test_canonical_bytes_are_read_as_the_directory_that_they_are_of(roles: dict[str, Role]) -> None:
    keys = (DirectoryKey(id, role, key) for (id, role), key in zip(roles.items(), (A, B, C), strict=False))
    directory = Directory({key.id: key for key in keys})
    assert Directory.from_bytes(directory.to_bytes()) == directory


def assert_read_or_refused(data: bytes) -> None:
    try:
        directory = Directory.from_bytes(data)
    except DirectoryError:
        return
    assert directory.to_bytes() == data


@given(VALUES, st.sampled_from([(",", ":"), (", ", ": ")]))
def test_json_that_is_not_the_bytes_of_a_directory_is_refused(value: object, separators: tuple[str, str]) -> None:
    assert_read_or_refused(json.dumps(value, separators=separators).encode())
    assert_read_or_refused(json.dumps({"gw-1": value}, separators=separators).encode())
    assert_read_or_refused(
        json.dumps({"gw-1": {"public_key": value, "role": "gateway"}}, separators=separators).encode()
    )


@given(st.data())
def test_changed_bytes_of_a_directory_are_another_directory_or_refused(data: st.DataObject) -> None:
    whole = Directory.from_toml(GATEWAY + RELEASER).to_bytes()
    at = data.draw(st.integers(0, len(whole)))
    assert_read_or_refused(whole[:at] + data.draw(st.binary(max_size=3)) + whole[data.draw(st.integers(at, at + 3)) :])


@pytest.mark.parametrize(
    ("data", "message"),
    (
        (b"[keys.gw-1]", "expected a key registry"),
        (b"[]", r"got \[\], expected a table of keys by name"),
        (b"{}", "keys: got 0, expected 1 to 16384"),
        (b'{"gw 1":{}}', "keys.gw 1: not a valid key name"),
        (b'{"gw-1":{"note":1}}', "keys.gw-1.note: unknown"),
        (
            encode({"gw-1": {"public_key": A.hex.upper(), "role": "gateway"}}),
            "expected 64 lower-case hexadecimal digits",
        ),
        (encode({"gw-1": {"public_key": f"{A.hex} ", "role": "gateway"}}), "expected 64 lower-case hexadecimal digits"),
    ),
)
def test_bytes_that_are_those_of_no_directory_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(DirectoryError, match=message):
        Directory.from_bytes(data)


def test_a_key_is_expected_in_its_role() -> None:
    directory = Directory.from_toml(GATEWAY + RELEASER)
    assert directory.expect(A, Role.GATEWAY).id == "gw-1"
    assert directory.find(C) is None
    with pytest.raises(DirectoryError, match=r"keys\.gw-1: is a gateway key, expected a releaser key"):
        directory.expect(A, Role.RELEASER)
    with pytest.raises(DirectoryError, match=rf"the gateway key {C.hex} is not in the key registry"):
        directory.expect(C, Role.GATEWAY)


@pytest.mark.parametrize("id", ("gw-1", "gw_1", "gw.1", "7", "A" * 64))
def test_what_is_printed_of_a_key_is_read_as_it(id: str) -> None:
    key = DirectoryKey(id, Role.PRODUCER, A)
    assert Directory.from_toml(toml_of(key)).keys == {id: key}


def test_a_name_that_is_none_is_not_printed() -> None:
    with pytest.raises(DirectoryError, match="not a valid key name"):
        toml_of(DirectoryKey('a"]\n[keys.b', Role.GATEWAY, A))
