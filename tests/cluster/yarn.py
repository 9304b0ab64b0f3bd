"""A real YARN on this machine: Hadoop's minicluster, in a JVM that py4j talks to, and `spark-submit` for it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import hypothesis  # noqa: F401  pytest imports it at the end otherwise, when finalizers of py4j disturb the parser of Python 3.11
import psutil
import pyspark
import pytest
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from headrace.airflow._submission import packed_home, run_words, submission
from headrace.errors import ConfigError, ServiceError
from headrace.provision.jars import Jars, fetch
from headrace.provision.java import require_java
from tests.jobs.home import LOCAL, PROJECT, PYTHONPATH, SHORT_LIVED, Home

SPARK: Final = Path(pyspark.__file__).parent
HOST: Final = "127.0.0.1"
QUEUE: Final = "yarn.scheduler.capacity.root"
SETTINGS: Final = {
    "fs.defaultFS": "file:///",
    f"{QUEUE}.queues": "default",
    f"{QUEUE}.default.capacity": "100",
    "yarn.scheduler.capacity.maximum-am-resource-percent": "1.0",
    "yarn.scheduler.minimum-allocation-mb": "256",
    "yarn.minicluster.yarn.nodemanager.resource.memory-mb": "8192",
    "yarn.nodemanager.pmem-check-enabled": "false",
    "yarn.nodemanager.vmem-check-enabled": "false",
    # A node whose disk is nearly full would get no containers.
    "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "99.9",
}
ENVIRONMENT: Final = {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": PYTHONPATH, "SPARK_LOCAL_IP": HOST}
"""What containers need of this machine, where other clusters have an image or a packed environment."""


class Minicluster(Jars):
    """Hadoop's minicluster, of the Hadoop that Spark has, and what it imports beside it."""

    def digests(self) -> dict[str, str]:
        """Return the SHA-256 of each file."""
        return {
            "hadoop-client-minicluster-3.5.0.jar": "06772d24529e59939915979b3edba204d367750ef7dc5120411f35221dd4818c",
            "junit-jupiter-api-5.13.4.jar": "d1bb81abfd9e03418306b4e6a3390c8db52c58372e749c2980ac29f0c08278f1",
            "junit-platform-commons-1.13.4.jar": "1c25ca641ebaae44ff3ad21ca1b2ef68d0dd84bfeb07c4805ba7840899b77408",
            "opentest4j-1.3.0.jar": "48e2df636cab6563ced64dcdff8abb2355627cb236ef0bf37598682ddf742f1b",
            "bcpkix-jdk18on-1.82.jar": "bdc723e20834832ac6af136cb5b5ff05e43b71d4fa151cc6510d9212ee086e63",
            "bcprov-jdk18on-1.82.jar": "14cde2fdfaa8890480a8e5b67aceef0c90f96682c1e23c133bafdc9e0b3255ce",
            "bcutil-jdk18on-1.82.jar": "4420691958ad1c0ba275a6d6d8a6317adbdbdc9277055b6a72aa89c88cda8c7d",
        }


MINICLUSTER: Final = Minicluster(
    name="minicluster",
    artifact="org.apache.hadoop:hadoop-client-minicluster:3.5.0,org.junit.jupiter:junit-jupiter-api:5.13.4,"
    "org.bouncycastle:bcpkix-jdk18on:1.82",
    without=(
        "org.apache.hadoop:hadoop-client-api",
        "org.apache.hadoop:hadoop-client-runtime",
        "org.apiguardian:apiguardian-api",
        "org.xerial.snappy:snappy-java",
    ),
    sparks=("4.2",),
)


def fetched() -> list[Path]:
    """Return the minicluster's jars in `var/minicluster`; skip the test where they cannot be fetched."""
    folder = PROJECT / "var" / "minicluster"
    if MINICLUSTER.missing(folder):
        try:
            fetch(MINICLUSTER, PROJECT, require_java(PROJECT), folder)
        except (ConfigError, ServiceError) as error:
            pytest.skip(f"the jars of Hadoop's minicluster cannot be fetched: {error}")
    return [folder / file for file in MINICLUSTER.digests()]


