"""A real broker on this machine (KRaft, one node), and a Spark session with the client's jars.

The jars of the broker and of Spark's client are fetched once into var/kafka. (For users, `headrace setup --kafka` fetches
the client's jars into var/jars.) If they cannot be fetched, all tests of this folder are skipped.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyspark
import pytest
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from headrace import clock
from headrace.config import JobConfig
from headrace.errors import ServiceError
from headrace.provision.jars import KAFKA, Jars, fetch, jars_folder
from headrace.provision.java import require_java
from headrace.run.options import RunOptions
from headrace.storage.storage import Storage
from tests.jobs.certificates import Certificates, certificates
from tests.jobs.home import JARS, LOCAL, PROJECT, Home
from tests.jobs.ports import free_port

FOLDER = PROJECT / "var" / "kafka"
SPARK_JARS = Path(pyspark.__file__).parent / "jars"
STARTS_WITHIN = 120.0
SMALL_JVM = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"
JOB = {
    "job": "reader",
    "pipeline": "tests.jobs.shop_rows:pipeline",
    "state": {"root": "state", "local": "local"},
    "watermark": {"bucket": 3},
    "sources": {"rows": {"format": "kafka"}},
    "sinks": {"arrived": {"path": "lake/arrived", "mode": "append"}},
}


class BrokerJars(Jars):
    """The jars of a broker, pinned in a file beside this one."""

    def digests(self) -> dict[str, str]:
        lines = Path(__file__).with_name("broker.sha256").read_text().splitlines()
        return {file: digest for digest, file in map(str.split, lines)}


BROKER = BrokerJars(
    name="broker", artifact="org.apache.kafka:kafka_2.13:4.1.0", without=("com.google.code.findbugs:jsr305",)
)


def provided(jars: Jars, folder: Path) -> Path:
    """Return the folder with these jars, and fetch missing jars; skip the test if they cannot be fetched."""
    if jars.missing(folder):
        try:
            fetch(jars, PROJECT, require_java(PROJECT), folder)
        except ServiceError as error:
            pytest.skip(f"{jars.package} cannot be fetched: {error}")
    return folder


@pytest.fixture(scope="session")
def class_path() -> str:
    """Return the class path of a broker and its tools."""
    folder = provided(BROKER, FOLDER / "broker")
    (scala,) = SPARK_JARS.glob("scala-library-*.jar")
    (py4j,) = SPARK_JARS.glob("py4j-*.jar")
    return os.pathsep.join([f"{folder}/*", str(scala), str(py4j)])


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Certificates of the broker, from an authority of these tests."""
    return certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def secure_servers(servers: str) -> str:
    """The broker's address for clients that log in, over TLS."""
    return f"127.0.0.1:{SECURE_PORTS[servers]}"


SECURE_PORTS: dict[str, int] = {}
"""Ports of secure listeners, by the address of the open one."""
LOGIN = {"SCRAM-SHA-512": ("ann", "scram-secret"), "PLAIN": ("bob", "plain-secret")}
"""User and password by mechanism."""


@pytest.fixture(scope="session")
def servers(class_path: str, authority: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a running broker."""
    folder = tmp_path_factory.mktemp("broker")
    port, secure, controller = free_port(), free_port(), free_port()
    settings = folder / "server.properties"
    module = "org.apache.kafka.common.security"
    user, password = LOGIN["PLAIN"]
    settings.write_text(
        f"""process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},SECURE://127.0.0.1:{secure},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},SECURE://127.0.0.1:{secure}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SECURE:SASL_SSL,CONTROLLER:PLAINTEXT
