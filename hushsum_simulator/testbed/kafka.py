"""A real Kafka: one node, broker and controller in one, on free ports of loopback."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from hushsum_simulator.errors import ServerError
from hushsum_simulator.testbed.process import ServerFolder, ServerHandle, ServerProcess, free_port, is_listening

JAVA_MIN: Final = 17
_START_S: Final = 60.0
_STOP_S: Final = 20.0
_MAIN: Final = "kafka.Kafka"
_FORMAT: Final = "kafka.tools.StorageTool"
_CLUSTER: Final = "aHVzaHN1bS10ZXN0cy0wMA"  # any 16 bytes in base64
_OPTIONS: Final = (
    "-Xmx512m",
    "-XX:+UseSerialGC",  # a short life on a small machine: fewer threads, a faster start
    "-XX:TieredStopAtLevel=1",
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
)
_SETTINGS: Final = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "DIRECT",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,DIRECT:PLAINTEXT,PROXIED:PLAINTEXT",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    # How long a broker that was killed keeps its successor waiting.
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "250",
    "group.min.session.timeout.ms": "500",
    "auto.create.topics.enable": "false",
    "num.network.threads": "2",
    "num.io.threads": "4",
    "log.retention.check.interval.ms": "1000",
    "log.segment.delete.delay.ms": "0",
    "log.initial.task.delay.ms": "1000",
    "delete.topic.enable": "true",
}


def missing_java() -> str | None:
    """What is to be done about Java before a broker can start; None where it is there and new enough."""
    java = shutil.which("java")
    if java is None:
        return f"Java is not there; install Java {JAVA_MIN} or newer (Debian: apt install openjdk-17-jre-headless)"
    told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    version = re.search(r'version "(?:1\.)?(\d+)', told.stderr + told.stdout)
    if version is None or int(version[1]) < JAVA_MIN:
        found = version[1] if version else "of an unknown version"
        return f"Java is {found}; install Java {JAVA_MIN} or newer (Debian: apt install openjdk-17-jre-headless)"
    return None


class KafkaBroker(ServerHandle):
    """A broker with a data folder of its own, started again on the same ports with the same data.

    Args:
        jars: The folder that `build_tools/kafka_jars.py` fills.
        settings: Lines of server.properties beside ours, or instead of them.
    """

    def __init__(self, jars: Path, settings: dict[str, str] | None = None) -> None:
        self._folder = ServerFolder("kafka")
        self.port, self._proxied_port, self.proxy_port, controller = (free_port() for _ in range(4))
        self._properties = self._folder.path / "server.properties"
        listeners = f"DIRECT://127.0.0.1:{self.port},PROXIED://127.0.0.1:{self._proxied_port}"
        lines = {
            **_SETTINGS,
            "listeners": f"{listeners},CONTROLLER://127.0.0.1:{controller}",
            # Whoever comes through the proxy is told to come through it again.
            "advertised.listeners": f"DIRECT://127.0.0.1:{self.port},PROXIED://127.0.0.1:{self.proxy_port}",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "log.dirs": str(self._folder.path / "data"),
            **(settings or {}),
        }
        self._properties.write_text("".join(f"{key}={value}\n" for key, value in lines.items()), encoding="utf-8")
        self._java = ["java", *_OPTIONS, "-cp", str(jars.resolve() / "*")]
        self.output = self._folder.path / "broker.log"
        super().__init__(ServerProcess("Kafka", [*self._java, _MAIN, str(self._properties)], self.output))

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def bootstrap(self) -> str:
        """``host:port`` for clients."""
        return f"127.0.0.1:{self.port}"

    @property
    def proxied(self) -> str:
        """Where a proxy that listens on ``proxy_port`` leads to."""
        return f"127.0.0.1:{self._proxied_port}"

    @property
    def data(self) -> Path:
        """The folder that holds its topics."""
        return self._folder.path / "data"

    def start(self) -> None:
        """Starts it, and returns once it takes requests.

        Raises:
            ServerError: It does not, in a minute.
        """
        if not self.data.exists():
            self._format()
        self._process.start()
        self._process.wait_until(lambda: is_listening(self.port) and is_listening(self._proxied_port), _START_S)

    def stop(self) -> None:
        """Ends it in good order."""
        self._process.stop(_STOP_S)

    def close(self) -> None:
        """Ends it, and deletes what it stored."""
        self._process.kill()
        self._folder.delete()

    def _format(self) -> None:
        command = [*self._java, _FORMAT, "format", "--cluster-id", _CLUSTER, "--config", str(self._properties)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))
        if done.returncode != 0:
            raise ServerError(f"Kafka's storage cannot be made: {(done.stdout + done.stderr).strip()[-500:]}")
