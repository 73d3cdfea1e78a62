"""Settings are small, frozen, and refused where they are not understood."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from aggregator.config import Config, host_and_port, is_loopback
from aggregator.errors import ConfigError

NEEDED = {"plan": "plan.toml", "data": "data"}


def test_a_plan_and_a_folder_are_all_that_is_needed() -> None:
    config = Config.of(**NEEDED)

    assert (config.plan, config.data) == (Path("plan.toml"), Path("data"))
    assert (config.listen, config.partitions, config.manual, config.insecure) == ("127.0.0.1:7443", 1, False, False)
    assert not config.retain_verdicts


@pytest.mark.parametrize(
    ("settings", "message"),
    (
        ({"partition": 4}, "partition: unknown key; did you mean partitions?"),
        ({"skew_ms": 4}, "skew_ms: unknown key; did you mean skew_s?"),
        ({"zzz": 4}, "zzz: unknown key"),
        ({"partitions": 0}, "partitions: got 0: Input should be greater than or equal to 1"),
        ({"partitions": "4"}, "partitions: got '4': Input should be a valid integer"),
        ({"partitions": True}, "partitions: got True: Input should be a valid integer"),
        ({"manual": 1}, "manual: got 1: Input should be a valid boolean"),
        ({"listen": "7443"}, "listen: got '7443': expected host:port"),
        ({"listen": "127.0.0.1:99999"}, "listen: got '127.0.0.1:99999': expected host:port"),
        ({"log_level": "loud"}, "log_level: got 'loud': Input should be"),
        ({"plan": 5}, "plan: got 5:"),
    ),
)
def test_a_setting_that_is_not_understood_is_refused_by_name(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Config.of(**{**NEEDED, **settings})

    assert str(caught.value).startswith(message)


def test_a_setting_that_is_missing_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^data: required$"):
        Config.of(plan="plan.toml")


@pytest.mark.parametrize("listen", ("0.0.0.0:7443", "[::]:7443", "10.1.2.3:7443", "example.org:7443"))
def test_plaintext_off_loopback_is_refused_unless_insecure(listen: str) -> None:
    with pytest.raises(ConfigError, match="plaintext off loopback"):
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

    with pytest.raises(ConfigError, match="expected a TOML file"):
        Config.load(file, NEEDED)


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
