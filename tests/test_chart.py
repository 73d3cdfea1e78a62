"""The Helm chart: what it renders is valid, and runs the service as compose/ does, except for what is listed here.

The chart is rendered and compared, and run by no test: there is no cluster here.
"""

import json
import os
import re
import shlex
import subprocess
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import kubernetes_validate
import pytest
import yaml

from aggregator.config import DSN_VARIABLE, Config
from aggregator.errors import ConfigError
from build_tools.helm import HELM, ROOT
from build_tools.promtool import promtool
from hushsum_cli.admin_store import backup, restore, verify

CHART: Final = ROOT / "deploy" / "helm" / "hushsum"
COMPOSE: Final = ROOT / "compose"
ROLES: Final = ("gateway", "worker", "releaser")
KUBERNETES: Final = ("1.28.0", "1.37.0")
DSN: Final = "postgresql://hushsum:of-a-test@db:5432/hushsum?sslmode=verify-full"
REQUIRED: Final[dict[str, Any]] = {
    "plan": {"configMap": "hushsum-plan"},
    "secrets": {
        "tls": "hushsum-tls", "tokens": "hushsum-tokens", "metricsClientCa": "hushsum-metrics-ca",
        "database": "hushsum-database",
    },
    "settings": {"kafka_bootstrap": "kafka:9092"},
}  # fmt: skip

#: Where the chart differs from compose/, for every role or for those that are named, and why.
DECLARED: Final[Mapping[str, str]] = {
    "setting insecure": "Kafka and PostgreSQL are elsewhere: plaintext to them is refused",
    "setting kafka_security": "Kafka is elsewhere: TLS by default",
    "setting log_format": "collectors of a cluster's logs read JSON",
    "setting retain_verdicts": "it is for the check of the demo alone",
    "variable HUSHSUM_POSTGRES_DSN": "from a Secret: asyncpg refuses files of passwords that a group may read",
    "most processes": "a limit of the kubelet (podPidsLimit), which a Pod cannot set",
    "open files": "a limit of the container runtime, which a Pod cannot set; the service bounds its connections by it",
    "size of logs": "a limit of the kubelet (containerLogMaxSize)",
    "start after": "Pods start in any order: the service waits for Kafka and PostgreSQL for start_s",
    "grace of the start": "startupProbe asks /livez: a start that reads a long log is not ended",
    "published on the host": "a Service, of the cluster alone by default, in place of a port of the host",
    "processes": "two releasers, one of which leads: a node may be lost",
}


def helm(*words: str) -> subprocess.CompletedProcess[str]:
    if not HELM.exists():
        pytest.skip("helm is not there: make helm")
    return subprocess.run([HELM, *words], capture_output=True, text=True, check=False)


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    both = dict(below)
    for key, value in above.items():
        both[key] = merged(both[key], value) if isinstance(value, dict) and isinstance(both.get(key), dict) else value
    return both


def words_of(values: Mapping[str, Any]) -> list[str]:
    return [word for key, value in values.items() for word in ("--set-json", f"{key}={json.dumps(value)}")]


def templated(values: Mapping[str, Any], version: str = KUBERNETES[-1]) -> subprocess.CompletedProcess[str]:
    return helm("template", "sums", str(CHART), "--namespace", "demo", "--kube-version", version, *words_of(values))


def rendered(values: Mapping[str, Any] | None = None, version: str = KUBERNETES[-1]) -> list[dict[str, Any]]:
    done = templated(merged(REQUIRED, values or {}), version)
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each is not None]


@cache
def by_default() -> tuple[dict[str, Any], ...]:
    return tuple(rendered())


