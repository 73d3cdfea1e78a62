"""The environment variables of a deployment, and the files and credentials that its programs share.

``prepare``, ``fleet`` and ``check`` read the same variables. Files are written atomically, and secrets are readable for
their owner alone. ``prepare`` makes the credentials that the programs use.
"""

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Self

from hushsum.privacy.guarantee import LOCAL, MODES, SECURE
from hushsum.privacy.local_mode import FORMS, REPORT, SILO
from hushsum_proto.credentials import Credentials
from hushsum_simulator.errors import JourneyError, VariableError

_LATENESS_WINDOWS: Final = 2
_OPEN_S: Final = 60  # a slow machine needs half of it to restart what was killed
_SHOWN_S: Final = 60  # no plan may have its clients contact the service more often
_NAMES: Final = "gateway,gateway-1,gateway-2,worker-1,worker-2,releaser,localhost,127.0.0.1"
_CLIENTS_MIN: Final = {SECURE: 5}  # of a gateway: a cohort that can lose one


class Variable(NamedTuple):
    """An environment variable.

    Attributes:
        text: For ``--help``.
        read: Raises a ``ValueError`` for a value that is not allowed.
        expected: The allowed values.
    """

    text: str
    read: Callable[[str], object] = Path
    expected: str = "a path"


def _number(text: str, kind: type[int] | type[float], low: float, high: float) -> Variable:
    def read(given: str) -> float:
        value = kind(given)
        if not (math.isfinite(value) and low <= value <= high):
            raise ValueError(value)
        return value

    shown = f"an integer from {low} to {high:,}" if kind is int else f"a number from {low:g} to {high:g}"
    return Variable(text, read, shown)


def _choice(text: str, choices: Sequence[str]) -> Variable:
    def read(given: str) -> str:
        if given not in choices:
            raise ValueError(given)
        return given

    return Variable(text, read, " or ".join(choices))


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise ValueError(text)
    return names


def _addresses(text: str) -> tuple[str, ...]:
    addresses = _names(text)
    for address in addresses:
        host, _, port = address.rpartition(":")
        if not host or not 1 <= int(port) < 2**16:
            raise ValueError(text)
    return addresses


#: Their defaults are those of :class:`DeploymentSettings`.
VARIABLES: Final[Mapping[str, Variable]] = {
    "HUSHSUM_MODE": _choice("central, local or secure", MODES),
    "HUSHSUM_FORM": _choice("mode local: report, or silo", FORMS),
    "HUSHSUM_CLIENTS": _number("size of the fleet", int, 1, 10_000),
    "HUSHSUM_DATA": Variable(
        "a .parquet, .csv or .npy file in the data folder; empty: the pixels of a photograph", str, "a file's name"
    ),
    "HUSHSUM_COLUMNS": Variable("its columns to use, separated by commas; empty: all", _names, "names with commas"),
    "HUSHSUM_RECORDS": _number("the maximum number of records", int, 1, 10**9),
    "HUSHSUM_CHURN": _number("the share of the clients that are offline at a time, 0 to 0.5", float, 0, 0.5),
    "HUSHSUM_WINDOWS": _number("windows that the fleet fills", int, 1, 1000),
    "HUSHSUM_WINDOW_S": _number(
        "the length of a window, in whole seconds (secure, silo: at least a minute)", int, 1, 86_400
    ),
    "HUSHSUM_LATENESS_S": _number(
        "the lateness of a window, in seconds; empty: two windows, or a minute (secure: a minute)", int, 1, 86_400
    ),
    "HUSHSUM_SEED": _number("the seed of all public choices", int, 0, 2**32 - 1),
    "HUSHSUM_GATEWAYS": Variable(
        "host:port, separated by commas; clients are spread over them", _addresses, "host:port,host:port"
    ),
    "HUSHSUM_ROWS": _number("rows of the sketch, a multiple of 8; empty: by the mode", int, 1, 100_000),
    "HUSHSUM_BUCKETS": _number("buckets of a row", int, 2, 2**20),
    "HUSHSUM_DEADLINE_S": _number(
        "the time limit for answers and outcomes after the fleet's windows, in seconds", float, 1, 86_400
    ),
    "HUSHSUM_SERVER_NAMES": Variable(
        "names and addresses of the server certificate, separated by commas", _names, "names with commas"
    ),
    "HUSHSUM_DATA_FOLDER": Variable("folder of data"),
    "HUSHSUM_CONFIG": Variable("folder of public files: the plan, the CA certificate, the key registry of clients"),
    "HUSHSUM_SECRETS": Variable("folder of the service's secrets"),
    "HUSHSUM_METRICS": Variable(
        "folder of the reader of metrics; empty: prometheus, in the folder of the service's secrets"
    ),
    "HUSHSUM_FLEET": Variable("folder of the fleet's secrets and spools"),
    "HUSHSUM_OPERATOR": Variable("folder of the tokens with the scopes read and admin"),
    "HUSHSUM_REPORTS": Variable("folder of progress.json, sent.json, summary.json"),
    "HUSHSUM_POSTGRES_DSN": Variable("check: the address of the service's PostgreSQL store", str, "an address"),
    "HUSHSUM_STORE": Variable("check: the file of the service's SQLite store"),
}