listener.name.secure.ssl.keystore.type=PEM
listener.name.secure.ssl.keystore.location={authority.server}
listener.name.secure.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-512
listener.name.secure.plain.sasl.jaas.config={module}.plain.PlainLoginModule required user_{user}="{password}";
listener.name.secure.scram-sha-512.sasl.jaas.config={module}.scram.ScramLoginModule required;
controller.listener.names=CONTROLLER
log.dirs={folder}/logs
auto.create.topics.enable=false
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
"""
    )
    java = [str(require_java(PROJECT) / "bin" / "java"), *SMALL_JVM, "-cp", class_path]
    user, password = LOGIN["SCRAM-SHA-512"]
    scram = f"SCRAM-SHA-512=[name={user},password={password}]"
    subprocess.run(
        [*java, "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(settings), "--add-scram", scram],
        check=True,
        capture_output=True,
    )
    with (folder / "broker.log").open("w") as log:
        process = subprocess.Popen([*java, "kafka.Kafka", str(settings)], stdout=log, stderr=subprocess.STDOUT)
    try:
        deadline = clock.monotonic() + STARTS_WITHIN
        while not _listens(port):
            assert process.poll() is None, (folder / "broker.log").read_text()
            assert clock.monotonic() < deadline, "the broker does not listen"
            clock.sleep(0.2)
        SECURE_PORTS[f"127.0.0.1:{port}"] = secure
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)


def _listens(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False


@dataclass
class Broker:
    """Changes topics through Kafka's own clients in a JVM, as people and programs do."""

    servers: str
    gateway: JavaGateway
    created: int = 0

    @property
    def jvm(self) -> Any:
        return self.gateway.jvm

    @contextmanager
    def admin(self) -> Iterator[Any]:
        admin = self.jvm.org.apache.kafka.clients.admin.Admin.create(self._settings())
        try:
            yield admin
        finally:
            admin.close()

    def topic(self, partitions: int = 1, name: str | None = None, **settings: str) -> str:
        """Make a topic; return its name."""
        self.created += 1
        name = name or f"shop.rows-{self.created}"
        new = self.jvm.org.apache.kafka.clients.admin.NewTopic(name, partitions, 1)
        with self.admin() as admin:
            admin.createTopics(self._set([new.configs(self._map(settings))])).all().get()
        return name

    def delete(self, topic: str) -> None:
        with self.admin() as admin:
            admin.deleteTopics(self._set([topic])).all().get()

    def grow(self, topic: str, partitions: int) -> None:
        more = self.jvm.org.apache.kafka.clients.admin.NewPartitions.increaseTo(partitions)
        with self.admin() as admin:
            admin.createPartitions(self._map({topic: more})).all().get()

    def expire(self, topic: str, before: int, partition: int = 0) -> None:
        kafka = self.jvm.org.apache.kafka
        # py4j does not see a static method that has the name of another one: reflection does.
        result = self.jvm.java.lang.Class.forName("org.apache.kafka.clients.admin.RecordsToDelete")
        types, arguments = (self.gateway.new_array(kind, 1) for kind in (self.jvm.Class, self.jvm.Object))
        types[0], arguments[0] = self.jvm.java.lang.Long.TYPE, self.jvm.java.lang.Long.valueOf(str(before))
        records = result.getMethod("beforeOffset", types).invoke(None, arguments)
        with self.admin() as admin:
            admin.deleteRecords(self._map({kafka.common.TopicPartition(topic, partition): records})).all().get()

    def send(
        self,
        topic: str,
        values: Sequence[dict[str, Any] | bytes | None],
        partition: int = 0,
        *,
        timestamp: int | None = None,
        aborts: bool | None = None,
        key: bytes = b"key",
    ) -> None:
        """Send messages; `aborts` says how their transaction ends, None that there is no transaction."""
        settings = self._settings()
        for name in ("key.serializer", "value.serializer"):
            settings.put(name, "org.apache.kafka.common.serialization.ByteArraySerializer")
        if aborts is not None:
            self.created += 1
            settings.put("transactional.id", f"test-{self.created}")
        producer = self.jvm.org.apache.kafka.clients.producer.KafkaProducer(settings)
        if aborts is not None:
            producer.initTransactions()
            producer.beginTransaction()
        for value in values:
            encoded = value if value is None or isinstance(value, bytes) else msgspec.json.encode(value)
            record = self.jvm.org.apache.kafka.clients.producer.ProducerRecord(
                topic, partition, timestamp, key, encoded
            )
            record.headers().add("source", b"test")
            producer.send(record)
        producer.flush()
        if aborts is not None:
            (producer.abortTransaction if aborts else producer.commitTransaction)()
        producer.close()

    def _settings(self) -> Any:
        settings = self.jvm.java.util.Properties()
        settings.put("bootstrap.servers", self.servers)
        return settings

    def _map(self, items: dict[Any, Any]) -> Any:
        result = self.jvm.java.util.HashMap()
        for key, value in items.items():
            result.put(key, value)
        return result

    def _set(self, items: Sequence[Any]) -> Any:
        result = self.jvm.java.util.ArrayList()
        for item in items:
            result.add(item)
        return result


@pytest.fixture(scope="session")
def broker(servers: str, class_path: str) -> Iterator[Broker]:
    java = str(require_java(PROJECT) / "bin" / "java")
    port, token = launch_gateway(
        classpath=class_path, die_on_exit=True, enable_auth=True, java_path=java, javaopts=[*SMALL_JVM]
    )
    parameters = GatewayParameters(port=port, auth_token=token, auto_convert=False)
    gateway = JavaGateway(gateway_parameters=parameters)
    yield Broker(servers, gateway)
    gateway.shutdown()


@dataclass
class KafkaJob:
    """The job in its own home, in the shared session."""

    spark: Any
    home: Home
    source: dict[str, Any]

    def configure(self, **source: Any) -> None:
        self.source |= source
        self.home.configure({"sources": {"rows": self.source}})

    def run(self, branch: str | None = None, **options: Any) -> list[str]:
        """Run the job, or a branch of it; return the names in the sink in arrival order."""
        from headrace.commit.branch_code import on_branch
        from headrace.spark.runner import run_in

        config = self.home.config() if branch is None else on_branch(self.home.config(), branch)
        run_in(self.spark, config, RunOptions(run_id="test", **options), lambda _: None)
        return self.arrived(config)

    def arrived(self, config: JobConfig | None = None) -> list[str]:
        store = Storage((config or self.home.config()).sinks["arrived"].table_path).table().latest()
        rows = store.read(store.schema).to_pylist()
        rows.sort(key=lambda row: row["number"])
        assert [row["number"] for row in rows] == list(range(len(rows)))
        return [row["name"] for row in rows]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Return the session that a run creates for a profile with the client's jars."""
    from headrace.spark.session import session

    folder = jars_folder(PROJECT) if not KAFKA.missing(jars_folder(PROJECT)) else provided(KAFKA, FOLDER / "client")
    os.environ["PYTHONPATH"] = os.pathsep.join((str(PROJECT / "engine"), str(PROJECT)))
    home = Home(tmp_path_factory.mktemp("session"))
    home.write_cluster("local", {**LOCAL, "jars": [*JARS, *(str(folder / jar) for jar in KAFKA.digests())]})
    started = session(home.config())
    yield started
    started.stop()


@pytest.fixture
def job(spark: Any, servers: str, tmp_path: Path) -> KafkaJob:
    """Return the job; its source has no topic yet."""
    return KafkaJob(spark, Home(tmp_path, JOB), {"servers": servers})