def of_kind(objects: tuple[dict[str, Any], ...] | list[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    return {
        each["metadata"]["name"].removeprefix("sums-hushsum").lstrip("-"): each
        for each in objects
        if each["kind"] == kind
    }


def settings_of(objects: tuple[dict[str, Any], ...] | list[dict[str, Any]]) -> dict[str, Any]:
    return tomllib.loads(of_kind(objects, "ConfigMap")[""]["data"]["hushsum.toml"])


ALL_ON: Final[dict[str, Any]] = {
    "image": {"repository": "registry.example/hushsum", "digest": "sha256:" + "0" * 64, "pullSecrets": ["registry"]},
    "secrets": {"kafka": "hushsum-kafka", "keys": "hushsum-keys"},
    "settings": {"otlp": True, "counters_max": 100_000_000, "client_rate": 0.5},
    "otlpEndpoint": "http://collector.monitoring:4317",
    "gateway": {"service": {"type": "LoadBalancer", "annotations": {"a.example/b": "c"}}},
    "worker": {"replicas": None},
    "networkPolicy": {
        "clients": [{"ipBlock": {"cidr": "192.0.2.0/24"}}],
        "metrics": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}],
        "kafka": {"port": 9094, "to": [{"ipBlock": {"cidr": "198.51.100.0/24"}}]},
    },
    "nodeSelector": {"pool": "sums"},
    "tolerations": [{"key": "sums", "operator": "Exists"}],
}
LEAST: Final[dict[str, Any]] = {"gateway": {"autoscaling": {"enabled": False}}, "networkPolicy": {"enabled": False}}


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize(
    "values", (pytest.param({}, id="defaults"), pytest.param(ALL_ON, id="all"), pytest.param(LEAST, id="least"))
)
def test_what_is_rendered_is_valid(values: dict[str, Any], version: str) -> None:
    objects = rendered(values, version)
    assert {each["kind"] for each in objects} >= {"ConfigMap", "Service", "Deployment", "PodDisruptionBudget"}
    for each in objects:
        kubernetes_validate.validate(each, version.rpartition(".")[0], strict=True)


def test_the_check_finds_what_is_invalid() -> None:
    wrong = merged(by_default()[0], {"spec": {"podSelektor": {}}})
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, "1.37", strict=True)


def test_the_linter_has_nothing_to_say() -> None:
    done = helm("lint", str(CHART), "--strict", "--kube-version", KUBERNETES[-1], *words_of(REQUIRED))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("role", ROLES)
def test_the_service_takes_the_rendered_settings(tmp_path: Path, role: str) -> None:
    for values in ({}, ALL_ON):
        objects = rendered(values)
        file = tmp_path / "hushsum.toml"
        file.write_text(of_kind(objects, "ConfigMap")[""]["data"]["hushsum.toml"], encoding="utf-8")
        config = Config.load(file, {"role": role}, {DSN_VARIABLE: DSN})
        assert config.authentication == "token"
        assert config.partitions == 4
        assert config.otlp is bool(values)


# ------------------------------------------------------------------------------------------- beside compose/
def of_compose(role: str) -> dict[str, object]:
    """What compose/ sets of a role, by the names of DECLARED; a key that this does not know is an error."""
    project = yaml.safe_load((COMPOSE / "docker-compose.yml").read_text(encoding="utf-8"))
    services = {name: each for name, each in project["services"].items() if re.fullmatch(rf"{role}(-\d)?", name)}
    service = dict(next(iter(services.values())))
    found: dict[str, object] = {"processes": len(services)}
    found["command"] = options_of(service.pop("command"))
    for name, value in service.pop("environment").items():
        found[f"variable {name}"] = re.sub(r"^\$\{\w+:-(.*)\}$", r"\1", value)
    mounts = [volume.split(":") for volume in service.pop("volumes")]
    found["read-only mounts"] = {target for _, target, mode in mounts if mode == "ro"} - {"/database"}
    assert len(mounts) == len([mode for *_, mode in mounts if mode == "ro"])
    found["is reached by devices"] = "front" in service.pop("networks")
    found["start after"] = bool(service.pop("depends_on"))
    probe = service.pop("healthcheck")
    found["readiness"] = re.findall(r"127\.0\.0\.1:(\d+)(/\w+)", probe["test"][-1])[0]
    found["readiness period, time-out, failures"] = (
        seconds(probe["interval"]),
        seconds(probe["timeout"]),
        probe["retries"],
    )
    found["grace of the start"] = f"unready for {seconds(probe['start_period'])} s"
    found["open files"] = service.pop("ulimits")["nofile"]["hard"]
    found["memory"] = service.pop("mem_limit")
    found["restarts"] = {"unless-stopped": "always"}[service.pop("restart")]
    found["seconds to stop"] = seconds(service.pop("stop_grace_period"))
    found["capabilities dropped"] = service.pop("cap_drop")
    assert service.pop("security_opt") == ["no-new-privileges:true"]
    found["gains no privileges"] = True
    found["most processes"] = service.pop("pids_limit")
    found["size of logs"] = service.pop("logging")["options"]["max-size"]
    found["read-only root"] = service.pop("read_only")
    found["in memory"] = re.sub(r"^(/tmp):size=(\d+m),.*", r"\1 \2", service.pop("tmpfs")[0])
    found["image"] = re.sub(r".*:-(.*)\}", r"\1", service.pop("image"))
    if service.pop("ports", None):
        found["published on the host"] = True
    found["user"] = re.findall(r"^USER (\d+):(\d+)$", (COMPOSE / "Dockerfile").read_text("utf-8"), re.MULTILINE)[0]
    assert not service, f"the chart is not compared with {sorted(service)}"
    for name, value in tomllib.loads((COMPOSE / "config" / "central.toml").read_text(encoding="utf-8")).items():
        found[f"setting {name}"] = value
    return found


