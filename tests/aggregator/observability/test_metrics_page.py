"""The page of metrics: plain on this machine, and else only to who shows a certificate of the operator's authority."""

import asyncio
import http.client
import re
import ssl
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from aggregator.errors import ConfigError
from aggregator.observability.http import MutualTls
from hushsum.delta import DeltaId
from hushsum_proto.credentials import Credentials
from tests.aggregator.local_clients import batch_of, noised, report_plan, silo_plan
from tests.authorities import Certified, replace
from tests.pages import asked, until
from tests.plans import small_plan
from tests.services import Contributor, RawClient, config_of, folded_all, service_of, without_process_labels

PLAN = small_plan()
REPORTS = report_plan()
NAME = "client-whose-name-nobody-needs"


def context(shown: Credentials) -> ssl.SSLContext:
    """As a scraper connects."""
    made = ssl.create_default_context(cafile=str(shown.ca))
    if shown.certificate is not None:
        made.load_cert_chain(shown.certificate, shown.key)
    return made


async def test_off_loopback_only_who_shows_a_certificate_of_the_authority_sees_them(tmp_path: Path) -> None:
    files, others = Certified(tmp_path / "own"), Certified(tmp_path / "others")
    settings = {**files.settings, "metrics_client_ca": str(files.ca), "metrics_listen": "0.0.0.0:0"}
    async with service_of(config_of(tmp_path, PLAN, **settings)) as service:
        address = f"127.0.0.1:{service.metrics_page.rpartition(':')[2]}"

        async def shown_to(credentials: Credentials) -> tuple[int, str]:
            return await asyncio.to_thread(asked, address, "/metrics", context(credentials))

        prometheus = files.client("prometheus", "admin")
        status, text = await shown_to(prometheus)
        assert status == 200
        assert "hushsum_build_info{" in text
        for stranger in (files.believed, others.client("prometheus", "admin", ca=files.ca)):
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await shown_to(stranger)
        with pytest.raises((ConnectionError, OSError)):
            await asyncio.to_thread(asked, address, "/metrics")

        renewed = Certified(tmp_path / "renewed")
        replace(files.certificate, renewed.certificate.read_bytes())
        replace(files.key, renewed.key.read_bytes())
        assert (await shown_to(files.client("prometheus", "admin", ca=renewed.ca)))[0] == 200
        replace(files.certificate, b"nonsense")
        assert (await shown_to(files.client("prometheus", "admin", ca=renewed.ca)))[0] == 200, "the last good one holds"


@pytest.mark.parametrize("scopes", ((), ("submit",), ("read",), ("submit", "read")), ids="-".join)
async def test_where_clients_have_the_same_authority_only_the_scope_of_exact_counts_sees_them(
    tmp_path: Path, scopes: tuple[str, ...]
) -> None:
    files = Certified(tmp_path / "own")
    settings = {**files.settings, "authentication": "certificate", "tls_client_ca": str(files.ca)}
    settings |= {"metrics_client_ca": str(files.ca), "metrics_listen": "127.0.0.1:0"}
    async with service_of(config_of(tmp_path, PLAN, **settings)) as service:
        for shown, status in ((files.client("till-3", *scopes), 403), (files.client("ops", "read", "admin"), 200)):
            got, text = await asyncio.to_thread(asked, service.metrics_page, "/metrics", context(shown))
            assert (got, "hushsum" in text) == (status, status == 200)
            got, _ = await asyncio.to_thread(asked, service.metrics_page, "/nothing", context(shown))
            assert got == (403 if status == 403 else 404)


def test_a_passing_failure_at_a_renewal_is_tried_again_and_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Certified(tmp_path)
    tls = MutualTls(files.certificate, files.key, files.ca, lambda: 0.0)
    before = tls.context()
    files.serve()

    def busy(*_: object, **__: object) -> None:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patch, capture_logs() as lines:
        patch.setattr(ssl.SSLContext, "load_cert_chain", busy)
        assert [tls.context(), tls.context()] == [before, before]
    assert len(lines) == 1
    after = tls.context()
    assert after is not before, "nothing has changed since, and it is read"
    assert tls.context() is after


