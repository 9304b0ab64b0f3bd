"""`deploy/kubernetes`: the Dockerfile's steps in a root folder, and the pod's command in it as the manifest says, without Docker.

The base image's programs are those of this machine. Namespaces stand in for the container.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
import yaml
from deltalake import DeltaTable

from tests.jobs.home import PROJECT

KUBERNETES = PROJECT / "deploy" / "kubernetes"
SECRETS = {("shop-store", "access-key"): "a-key", ("shop-store", "secret-key"): "a-secret"}
BASE_PATH = f"{sys.base_prefix}/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.skipif(os.geteuid() != 0, reason="making namespaces needs root"),
]


class Image:
    """A root folder, and what the Dockerfile says about the commands in it."""

    def __init__(self, root: Path, arguments: Mapping[str, str]) -> None:
        self.root = root
        self.variables = {"PATH": BASE_PATH, "LANG": "C.UTF-8"} | {
            k: v for k, v in os.environ.items() if k.startswith("PIP_")
        }
        self.folder = "/"
        self.user = 0
        self.entry_point: list[str] = []
        self._arguments = arguments

    def build(self, dockerfile: str, context: Path) -> None:
        """Follow the steps of a Dockerfile."""
        self._base()
        text = re.sub(r"^\s*#.*\n", "", dockerfile.replace("\\\n", " "), flags=re.MULTILINE)
        for line in filter(None, text.splitlines()):
            step, _, rest = line.partition(" ")
            getattr(self, f"_{step.lower()}")(rest.strip(), context)

    def command(self, words: list[str], mounts: list[str], variables: Mapping[str, str]) -> list[str]:
        """Return the command line that runs words in the root folder, after the commands `mounts`."""
        script = ["set -e", *self._binds(), *mounts, 'exec chroot "$0" "$@"']
        ids = ("--reuid", str(self.user), "--regid", str(self.user), "--clear-groups")
        rights = ("--no-new-privs", "--bounding-set=-all", "--inh-caps=-all") if self.user else ()
        return [
            *("unshare", "--mount", "--pid", "--fork", "--kill-child", "bash", "-c", "\n".join(script), str(self.root)),
            *("setpriv", *ids, *rights, "env", "-i", *(f"{name}={value}" for name, value in variables.items())),
            *("sh", "-c", 'cd "$0" && exec "$@"', self.folder, *words),
        ]

    def _base(self) -> None:
        for entry in map(Path, ("/bin", "/sbin", "/lib", "/lib64")):
            if entry.is_symlink():
                (self.root / entry.name).symlink_to(entry.readlink())
        subprocess.run(["cp", "-a", "/etc", self.root / "etc"], check=True)
        self.root.chmod(0o755)
        (self.root / "tmp").mkdir()
        (self.root / "tmp").chmod(0o1777)

    def _binds(self) -> list[str]:
        places = ["/usr", "/dev", *([] if Path(sys.base_prefix).is_relative_to("/usr") else [sys.base_prefix])]
        lines = [f"mkdir -p '{self.root}{place}' && mount --rbind '{place}' '{self.root}{place}'" for place in places]
        return [*lines, f"mkdir -p '{self.root}/proc' && mount -t proc proc '{self.root}/proc'"]

    def _from(self, *_: object) -> None:
        """The base image is this machine."""

    def _arg(self, rest: str, _: Path) -> None:
        name, _, default = rest.partition("=")
        self.variables[name] = self._arguments.get(name, default)

    def _env(self, rest: str, _: Path) -> None:
        self.variables |= dict(pair.split("=", 1) for pair in shlex.split(rest))

    def _run(self, rest: str, _: Path) -> None:
        line = self.command(["sh", "-c", rest], [], self.variables)
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{rest}:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"

    def _workdir(self, rest: str, _: Path) -> None:
        self.folder = rest
        (self.root / rest[1:]).mkdir(parents=True)

    def _copy(self, rest: str, context: Path) -> None:
        source, target = rest.split()
        shutil.copytree(context / source, self.root / self.folder[1:] / target)

    def _user(self, rest: str, _: Path) -> None:
        self.user = int(rest)

    def _entrypoint(self, rest: str, _: Path) -> None:
        self.entry_point = json.loads(rest)

    def _cmd(self, *_: object) -> None:
        """The manifest has arguments of its own."""


def value_of(variable: dict[str, Any]) -> str:
    """Return the value of a container's variable, of the test's secrets if it is one."""
    secret = variable.get("valueFrom", {}).get("secretKeyRef")
    return variable["value"] if secret is None else SECRETS[secret["name"], secret["key"]]


def run_pod(image: Image, pod: dict[str, Any], claims: Mapping[str, Path]) -> subprocess.CompletedProcess[str]:
    """Run the pod's container: its user, its variables, a read-only root, and its volumes."""
    container = pod["containers"][0]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert pod["securityContext"]["runAsUser"] == image.user
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounts = [
        f"mount --bind '{image.root}' '{image.root}'",
        *image._binds(),
        f"mount -o remount,bind,ro '{image.root}'",
    ]
    for mount in container["volumeMounts"]:
        place, volume = f"{image.root}{mount['mountPath']}", volumes[mount["name"]]
        if "emptyDir" in volume:
            mounts.append(f"mkdir -p '{place}' && mount -t tmpfs -o uid={image.user},mode=1777 tmpfs '{place}'")
        else:
            mounts.append(f"mount --bind '{claims[volume['persistentVolumeClaim']['claimName']]}' '{place}'")
    variables = image.variables | {variable["name"]: value_of(variable) for variable in container["env"]}
    line = image.command([*image.entry_point, *container["args"]], mounts, variables)
    return subprocess.run(line, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Build the wheel of this working tree, without the module in C: it fits any Python."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
    subprocess.run(command, cwd=PROJECT, env=os.environ | {"HEADRACE_PURE_PYTHON": "1"}, check=True)
    return next(folder.glob("headrace-*.whl"))


@pytest.fixture(scope="module")
def shop(tmp_path_factory) -> Path:
    """Return the project of `headrace new shop`."""
    folder = tmp_path_factory.mktemp("work")
    command = [sys.executable, "-c", "from headrace.cli import main; main()", "new", "shop"]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return folder / "shop"


@pytest.fixture(scope="module")
def image(tmp_path_factory, wheel, shop) -> Image:
    """Build the image of the project; skip the test where the package index cannot be reached."""
    probe = [sys.executable, "-m", "uv", "pip", "install", "--dry-run", "--no-cache", "iniconfig"]
    if (done := subprocess.run(probe, capture_output=True, text=True, check=False)).returncode:
        pytest.skip(f"the package index cannot be reached: {done.stderr.strip()}")
    root = tmp_path_factory.mktemp("root")
    built = Image(root, {"HEADRACE": f"/opt/{wheel.name}"})
    (root / "opt").mkdir()
    shutil.copy(wheel, root / "opt")
    built.build((KUBERNETES / "Dockerfile").read_text(), shop)
    return built


def test_pod_runs_job_on_read_only_root(image, shop, tmp_path):
    tables = tmp_path / "tables"
    tables.mkdir()
    os.chown(tables, image.user, image.user)
    claims = {"shop-input": shop / "input", "shop-tables": tables}
    cron_job = yaml.safe_load((KUBERNETES / "cronjob.yaml").read_text())
    pod = cron_job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    for _ in range(2):  # the second pod has nothing to do
        ran = run_pod(image, pod, claims)
        assert ran.returncode == 0, ran.stdout + ran.stderr
    customers = DeltaTable(tables / "lake" / "customers").to_pyarrow_table()
    orders = ds.dataset(shop / "input" / "orders").to_table()
    assert pc.sum(customers["orders"]).as_py() == len(orders)
    assert pc.sum(customers["spent"]).as_py() == pc.sum(orders["amount"]).as_py()
    assert {path.stat().st_uid for path in tables.rglob("*") if path.is_file()} == {image.user}
