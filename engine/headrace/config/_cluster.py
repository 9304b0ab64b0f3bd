"""Cluster profiles, `conf/clusters/<name>.yaml`: where Spark runs and how storage is reached."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

import msgspec

from headrace.config._types import Location, Scalar, Tasks, shown_repr

_SECRET = re.compile(
    r"password|passwd|secret|token|credential|private_?key|api_?key|access_?key|sas_?key|jaas",
    re.IGNORECASE,
)
HIDDEN = "***"


def is_secret(key: str) -> bool:
    """Return whether a setting of this name holds a secret, which must not be written down or shown."""
    return _SECRET.search(re.sub(r"[.\-]", "_", key)) is not None


class ClusterFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cluster profile; [Running on a cluster](running-on-a-cluster.md) says which one to take."""

    master: str
    """Spark master URL, such as `local[2]` or `spark://spark-master:7077`; `sc://host:15002` is a server of Spark Connect."""

    parallelism: Tasks
    """Tasks per operator, unless the job or the command line says otherwise."""

    runner: Literal["spark", "local"] = "spark"
    """Where tasks run. local: in processes of this machine, without a JVM, for small slices; then no Spark setting counts."""

    deploy_mode: Literal["client", "cluster"] = "client"
    """Where the driver runs. Spark standalone takes Python drivers in client mode only."""

    spark: dict[str, Scalar] = {}
    """Spark settings, by their full names."""

    storage: dict[str, Scalar] = {}
    """Options of the object store for deltalake, such as `AWS_ENDPOINT_URL`. Secrets: `"${NAME}"`."""

    connectors: tuple[Literal["delta", "s3", "kafka"], ...] = ("delta",)
    """What Spark reads and writes with, from the jars of `headrace setup`. `[]`: the cluster has Delta itself."""

    jars: tuple[Location, ...] = ()
    """Further jars for the driver and the executors."""

    py_files: tuple[Location, ...] = ()
    """Archives of Python code for the executors."""

    files: tuple[Location, ...] = ()
    """Files that Spark puts into the working folder of each executor."""

    archives: tuple[Location, ...] = ()
    """Archives that Spark unpacks there, such as a packed environment: `env.tar.gz#environment`."""

    python: Location | None = None
    """The Python that starts jobs from Airflow, in an environment that has Headrace with Spark; null: the one that runs Airflow."""

    connection: str | None = None
    """The Airflow connection that submits to this cluster; null submits to `master`."""


class ClusterConfig(ClusterFile, frozen=True, kw_only=True):
    """A cluster profile as loaded, with its name and file."""

    name: str
    file: Path

    @property
    def is_connect(self) -> bool:
        """Return whether tasks run on a server of Spark Connect."""
        return self.master.startswith("sc://")

    @property
    def shown_master(self) -> str:
        """Return `master` for printing: the parameters of a Connect server may have a token."""
        place, _, hidden = self.master.partition(";")
        return f"{place};{HIDDEN}" if self.is_connect and hidden else self.master

    @property
    def jar_files(self) -> tuple[str, ...]:
        """Return all jars for the driver and the executors: those of the connectors, and the further ones."""
        # Most commands need no jars, and the import costs as much as a fifth of that of this package.
        from headrace.provision.jars import connector_files

        return (*dict.fromkeys([*connector_files(self.connectors, self.file.parents[2]), *self.jars]),)

    def shown(self) -> dict[str, Any]:
        """Return the settings for printing: values of `storage` and of secret settings are hidden."""
        plain: dict[str, Any] = msgspec.to_builtins(self, enc_hook=str)
        plain["master"] = self.shown_master
        plain["jars"] = [*self.jar_files]
        plain["storage"] = dict.fromkeys(self.storage, HIDDEN)
        plain["spark"] = {key: HIDDEN if is_secret(key) else value for key, value in self.spark.items()}
        return plain

    def __repr__(self) -> str:
        """Return a struct's text with secrets hidden: profiles end up in tracebacks and logs."""
        return shown_repr(self, self.shown())