@dataclass(frozen=True)
class DeploymentSettings:
    """The settings of a deployment: an attribute for each of :data:`VARIABLES`."""

    mode: str = "central"
    form: str = REPORT
    clients: int = 40
    data: str = ""
    columns: tuple[str, ...] = ()
    records: int = 20_000
    churn: float = 0.2
    windows: int = 4
    window_s: int = 20
    lateness_s: int | None = None
    seed: int = 7
    gateways: tuple[str, ...] = ("gateway-1:7443", "gateway-2:7443")
    rows: int | None = None
    buckets: int | None = None
    deadline_s: float = 300.0
    server_names: tuple[str, ...] = tuple(_NAMES.split(","))
    data_folder: Path = Path("/data")
    config: Path = Path("/config")
    secrets: Path = Path("/secrets")
    metrics: Path = Path("/secrets/prometheus")
    fleet: Path = Path("/fleet")
    operator: Path = Path("/operator")
    reports: Path = Path("/reports")
    postgres_dsn: str = field(default="", repr=False)  # a secret
    store: Path | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """Reads the variables; an empty one counts as not given.

        Raises:
            VariableError: A value is not allowed.
        """
        known = {name for name in VARIABLES if environment.get(name, "").strip()}
        given = {name.removeprefix("HUSHSUM_").lower(): _read(name, environment[name].strip()) for name in known}
        secrets = given.get("secrets")
        if isinstance(secrets, Path):
            given.setdefault("metrics", secrets / "prometheus")
        settings = cls(**given)  # type: ignore[arg-type]  # each was read as its attribute's type
        settings._check_together()
        return settings

    @property
    def purpose(self) -> dict[str, object]:
        """The settings that the files of ``prepare`` depend on, as JSON holds them."""
        names = ("mode", "form", "clients", "data", "columns", "records", "windows", "window_s", "seed")
        more = ("lateness_s", "gateways", "rows", "buckets", "server_names", "churn")
        values = {name: getattr(self, name) for name in (*names, *more)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    @property
    def length_s(self) -> int:
        """Length of a window; at least a minute in modes in which clients contact the service once in each."""
        return max(self.window_s, _SHOWN_S) if self._shown else self.window_s

    @property
    def open_s(self) -> int:
        """How long a window takes deltas after its end: much longer than a killed gateway or broker needs to return."""
        if self.lateness_s is not None:
            return self.lateness_s
        return _OPEN_S if self._shown else max(_OPEN_S, _LATENESS_WINDOWS * self.window_s)

    @property
    def _shown(self) -> bool:
        return self.mode == SECURE or (self.mode == LOCAL and self.form == SILO)

    @property
    def clients_of_gateway(self) -> int:
        """The most clients that connect to one gateway."""
        return -(-self.clients // len(self.gateways))

    @property
    def progress_file(self) -> Path:
        return self.reports / "progress.json"

    @property
    def sent_file(self) -> Path:
        """The fleet's journal."""
        return self.reports / "sent.json"

    @property
    def plan_file(self) -> Path:
        return self.config / "plan.json"

    def _check_together(self) -> None:
        least = _CLIENTS_MIN.get(self.mode, 1) * len(self.gateways)
        if self.clients < least:
            which = f"at least {least}, in mode {self.mode} with {len(self.gateways)} gateways"
            raise VariableError("HUSHSUM_CLIENTS", str(self.clients), which)
        if self.records < self.clients:
            raise VariableError("HUSHSUM_RECORDS", str(self.records), f"at least one of each client: {self.clients}")


def _read(name: str, text: str) -> object:
    variable = VARIABLES[name]
    try:
        return variable.read(text)
    except ValueError as error:
        shown = "something else" if name == "HUSHSUM_POSTGRES_DSN" else text
        raise VariableError(name, shown, variable.expected) from error


def write_public(path: Path, data: bytes) -> None:
    """Writes a file that everybody may read, atomically."""
    _write(path, data, 0o644)


def write_private(path: Path, data: bytes) -> None:
    """Writes a file that its owner alone may read, atomically."""
    _write(path, data, 0o600)


def write_json(path: Path, value: object) -> None:
    """Writes JSON that everybody may read, atomically."""
    write_public(path, json.dumps(value, allow_nan=False).encode() + b"\n")


def read_json(path: Path, maker: str) -> Any:  # Any: JSON
    """Reads a JSON file.

    Raises:
        JourneyError: It is missing, or no JSON; the text names its ``maker``, the program that writes it.
    """
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise JourneyError(f"{path} does not exist: {maker} writes it, and must finish first") from error
    except (OSError, ValueError) as error:
        raise JourneyError(f"{path}: not a file of {maker}: {error}") from error


def _write(path: Path, data: bytes, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.new")
    beside.unlink(missing_ok=True)
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with open(descriptor, "wb") as file:  # noqa: PTH123  a descriptor, not a path
        os.fchmod(descriptor, mode)  # regardless of the umask
        file.write(data)
        file.flush()
        os.fsync(descriptor)
    beside.replace(path)


def operator_credentials(settings: DeploymentSettings, who: Literal["reader", "admin"]) -> Credentials:
    """Of a reader of releases, or of an administrator, who may also see the ledger."""
    return Credentials(token_file=settings.operator / f"{who}.token", ca=settings.config / "ca.pem")


def client_credentials(settings: DeploymentSettings) -> Mapping[str, Credentials]:
    """Of each client, by its id.

    Raises:
        JourneyError: The file of their tokens is missing.
    """
    tokens = read_json(settings.fleet / "tokens.json", "python -m hushsum_simulator.deployment prepare")
    return {name: Credentials(token=token, ca=settings.fleet / "ca.pem") for name, token in tokens.items()}