def options_of(command: list[str]) -> dict[str, str]:
    """The options of a role, of a variable its default; one without a value is off."""
    assert command[:2] == ["hushsum", "serve"]
    given = dict(zip(command[2::2], command[3::2], strict=True))
    assert given.pop("--config").startswith("/etc/hushsum/")
    values = {name: re.sub(r"^\$\{\w+:?-(.*)\}$", r"\1", value) for name, value in given.items()}
    return {name: value for name, value in values.items() if value}


def of_chart(role: str) -> dict[str, object]:
    """What the chart sets by default, by the same names."""
    spec = of_kind(by_default(), "Deployment")[role]["spec"]
    scaler = of_kind(by_default(), "HorizontalPodAutoscaler").get(role)
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    secure, probe = container["securityContext"], container["readinessProbe"]
    ports = {each["name"]: str(each["containerPort"]) for each in container["ports"]}
    start = container["startupProbe"]
    (policy,) = (each for name, each in of_kind(by_default(), "NetworkPolicy").items() if name == role)
    found: dict[str, object] = {
        "processes": spec["replicas"] if scaler is None else scaler["spec"]["minReplicas"],
        "command": options_of(container["args"]),
        "read-only mounts": {each["mountPath"] for each in container["volumeMounts"] if each.get("readOnly")},
        "is reached by devices": bool(policy["spec"]["ingress"]),
        "readiness": (ports[probe["httpGet"]["port"]], probe["httpGet"]["path"]),
        "readiness period, time-out, failures": (
            probe["periodSeconds"],
            probe["timeoutSeconds"],
            probe["failureThreshold"],
        ),
        "grace of the start": f"not alive for {start['periodSeconds'] * start['failureThreshold']} s",
        "memory": container["resources"]["limits"]["memory"].removesuffix("i").lower(),
        "restarts": pod.get("restartPolicy", "Always").lower(),
        "seconds to stop": pod["terminationGracePeriodSeconds"],
        "capabilities dropped": secure["capabilities"]["drop"],
        "gains no privileges": not secure["allowPrivilegeEscalation"],
        "read-only root": secure["readOnlyRootFilesystem"],
        "image": container["image"],
        "user": (str(pod["securityContext"]["runAsUser"]), str(pod["securityContext"]["runAsGroup"])),
    }
    memory = {each["name"]: each["emptyDir"]["sizeLimit"] for each in pod["volumes"] if "emptyDir" in each}
    for each in container["volumeMounts"]:
        if each["name"] in memory:
            found["in memory"] = f"{each['mountPath']} {memory[each['name']].removesuffix('i').lower()}"
    for each in container["env"]:
        found[f"variable {each['name']}"] = each.get("value", "of a Secret")
    for name, value in settings_of(by_default()).items():
        found[f"setting {name}"] = value
    return found


def seconds(said: str) -> int:
    assert said.endswith("s")
    return int(said[:-1])


