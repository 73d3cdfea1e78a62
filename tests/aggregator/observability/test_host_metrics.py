"""When certificates end and how much space is left, as an operator's alerts need it."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from prometheus_client import CollectorRegistry

from aggregator.config import Config
from aggregator.observability.host import (
    AUTHORITIES,
    CERTIFICATES,
    READ_S,
    STEP_BYTES,
    HostMetrics,
    HostMetricsCollector,
    Space,
    space_of,
)
from tests.doubles import ManualRuntime
from tests.pages import asked, until
from tests.plans import small_plan
from tests.services import config_of, service_of

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def ends_after(days: int) -> bytes:
    """A certificate, in PEM."""
    key, name = ed25519.Ed25519PrivateKey.generate(), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gw")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(BEGIN).not_valid_after(BEGIN + timedelta(days=days))
    return builder.sign(key, None).public_bytes(Encoding.PEM)


class Shown:
    """What a process with these settings shows."""

    def __init__(self, config: Config) -> None:
        self.registry, self.runtime, self.failed = CollectorRegistry(), ManualRuntime(0), list[tuple[str, str]]()
        self.space = Space(10**9, 5 * STEP_BYTES + 4096)
        self.collector = HostMetricsCollector(
            config, self.runtime, HostMetrics(self.registry), self.retried, lambda _: self.space
        )

    def retried(self, what: str, why: str) -> None:
        self.failed.append((what, why))

    def ends_after(self, setting: str) -> float | None:
        """Days after BEGIN."""
        name = "hushsum_certificate_expiry_timestamp_seconds"
        seconds = self.registry.get_sample_value(name, {"setting": setting})
        return None if seconds is None else (seconds - BEGIN.timestamp()) / 86_400

    def bytes(self, what: str, setting: str = "data") -> float | None:
        return self.registry.get_sample_value(f"hushsum_filesystem_{what}_bytes", {"setting": setting})


def config_with(folder: Path, **files: Path) -> Config:
    return Config.of(plan="plan.toml", data=str(folder)).model_copy(update=files)


@pytest.mark.parametrize("setting", [*CERTIFICATES, *AUTHORITIES])
async def test_each_settings_file_says_when_it_ends(tmp_path: Path, setting: str) -> None:
    (tmp_path / "file.pem").write_bytes(ends_after(30))
    shown = Shown(config_with(tmp_path, **{setting: tmp_path / "file.pem"}))
    await shown.collector.look()
    assert shown.ends_after(setting) == 30
    others = {*CERTIFICATES, *AUTHORITIES} - {setting}
    assert {shown.ends_after(other) for other in others} == {None}


def test_every_setting_that_names_certificates_is_read() -> None:
    named = {name for name in Config.model_fields if name.endswith(("_cert", "_ca", "_cert_file", "_ca_file"))}
    assert named == {*CERTIFICATES, *AUTHORITIES}


async def test_of_a_chain_the_first_to_end_counts_and_of_authorities_the_last(tmp_path: Path) -> None:
    (tmp_path / "file.pem").write_bytes(ends_after(60) + ends_after(7) + ends_after(90))
    shown = Shown(config_with(tmp_path, tls_cert=tmp_path / "file.pem", tls_client_ca=tmp_path / "file.pem"))
    await shown.collector.look()
    assert (shown.ends_after("tls_cert"), shown.ends_after("tls_client_ca")) == (7, 90)


async def test_a_renewed_file_is_seen_within_a_minute_and_a_broken_one_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "file.pem"
    file.write_bytes(ends_after(7))
    shown = Shown(config_with(tmp_path, tls_cert=file))
    task = shown.runtime.spawn(shown.collector.run(), "host metrics")
    await shown.runtime.settle()
    assert shown.ends_after("tls_cert") == 7

    file.write_bytes(ends_after(90))
    await shown.runtime.advance(READ_S)
    assert shown.ends_after("tls_cert") == 90

    file.write_bytes(b"nothing of the kind")
    shown.space = Space(10**9, 2 * STEP_BYTES)
    await shown.runtime.advance(READ_S)
    assert shown.ends_after("tls_cert") == 90
    assert shown.bytes("avail") == 2 * STEP_BYTES, "what fails holds up nothing else"
    file.unlink()
    await shown.runtime.advance(READ_S)
    assert [what for what, _ in shown.failed] == ["metrics of tls_cert"] * 2
    task.cancel()


async def test_free_space_is_rounded_down_so_that_it_counts_nothing_that_came(tmp_path: Path) -> None:
    shown = Shown(config_with(tmp_path, receipts=tmp_path / "receipts.jsonl"))
    await shown.collector.look()
    for setting in ("data", "receipts"):
        assert shown.bytes("size", setting) == 10**9
        assert shown.bytes("avail", setting) == 5 * STEP_BYTES


async def test_without_a_data_directory_there_is_no_space_to_show() -> None:
    config = Config.of(
        plan="plan.json",
        log="kafka",
        store="postgresql",
        kafka_bootstrap="127.0.0.1:1",
        postgres_dsn="postgresql://localhost/x",
    )
    shown = Shown(config)
    await shown.collector.look()
    assert (shown.bytes("avail"), shown.failed) == (None, [])


def test_space_is_what_the_system_says(tmp_path: Path) -> None:
    found, said = space_of(tmp_path), os.statvfs(tmp_path)
    assert found.size == said.f_blocks * said.f_frsize
    assert 0 < found.available <= found.size


async def test_a_service_shows_them(tmp_path: Path) -> None:
    async with service_of(config_of(tmp_path, small_plan(), metrics_listen="127.0.0.1:0")) as service:
        registry = service.metrics.registry

        async def is_read() -> bool:
            return registry.get_sample_value("hushsum_filesystem_avail_bytes", {"setting": "data"}) is not None

        await until(is_read)
        assert 'hushsum_filesystem_size_bytes{plan="' in asked(service.metrics_page, "/metrics")[1]
