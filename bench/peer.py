"""The peer of the benchmarks: Apache Kafka in KRaft mode, from Maven jars, on loopback.

`fetch_jars` copies the jars by their coordinates with mvn (once, into a cache folder);
`KafkaCluster` formats and starts 1 or 3 combined brokers as the project's own start
script would: 1 GiB heap, G1. Ends its processes by their ids.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

KAFKA_VERSION = "4.3.1"
ARTIFACTS = (f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}", f"org.apache.kafka:kafka-tools:{KAFKA_VERSION}")
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "penstock-bench"
FORMATTER = "kafka.tools.StorageTool"
START_TIMEOUT_S = 60
COMPILE_TIMEOUT_S = 300


def random_cluster_id() -> str:
    """As `Uuid.randomUuid` of Kafka makes one: none begins with `-`, which the tools would take for an option."""
    while True:
        made = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not made.startswith("-"):
            return made


@contextlib.contextmanager
def only_one_fetches() -> Iterator[None]:
    """Whoever comes meanwhile, in whatever process, waits: Maven keeps its files as if nobody else ran it."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "fetching.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until the file is closed, or the process dead
        yield


def fetch_jars() -> Path:
    """Folder with Kafka's jars; needs mvn on the first call. Processes may call it at the same time."""
    folder = CACHE / f"kafka-{KAFKA_VERSION}"
    if not (folder / "complete").exists():
        with only_one_fetches():
            if not (folder / "complete").exists():
                _fetch_jars(folder)
    return folder


def _fetch_jars(folder: Path) -> None:
    if shutil.which("mvn") is None:
        raise SystemExit("the peer's jars come by Maven coordinates: install maven, then run this again")
    folder.mkdir(parents=True, exist_ok=True)
    dependencies = ""
    for artifact in ARTIFACTS:
        group, name, version = artifact.split(":")
        dependencies += (
            f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId>"
            f"<version>{version}</version></dependency>"
        )
    (folder / "pom.xml").write_text(
        "<project><modelVersion>4.0.0</modelVersion><groupId>bench</groupId><artifactId>peer</artifactId>"
        f"<version>1</version><dependencies>{dependencies}</dependencies></project>"
    )
    subprocess.run(
        ["mvn", "-q", "-B", "-f", str(folder / "pom.xml"), "dependency:copy-dependencies",
         f"-DoutputDirectory={folder}", "-DincludeScope=runtime"],
        check=True,
    )  # fmt: skip
    (folder / "complete").touch()


def compile_java(sources: Sequence[Path], class_path: str, name: str) -> Path:
    """Folder with the classes of these sources, beside Kafka's jars; compiled once for each text of them. Raises
    RuntimeError with what javac says."""
    CACHE.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(b"".join(f.name.encode() + f.read_bytes() for f in sources)).hexdigest()[:16]
    classes = CACHE / f"{name}-{KAFKA_VERSION}-{digest}"
    if not classes.exists():
        building = Path(tempfile.mkdtemp(dir=CACHE))
        command = ["javac", "-Xlint:all", "-Werror", "-cp", class_path, "-d", str(building)]
        done = subprocess.run(
            [*command, *map(str, sources)],
            capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            shutil.rmtree(building)
            raise RuntimeError(done.stdout + done.stderr)
        keep_folder(building, classes)
    return classes


def keep_folder(building: Path, there: Path) -> None:
    """Under the name that it is looked for; whoever was quicker has made the same."""
    try:
        building.rename(there)
    except OSError:
        shutil.rmtree(building)


@dataclass(frozen=True)
class SecureDoor:
    """What a secure peer has: certificates as PEM files, and its one user."""

    server_pem: Path
    """Key and chain of every broker."""
    ca_pem: Path
    broker_name: str
    """The common name in the brokers' certificate."""
    user: str
    password: str
    salt: str
    """In base64."""

    @property
    def scram(self) -> str:
        """The user as `kafka-storage format --add-scram` takes it."""
        return f"SCRAM-SHA-512=[name={self.user},salt={self.salt},password={self.password}]"

    def client(self) -> dict[str, str]:
        """librdkafka's settings to come in."""
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": self.user,
            "sasl.password": self.password,
            "ssl.ca.location": str(self.ca_pem),
        }