def test_the_chart_differs_from_compose_in_what_is_declared_and_nothing_else() -> None:
    differences: dict[str, str] = {}
    for role in ROLES:
        there, here = of_compose(role), of_chart(role)
        for name in there.keys() | here.keys():
            if there.get(name) != here.get(name):
                differences[name] = f"{role}: {there.get(name)!r} in compose/, {here.get(name)!r} in the chart"
    undeclared = {name: text for name, text in differences.items() if name not in DECLARED}
    assert not undeclared, "\n".join(f"{name}: {text}" for name, text in undeclared.items())
    assert DECLARED.keys() <= differences.keys(), f"no difference any more: {DECLARED.keys() - differences.keys()}"


PAGE: Final[dict[str, Any]] = {
    "page": {"enabled": True, "hosts": "stats.example.org", "service": {"annotations": {"a.example/b": "c"}}},
    "networkPolicy": {"page": [{"ipBlock": {"cidr": "192.0.2.0/24"}}]},
}
#: Where the page of the chart differs from that of compose/page.yml, and why.
DECLARED_OF_THE_PAGE: Final[Mapping[str, str]] = {
    "--page-hosts": "browsers reach the page of compose/ on this machine, and that of the chart under a name",
    "--data": "the audit log needs a directory of one process; in the cluster there are two releasers",
    "--receipts-copy": "a variable in compose/, and a setting of every role in the chart",
}


def test_the_page_is_turned_on_as_in_compose() -> None:
    override = yaml.safe_load((COMPOSE / "page.yml").read_text(encoding="utf-8"))
    assert override["services"].keys() == {"releaser"}
    there = options_of(override["services"]["releaser"]["command"])
    here = options_of(
        of_kind(rendered(PAGE), "Deployment")["releaser"]["spec"]["template"]["spec"]["containers"][0]["args"]
    )
    differences = {name for name in there.keys() | here.keys() if there.get(name) != here.get(name)}
    assert differences <= DECLARED_OF_THE_PAGE.keys()
    assert {"--page-hosts", "--data"} <= differences
    assert here["--page"] == there["--page"] == "0.0.0.0:7446"
    assert override["services"]["releaser"]["ports"] == ["127.0.0.1:${PAGE_PORT-7446}:7446"]


def test_the_page_is_off_unless_it_is_turned_on_and_on_the_releasers_alone() -> None:
    assert "page" not in of_kind(by_default(), "Service")
    assert "7446" not in yaml.safe_dump_all(by_default())
    objects = rendered(PAGE)
    for each in objects:
        kubernetes_validate.validate(each, KUBERNETES[-1].rpartition(".")[0], strict=True)
    ports = {
        role: [port["name"] for port in each["spec"]["template"]["spec"]["containers"][0]["ports"]]
        for role, each in of_kind(objects, "Deployment").items()
    }
    assert {role for role, names in ports.items() if "page" in names} == {"releaser"}
    service = of_kind(objects, "Service")["page"]["spec"]
    assert service["sessionAffinity"] == "ClientIP", "a session is in the memory of one releaser"
    labels = of_kind(objects, "Deployment")["releaser"]["spec"]["template"]["metadata"]["labels"]
    assert service["selector"].items() <= labels.items()
    policies = of_kind(objects, "NetworkPolicy")
    reached = {role: [port["port"] for rule in policies[role]["spec"]["ingress"] for port in rule["ports"]]
               for role in ROLES}  # fmt: skip
    assert reached == {"gateway": ["grpc"], "worker": [], "releaser": ["page"]}
    nobody = of_kind(rendered({"page": PAGE["page"]}), "NetworkPolicy")["releaser"]["spec"]["ingress"]
    assert nobody == [], "networkPolicy.page names who may reach it"


