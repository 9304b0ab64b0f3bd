"""Wheels as pip and uv choose them from an index: the one for this platform before the one for all, and the latter elsewhere.

HEADRACE_DIST names the folder of a release (`make release` sets it). Without it, this machine's compiler makes a wheel.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.jobs.home import PROJECT

pytestmark = pytest.mark.slow

VERSION = "headrace==0.2.0"
HERE = f"cp3{sys.version_info[1]}"
OURS = ("HEADRACE_", "PIP_FIND_LINKS", "PYTHON", "VIRTUAL_ENV", "UV_")
"""Variables of this repository's own environment."""

RELEASE = os.environ.get("HEADRACE_DIST")


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves a folder: its lists of files are pages of an index, as pip reads them."""

    def log_message(self, *_):
        """Say nothing."""


@contextmanager
def served(folder: Path):
    """Serve a folder; yield its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(folder))) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def run(*command: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    foreign = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    return subprocess.run(command, env={**foreign, **variables}, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def dist(tmp_path_factory) -> Path:
    """Return a folder with wheels: a release, or one for this machine and one for all."""
    if RELEASE:
        return Path(RELEASE)
    obstacle = runpy.run_path(str(PROJECT / "setup" / "compile_engine.py"))["obstacle"]()
    if obstacle is not None:
        pytest.skip(obstacle)
    folder = tmp_path_factory.mktemp("dist")
    for variables in ({}, {"HEADRACE_PURE_PYTHON": "1"}):
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
        subprocess.run(command, cwd=PROJECT, env={**os.environ, **variables}, check=True)
    return folder


@pytest.fixture(scope="module")
def index(tmp_path_factory, dist):
    """Yield the address of an index that has all wheels."""
    folder = tmp_path_factory.mktemp("index")
    (folder / "headrace").symlink_to(dist)
    with served(folder) as address:
        yield address


@pytest.fixture(scope="module")
def index_of_others(tmp_path_factory, dist):
    """Yield the address of an index as another platform sees it: no native wheel fits."""
    folder = tmp_path_factory.mktemp("others")
    (folder / "headrace").mkdir()
    for wheel in dist.glob("*.whl"):
        if "x86_64" not in wheel.name:
            (folder / "headrace" / wheel.name).symlink_to(wheel)
    with served(folder) as address:
        yield address


def environment(folder: Path, *options: str) -> Path:
    assert run(sys.executable, "-m", "uv", "venv", *options, "--python", sys.executable, folder).returncode == 0
    return folder


def by_uv(folder: Path, address: str) -> None:
    """Install the wheel and its dependencies by uv; skip the test where the package index cannot be reached."""
    python = ("--python", folder / "bin" / "python")
    probe = run(sys.executable, "-m", "uv", "pip", "install", *python, "--dry-run", "--no-cache", "iniconfig")
    if probe.returncode != 0:
        pytest.skip(f"the package index cannot be reached: {probe.stderr.strip()}")
    # A wheel of the same name may be in the cache, from another index.
    again = ("--index", address, "--refresh-package", "headrace", "--reinstall-package", "headrace")
    done = run(sys.executable, "-m", "uv", "pip", "install", *python, *again, "--only-binary", "headrace", VERSION)
    assert done.returncode == 0, done.stderr


def by_pip(folder: Path, address: str) -> None:
    """Install the wheel alone by pip, which takes half a minute for its dependencies."""
    options = ("--no-deps", "--no-cache-dir", "--force-reinstall", "--only-binary", "headrace", "--index-url", address)
    done = run(folder / "bin" / "python", "-m", "pip", "install", "--quiet", *options, VERSION)
    assert done.returncode == 0, done.stderr


def tag(folder: Path) -> str:
    """Return the tag of the installed wheel."""
    (file,) = folder.glob("lib/python*/site-packages/headrace-*.dist-info/WHEEL")
    return next(line.partition(": ")[2] for line in file.read_text().splitlines() if line.startswith("Tag: "))


def engine(folder: Path) -> str:
    """Return what `headrace doctor` says of the engine."""
    done = run(folder / "bin" / "headrace", "doctor", "--json")
    (finding,) = [finding for finding in json.loads(done.stdout)["findings"] if finding["check"] == "engine"]
    assert finding["outcome"] == "ok"
    return finding["detail"]


def test_uv_takes_the_wheel_with_a_module(tmp_path, index):
    folder = environment(tmp_path / "venv")
    by_uv(folder, index)
    assert tag(folder).startswith(f"{HERE}-{HERE}-{'manylinux' if RELEASE else 'linux'}")
    assert engine(folder) == "C"


def test_other_platforms_get_the_wheel_in_python(tmp_path, index_of_others):
    folder = environment(tmp_path / "venv")
    by_uv(folder, index_of_others)
    assert tag(folder) == "py3-none-any"
    assert engine(folder).startswith("Python (the module in C is not compiled)")


def test_pip_takes_the_same_wheels(tmp_path, index, index_of_others):
    folder = environment(tmp_path / "venv", "--seed")
    by_pip(folder, index)
    assert tag(folder).startswith(f"{HERE}-{HERE}-")
    by_pip(folder, index_of_others)
    assert tag(folder) == "py3-none-any"
