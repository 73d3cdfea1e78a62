"""What the environment says of a deployment, and the files and credentials that its programs share.

The environment says the same to ``prepare``, ``fleet`` and ``check``. Files are written whole or not at all, and
secrets for their owner alone. What the programs show to their service, and whom they believe, is what ``prepare`` has
made.
"""

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from hushsum.privacy.guarantee import LOCAL, MODES, SECURE
from hushsum.privacy.local_mode import FORMS, REPORT, SILO
from hushsum_proto.credentials import Credentials
from hushsum_simulator.errors import JourneyError, VariableError

Number = TypeVar("Number", int, float)

_LATENESS_WINDOWS: Final = 2
_OPEN_S: Final = 60  # a slow machine needs half of it to start again what was killed
_SHOWN_S: Final = 60  # no plan may have its clients show themselves more often
_NAMES: Final = "gateway,gateway-1,gateway-2,worker-1,worker-2,releaser,localhost,127.0.0.1"
_CLIENTS_MIN: Final = {SECURE: 5}  # of a gateway: a cohort that can lose one

#: What each variable says, for people; its default stands in :class:`DeploymentSettings`.
VARIABLES: Final[Mapping[str, str]] = {
    "HUSHSUM_MODE": "central, local or secure",
    "HUSHSUM_FORM": "mode local: report, or silo",
    "HUSHSUM_CLIENTS": "size of the fleet",
    "HUSHSUM_DATA": "a .parquet, .csv or .npy file in the folder of data; empty: the pixels of a photograph",
    "HUSHSUM_COLUMNS": "its columns to take, with commas; empty: all",
    "HUSHSUM_RECORDS": "at most so many records are used",
    "HUSHSUM_CHURN": "the share of the clients that are offline at a time, 0 to 0.5",
    "HUSHSUM_WINDOWS": "windows that the fleet fills",
    "HUSHSUM_WINDOW_S": "the length of one, in whole seconds (secure, silo: a minute at least)",
    "HUSHSUM_LATENESS_S": "how long one takes deltas after its end; empty: two windows, or a minute (secure: that)",
    "HUSHSUM_SEED": "of all public choices",
    "HUSHSUM_GATEWAYS": "host:port with commas; clients are spread over them",
    "HUSHSUM_ROWS": "rows of the sketch, a multiple of 8; empty: by the mode",
    "HUSHSUM_BUCKETS": "and buckets of a row",
    "HUSHSUM_DEADLINE_S": "how long answers and outcomes may take, once the fleet's windows are over",
    "HUSHSUM_SERVER_NAMES": "names and addresses of the server's certificate, with commas",
    "HUSHSUM_DATA_FOLDER": "folder of data",
    "HUSHSUM_CONFIG": "folder of what is public: the plan, the authority, the directory of clients",
    "HUSHSUM_SECRETS": "folder of the service's secrets",
    "HUSHSUM_METRICS": "folder of what reads the service's metrics; empty: prometheus, in that of its secrets",
    "HUSHSUM_FLEET": "folder of the fleet's secrets and spools",
    "HUSHSUM_OPERATOR": "folder of the tokens that read releases and administer, of no device",
    "HUSHSUM_REPORTS": "folder of progress.json, sent.json, summary.json",
    "HUSHSUM_POSTGRES_DSN": "check: the service's store",
    "HUSHSUM_STORE": "check: or its file, where that is SQLite",
}