def test_the_service_takes_the_options_of_the_page(tmp_path: Path) -> None:
    objects, file = rendered(merged(PAGE, {"receiptsCopy": "kafka:///copy"})), tmp_path / "hushsum.toml"
    file.write_text(of_kind(objects, "ConfigMap")[""]["data"]["hushsum.toml"], encoding="utf-8")
    for role, deployment in of_kind(objects, "Deployment").items():
        given = options_of(deployment["spec"]["template"]["spec"]["containers"][0]["args"])
        page = {"page_listen": given.get("--page"), "page_hosts": given.get("--page-hosts")}
        config = Config.load(file, {"role": role, **page}, {DSN_VARIABLE: DSN})
        assert config.receipts_copy == "kafka:///copy"
        assert bool(config.page_listen) is (role == "releaser")
    assert "receipts_copy" not in settings_of(by_default())


def test_secure_sums_need_two_settings_and_a_file_as_in_compose() -> None:
    secure = tomllib.loads((COMPOSE / "config" / "secure.toml").read_text(encoding="utf-8"))
    central = tomllib.loads((COMPOSE / "config" / "central.toml").read_text(encoding="utf-8"))
    more = {name: value for name, value in secure.items() if name not in central}
    assert settings_of(rendered({"settings": more})).items() >= more.items()


# ------------------------------------------------------------------------------------------- what it promises
def test_every_pod_is_confined_and_its_secrets_are_its_groups_alone() -> None:
    for role, deployment in of_kind(rendered(ALL_ON), "Deployment").items():
        pod = deployment["spec"]["template"]["spec"]
        assert pod["automountServiceAccountToken"] is False, role
        assert pod["securityContext"]["runAsNonRoot"] is True, role
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, role
        modes = [each.get("projected", each.get("secret", {})).get("defaultMode", 0o440) for each in pod["volumes"]]
        assert set(modes) == {0o440}, role
        assert pod["containers"][0]["image"] == "registry.example/hushsum@sha256:" + "0" * 64


def test_no_secret_is_rendered() -> None:
    for objects in (by_default(), rendered(ALL_ON)):
        assert not of_kind(objects, "Secret")
        assert "password" not in yaml.safe_dump([each for each in objects if each["kind"] != "ConfigMap"]).lower()


def test_each_selector_takes_the_pods_of_its_role_and_no_others() -> None:
    objects = by_default()
    labels = {
        role: each["spec"]["template"]["metadata"]["labels"] for role, each in of_kind(objects, "Deployment").items()
    }
    assert labels.keys() == set(ROLES)

    def taken(selector: Mapping[str, str]) -> set[str]:
        return {role for role, each in labels.items() if selector.items() <= each.items()}

    for role in ROLES:
        deployment = of_kind(objects, "Deployment")[role]["spec"]
        spread = deployment["template"]["spec"]["topologySpreadConstraints"][0]["labelSelector"]
        budget = of_kind(objects, "PodDisruptionBudget")[role]["spec"]["selector"]
        policy = of_kind(objects, "NetworkPolicy")[role]["spec"]["podSelector"]
        for selector in (deployment["selector"], spread, budget, policy):
            assert taken(selector["matchLabels"]) == {role}
    assert taken(of_kind(objects, "Service")["gateway"]["spec"]["selector"]) == {"gateway"}


def test_devices_reach_the_gateways_alone_and_metrics_are_for_those_who_are_named() -> None:
    for values, metrics in (({}, False), (ALL_ON, True)):
        for role, policy in of_kind(rendered(values), "NetworkPolicy").items():
            assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
            ports = [port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]]
            assert ports == ["grpc"] * (role == "gateway") + ["metrics"] * metrics
            out = {port["port"] for rule in policy["spec"]["egress"] for port in rule["ports"]}
            assert out == ({53, 9094, 5432, 4317} if metrics else {53, 9093, 5432})


