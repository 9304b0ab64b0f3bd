"""Jars that Spark needs for Delta tables, S3 and Kafka: find and fetch them."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from headrace.errors import ConfigError, ServiceError
from headrace.provision.java import java_options, packaged_folder, run_logged
from headrace.provision.pyspark import FITTING_SPARK, spark_home, spark_minor

DELTA_VERSION = "4.4.0"
"""Version of delta-spark, which the extra `spark` installs, and so of Delta's jars."""


@dataclass(frozen=True, kw_only=True)
class Jars:
    """Jars of one Maven package, pinned by their SHA-256."""

    name: str
    artifact: str
    """Group, artifact and version on Maven Central; `{spark}` stands for the minor version of the installed pyspark."""

    without: tuple[str, ...]
    """What the package names beside these is in Spark already, or serves what Headrace does not use."""

    sparks: tuple[str, ...] = FITTING_SPARK
    """Minor versions of Spark that these jars are pinned for."""

    @property
    def package(self) -> str:
        """Return the package for the installed pyspark."""
        return self.artifact.format(spark=spark_minor())

    def digests(self) -> dict[str, str]:
        """Return the SHA-256 of each file that the installed pyspark needs, by file name."""
        text = resources.files(__package__).joinpath(f"{self.name}.sha256").read_text()
        installed = spark_minor()
        others = [f"_{spark}_" for spark in FITTING_SPARK if spark != installed]
        digests = {file: digest for digest, file in map(str.split, text.splitlines())}
        return {file: digest for file, digest in digests.items() if not any(other in file for other in others)}

    def missing(self, folder: Path) -> list[str]:
        """Return the files that `folder` does not have, or has with another content."""
        return [file for file, digest in self.digests().items() if _sha256(folder / file) != digest]


DELTA = Jars(
    name="delta",
    artifact=f"io.delta:delta-spark_{{spark}}_2.13:{DELTA_VERSION}",
    without=(
        "com.fasterxml.jackson.core:jackson-databind",
        "io.delta:delta-kernel-api",
        "io.delta:delta-kernel-defaults",
        "io.delta:delta-kernel-unitycatalog",
        "io.unitycatalog:unitycatalog-client",
        "io.unitycatalog:unitycatalog-hadoop",
        "org.antlr:antlr4-runtime",
        "org.apache.hadoop:hadoop-client-api",
        "org.apache.hadoop:hadoop-client-runtime",
        "org.apache.logging.log4j:log4j-api",
        "org.apache.logging.log4j:log4j-core",
        "org.apache.logging.log4j:log4j-slf4j2-impl",
        "org.apache.parquet:parquet-hadoop",
    ),
)
S3 = Jars(
    name="s3",
    artifact="org.apache.hadoop:hadoop-aws:3.5.0",
    sparks=("4.2",),
    without=(
        "org.apache.hadoop:hadoop-client-api",
        "org.apache.hadoop:hadoop-client-runtime",
        "org.apache.hadoop:hadoop-common",
        "org.wildfly.openssl:wildfly-openssl",
    ),
)
KAFKA = Jars(
    name="kafka",
    artifact="org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    sparks=("4.2",),
    without=(
        "at.yawk.lz4:lz4-java",
        "com.google.code.findbugs:jsr305",
        "org.apache.hadoop:hadoop-client-api",
        "org.apache.hadoop:hadoop-client-runtime",
        "org.scala-lang.modules:scala-parallel-collections_2.13",
        "org.slf4j:slf4j-api",
        "org.xerial.snappy:snappy-java",
    ),
)


CONNECTORS = {jars.name: jars for jars in (DELTA, S3, KAFKA)}
"""What a cluster profile names under `connectors`, by name."""


def connector_files(names: Iterable[str], home: Path) -> Iterator[str]:
    """Yield the jars of connectors, where `fetch` puts them."""
    for name in names:
        yield from (str(jars_folder(home) / file) for file in CONNECTORS[name].digests())


def absent_jars(jars: Sequence[str]) -> list[str]:
    """Return the jars of a cluster profile that are missing on this machine; URIs are not checked."""
    return [jar for jar in jars if "://" not in jar and not Path(jar).is_file()]


def how_to_get(absent: Sequence[str]) -> str:
    """Return advice about missing jars, for messages."""
    names = {Path(jar).name for jar in absent}
    of = {name: names & jars.digests().keys() for name, jars in CONNECTORS.items()}
    if names != set().union(*of.values()):
        return "Put them there, or mend the profile's list."
    command = " ".join(["Run: headrace setup", *(f"--{name}" for name in ("s3", "kafka") if of[name])])
    return (
        f"{command} (or, where Spark has Delta itself, write connectors: [] in the profile)" if of["delta"] else command
    )


def jars_folder(home: Path) -> Path:
    """Return the folder that the project's cluster profiles name jars in."""
    return home / "var" / "jars"


def fetch(wanted: Jars, home: Path, java: Path, folder: Path | None = None) -> None:
    """Fetch jars into `folder` (by default the project's `var/jars`) with Spark's own resolver; check them before they are stored there.

    The resolver reads the settings file that HEADRACE_IVY_SETTINGS names. Raises `ServiceError` when the resolver
    fails, or delivers another file than the pinned one; the folder is unchanged then. Raises `ConfigError` for jars that are
    pinned for another Spark than the installed one.
    """
    if spark_minor() not in wanted.sparks:
        raise ConfigError(
            f"the jars of {wanted.name} are pinned for Spark {', '.join(wanted.sparks)}, and Spark {spark_minor()} is installed. "
            "Nothing was fetched. Put those of your Spark where you like, and name them under 'jars' of the cluster profile."
        )
    folder = folder or jars_folder(home)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as temporary:
        work = Path(temporary)
        _resolve(wanted, home, java, work)
        for file, digest in wanted.digests().items():
            _take(work, file, digest, folder / file)


def _resolve(wanted: Jars, home: Path, java: Path, work: Path) -> None:
    spark, nothing = spark_home(), work / "nothing.py"
    nothing.write_text("")
    options = java_options(work) if java == packaged_folder(home) else ""
    settings = os.environ.get("HEADRACE_IVY_SETTINGS")
    environment = {
        **os.environ,
        "JAVA_HOME": str(java),
        "SPARK_HOME": str(spark),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": f"{options} {os.environ.get('SPARK_SUBMIT_OPTS', '')}".strip(),
    }
    submit = [str(spark / "bin" / "spark-submit"), "--master", "local[1]", "--conf", f"spark.jars.ivy={work}"]
    mirror = ["--conf", f"spark.jars.ivySettings={settings}"] if settings else []
    packages = ["--packages", wanted.package, "--exclude-packages", ",".join(wanted.without), str(nothing)]
    run_logged([*submit, *mirror, *packages], log=home / "var" / "log" / "setup-jars.log", environment=environment)


def _take(work: Path, file: str, digest: str, target: Path) -> None:
    fetched = next(work.glob(f"jars/*_{file}"), None)
    if fetched is None:
        raise ServiceError(f"{file} was not among what the resolver fetched; {target} is as it was")
    actual = _sha256(fetched)
    if actual != digest:
        raise ServiceError(
            f"{file} was fetched with the SHA-256 {actual}, and {digest} is expected; {target} is as it was. "
            "Look at the repository that it came from (HEADRACE_IVY_SETTINGS), or at the proxy in between"
        )
    part = fetched.rename(work / f"{file}.part")
    shutil.move(part, target)


def _sha256(file: Path) -> str | None:
    if not file.is_file():
        return None
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