class Yarn:
    """A ResourceManager and a NodeManager, which starts the containers as processes below its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write_profile(self, home: Home, settings: dict[str, Any] | None = None, **driver: str) -> None:
        """Write the profile `yarn`: drivers in cluster mode, two executors. `driver` are variables of the driver."""
        own = {
            # The path of a container's folder is longer than that of a Unix socket may be.
            "spark.python.unix.domain.socket.enabled": False,
            "spark.driver.memory": "512m",
            "spark.executor.memory": "512m",
            "spark.executor.instances": 2,
            "spark.yarn.jars": f"local:{SPARK}/jars/*",
            "spark.yarn.stagingDir": str(self.folder / "staging"),
            "spark.yarn.maxAppAttempts": 1,
            **{f"spark.yarn.appMasterEnv.{name}": value for name, value in (ENVIRONMENT | driver).items()},
            **{f"spark.executorEnv.{name}": value for name, value in ENVIRONMENT.items()},
        }
        spark = {**LOCAL["spark"], **own, **(settings or {})}
        home.write_cluster("yarn", {**LOCAL, "master": "yarn", "deploy_mode": "cluster", "spark": spark})

    def submit(self, home: Home) -> subprocess.Popen[str]:
        """Submit a run of the home's job with what the task of a DAG submits, and return the client, which waits for its end."""
        job = home.config()
        words = submission(job)
        (home.folder / "shipped").mkdir(exist_ok=True)
        environment = {f"spark.yarn.appMasterEnv.{name}": value for name, value in words["env_vars"].items()}
        conf = [word for key, value in (words["conf"] | environment).items() for word in ("--conf", f"{key}={value}")]
        line = [
            *(str(SPARK / "bin" / "spark-submit"), "--master", "yarn", "--deploy-mode", words["deploy_mode"]),
            *("--name", words["name"], "--jars", words["jars"], *conf),
            *("--archives", packed_home(job, home.folder / "shipped"), words["application"], *run_words(job, {})),
        ]
        variables = os.environ | {
            "HADOOP_CONF_DIR": str(self.folder / "conf"),
            "SPARK_HOME": str(SPARK),
            "SPARK_SUBMIT_OPTS": SHORT_LIVED,
        }
        return subprocess.Popen(line, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def drivers_logs(self) -> str:
        """Return what all drivers have written."""
        logs = [path for path in self.folder.rglob("container_*_000001/std*") if path.is_file()]
        return "\n".join(f"{path}:\n{path.read_text(errors='replace')[-3000:]}" for path in sorted(logs))


def kill(process: psutil.Process) -> None:
    """Kill a container's JVM with its Python processes, as the loss of its machine does."""
    for member in (*process.children(recursive=True), process):
        with suppress(psutil.NoSuchProcess):
            member.kill()


@contextmanager
def minicluster(folder: Path, jars: list[Path]) -> Iterator[Yarn]:
    """Run YARN during the block. Its folder is `folder`; the configuration for its clients is below that."""
    java = require_java(PROJECT)
    with (folder / "yarn.log").open("w") as log:
        port, process = launch_gateway(
            classpath=os.pathsep.join([*map(str, jars), f"{SPARK}/jars/*"]),
            die_on_exit=True,
            java_path=str(java / "bin" / "java"),
            javaopts=["-Xmx512m", *SHORT_LIVED.split()],
            redirect_stdout=log,
            redirect_stderr=log,
            cwd=folder,
            return_proc=True,
        )
        gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
        try:
            cluster = _started(gateway.jvm, folder)
            yield Yarn(folder)
            cluster.stop()
        finally:
            gateway.close()
            kill(psutil.Process(process.pid))
            process.communicate()


def _started(jvm: Any, folder: Path) -> Any:
    configuration = jvm.org.apache.hadoop.yarn.conf.YarnConfiguration()
    for name, value in SETTINGS.items():
        configuration.set(name, value)
    cluster = jvm.org.apache.hadoop.yarn.server.MiniYARNCluster("yarn", 1, 1, 1)
    cluster.init(configuration)
    cluster.start()
    assert cluster.waitForNodeManagersToConnect(60_000)
    (folder / "conf").mkdir()
    for name in ("core-site.xml", "yarn-site.xml"):
        file = jvm.java.io.FileOutputStream(str(folder / "conf" / name))
        cluster.getConfig().writeXml(file)
        file.close()
    return cluster
