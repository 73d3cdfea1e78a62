from pathlib import Path

import pytest

from aggregator.errors import ConfigError
from aggregator.log.kafka.client import KafkaSettings, Security


def with_password(path: Path, security: Security = "SASL_PLAINTEXT", mechanism: str = "SCRAM-SHA-512") -> KafkaSettings:
    path.write_text("s3cret-word\n", encoding="utf-8")
    return KafkaSettings("a:1, b:2", security=security, sasl_mechanism=mechanism, user="hushsum", password_file=path)


def test_every_client_names_itself_and_knows_all_brokers() -> None:
    arguments = KafkaSettings("a:1, b:2", prefix="p", request_s=3.0).client("reader-1")
    assert arguments["bootstrap_servers"] == ["a:1", "b:2"]
    assert arguments["client_id"] == "p-reader-1"
    assert arguments["request_timeout_ms"] == 3000
    assert arguments["security_protocol"] == "PLAINTEXT"
    assert not {"ssl_context", "sasl_mechanism"} & set(arguments)


def test_a_password_reaches_the_client_and_no_repr(tmp_path: Path) -> None:
    settings = with_password(tmp_path / "password")
    assert "s3cret" not in repr(settings)
    arguments = settings.client("x")
    assert arguments["sasl_plain_password"] == "s3cret-word"
    assert (arguments["sasl_plain_username"], arguments["sasl_mechanism"]) == ("hushsum", "SCRAM-SHA-512")


def test_tls_checks_the_brokers_certificate_and_its_name(tmp_path: Path) -> None:
    context = with_password(tmp_path / "password", "SASL_SSL").client("x")["ssl_context"]
    assert context.check_hostname
    assert context.verify_mode.name == "CERT_REQUIRED"


def test_what_is_missing_is_named_by_its_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="kafka_user, kafka_password_file: required with kafka_security = SASL_SSL"):
        KafkaSettings("a:1", security="SASL_SSL").client("x")
    with pytest.raises(ConfigError, match=r"kafka_password_file: .*No such file"):
        KafkaSettings("a:1", security="SASL_PLAINTEXT", user="u", password_file=tmp_path / "none").client("x")
    with pytest.raises(ConfigError, match="kafka_sasl_mechanism: got GSSAPI, expected one of PLAIN"):
        with_password(tmp_path / "password", mechanism="GSSAPI").client("x")
    with pytest.raises(ConfigError, match="kafka_cert_file and kafka_key_file: expected both or neither"):
        KafkaSettings("a:1", security="SSL", cert_file=tmp_path / "c").client("x")
    broken = tmp_path / "ca.pem"
    broken.write_text("no certificate", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"kafka_ca_file, .*expected PEM files"):
        KafkaSettings("a:1", security="SSL", ca_file=broken).client("x")
