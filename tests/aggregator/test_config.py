"""Settings are small, frozen, and refused where they are not understood."""

import errno
import os
from pathlib import Path

import pytest
from pydantic import ValidationError

from aggregator.app import ProcessRole
from aggregator.config import DSN_VARIABLE, Config, DatabaseAddress, host_and_port, is_loopback
from aggregator.errors import ConfigError
from aggregator.release.receipts_copy import is_same_place

NEEDED = {"plan": "plan.toml", "data": "data"}
PASSWORD = "correct-horse"
DSN = f"postgresql://hushsum:{PASSWORD}@127.0.0.1:5432/counts"
CLUSTER = {
    "plan": "plan.json",
    "log": "kafka",
    "store": "postgresql",
    "kafka_bootstrap": "127.0.0.1:9092",
    "postgres_dsn": DSN,
}
SASL = {"kafka_sasl_mechanism": "SCRAM-SHA-512", "kafka_user": "hushsum", "kafka_password_file": "password"}


def test_a_plan_and_a_folder_are_all_that_is_needed() -> None:
    config = Config.of(**NEEDED)

    assert (config.plan, config.data) == (Path("plan.toml"), Path("data"))
    assert (config.listen, config.partitions, config.manual, config.insecure) == ("127.0.0.1:7443", 1, False, False)
    assert not config.retain_verdicts