@dataclass(frozen=True)
class DeploymentSettings:
    """A deployment. What a variable of :data:`VARIABLES` says stands in the attribute of its name.

    Attributes:
        postgres_dsn: A secret.
    """

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
    postgres_dsn: str = field(default="", repr=False)
    store: Path | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """Reads the variables; an empty one counts as not given.

        Raises:
            VariableError: One has no value that it may have.
        """
        known = {name for name in VARIABLES if environment.get(name, "").strip()}
        given = {_attribute(name): _read(name, environment[name].strip()) for name in known}
        secrets = given.get("secrets")
        if isinstance(secrets, Path):
            given.setdefault("metrics", secrets / "prometheus")
        settings = cls(**given)  # type: ignore[arg-type]  # each was read as what its attribute is
        settings._check_together()
        return settings

    @property
    def purpose(self) -> dict[str, object]:
        """What files of ``prepare`` are made for: with another purpose they cannot be used."""
        names = ("mode", "form", "clients", "data", "columns", "records", "windows", "window_s", "seed")
        more = ("lateness_s", "gateways", "rows", "buckets", "server_names", "churn")
        return {name: _plain(getattr(self, name)) for name in (*names, *more)}

    @property
    def length_s(self) -> int:
        """Length of a window: in modes in which clients show themselves once in each, a minute at least."""
        return max(self.window_s, _SHOWN_S) if self._shown else self.window_s

    @property
    def open_s(self) -> int:
        """How long a window takes deltas after its end: a gateway or a broker that was killed is back long before."""
        if self.lateness_s is not None:
            return self.lateness_s
        return _OPEN_S if self._shown else max(_OPEN_S, _LATENESS_WINDOWS * self.window_s)

    @property
    def _shown(self) -> bool:
        return self.mode == SECURE or (self.mode == LOCAL and self.form == SILO)

    @property
    def clients_of_gateway(self) -> int:
        """How many clients connect to a gateway, at most."""
        return -(-self.clients // len(self.gateways))

    @property
    def progress_file(self) -> Path:
        """How far the fleet is."""
        return self.reports / "progress.json"

    @property
    def sent_file(self) -> Path:
        """What the fleet has sent, and was told."""
        return self.reports / "sent.json"

    @property
    def plan_file(self) -> Path:
        """The made plan."""
        return self.config / "plan.json"

    def _check_together(self) -> None:
        least = _CLIENTS_MIN.get(self.mode, 1) * len(self.gateways)
        if self.clients < least:
            which = f"at least {least}, in mode {self.mode} with {len(self.gateways)} gateways"
            raise VariableError("HUSHSUM_CLIENTS", str(self.clients), which)
        if self.records < self.clients:
            raise VariableError("HUSHSUM_RECORDS", str(self.records), f"at least one of each client: {self.clients}")


def _attribute(name: str) -> str:
    return name.removeprefix("HUSHSUM_").lower()


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _read(name: str, text: str) -> object:
    reader, expected = _READERS.get(name, (Path, "a path"))
    try:
        return reader(text)
    except ValueError as error:
        shown = "something else" if name == "HUSHSUM_POSTGRES_DSN" else text
        raise VariableError(name, shown, expected) from error


def _integer(low: int, high: int) -> tuple[Callable[[str], int], str]:
    def read(text: str) -> int:
        return _within(int(text), low, high)

    return read, f"an integer from {low} to {high:,}"


def _real(low: float, high: float) -> tuple[Callable[[str], float], str]:
    def read(text: str) -> float:
        return _within(float(text), low, high)

    return read, f"a number from {low:g} to {high:g}"


def _choice(*choices: str) -> tuple[Callable[[str], str], str]:
    def read(text: str) -> str:
        if text not in choices:
            raise ValueError(text)
        return text

    return read, " or ".join(choices)


def _within(value: Number, low: float, high: float) -> Number:
    if not (math.isfinite(value) and low <= value <= high):
        raise ValueError(value)
    return value


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


_READERS: Final[Mapping[str, tuple[Callable[[str], object], str]]] = {
    "HUSHSUM_MODE": _choice(*MODES),
    "HUSHSUM_FORM": _choice(*FORMS),
    "HUSHSUM_CLIENTS": _integer(1, 10_000),
    "HUSHSUM_DATA": (str, "a file's name"),
    "HUSHSUM_COLUMNS": (_names, "names with commas"),
    "HUSHSUM_RECORDS": _integer(1, 10**9),
    "HUSHSUM_CHURN": _real(0, 0.5),
    "HUSHSUM_WINDOWS": _integer(1, 1000),
    "HUSHSUM_WINDOW_S": _integer(1, 86_400),
    "HUSHSUM_LATENESS_S": _integer(1, 86_400),
    "HUSHSUM_SEED": _integer(0, 2**32 - 1),
    "HUSHSUM_GATEWAYS": (_addresses, "host:port,host:port"),
    "HUSHSUM_ROWS": _integer(1, 100_000),
    "HUSHSUM_BUCKETS": _integer(2, 2**20),
    "HUSHSUM_DEADLINE_S": _real(1, 86_400),
    "HUSHSUM_SERVER_NAMES": (_names, "names with commas"),
    "HUSHSUM_POSTGRES_DSN": (str, "an address"),
}

_PUBLIC: Final = 0o644
_PRIVATE: Final = 0o600


def write_public(path: Path, data: bytes) -> None:
    """Puts a file in its place that everybody may read."""
    _write(path, data, _PUBLIC)


def write_private(path: Path, data: bytes) -> None:
    """Puts a file in its place that its owner alone may read."""
    _write(path, data, _PRIVATE)


def write_json(path: Path, value: object) -> None:
    """The same of JSON that everybody may read."""
    write_public(path, json.dumps(value, allow_nan=False).encode() + b"\n")


def read_json(path: Path, maker: str) -> Any:  # Any: whatever JSON holds
    """What such a file holds.

    Args:
        path: The file.
        maker: The program that writes it.

    Raises:
        JourneyError: It is not there, or holds something else.
    """
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise JourneyError(f"{path} is not there: {maker} writes it, and has to come to its end first") from error
    except (OSError, ValueError) as error:
        raise JourneyError(f"{path}: not what {maker} writes: {error}") from error


def _write(path: Path, data: bytes, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.new")
    beside.unlink(missing_ok=True)
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with open(descriptor, "wb") as file:  # noqa: PTH123  a descriptor is opened, no path
        os.fchmod(descriptor, mode)  # whatever this process masks
        file.write(data)
        file.flush()
        os.fsync(descriptor)
    beside.replace(path)


def reader_credentials(settings: DeploymentSettings) -> Credentials:
    """Of whoever reads releases."""
    return Credentials(token=settings.operator / "reader.token", ca=settings.config / "ca.pem")


def administrator_credentials(settings: DeploymentSettings) -> Credentials:
    """Of whoever looks at the ledger."""
    return Credentials(token=settings.operator / "admin.token", ca=settings.config / "ca.pem")


def client_credentials(settings: DeploymentSettings) -> Mapping[str, Credentials]:
    """Of each client, by its id.

    Raises:
        JourneyError: Its tokens are not there.
    """
    tokens = read_json(settings.fleet / "tokens.json", "python -m hushsum_simulator.deployment prepare")
    return {name: Credentials(token=token, ca=settings.fleet / "ca.pem") for name, token in tokens.items()}