@pytest.mark.parametrize(
    ("copy", "ports"),
    (
        ("", ()),
        ("kafka:///copy", ()),
        ("kafka://other.example:9096/copy-9099", (9096,)),
        ("kafka://a.example:9096,b.example:9096,[2001:db8::7]:9097/copy", (9096, 9097)),
        ("kafka://a.example:9093/copy", (9093,)),
    ),
)
def test_every_role_may_connect_to_the_brokers_of_the_copy_of_the_receipts(copy: str, ports: tuple[int, ...]) -> None:
    peers = [{"ipBlock": {"cidr": "203.0.113.0/24"}}]
    kafka = {"port": 9093, "to": [{"ipBlock": {"cidr": "198.51.100.0/24"}}]}
    allowed = {"kafka": kafka, "receiptsCopy": {"to": peers}}
    objects = rendered({"receiptsCopy": copy, "networkPolicy": allowed})
    policies = of_kind(objects, "NetworkPolicy")
    assert policies.keys() == set(ROLES)
    for policy in policies.values():
        kubernetes_validate.validate(policy, KUBERNETES[-1].rpartition(".")[0], strict=True)
        to_copy = [rule["ports"] for rule in policy["spec"]["egress"] if rule.get("to") == peers]
        assert to_copy == [[{"protocol": "TCP", "port": port}] for port in ports]
    anywhere = of_kind(rendered({"receiptsCopy": copy}), "NetworkPolicy")["releaser"]["spec"]["egress"]
    assert {port["port"] for rule in anywhere for port in rule["ports"]} == {53, 9093, 5432, *ports}


def test_gateways_grow_with_their_cpu_and_nothing_else_sets_their_number() -> None:
    scaler = of_kind(by_default(), "HorizontalPodAutoscaler")["gateway"]["spec"]
    assert scaler["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": "sums-hushsum-gateway"}
    assert scaler["metrics"][0]["resource"]["name"] == "cpu"
    deployments = of_kind(by_default(), "Deployment")
    assert "replicas" not in deployments["gateway"]["spec"]
    assert deployments["gateway"]["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"]
    assert of_kind(rendered(LEAST), "Deployment")["gateway"]["spec"]["replicas"] == 2
    assert "replicas" not in of_kind(rendered(ALL_ON), "Deployment")["worker"]["spec"], "left to another controller"


def test_other_settings_start_new_pods() -> None:
    def mark(values: Mapping[str, Any]) -> str:
        deployment = of_kind(rendered(values), "Deployment")["worker"]
        return str(deployment["spec"]["template"]["metadata"]["annotations"]["checksum/settings"])

    assert mark({}) != mark({"settings": {"checkpoint_s": 3.0}})


@pytest.mark.parametrize(
    ("values", "said"),
    (
        ({"plan": {"configMap": ""}}, "configMap"),
        ({"secrets": {"database": ""}}, "database"),
        ({"settings": {"kafka_bootstrap": ""}}, "kafka_bootstrap"),
        ({"settings": {"tls_key": "/tmp/key"}}, "settings.tls_key: the chart sets it"),
        ({"settings": {"postgres_dsn": "postgresql://a:b@c/d"}}, "settings.postgres_dsn: the chart sets it"),
        ({"image": {"digest": "latest"}}, "digest"),
        ({"page": {"enabled": True}}, "hosts"),
        ({"page": {"enabled": True, "hosts": "a\nb"}}, "hosts"),
        ({"receiptsCopy": "/tmp/receipts.jsonl"}, "receiptsCopy"),
        ({"settings": {"page_listen": "0.0.0.0:1"}}, "settings.page_listen: the chart sets it"),
        ({"settings": {"receipts_copy": "kafka:///copy"}}, "settings.receipts_copy: the chart sets it"),
        ({"receiptsCopy": "kafka://other/copy"}, "receiptsCopy"),
        ({"settings": {"nonsense": 1}}, "'nonsense' not allowed"),
        ({"settings": {"partitions": "4"}}, "/settings/partitions': got string, want integer"),
        ({"settings": {"otlp": True}}, "otlpEndpoint: required with settings.otlp"),
        ({"otlpEndpoint": "http://a:4317"}, "otlpEndpoint: allowed only with settings.otlp"),
        ({"gatway": {}}, "gatway"),
        ({"worker": {"replica": 3}}, "replica"),
    ),
)  # fmt: skip
def test_values_that_are_wrong_are_refused_by_name(values: dict[str, Any], said: str) -> None:
    done = templated(merged(REQUIRED, values))
    assert done.returncode != 0
    assert said in done.stderr