class KafkaCluster:
    """Combined KRaft brokers on loopback, ports from `first_port` on, three per node."""

    def __init__(
        self,
        folder: Path,
        node_count: int,
        first_port: int = 19092,
        *,
        heap: str = "1G",
        settings: Mapping[str, str] | None = None,
        door: SecureDoor | None = None,
    ) -> None:
        """`settings` come last in server.properties, where the last word counts. `door`: clients sign in over TLS,
        brokers and controllers talk TLS with certificates on both sides, and StandardAuthorizer is asked."""
        self._heap = heap
        self._door = door
        self._settings = "".join(f"{name}={value}\n" for name, value in (settings or {}).items())
        self.folder = folder
        self.node_count = node_count
        self.processes: list[psutil.Popen] = []
        self._ports = [(first_port + 3 * n, first_port + 3 * n + 1) for n in range(node_count)]
        self._jars = fetch_jars()

    @property
    def jars(self) -> Path:
        """Folder with Kafka's jars, its tools among them."""
        return self._jars

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self._ports[0][0]}"

    def start(self) -> None:
        """Format and start every node; returns at once, clients retry until it answers. Raises RuntimeError with what
        Kafka's tool says when a directory can't be formatted."""
        cluster_id = random_cluster_id()
        voters = ",".join(f"{n + 1}@127.0.0.1:{port[1]}" for n, port in enumerate(self._ports))
        for index, (client_port, controller_port) in enumerate(self._ports):
            folder = self.folder / f"kafka-{index + 1}"
            folder.mkdir(parents=True)
            settings = folder / "server.properties"
            settings.write_text(
                f"process.roles=broker,controller\nnode.id={index + 1}\n"
                f"controller.quorum.voters={voters}\ncontroller.listener.names=CONTROLLER\n"
                f"{self._listeners(client_port, controller_port)}"
                f"log.dirs={folder}/data\noffsets.topic.replication.factor={self.node_count}\n"
                f"auto.create.topics.enable=false\n{self._settings}"
            )
            # A password on a command line: a throw-away one, of a cluster on loopback that ends with the run.
            user = [] if self._door is None else ["--add-scram", self._door.scram]
            status = self._java(
                folder, FORMATTER, "format", "-t", cluster_id, "-c", str(settings), *user
            ).wait(60)
            if status != 0:
                said = (folder / f"{FORMATTER}.log").read_text(errors="replace").splitlines()
                raise RuntimeError(f"Kafka's {folder} was not formatted: {' / '.join(said[-3:])}")
        self.run()

    def run(self) -> None:
        """Start every node on what it has; none may be running."""
        folders = [self.folder / f"kafka-{index + 1}" for index in range(self.node_count)]
        self.processes = [self._java(f, "kafka.Kafka", str(f / "server.properties")) for f in folders]

    def _listeners(self, client_port: int, controller_port: int) -> str:
        if self._door is None:
            return f"listeners=PLAINTEXT://127.0.0.1:{client_port},CONTROLLER://127.0.0.1:{controller_port}\n"
        return (
            f"listeners=CLIENTS://127.0.0.1:{client_port},BROKERS://127.0.0.1:{controller_port + 1},"
            f"CONTROLLER://127.0.0.1:{controller_port}\n"
            "listener.security.protocol.map=CLIENTS:SASL_SSL,BROKERS:SSL,CONTROLLER:SSL\n"
            "inter.broker.listener.name=BROKERS\n"
            "sasl.enabled.mechanisms=SCRAM-SHA-512\n"
            "listener.name.clients.scram-sha-512.sasl.jaas.config="
            "org.apache.kafka.common.security.scram.ScramLoginModule required;\n"
            f"ssl.keystore.type=PEM\nssl.keystore.location={self._door.server_pem}\n"
            f"ssl.truststore.type=PEM\nssl.truststore.location={self._door.ca_pem}\n"
            "ssl.client.auth=none\nlistener.name.brokers.ssl.client.auth=required\n"
            "listener.name.controller.ssl.client.auth=required\n"
            "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\n"
            "ssl.principal.mapping.rules=RULE:.*CN=([^,]*).*/$1/,DEFAULT\n"
            f"super.users=User:{self._door.user};User:{self._door.broker_name}\n"
        )

    def rss_bytes(self) -> list[int]:
        return [process.memory_info().rss for process in self.processes]

    def cpu_seconds(self) -> float:
        return sum(sum(process.cpu_times()[:2]) for process in self.processes)

    def last_words(self) -> str:
        """What the first broker that ended by itself said last, or the first one if all run."""
        ended = [process.poll() is not None for process in self.processes]
        index = ended.index(True) if True in ended else 0
        said = (self.folder / f"kafka-{index + 1}" / "kafka.Kafka.log").read_text(errors="replace")
        how = "ended by itself" if any(ended) else "runs"
        return f"broker {index + 1} {how} and said last: {' / '.join(said.splitlines()[-3:])}"

    def kill(self) -> None:
        """SIGKILL to every node."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait(10)

    def stop(self) -> None:
        for process in self.processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.terminate()
        deadline = time.monotonic() + 20
        for process in self.processes:
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except psutil.TimeoutExpired:
                process.kill()
                process.wait(10)

    def _java(self, folder: Path, main_class: str, *arguments: str) -> psutil.Popen:
        log = (folder / f"{main_class}.log").open("wb")
        command = [
            "java",
            f"-Xms{self._heap}",
            f"-Xmx{self._heap}",
            "-XX:+UseG1GC",
            "-cp",
            f"{self._jars}/*",
            main_class,
            *arguments,
        ]
        with log:
            return psutil.Popen(command, stdout=log, stderr=log, cwd=folder)