async def test_a_certificate_that_cannot_be_used_is_refused_at_the_start(tmp_path: Path) -> None:
    files = Certified(tmp_path / "own")
    replace(files.ca, b"nonsense")
    settings = {**files.settings, "metrics_client_ca": str(files.ca), "metrics_listen": "127.0.0.1:0"}
    with pytest.raises(ConfigError, match="metrics_client_ca: "):
        async with service_of(config_of(tmp_path, PLAN, **settings)):
            pass


@pytest.mark.parametrize("mode", ["central", "report", "silo"])
async def test_every_mode_says_how_fast_it_folds_and_nothing_names_a_client(tmp_path: Path, mode: str) -> None:
    plan = {"central": PLAN, "report": REPORTS, "silo": silo_plan()}[mode]
    config = config_of(tmp_path, plan, metrics_listen="127.0.0.1:0")
    async with service_of(config) as service:
        sent = 3
        for number in range(sent):
            async with RawClient(service.grpc, f"{NAME}-{number}") as client:
                await client.submit_one(plan.id, sent_of(mode, number))
        await folded_all(service)
        unit = {"population": "", "unit": plan.privacy.unit}

        async def is_surveyed() -> bool:
            return service.metrics.registry.get_sample_value("hushsum_ledger_epsilon_left", unit) is not None

        await until(is_surveyed)  # the store is asked beside all else
        if mode == "report":
            _, before = await asyncio.to_thread(asked, service.metrics_page, "/metrics")
            assert "hushsum_folded_total{" not in before, "it would tell when a batch came"
            service.metrics.registry.hold()  # a minute is over
        _, text = await asyncio.to_thread(asked, service.metrics_page, "/metrics")
    labels = {label for line in text.splitlines() for label in re.findall(r'[{,](\w+)="', line)}
    assert labels <= LABELS, "a new label: no value of it may be a client's"
    assert {"plan", "role"} <= labels
    text = without_process_labels(text)
    folded = re.findall(r'hushsum_folded_total\{partition="0",verdict="counted"\} (\S+)', text)
    assert folded == [f"{sent}.0"]
    assert f'hushsum_plan_info{{mode="{plan.privacy.mode}"' in text
    assert 'hushsum_windows{state="open"} ' in text
    assert 'hushsum_ledger_epsilon_left{population="",unit="' in text
    assert "process_resident_memory_bytes " in text
    assert NAME not in text


LABELS = {
    *("implementation", "major", "minor", "patchlevel", "version"),  # of the platform
    *("le", "partition", "verdict", "status", "reason", "kind", "what", "state", "population", "unit"),
    *("plan", "plan_id", "mode", "role", "limit", "setting"),
}


def sent_of(mode: str, number: int) -> bytes:
    if mode == "silo":
        return noised(silo_plan(), DeltaId(number, 0))
    return batch_of(REPORTS, number, 5) if mode == "report" else Contributor(PLAN, number).delta()[1]


@pytest.mark.parametrize(
    ("host", "status"),
    (
        ("localhost", 200),
        ("LOCALHOST:7444", 200),
        ("127.0.0.1:7444", 200),
        ("[::1]:7444", 200),
        ("evil.example", 403),
        ("127.0.0.1.evil.example:7444", 403),
        ("localhost.evil.example", 403),
        ("192.168.1.7:7444", 403),
        ("[2001:db8::1]:80", 403),
        ("", 403),
        (None, 403),
    ),
)
async def test_in_plaintext_only_who_asks_this_machine_by_its_own_name_sees_them(
    tmp_path: Path, host: str | None, status: int
) -> None:
    """A page in a browser of this machine may give its own name this address, and would read what it answers."""

    def ask(address: str) -> tuple[int, str]:
        name, _, port = address.rpartition(":")
        connection = http.client.HTTPConnection(name, int(port), timeout=60)
        connection.putrequest("GET", "/metrics", skip_host=True)
        if host is not None:
            connection.putheader("host", host)
        connection.endheaders()
        reply = connection.getresponse()
        try:
            return reply.status, reply.read().decode()
        finally:
            connection.close()

    async with service_of(config_of(tmp_path, PLAN, metrics_listen="127.0.0.1:0")) as service:
        got, text = await asyncio.to_thread(ask, service.metrics_page)
    assert got == status
    assert ("hushsum_build_info{" in text) == (status == 200)
