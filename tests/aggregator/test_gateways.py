"""Gateways that share a port: the settings of each, and a port that nobody else takes."""

import socket
from collections.abc import Mapping
from pathlib import Path

import pytest

from aggregator.config import Config
from aggregator.errors import ConfigError
from aggregator.gateways import above, config_of, held_port

CLUSTER: Mapping[str, object] = {
    "plan": "plan.json",
    "role": "gateway",
    "log": "kafka",
    "store": "postgresql",
    "kafka_bootstrap": "127.0.0.1:9092",
    "postgres_dsn": "postgresql://127.0.0.1/hushsum",
    "processes": 3,
}


def test_each_process_has_its_own_pages_and_data_and_the_shared_address() -> None:
    config = Config.of(**CLUSTER, data="data", metrics_listen="127.0.0.1:7444", health_listen="[::1]:7500")
    own = config_of(config, "127.0.0.1:7001", 2)
    assert (own.listen, own.metrics_listen, own.health_listen) == ("127.0.0.1:7001", "127.0.0.1:7446", "[::1]:7502")
    assert own.data == Path("data/process-2")
    assert own.processes == 3
    bare = config_of(Config.of(**CLUSTER, metrics_listen=""), "127.0.0.1:7001", 1)
    assert (bare.metrics_listen, bare.health_listen, bare.data) == ("", "", None)


def test_an_address_above_a_free_port_is_a_free_port() -> None:
    assert above("127.0.0.1:0", 3) == "127.0.0.1:0"


@pytest.mark.parametrize(
    ("settings", "refusal"),
    [
        ({"role": "worker"}, "processes: more than one is allowed only with role = gateway, got role = worker"),
        ({"role": "all"}, "processes: more than one is allowed only with role = gateway, got role = all"),
        ({"metrics_listen": "127.0.0.1:0"}, "metrics_listen: expected the first of 3 ports, one for each"),
        ({"health_listen": "127.0.0.1:65534"}, "health_listen: expected the first of 3 ports, one for each"),
        (
            {"page_listen": "127.0.0.1:7445", "authentication": "token", "tokens": "tokens.jsonl"},
            "page_listen: not allowed with processes above 1",
        ),
        ({"processes": 0}, "processes: got 0"),
    ],
)
def test_what_several_processes_cannot_share_is_refused(settings: Mapping[str, object], refusal: str) -> None:
    with pytest.raises(ConfigError, match=refusal):
        Config.of(**{**CLUSTER, **settings})


def test_a_held_port_is_taken_for_everybody_who_does_not_share_it() -> None:
    with held_port("127.0.0.1:0") as address:
        port = int(address.rpartition(":")[2])
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        with socket.socket() as gateway:
            gateway.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            gateway.bind(("127.0.0.1", port))
            gateway.listen()
            with pytest.raises(ConfigError, match=f"listen: cannot listen on {address}"), held_port(address):
                pass  # a second supervisor


def test_a_port_that_another_program_listens_on_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(ConfigError, match=f"listen: cannot listen on {address}"), held_port(address):
            pass