#: Settings that a role of the chart refuses, with what it allows elsewhere: the chart has none of them.
NOT_OF_EVERY_ROLE: Final[Mapping[str, object]] = {
    **dict.fromkeys(("upstream", "upstream_ca", "upstream_token"), "upstream.example:7443"),
    **dict.fromkeys(("upstream_cert", "upstream_key", "shuffler_key", "page_proxy_secret"), "/keys/key.pem"),
    "page_proxy_header": "X-User",
    "receipts": "/tmp/receipts.jsonl",
    "publish": "/tmp/releases",
    "kafka_publish": True,
    "processes": 2,
}


def test_the_settings_are_those_of_the_service_that_every_role_takes_with_their_types() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    known = {}
    for name, field in Config.model_json_schema()["properties"].items():
        types = [each["type"] for each in field.get("anyOf", [field]) if each["type"] != "null"]
        known[name] = types[0] if name not in NOT_OF_EVERY_ROLE else None
    assert {name: each["type"] for name, each in schema["properties"]["settings"]["properties"].items()} == {
        name: of_type for name, of_type in known.items() if of_type is not None
    }


@pytest.mark.parametrize("name", NOT_OF_EVERY_ROLE)
def test_a_setting_that_the_chart_does_not_take_is_refused_by_a_role(tmp_path: Path, name: str) -> None:
    file, refusals = tmp_path / "hushsum.toml", []
    file.write_text(of_kind(by_default(), "ConfigMap")[""]["data"]["hushsum.toml"], encoding="utf-8")
    for role in ROLES:
        try:
            Config.load(file, {"role": role, name: NOT_OF_EVERY_ROLE[name]}, {DSN_VARIABLE: DSN})
        except ConfigError as error:
            refusals.append(str(error))
    assert refusals
    assert all(each.startswith(name) for each in refusals)


def test_every_value_is_described() -> None:
    lines = (CHART / "values.yaml").read_text(encoding="utf-8").splitlines()
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    values = yaml.safe_load("\n".join(lines))
    assert values.keys() == schema["properties"].keys() - {"global"}
    for line in lines:
        assert len(line) <= 130, line


# ------------------------------------------------------------------------------------------- docs/how-to/kubernetes.md
PAGE_OF_DOCS: Final = ROOT / "docs" / "how-to" / "kubernetes.md"


def blocks_of(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE_OF_DOCS.read_text(encoding="utf-8"), re.DOTALL)


def manifest(kind: str) -> dict[str, Any]:
    """The object of this kind that the page shows."""
    (found,) = (each for each in map(yaml.safe_load, blocks_of("yaml")) if each.get("kind") == kind)
    return dict(found)


@cache
def of_the_page() -> tuple[dict[str, Any], ...]:
    """What the chart renders of the page's values."""
    (values,) = (each for each in blocks_of("yaml") if each.startswith("# values.yaml"))
    return tuple(rendered(yaml.safe_load(values)))


def test_the_page_names_objects_and_values_that_there_are() -> None:
    assert "never run" in PAGE_OF_DOCS.read_text(encoding="utf-8")
    assert manifest("ScaledObject")["spec"]["scaleTargetRef"]["name"] == "sums-hushsum-worker"
    assert "worker" in of_kind(of_the_page(), "Deployment")
    for more in map(yaml.safe_load, blocks_of("yaml")):
        assert "kind" in more or rendered(more), "parts of such a file"


def test_the_page_lists_what_its_command_renders(tmp_path: Path) -> None:
    (command,) = (each for each in blocks_of("sh") if each.startswith("helm template"))
    (values,) = (each for each in blocks_of("yaml") if each.startswith("# values.yaml"))
    (tmp_path / "values.yaml").write_text(values, encoding="utf-8")
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    (tmp_path / "helm").symlink_to(HELM)
    helm("version")  # skips where there is none
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-euc", command],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    (shown,) = blocks_of("text")
    assert done.stdout == shown
    assert len(shown.splitlines()) == len(of_the_page())


