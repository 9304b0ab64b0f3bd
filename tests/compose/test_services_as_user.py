"""The commands of docker-compose.yml, run as the image's user in a root folder made like the image's, without Docker.

Namespaces stand in for containers: file system, network, processes and host name are the test's own. Two things
differ from the image. Packages are those of this machine: they are bound to the image's path, and the user may only
read them. And PostgreSQL runs as its own user of this machine.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from string import Template
from typing import Self

import psutil
import pytest
import yaml

from headrace import clock

PROJECT = Path(__file__).resolve().parents[2]
SERVICES = yaml.safe_load((PROJECT / "docker-compose.yml").read_text())["services"]
DOCKERFILE = (PROJECT / "Dockerfile").read_text()
IMAGE_HOME = "/opt/headrace"
USER = 50000
OWN_FOLDERS = {"home", "opt", "tmp", "etc", "proc", "volumes", "lost+found"}
"""What the root folder does not have from this machine."""
STARTS_WITHIN = 300.0
SECRETS = {
    "STORE_ACCESS_KEY": "a-store-key",
    "STORE_SECRET_KEY": "a-store-secret",
    "POSTGRES_PASSWORD": "a-password",
    "AIRFLOW_FERNET_KEY": "x2ZV0cDMbQFCtDVr1XGnAcfU1nLbRrjmOV4h5TKW7hc=",
    "AIRFLOW_JWT_SECRET": "a-jwt-secret-of-32-characters-or-more",
    "AIRFLOW_API_SECRET_KEY": "an-api-secret",
    "AIRFLOW_ADMIN_PASSWORD": "an-admin-password",
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="making namespaces needs root"),
    pytest.mark.skipif(shutil.which("initdb") is None, reason="there is no PostgreSQL here"),
]


class Containers:
    """A root folder like the image's, in separate namespaces, and the processes in it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._root = folder / "root"
        self._home = self._root / IMAGE_HOME[1:]
        self.volumes = folder / "volumes"
        self._init: subprocess.Popen[bytes] | None = None
        self._services: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self._build()
        self._boot()
        return self

    def __exit__(self, *_: object) -> None:
        if self._init is not None:
            self._init.kill()  # the first process of the namespace: all others die with it
            for process in (self._init, *self._services):
                process.wait()

    def run(self, service: str) -> None:
        """Run the service's command to its end."""
        done = subprocess.run(
            self._line(service, SERVICES[service]["command"]), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{service}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"

    def run_until_done(self, service: str) -> None:
        """Run the service's command again until it succeeds, like `restart: on-failure`."""
        line = self._line(service, SERVICES[service]["command"])
        deadline = clock.monotonic() + STARTS_WITHIN
        while (done := subprocess.run(line, capture_output=True, text=True, check=False)).returncode:
            assert clock.monotonic() < deadline, f"{service}: {done.stderr[-3000:]}"
            clock.sleep(1)

    def start(self, service: str) -> None:
        """Start the service's command."""
        with self._log(service).open("w") as log:
            command = self._line(service, SERVICES[service]["command"])
            self._services.append(subprocess.Popen(command, stdout=log, stderr=log))

    def start_postgres(self) -> None:
        """Create a database cluster with the service's user, password and database, as the image's entry point does, and start it."""
        settings = environment("postgres")
        (self._root / "tmp" / "password").write_text(settings["POSTGRES_PASSWORD"])
        data = "/tmp/postgres"  # noqa: S108  a folder of the new root
        user = settings["POSTGRES_USER"]
        script = (
            f"initdb -D {data} -U {user} --auth-host=scram-sha-256 --auth-local=trust --pwfile=/tmp/password && "
            f"pg_ctl -D {data} -w -o '-k /tmp' -l /tmp/postgres.log start && "
            f"psql -h /tmp -U {user} -d postgres -c 'CREATE DATABASE {settings['POSTGRES_DB']}'"
        )
        path = f"{Path(shutil.which('initdb') or '').resolve().parent}:/usr/bin:/bin"
        line = self._in_namespace(pwd.getpwnam("postgres").pw_uid, {"PATH": path}, ["sh", "-c", script])
        subprocess.run(line, check=True, stdout=subprocess.DEVNULL)

    def start_object_store(self) -> None:
        """Start a stand-in for the object store on its port: the real program exists only in another image."""
        log = self._log("store").open("w")
        line = self._in_namespace(USER, image_environment(), ["moto_server", "--host", "127.0.0.1", "--port", "7070"])
        with log:
            self._services.append(subprocess.Popen(line, stdout=log, stderr=log))

    def wait_until_healthy(self, service: str) -> None:
        """Run the service's health check until it succeeds."""
        line = self._line(service, SERVICES[service]["healthcheck"]["test"][1:])
        deadline = clock.monotonic() + STARTS_WITHIN
        while (done := subprocess.run(line, capture_output=True, text=True, check=False)).returncode:
            message = self._log(service).read_text()[-3000:]
            assert clock.monotonic() < deadline, f"{service} is not healthy: {done.stderr[-1000:]}\n{message}"
            clock.sleep(1)

    def _build(self) -> None:
        """Follow the Dockerfile: copy what it copies, as its user, and make the folders that it makes."""
        self._home.mkdir(parents=True)
        for sources in re.findall(r"^COPY --chown=headrace (.+) \S+$", DOCKERFILE, re.MULTILINE):
            for source in map(Path, sources.split()):
                if (PROJECT / source).is_dir():
                    shutil.copytree(PROJECT / source, self._home / source, ignore=shutil.ignore_patterns("__pycache__"))
                else:
                    shutil.copy(PROJECT / source, self._home / source)
        (self._home / ".venv").mkdir()
        for path in (self._home, *self._home.rglob("*")):
            os.chown(path, USER, USER)
        folders = [
            folder
            for folders in re.findall(r"^RUN mkdir -p (.*?)(?: &&.*)?$", DOCKERFILE, re.MULTILINE)
            for folder in folders.split()
        ]
        subprocess.run(["mkdir", "-p", *folders], cwd=self._home, check=True, user=USER, group=USER, extra_groups=[])

    def _boot(self) -> None:
        """Bind this machine's programs, the packages and the volumes below the root, and start the first process there."""
        binds = [(folder, folder) for folder in map(str, Path("/").iterdir()) if self._is_bound(Path(folder))]
        for link in (path for path in Path("/").iterdir() if path.is_symlink()):
            (self._root / link.name).symlink_to(link.readlink())
        (self._root / "tmp").mkdir(mode=0o1777)
        (self._root / "tmp").chmod(0o1777)
        (self._root / "home" / "headrace").mkdir(parents=True)
        os.chown(self._root / "home" / "headrace", USER, USER)
        self._write_etc()
        binds += [(path, path) for path in (str(Path(sys.prefix).resolve()), sys.base_prefix)]
        binds.append((str(Path(sys.prefix).resolve()), f"{IMAGE_HOME}/.venv"))
        for name, target in sorted(mounted()):
            (self.volumes / name).mkdir(parents=True, exist_ok=True)
            binds.append((str(self.volumes / name), target))
        script = ["set -e", "ip link set lo up || ifconfig lo up"]
        for source, target in binds:
            place = f"{self._root}{target}"
            # Docker makes the folder of a mount, and its parents, as root where they are not there.
            script += [f"mkdir -p '{place}'", f"mount --rbind '{source}' '{place}'"]
        script += [
            f"mkdir -p '{self._root}/proc'",
            f"mount -t proc proc '{self._root}/proc'",
            "hostname airflow-scheduler",
            f"exec chroot '{self._root}' sleep infinity",
        ]
        spaces = ["--mount", "--net", "--uts", "--ipc", "--pid", "--fork", "--kill-child"]
        self._init = subprocess.Popen(["unshare", *spaces, "bash", "-c", "\n".join(script)])
        deadline = clock.monotonic() + STARTS_WITHIN
        while not self._first_process().name().startswith("sleep"):
            assert self._init.poll() is None, "the namespace could not be made"
            assert clock.monotonic() < deadline
            clock.sleep(0.1)

    def _first_process(self) -> psutil.Process:
        assert self._init is not None
        this = psutil.Process(self._init.pid)
        return next(iter(this.children()), this)

    def _is_bound(self, folder: Path) -> bool:
        return folder.is_dir() and not folder.is_symlink() and folder.name not in OWN_FOLDERS

    def _write_etc(self) -> None:
        """Copy /etc, with the image's user and the host names of the services."""
        etc = self._root / "etc"
        subprocess.run(["cp", "-a", "/etc", str(etc)], check=True)
        with (etc / "passwd").open("a") as users, (etc / "group").open("a") as groups:
            users.write(f"headrace:x:{USER}:{USER}::/home/headrace:/bin/sh\n")
            groups.write(f"headrace:x:{USER}:\n")
        (etc / "hosts").unlink()
        (etc / "hosts").write_text(f"127.0.0.1 localhost {' '.join(SERVICES)}\n")

    def _line(self, service: str, command: list[str]) -> list[str]:
        user = 0 if SERVICES[service].get("user") == "root" else USER
        return self._in_namespace(user, {**image_environment(), **environment(service)}, command)

    def _in_namespace(self, user: int, variables: Mapping[str, str], command: list[str]) -> list[str]:
        # The user may read files of root, because some packages are below /root; to write, the user needs the
        # permissions of the image.
        reading = ["--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search"] if user else []
        return [
            *("nsenter", "--target", str(self._first_process().pid), "--all", "--root"),
            *("setpriv", "--reuid", str(user), "--regid", str(user), "--clear-groups", *reading),
            *("env", "-i", *(f"{name}={value}" for name, value in variables.items())),
            *("sh", "-c", 'cd "$0" && exec "$@"', IMAGE_HOME if user == USER else "/", *command),
        ]

    def _log(self, service: str) -> Path:
        return self._folder / f"{service}.log"


def mounted() -> set[tuple[str, str]]:
    """Return the named volumes of the image's services, with their targets."""
    own = [service for service in SERVICES.values() if service["image"].startswith("headrace:")]
    pairs = (volume.split(":") for service in own for volume in service.get("volumes", ()))
    return {(name, target) for name, target in pairs}


def environment(service: str) -> dict[str, str]:
    """Return the service's variables, with secrets of the test."""
    plain = re.compile(r":\?[^}]*")
    given = SERVICES[service].get("environment", {})
    return {name: Template(plain.sub("", str(value))).substitute(SECRETS) for name, value in given.items()}


def image_environment() -> dict[str, str]:
    """Return the variables that the Dockerfile sets, for this machine's minor version of Python."""
    text = DOCKERFILE.replace("\\\n", " ")
    pairs = dict(pair.split("=", 1) for line in re.findall(r"^ENV (.*)$", text, re.MULTILINE) for pair in line.split())
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    paths = {name: re.sub(r"python3\.\d+", version, value) for name, value in pairs.items()}
    # Where the image has the project installed.
    return {**paths, "PYTHONPATH": f"{IMAGE_HOME}/engine", "HOME": "/home/headrace", "LANG": "C.UTF-8"}


@pytest.fixture(scope="module")
def containers(tmp_path_factory) -> Iterator[Containers]:
    with ExitStack() as stack:
        yield stack.enter_context(Containers(tmp_path_factory.mktemp("compose")))


def test_airflow_starts_as_the_image_user(containers):
    containers.run("volumes-init")
    containers.start_postgres()
    containers.run("airflow-init")
    services = ["airflow-api-server", "airflow-scheduler", "airflow-dag-processor", "airflow-triggerer", "weather"]
    for service in services:
        containers.start(service)
    for service in services:
        containers.wait_until_healthy(service)

    passwords = containers.volumes / "airflow-passwords" / "passwords.json"
    assert passwords.stat().st_uid == USER
    assert json.loads(passwords.read_text()) == {"admin": SECRETS["AIRFLOW_ADMIN_PASSWORD"]}


def test_spark_and_bucket_start_as_the_image_user(tmp_path):
    workers = ["spark-worker-1", "spark-worker-2"]
    with Containers(tmp_path) as containers:  # a network of their own: Spark's master and Airflow have the same port
        containers.run("volumes-init")
        containers.start_object_store()
        containers.start("spark-master")
        containers.wait_until_healthy("spark-master")
        for worker in workers:
            containers.start(worker)
        containers.run("input")
        containers.run_until_done("store-init")
        for worker in workers:
            containers.wait_until_healthy(worker)

        days = {day.name: day.stat().st_uid for day in containers.volumes.joinpath("input").rglob("*.parquet")}
        assert {"2013-01-01.parquet", "2013-01-31.parquet"} <= days.keys()
        assert {*days.values()} == {USER}
