"""Metrics of what a process needs from its machine: certificates that have not ended, and space on its disks."""

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, Gauge

from aggregator.config import Config
from aggregator.runtime import Runtime
from hushsum_proto.certificates import certificates_in
from hushsum_proto.errors import CredentialsError

READ_S: Final = 60.0
#: Free space is rounded down to it, so that it tells the size of nothing that arrived.
STEP_BYTES: Final = 2**20
#: The settings that name files of certificates, in PEM. Of a file of authorities the last one to end counts, because a
#: replaced one stays there beside the new one; of all other files the first one to end.
CERTIFICATES: Final = ("tls_cert", "kafka_cert_file", "upstream_cert")
AUTHORITIES: Final = ("tls_client_ca", "metrics_client_ca", "kafka_ca_file", "upstream_ca")


class Space(NamedTuple):
    """A filesystem, in bytes: what its size is, and what a process may still write."""

    size: int
    available: int


def space_of(path: Path) -> Space:
    """The filesystem that a path is on.

    Raises:
        OSError: There is no such path.
    """
    found = os.statvfs(path)
    return Space(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)


def expiry_reads(config: Config) -> Iterator[tuple[str, Callable[[], float]]]:
    """Each setting of certificates that is set, and what reads when they end, in seconds since 1970 UTC.

    The reading call raises OSError or CredentialsError.
    """
    for names, which in ((CERTIFICATES, min), (AUTHORITIES, max)):
        for name in names:
            if (path := getattr(config, name)) is not None:
                yield name, partial(_expiry_s, path, which)


def _expiry_s(path: Path, which: Callable[[Iterator[float]], float]) -> float:
    found = certificates_in(path.read_bytes(), str(path))
    return which(each.not_valid_after_utc.timestamp() for each in found)


def expiries(config: Config) -> Iterator[tuple[str, float | None, str]]:
    """Each setting of certificates that is set, when they end, and why that cannot be read."""
    for name, read in expiry_reads(config):
        try:
            yield name, read(), ""
        except OSError as error:
            yield name, None, error.strerror or type(error).__name__
        except CredentialsError as error:
            yield name, None, str(error)


class HostMetrics:
    """Gauges of certificates and filesystems, by the setting that names them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        gauge = partial(Gauge, registry=registry)
        self.expiry = gauge(
            "hushsum_certificate_expiry_timestamp_seconds",
            "When the certificates of a setting's file end, in seconds since 1970 UTC",
            ["setting"],
        )
        self.available = gauge(
            "hushsum_filesystem_avail_bytes",
            "Free space of the filesystem that holds a setting's files, in bytes, rounded down to a mebibyte",
            ["setting"],
        )
        self.size = gauge(
            "hushsum_filesystem_size_bytes",
            "Size of the filesystem that holds a setting's files, in bytes",
            ["setting"],
        )


class HostMetricsCollector:
    """Reads certificates and filesystems once a minute. What fails is reported to ``retried``, and read again then.

    ``space`` reads a filesystem; it may raise OSError.
    """

    def __init__(
        self,
        config: Config,
        runtime: Runtime,
        metrics: HostMetrics,
        retried: Callable[[str, str], None],
        space: Callable[[Path], Space] = space_of,
    ) -> None:
        self._config, self._runtime, self._metrics = config, runtime, metrics
        self._retried, self._space = retried, space

    async def run(self) -> None:
        """Reads until it is cancelled."""
        while True:
            await self.look()
            await self._runtime.sleep(READ_S)

    async def look(self) -> None:
        for name, read in self._reads():
            try:
                await self._runtime.blocking(read)
            except (OSError, CredentialsError) as error:
                self._retried(f"metrics of {name}", str(error))

    def _reads(self) -> Iterator[tuple[str, Callable[[], None]]]:
        config = self._config
        for name, read in expiry_reads(config):
            yield name, partial(self._show_expiry, name, read)
        for name, folder in (("data", config.data), ("receipts", config.receipts and config.receipts.parent)):
            if folder is not None:
                yield name, partial(self._show_space, name, folder)

    def _show_expiry(self, name: str, read: Callable[[], float]) -> None:
        self._metrics.expiry.labels(name).set(read())

    def _show_space(self, name: str, folder: Path) -> None:
        space = self._space(folder)
        self._metrics.size.labels(name).set(space.size)
        self._metrics.available.labels(name).set(space.available - space.available % STEP_BYTES)
