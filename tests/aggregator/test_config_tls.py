"""Settings of TLS and of who may call: each refusal names the key and what to do."""

import pytest

from aggregator.config import Config
from aggregator.errors import ConfigError

NEEDED = {"plan": "plan.toml", "data": "data"}
TLS = {"tls_cert": "server.pem", "tls_key": "server.key"}
SHUFFLER = {
    "role": "shuffler",
    "data": "data",
    "upstream": "127.0.0.1:7443",
    "shuffler_key": "mix.pem",
    "shufflers": "shufflers.toml",
}
OFF = "0.0.0.0:7443"


@pytest.mark.parametrize(
    ("settings", "message"),
    (
        ({"tls_cert": "server.pem"}, "tls_cert: requires tls_key"),
        ({"tls_key": "server.key"}, "tls_key: requires tls_cert"),
        ({"tls_client_ca": "ca.pem"}, "tls_client_ca: requires tls_cert"),
        ({"metrics_client_ca": "ca.pem"}, "metrics_client_ca: requires tls_cert"),
        ({**TLS, "metrics_client_ca": "ca.pem", "metrics_listen": ""}, "metrics_client_ca: allowed only with"),
        ({**TLS, "metrics_listen": "0.0.0.0:9000"}, "metrics_listen: metrics contain exact counts"),
        (
            {"listen": OFF},
            "listen: unencrypted connections are allowed only on loopback, got 0.0.0.0:7443; use 127.0.0.1",
        ),
        ({"authentication": "token"}, "tokens: required with authentication = token"),
        (
            {"authentication": "token", "tokens": "t", "listen": OFF},
            "listen: unencrypted connections are allowed only on loopback",
        ),
        ({"tokens": "tokens.jsonl"}, "tokens: allowed only with authentication = token"),
        ({**TLS, "authentication": "certificate"}, "tls_client_ca: required with authentication = certificate"),
        ({"authentication": "password"}, "authentication: got 'password'"),
        ({"upstream_ca": "ca.pem"}, "upstream_ca: allowed only with role = shuffler"),
        ({"upstream_token": "token"}, "upstream_token: allowed only with role = shuffler"),
        ({"upstream_cert": "mix.pem"}, "upstream_cert: allowed only with role = shuffler"),
        ({"upstream_key": "mix.key"}, "upstream_key: allowed only with role = shuffler"),
        ({**SHUFFLER, "upstream_cert": "mix.pem"}, "upstream_cert: requires upstream_key"),
        ({**SHUFFLER, "upstream_key": "mix.key"}, "upstream_key: requires upstream_cert"),
    ),
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_settings_that_do_not_go_together_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Config.of(**{**NEEDED, **settings})

    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("listen", (OFF, "[::]:7443", "gateway.example:7443"))
def test_off_loopback_it_listens_with_tls(listen: str) -> None:
    assert Config.of(**NEEDED, **TLS, listen=listen).listen == listen


def test_metrics_off_loopback_are_for_who_shows_a_certificate() -> None:
    settings = {**TLS, "metrics_listen": "0.0.0.0:9000", "metrics_client_ca": "ca.pem"}
    assert Config.of(**NEEDED, **settings).metrics_listen == "0.0.0.0:9000"


def test_tokens_may_be_asked_for_beside_certificates() -> None:
    config = Config.of(**NEEDED, **TLS, tls_client_ca="ca.pem", authentication="token", tokens="tokens.jsonl")
    assert (config.authentication, str(config.tls_client_ca)) == ("token", "ca.pem")


def test_a_shuffler_may_speak_tls_both_ways() -> None:
    upstream = {"upstream": "gateway.example:7443", "upstream_ca": "ca.pem", "upstream_token": "token"}
    assert Config.of(**{**SHUFFLER, **upstream}, **TLS, listen=OFF).upstream == "gateway.example:7443"