def test_the_pod_of_back_ups_has_the_settings_and_secrets_of_the_service_and_is_as_confined() -> None:
    pod = manifest("Pod")
    for version in KUBERNETES:
        kubernetes_validate.validate(pod, version.rpartition(".")[0], strict=True)
    spec, releaser = pod["spec"], of_kind(of_the_page(), "Deployment")["releaser"]["spec"]["template"]["spec"]
    (container,), (of_service,) = spec["containers"], releaser["containers"]
    assert spec["securityContext"] == {**releaser["securityContext"], "fsGroupChangePolicy": "OnRootMismatch"}
    assert container["securityContext"] == of_service["securityContext"]
    for key in ("automountServiceAccountToken", "enableServiceLinks"):
        assert spec[key] == releaser[key]
    assert container["env"] == [each for each in of_service["env"] if each["name"] == DSN_VARIABLE]
    here, there = mounted(spec), mounted(releaser)
    assert here.pop("/backups") == {"persistentVolumeClaim": {"claimName": "hushsum-backups"}}
    # A command of the administration listens nowhere: it has no certificate and no tokens.
    assert there.pop("/secrets")
    assert here == there


def mounted(spec: dict[str, Any]) -> dict[str, Any]:
    """What is mounted where, with whether it is read-only."""
    volumes = {each["name"]: {key: value for key, value in each.items() if key != "name"} for each in spec["volumes"]}
    (container,) = spec["containers"]
    return {
        each["mountPath"]: volumes[each["name"]] | ({"readOnly": True} if each.get("readOnly") else {})
        for each in container["volumeMounts"]
    }


def test_the_commands_of_the_page_are_taken_with_the_rendered_settings(tmp_path: Path) -> None:
    known = {"backup": backup, "restore": restore, "verify": verify}
    lines = [line for block in blocks_of("sh") for line in block.splitlines() if " hushsum admin " in line]
    used = set()
    for line in lines:
        pod, _, command = line.removeprefix("kubectl exec ").partition(" -- ")
        assert pod == manifest("Pod")["metadata"]["name"]
        _, _, name, *words = shlex.split(command)
        given = known[name].make_context(name, words).params
        assert given["config_file"] == Path("/etc/hushsum/hushsum.toml")
        used.add(name)
    assert used == known.keys()
    file = tmp_path / "hushsum.toml"
    file.write_text(of_kind(of_the_page(), "ConfigMap")[""]["data"]["hushsum.toml"], encoding="utf-8")
    assert Config.load(file, {}, {DSN_VARIABLE: DSN}, needs_plan=False).log == "kafka"
    scaled = re.findall(r"sums-hushsum-(\w+)", " ".join(each for each in blocks_of("sh") if "--replicas 2" in each))
    assert set(scaled) == {"admin", *ROLES}
    labels = [each["metadata"]["labels"] for each in of_kind(of_the_page(), "Deployment").values()]
    assert {each["app.kubernetes.io/instance"] for each in labels} == {"sums"}
    assert "labels" not in manifest("Pod")["metadata"], "it is no Pod of a Service, and not waited for"


def test_workers_are_scaled_by_the_lag_of_their_own_plan_alone(tmp_path: Path) -> None:
    program = promtool()
    if program is None:
        pytest.skip("promtool is not there: make promtool says why")
    (trigger,) = manifest("ScaledObject")["spec"]["triggers"]
    lag = "hushsum_stored_fold_lag"
    series = {
        f'{lag}{{plan="points", instance="w-1", partition="0"}}': "400",
        f'{lag}{{plan="points", instance="w-2", partition="0"}}': "500",  # sees the same partition later
        f'{lag}{{plan="points", instance="w-2", partition="1"}}': "30",
        f'{lag}{{plan="other", instance="w-3", partition="0"}}': "90000",
        f'{lag}{{plan="other", instance="w-3", partition="2"}}': "90000",
    }
    check = {"expr": trigger["metadata"]["query"], "eval_time": "0m", "exp_samples": [{"labels": "{}", "value": 530}]}
    group = {
        "interval": "1m",
        "input_series": [{"series": name, "values": value} for name, value in series.items()],
        "promql_expr_test": [check],
    }
    (tmp_path / "lag.yml").write_text(json.dumps({"tests": [group]}), encoding="utf-8")
    done = subprocess.run(
        [program, "test", "rules", "lag.yml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
