"""A real Kafka: one node that is broker and controller, on free loopback ports."""

import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from typing_extensions import override

from hushsum_simulator.errors import ServerError
from hushsum_simulator.testbed.process import ServerProcess, free_port, is_listening, server_folder

JAVA_MIN: Final = 17
#: Where `make broker` puts the broker's files, from the project's folder on.
JARS: Final = Path(".cache/kafka/jars")
_MAIN: Final = "kafka.Kafka"
_FORMAT: Final = "kafka.tools.StorageTool"
_CLUSTER: Final = "aHVzaHN1bS10ZXN0cy0wMA"  # any 16 bytes in base64
_OPTIONS: Final = (
    "-Xmx512m",
    "-XX:+UseSerialGC",  # a short run on a small machine: fewer threads, a faster start
    "-XX:TieredStopAtLevel=1",
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
)
#: Beside the jars, what prepare_brokers stores: this folder, and in it these.
_PREPARED: Final = "prepared"
_DATA: Final = "data"
_CLASSES: Final = "classes.jsa"
_KEY: Final = "key"
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
    # A broker that was killed delays its successor so long.
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
    """Why Java cannot run a broker here, and what to install; None if it can."""
    java = shutil.which("java")
    if java is None:
        return f"Java is not installed; install Java {JAVA_MIN} or newer (Debian: apt install openjdk-17-jre-headless)"
    shown = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    version = re.search(r'version "(?:1\.)?(\d+)', shown.stderr + shown.stdout)
    if version is None or int(version[1]) < JAVA_MIN:
        found = version[1] if version else "of an unknown version"
        return f"Java is {found}; install Java {JAVA_MIN} or newer (Debian: apt install openjdk-17-jre-headless)"
    return None


def prepare_brokers(jars: Path) -> bool:
    """Stores beside the jars what each new broker would otherwise make again, two thirds of the CPU time of its start.

    That is a formatted data folder, and the archive of parsed and verified classes that the JVM writes when a broker
    ends. A JVM that cannot use the archive (another Java, jars that changed) ignores it.

    Returns:
        False: it was there, for this Java, these jars and these settings.

    Raises:
        ServerError: A broker cannot start.
    """
    shown = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False)
    files = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in sorted(jars.glob("*"))]
    key = repr((shown.stderr + shown.stdout, str(jars.resolve()), files, _OPTIONS, _SETTINGS, _CLUSTER))
    prepared = jars.resolve().parent / _PREPARED
    if (prepared / _KEY).exists() and (prepared / _KEY).read_text(encoding="utf-8") == key:
        return False
    shutil.rmtree(prepared, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=prepared.parent) as temporary:
        folder = Path(temporary) / _PREPARED
        broker = KafkaBroker(jars, archive=folder / _CLASSES)
        try:
            broker.format_data()
            shutil.copytree(broker.data, folder / _DATA)
            broker.start()
            broker.stop()
        finally:
            broker.close()
        (folder / _KEY).write_text(key, encoding="utf-8")
        folder.rename(prepared)
    return True


class KafkaBroker(ServerProcess):
    """A broker with its own data folder; it starts again on the same ports with the same data.

    Args:
        jars: The folder that `build_tools/kafka_jars.py` fills.
        archive: Where the JVM writes the archive of its classes when it ends; None: it reads that which
            :func:`prepare_brokers` stored, if there is one.
    """

    def __init__(self, jars: Path, *, archive: Path | None = None) -> None:
        folder = server_folder("kafka")
        self.port, self._proxied_port, self.proxy_port, controller = (free_port() for _ in range(4))
        self.data = folder / "data"
        self._properties = folder / "server.properties"
        listeners = f"DIRECT://127.0.0.1:{self.port},PROXIED://127.0.0.1:{self._proxied_port}"
        lines = {
            **_SETTINGS,
            "listeners": f"{listeners},CONTROLLER://127.0.0.1:{controller}",
            # Clients that come through the proxy are sent through it again.
            "advertised.listeners": f"DIRECT://127.0.0.1:{self.port},PROXIED://127.0.0.1:{self.proxy_port}",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "log.dirs": str(self.data),
        }
        self._properties.write_text("".join(f"{key}={value}\n" for key, value in lines.items()), encoding="utf-8")
        self._java = ["java", *_OPTIONS, "-cp", str(jars.resolve() / "*")]
        self._prepared = jars.resolve().parent / _PREPARED
        if archive is not None:
            sharing = [f"-XX:ArchiveClassesAtExit={archive}"]
        elif (stored := self._prepared / _CLASSES).exists():
            sharing = [f"-XX:SharedArchiveFile={stored}"]
        else:
            sharing = []
        command = [self._java[0], *sharing, *self._java[1:], _MAIN, str(self._properties)]
        super().__init__("Kafka", command, folder / "broker.log", self._listens, folder=folder)

    @property
    def bootstrap(self) -> str:
        """``host:port`` for clients."""
        return f"127.0.0.1:{self.port}"

    @property
    def proxied(self) -> str:
        """The target of a proxy that listens on ``proxy_port``."""
        return f"127.0.0.1:{self._proxied_port}"

    @override
    def start(self) -> None:
        if not self.data.exists() and (self._prepared / _DATA).exists():
            shutil.copytree(self._prepared / _DATA, self.data)
        elif not self.data.exists():
            self.format_data()
        super().start()

    def format_data(self) -> None:
        """Makes the data folder of a new cluster."""
        command = [*self._java, _FORMAT, "format", "--cluster-id", _CLUSTER, "--config", str(self._properties)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ServerError(f"Kafka's storage cannot be created: {(done.stdout + done.stderr).strip()[-500:]}")

    def _listens(self) -> bool:
        return is_listening(self.port) and is_listening(self._proxied_port)
