"""Settings are refused by name."""

import pytest

from edge_client import Config, SettingsError


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("in_flight_max", 0),
        ("in_flight_max", 65),
        ("commits_max", 0),
        ("spool_bytes_max", 0),
        ("backoff_first_s", 0.0),
        ("backoff_longest_s", float("inf")),
        ("first_contact_s", float("nan")),
        ("close_flush_s", -1.0),
    ],
)
def test_a_setting_that_cannot_be_used_is_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(SettingsError, match=name):
        Config(**{name: value})  # type: ignore[arg-type]  # wrong values are the point of it


def test_leaving_without_waiting_is_a_setting() -> None:
    assert Config(close_flush_s=0.0).close_flush_s == 0.0