@pytest.mark.parametrize(
    ("settings", "message"),
    (
        ({"partition": 4}, "partition: unknown key; did you mean partitions?"),
        ({"skew_s": "soon", "partition": 4}, "partition: unknown key; did you mean partitions?"),
        ({"skew_ms": 4}, "skew_ms: unknown key; did you mean skew_s?"),
        ({"zzz": 4}, "zzz: unknown key"),
        ({"receipts_copy": "kafka:///t"}, "receipts_copy: got kafka:///t: a topic is allowed only with log = kafka"),
        ({"receipts": "r", "receipts_copy": "./r"}, "receipts_copy: ./r is the file of the receipts themselves"),
        ({"receipts": "r", "receipts_copy": "a/../r"}, "receipts_copy: a/../r is the file of the receipts themselves"),
        ({"partitions": 0}, "partitions: got 0: Input should be greater than or equal to 1"),
        ({"partitions": "4"}, "partitions: got '4': Input should be a valid integer"),
        ({"partitions": True}, "partitions: got True: Input should be a valid integer"),
        ({"manual": 1}, "manual: got 1: Input should be a valid boolean"),
        ({"listen": "7443"}, "listen: got '7443': expected host:port"),
        ({"listen": "127.0.0.1:99999"}, "listen: got '127.0.0.1:99999': expected host:port"),
        ({"log_level": "loud"}, "log_level: got 'loud': Input should be"),
        ({"plan": 5}, "plan: got 5:"),
        ({"client_streams_max": 0}, "client_streams_max: got 0: Input should be greater than or equal to 1"),
    ),
)
def test_a_setting_that_is_not_understood_is_refused_by_name(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Config.of(**{**NEEDED, **settings})

    assert str(caught.value).startswith(message)


def test_a_hard_link_to_the_receipts_is_no_copy_of_them(tmp_path: Path) -> None:
    (tmp_path / "receipts.jsonl").touch()
    (tmp_path / "copy.jsonl").hardlink_to(tmp_path / "receipts.jsonl")
    with pytest.raises(ConfigError, match="is the file of the receipts themselves"):
        Config.load(None, {"data": str(tmp_path), "receipts_copy": str(tmp_path / "copy.jsonl")}, needs_plan=False)


def test_a_copy_on_a_disk_that_does_not_answer_is_no_wrong_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stops releasing alone; the service goes on to collect."""
    (tmp_path / "receipts.jsonl").touch()
    copy, stat = str(tmp_path / "away" / "copy.jsonl"), os.stat

    def stale(path: str | Path, *, follow_symlinks: bool = True) -> os.stat_result:
        if str(path) == copy:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return stat(path, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(os, "stat", stale)
    loaded = Config.load(None, {"data": str(tmp_path), "receipts_copy": copy}, needs_plan=False)
    assert loaded.receipts_copy == copy
    assert not is_same_place(f"receipts {copy}", f"receipts {tmp_path / 'receipts.jsonl'}")


def test_a_setting_that_is_missing_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^data: required$"):
        Config.of(plan="plan.toml")


@pytest.mark.parametrize("listen", ("0.0.0.0:7443", "[::]:7443", "10.1.2.3:7443", "example.org:7443"))
def test_plaintext_off_loopback_is_refused_unless_insecure(listen: str) -> None:
    with pytest.raises(ConfigError, match="allowed only on loopback"):
        Config.of(**NEEDED, listen=listen)

    assert Config.of(**NEEDED, listen=listen, insecure=True).listen == listen


def test_the_metrics_stay_on_loopback_whatever_is_said() -> None:
    with pytest.raises(ConfigError, match="exact counts"):
        Config.of(**NEEDED, metrics_listen="0.0.0.0:9000", insecure=True)

    assert Config.of(**NEEDED, metrics_listen="").metrics_listen == ""


def test_overrides_win_over_the_file_and_none_is_no_override(tmp_path: Path) -> None:
    file = tmp_path / "hushsum.toml"
    file.write_text('plan = "a.toml"\ndata = "here"\npartitions = 4\nskew_s = 60\n')

    config = Config.load(file, {"data": "there", "partitions": None})

    assert (config.plan, config.data, config.partitions, config.skew_s) == (Path("a.toml"), Path("there"), 4, 60)


@pytest.mark.parametrize("text", ("partitions = ", "\xff"))
def test_a_file_that_is_no_toml_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "hushsum.toml"
    file.write_bytes(text.encode("latin-1"))

    with pytest.raises(ConfigError, match="cannot be read as TOML"):
        Config.load(file, NEEDED)


def test_a_plan_is_required_of_what_serves_alone() -> None:
    settings = {key: value for key, value in NEEDED.items() if key != "plan"}
    with pytest.raises(ConfigError, match="plan: required"):
        Config.load(None, settings)
    assert Config.load(None, settings, needs_plan=False).plan is None


def test_settings_do_not_change() -> None:
    with pytest.raises(ValidationError):
        Config.of(**NEEDED).partitions = 2


@pytest.mark.parametrize(
    ("address", "expected"), (("127.0.0.1:0", ("127.0.0.1", 0)), ("[::1]:80", ("::1", 80)), ("host:1", ("host", 1)))
)
def test_addresses_are_read(address: str, expected: tuple[str, int]) -> None:
    assert host_and_port(address) == expected


@pytest.mark.parametrize("host", ("127.0.0.1", "127.9.9.9", "::1", "localhost"))
def test_loopback_is_recognised(host: str) -> None:
    assert is_loopback(host)


# ------------------------------------------------------------------------------------------------ several processes


@pytest.mark.parametrize("role", ("gateway", "worker", "releaser"))
@pytest.mark.parametrize(
    "parts", ({}, {"log": "kafka", "kafka_bootstrap": "127.0.0.1:9092"}), ids=("both are files", "the store is a file")
)
def test_a_role_that_shares_its_work_needs_kafka_and_postgresql(role: str, parts: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=f"^role: {role} requires log = kafka and store = postgresql"):
        Config.of(**NEEDED, **parts, role=role)

    assert Config.of(**CLUSTER, role=role).role == role


def test_one_process_may_keep_its_store_in_a_file_and_its_log_in_kafka_but_not_the_other_way_round() -> None:
    config = Config.of(**NEEDED, log="kafka", kafka_bootstrap="127.0.0.1:9092")

    assert ProcessRole.of(config).alone
    with pytest.raises(ConfigError, match=r"^store: postgresql requires log = kafka"):
        Config.of(**NEEDED, store="postgresql", postgres_dsn=DSN)


def test_a_folder_is_needed_where_something_is_a_file_and_nowhere_else() -> None:
    assert Config.of(**CLUSTER).data is None
    with pytest.raises(ConfigError, match=r"^data: required$"):
        Config.of(**{**CLUSTER, "store": "sqlite", "postgres_dsn": None})


@pytest.mark.parametrize(
    ("changes", "message"),
    (
        ({"kafka_bootstrap": None}, "kafka_bootstrap: required with log = kafka"),
        ({"kafka_bootstrap": "127.0.0.1:9092,nowhere"}, "kafka_bootstrap: got '127.0.0.1:9092,nowhere': expected host"),
        (
            {"kafka_bootstrap": "10.0.0.1:9092"},
            "kafka_security: PLAINTEXT is allowed only on loopback, got 10.0.0.1:9092",
        ),
        ({"kafka_prefix": "a b"}, "kafka_prefix: got 'a b':"),
        ({"kafka_replication": 0}, "kafka_replication: got 0:"),
        ({"kafka_security": "TLS"}, "kafka_security: got 'TLS':"),
        ({"kafka_security": "SASL_SSL"}, "kafka_sasl_mechanism: required with kafka_security"),
        ({"kafka_user": "hushsum"}, "kafka_user: allowed only with kafka_security"),
        ({"kafka_ca_file": "ca.pem"}, "kafka_ca_file: allowed only with kafka_security"),
        ({"kafka_security": "SSL", "kafka_key_file": "key.pem"}, "kafka_cert_file: set both"),
        ({"kafka_session_s": 0.5}, "kafka_session_s: got 0.5:"),
        ({"postgres_dsn": None}, "postgres_dsn: required with store = postgresql, here or in the environment"),
        ({"postgres_pool": 2}, "postgres_pool: got 2:"),
        ({"lease_s": 0}, "lease_s: got 0:"),
        ({"receipts": "r.jsonl"}, "receipts: allowed only with log = sqlite"),
        ({"receipts_copy": "copy.jsonl"}, "receipts_copy: got copy.jsonl: a file is allowed only with log = sqlite"),
        ({"receipts_copy": "http://host/topic"}, "receipts_copy: got http://host/topic: expected kafka://HOST:PORT"),
        ({"receipts_copy": "kafka://host/topic"}, "receipts_copy: got kafka://host/topic: expected host:port"),
        ({"receipts_copy": "kafka:///a/b"}, "receipts_copy: got kafka:///a/b: expected kafka://HOST:PORT/TOPIC"),
        ({"receipts_copy": "kafka:///hushsum.receipts"}, "receipts_copy: kafka:///hushsum.receipts is the topic of"),
        (
            {"receipts_copy": "kafka://other:9092,127.0.0.1:9092/hushsum.receipts"},
            "receipts_copy: kafka://other:9092,127.0.0.1:9092/hushsum.receipts is the topic of",
        ),
        ({"receipts_copy": "kafka://10.0.0.1:9092/t"}, "receipts_copy: PLAINTEXT is allowed only on loopback"),
        ({"direct_producers": True}, "direct_producers: requires directory"),
        (
            {"role": "worker", "page_listen": "127.0.0.1:7445", "tokens": "tokens.jsonl"},
            "page_listen: allowed only with role = all, gateway or releaser, got role = worker",
        ),
        ({"releaser_key": "key.pem"}, "releaser_key: requires directory"),
        ({"directory": "keys.toml"}, "gateway_key: required with directory in role all"),
        ({"directory": "keys.toml", "role": "releaser"}, "releaser_key: required with directory in role releaser"),
    ),
)
def test_settings_that_do_not_fit_together_are_refused_by_name(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Config.of(**{**CLUSTER, **changes})

    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("security", ("SASL_SSL", "SASL_PLAINTEXT"))
def test_a_user_of_the_brokers_has_a_mechanism_a_name_and_a_password_in_a_file(security: str) -> None:
    assert Config.of(**CLUSTER, kafka_security=security, **SASL).kafka_user == "hushsum"
    with pytest.raises(ConfigError, match=r"^kafka_password_file: required"):
        Config.of(**CLUSTER, kafka_security=security, **{**SASL, "kafka_password_file": None})


@pytest.mark.parametrize(
    ("key", "value"),
    (
        ("kafka_recovery_s", 60),
        ("kafka_prefix", "mine"),
        ("directory", "keys.toml"),
        ("direct_producers", True),
        ("postgres_pool", 4),
    ),
)
def test_a_setting_of_a_part_that_is_not_used_is_refused(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"^{key}: allowed only with (log = kafka|store = postgresql)"):
        Config.of(**NEEDED, **{key: value})


def test_only_the_roles_that_write_entries_need_a_key() -> None:
    signed = {**CLUSTER, "directory": "keys.toml"}

    assert Config.of(**signed, role="worker", direct_producers=True).direct_producers
    assert Config.of(**signed, role="gateway", gateway_key="gateway.pem").gateway_key == Path("gateway.pem")
    assert Config.of(**signed, gateway_key="gateway.pem", releaser_key="releaser.pem").releaser_key is not None


def test_windows_are_opened_by_gateways_and_with_direct_producers_by_workers_too() -> None:
    def opens(**settings: object) -> bool:
        return ProcessRole.of(Config.of(**{**CLUSTER, **settings})).opens

    assert opens(role="gateway")
    assert not opens(role="worker")
    assert opens(role="worker", direct_producers=True, directory="keys.toml")
    assert not opens(role="releaser", direct_producers=True, directory="keys.toml", releaser_key="key.pem")


# ------------------------------------------------------------------------------------------------- what stays secret


@pytest.mark.parametrize(
    "dsn",
    (
        f"mysql://hushsum:{PASSWORD}@127.0.0.1/counts",
        f"hushsum:{PASSWORD}",
        f"postgresql://hushsum:{PASSWORD}@db.example/counts",
        f"postgresql://hushsum:{PASSWORD}@[::1/counts",
        f"postgresql://hushsum:{PASSWORD}",
        *(
            f"postgresql://hushsum:{password}@db.example:5432/counts{options}"
            for sign in "/@:%?#[]&=,"
            for password in (f"{PASSWORD}{sign}x", f"x{sign}{PASSWORD}", f"1{sign}{PASSWORD}{sign}y")
            for options in ("", "?sslmode=prefer")
        ),
        f"postgresql://hushsum:{PASSWORD}?a={PASSWORD}@db.example/counts",
        f"postgresql://hushsum:a@db/{PASSWORD}@db.example/counts",
        [PASSWORD],
    ),
)
def test_a_password_is_in_no_refusal_and_in_none_of_its_causes(dsn: object) -> None:
    with pytest.raises(ConfigError, match=r"^postgres_dsn: ") as caught:
        Config.of(**{**CLUSTER, "postgres_dsn": dsn})

    error: BaseException | None = caught.value
    while error is not None:
        assert PASSWORD not in str(error)
        assert PASSWORD not in repr(error)
        error = error.__cause__ or error.__context__


def test_settings_show_no_password() -> None:
    config = Config.of(**CLUSTER)

    assert PASSWORD not in f"{config} {config!r} {config.model_dump()} {config.model_dump_json()}"
    assert config.dsn == DSN


def test_the_address_of_the_database_may_stand_in_the_environment_alone() -> None:
    settings = {**CLUSTER, "postgres_dsn": None}

    assert Config.load(None, settings, {DSN_VARIABLE: DSN}).dsn == DSN
    assert Config.load(None, {**CLUSTER, "postgres_dsn": DSN}, {DSN_VARIABLE: "postgresql://::1/other"}).dsn == DSN
    assert Config.load(None, NEEDED, {DSN_VARIABLE: DSN}).dsn == ""


@pytest.mark.parametrize(
    ("dsn", "hosts", "private"),
    (
        (DSN, ("127.0.0.1",), True),
        ("postgres://u@localhost/x", ("localhost",), True),
        ("postgresql://u@[::1]:5432/x", ("::1",), True),
        ("postgresql:///x?host=/run/postgresql", ("/run/postgresql",), True),
        ("postgresql:///x", (), True),
        ("postgresql://u:p@db/x", ("db",), False),
        ("postgresql://u:p@db/x?sslmode=prefer", ("db",), False),
        ("postgresql://u:p@db:5432/x?sslmode=verify-full", ("db",), True),
        ("postgresql://u:p@127.0.0.1:1,db:2/x", ("127.0.0.1", "db"), False),
        ("postgresql:///x?host=/run/postgresql,db", ("/run/postgresql", "db"), False),
        ("postgresql:///x?service=there", ("service there",), False),
    ),
)
def test_a_database_off_this_machine_must_be_asked_for_tls(
    dsn: str, hosts: tuple[str, ...], private: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PGHOST", raising=False)
    database = DatabaseAddress(dsn)

    assert (database.hosts, database.is_private) == (hosts, private)
    assert Config.of(**{**CLUSTER, "postgres_dsn": dsn}, insecure=True).dsn == dsn
    if not private:
        with pytest.raises(ConfigError, match=r"^postgres_dsn: unencrypted connections are allowed only on loopback"):
            Config.of(**{**CLUSTER, "postgres_dsn": dsn})


@pytest.mark.parametrize(
    ("dsn", "host", "private"),
    (
        ("postgresql:///x", "db", False),
        ("postgresql://u:p@/x", "127.0.0.1,db", False),
        ("postgresql:///x", "/run/postgresql", True),
        ("postgresql:///x?sslmode=require", "db", True),
        ("postgresql://u:p@localhost/x", "db", True),
        ("postgresql:///x?host=/tmp", "db", True),
    ),
)
def test_an_address_without_a_host_is_that_of_the_environment(
    dsn: str, host: str, private: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGHOST", host)

    assert DatabaseAddress(dsn).is_private == private
    if not private:
        with pytest.raises(
            ConfigError, match=rf"^postgres_dsn: unencrypted connections are allowed only on loopback, and {host}/x may"
        ):
            Config.of(**{**CLUSTER, "postgres_dsn": dsn})


def test_an_at_sign_that_would_make_another_host_of_a_part_of_the_password_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^postgres_dsn: .* @ %40$") as caught:
        Config.of(**{**CLUSTER, "postgres_dsn": f"postgresql://u:p@db,{PASSWORD}@127.0.0.1/x"})

    assert PASSWORD not in str(caught.value)


SHUFFLER = {
    "role": "shuffler",
    "data": "data",
    "upstream": "127.0.0.1:7443",
    "shuffler_key": "mix.pem",
    "shufflers": "shufflers.toml",
}


def test_a_shuffler_needs_no_plan_and_what_it_needs_is_named() -> None:
    config = Config.of(**SHUFFLER)
    assert (config.plan, config.upstream, config.client_rate, config.client_burst) == (
        None,
        "127.0.0.1:7443",
        1000.0,
        1_000_000,
    )
    for key in SHUFFLER.keys() - {"role"}:
        with pytest.raises(ConfigError, match=rf"^{key}: required with role = shuffler"):
            Config.of(**{name: value for name, value in SHUFFLER.items() if name != key})
    with pytest.raises(ConfigError, match=r"^plan: required"):
        Config.of(data="data")


@pytest.mark.parametrize(
    ("settings", "message"),
    (
        ({**SHUFFLER, "listen": "10.0.0.1:7443"}, "listen: unencrypted connections are allowed only on loopback"),
        ({**SHUFFLER, "receipts": "r.jsonl"}, "receipts: not allowed with role = shuffler"),
        ({**SHUFFLER, "partitions": 4}, "partitions: not allowed with role = shuffler"),
        (
            {**SHUFFLER, "page_listen": "127.0.0.1:7445", "tokens": "tokens.jsonl"},
            "page_listen: not allowed with role = shuffler",
        ),
        ({**SHUFFLER, "log": "kafka"}, "log: not allowed with role = shuffler"),
        ({**SHUFFLER, "kafka_bootstrap": "127.0.0.1:9092"}, "kafka_bootstrap: not allowed with role = shuffler"),
        ({**NEEDED, "upstream": "127.0.0.1:7443"}, "upstream: allowed only with role = shuffler"),
        ({**NEEDED, "shuffler_key": "mix.pem"}, "shuffler_key: allowed only with role = shuffler"),
        ({**NEEDED, "client_rate": 0.0}, "client_rate: got 0.0"),
        ({**NEEDED, "client_burst": 0}, "client_burst: got 0"),
    ),
)
def test_what_belongs_to_shufflers_is_refused_elsewhere_and_the_other_way_round(
    settings: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError) as error:
        Config.of(**settings)
    assert message in str(error.value)


def test_a_shuffler_may_be_told_how_to_write_its_journal() -> None:
    assert Config.of(**SHUFFLER, log_level="debug", log_format="json").log_level == "debug"
