"""The service's settings: a small frozen value, from a TOML file and overrides; an unknown key is refused."""

import difflib
import ipaddress
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal, Self

import pydantic
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field

from aggregator.errors import ConfigError
from hushsum.hush_format import COUNTERS_MAX

_MIB: Final = 2**20
LOOPBACK_NAMES: Final = frozenset({"localhost", "ip6-localhost"})


def host_and_port(address: str) -> tuple[str, int]:
    """Host and port of ``host:port`` or ``[v6]:port``.

    Raises:
        ValueError: It is neither.
    """
    host, colon, port = address.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or not bare or (":" in bare and bare == host) or not port.isdecimal() or int(port) > 65535:
        raise ValueError("expected host:port, such as 127.0.0.1:7443 or [::1]:7443; port 0 takes any free one")
    return bare, int(port)


def is_loopback(host: str) -> bool:
    """Whether a host can be reached from this machine alone."""
    if host in LOOPBACK_NAMES:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _address(value: str) -> str:
    host_and_port(value)
    return value


def _loopback_address(value: str) -> str:
    if value and not is_loopback(host_and_port(value)[0]):
        raise ValueError("expected a loopback address: metrics hold exact counts, which no analyst may see")
    return value


def _path(value: object) -> object:
    return Path(value) if isinstance(value, str) and value else value


_Path = Annotated[Path, BeforeValidator(_path)]
_Address = Annotated[str, AfterValidator(_address)]
_LoopbackAddress = Annotated[str, AfterValidator(_loopback_address)]


class Config(pydantic.BaseModel):
    """Everything that can be set of a service, and nothing that changes privacy: that is the plan's.

    Attributes:
        plan: A made ``plan.json``, or a ``plan.toml`` that is made once, at the first start, into the store.
        data: The folder of the log, the store and the receipts; made where it does not exist.
        listen: Where gRPC listens; port 0 takes any free one.
        metrics_listen: Where ``/metrics`` answers over HTTP, on loopback alone; empty turns it off.
        insecure: Plaintext off loopback is refused without it.
        partitions: P of the log, recorded at the first start.
        skew_s: How far ahead of this clock a device's may be.
        manual: Nothing is sealed or released by the clock, only through the administration.
        retain_verdicts: One verdict an entry is kept in the store, for audits of the service itself. Off by default:
            it is a record of who contributed when.
        counters_max: Counters of a plan in all its classes; each takes 8 bytes of memory for every open window.
        in_flight_max: Unanswered deltas of one session.
        sessions_max: Open sessions.
        pending_entries_max: Unanswered deltas of all sessions.
        pending_bytes_max: Their bytes.
        group_entries_max: Entries of one group commit.
        group_bytes_max: Their bytes.
        checkpoint_entries: The fold checkpoints after that many entries,
        checkpoint_s: or after that many seconds with any.
        stop_s: How long a stop waits for what is under way.
        log_level: The least level that is written.
        log_format: ``console`` for people, ``json`` for machines.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    plan: _Path
    data: _Path
    listen: _Address = "127.0.0.1:7443"
    metrics_listen: _LoopbackAddress = "127.0.0.1:7444"
    insecure: bool = False
    partitions: Annotated[int, Field(ge=1, le=1024)] = 1
    skew_s: Annotated[float, Field(ge=0, le=86_400)] = 300.0
    manual: bool = False
    retain_verdicts: bool = False
    counters_max: Annotated[int, Field(ge=1)] = COUNTERS_MAX
    in_flight_max: Annotated[int, Field(ge=1, le=65_536)] = 256
    sessions_max: Annotated[int, Field(ge=1, le=100_000)] = 1024
    pending_entries_max: Annotated[int, Field(ge=1, le=10_000_000)] = 65_536
    pending_bytes_max: Annotated[int, Field(ge=1)] = 64 * _MIB
    group_entries_max: Annotated[int, Field(ge=1, le=65_536)] = 4096
    group_bytes_max: Annotated[int, Field(ge=1)] = 16 * _MIB
    checkpoint_entries: Annotated[int, Field(ge=1)] = 5000
    checkpoint_s: Annotated[float, Field(gt=0, le=3600)] = 5.0
    stop_s: Annotated[float, Field(ge=0, le=3600)] = 30.0
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["console", "json"] = "console"

    @pydantic.model_validator(mode="after")
    def _plaintext_stays_on_loopback(self) -> Self:
        if not self.insecure and not is_loopback(host_and_port(self.listen)[0]):
            raise ValueError(
                f"listen: plaintext off loopback is refused: got {self.listen}; take 127.0.0.1, or set insecure"
            )
        return self

    @classmethod
    def of(cls, **settings: object) -> Self:
        """Settings from names and values.

        Raises:
            ConfigError: A key is unknown or missing, or its value is not what it may be.
        """
        try:
            return cls.model_validate(settings)
        except pydantic.ValidationError as error:
            raise _config_error(error) from error

    @classmethod
    def load(cls, file: Path | None, overrides: Mapping[str, object]) -> Self:
        """Settings from a TOML file, where there is one, and from overrides, of which None means "not given".

        Raises:
            ConfigError: As :meth:`of`; or the file is no TOML.
        """
        settings: dict[str, object] = {}
        if file is not None:
            try:
                settings = tomllib.loads(file.read_text(encoding="utf-8"))
            except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
                raise ConfigError(f"{file}: expected a TOML file that can be read, got: {error}") from error
        given = {key: value for key, value in overrides.items() if value is not None}
        return cls.of(**{**settings, **given})


def _config_error(error: pydantic.ValidationError) -> ConfigError:
    """The first thing that is wrong, in one line."""
    first = error.errors()[0]
    key = ".".join(map(str, first["loc"]))
    if first["type"] == "extra_forbidden":
        near = difflib.get_close_matches(key, Config.model_fields, n=1, cutoff=0.5)
        return ConfigError(f"{key}: unknown key" + (f"; did you mean {near[0]}?" if near else ""))
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "missing" or not key:
        return ConfigError(f"{key}: required" if key else message)
    return ConfigError(f"{key}: got {first['input']!r}: {message}")
