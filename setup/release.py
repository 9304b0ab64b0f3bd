"""Build a release of the commit that is checked out, into dist/: sdist, wheels, SBOM, licences and checksums.

    .venv/bin/python setup/release.py [VERSION OF PYTHON...]      (`make release` calls it)

Builds twice, in two folders, and compares the bytes. Native wheels are for Linux on x86-64 and aarch64, compiled by Zig against an
old glibc, and checked by auditwheel. Without versions, for all that pyproject.toml allows: each needs its header files here. Changes
that are not committed are left out.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import compile_engine as engine  # type: ignore[import-not-found]  # a script's neighbour
import licences  # type: ignore[import-not-found]  # a script's neighbour

HOME = Path(__file__).resolve().parent.parent
TOOLS = HOME / "var" / "release-tools"
PYTHON = TOOLS / "bin" / "python"
DIST = HOME / "dist"
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
ARCHITECTURES = ("x86_64", "aarch64")
GLIBC = (2, 17)
"""The oldest that a wheel may need: that of manylinux2014."""

WARNINGS = ("-Wall", "-Wextra", "-Werror")
EXPECTED = "600 rows in C"
"""What the job of `headrace new` takes in, and what it runs in."""

OURS = ("HEADRACE_", "PYTHONPATH", "VIRTUAL_ENV")
"""Variables of this repository's own environment."""

INCLUDE = "import sys, sysconfig; print(sys.version_info[:2], sysconfig.get_paths()['include'], sep='\\n')"
SAME_SIZES = """
#include <Python.h>
#include <sys/types.h>
#define SAME(type, size) _Static_assert(sizeof(type) == (size), "the header files are for another platform: " #type)
SAME(void *, SIZEOF_VOID_P);
SAME(long, SIZEOF_LONG);
SAME(long long, SIZEOF_LONG_LONG);
SAME(int, SIZEOF_INT);
SAME(size_t, SIZEOF_SIZE_T);
SAME(wchar_t, SIZEOF_WCHAR_T);
SAME(pid_t, SIZEOF_PID_T);
SAME(_Bool, SIZEOF__BOOL);
"""
"""Header files of an x86-64 serve aarch64 as well if this compiles: in those that users include, only sizes differ by platform."""


class ReleaseError(Exception):
    """No release; the message says why."""


@dataclass(frozen=True)
class Target:
    """A version of Python on an architecture, for which a wheel is built."""

    python: str
    architecture: str
    interpreter: Path
    include: Path

    @property
    def tag(self) -> str:
        """The tag of the wheel."""
        cpython = f"cp{self.python.replace('.', '')}"
        return f"{cpython}-{cpython}-manylinux_{GLIBC[0]}_{GLIBC[1]}_{self.architecture}"

    @property
    def suffix(self) -> str:
        """How this Python's modules end."""
        return f".cpython-{self.python.replace('.', '')}-{self.architecture}-linux-gnu.so"


def main() -> int:
    """Build, compare, check; return the exit code."""
    try:
        install_tools()
        targets = [
            Target(version, architecture, *python_of(version))
            for version in sys.argv[1:] or VERSIONS
            for architecture in ARCHITECTURES
        ]
        with tempfile.TemporaryDirectory(prefix="headrace-release-") as folder:
            built, again = (Path(folder, name) for name in ("built", "built-again-elsewhere"))
            for place in (built, again):
                build(place, targets)
            compare(checksums(built / "dist"), checksums(again / "dist"))
            shutil.rmtree(DIST, ignore_errors=True)
            shutil.copytree(built / "dist", DIST)
        for wheel in sorted(DIST.glob("*manylinux*.whl")):
            print(f"auditwheel: {audited(wheel)}")
        for target in targets:
            if target.architecture == platform.machine():
                print(f"{target.tag}: {tried(target)}", flush=True)
        list_packages()
        sums = "".join(f"{value}  {name}\n" for name, value in checksums(DIST).items())
        (DIST / "SHA256SUMS").write_text(sums)
        print(sums, end="")
    except ReleaseError as error:
        print(f"make release: {error}", file=sys.stderr)
        return 1
    return 0


def install_tools() -> None:
    """Make the environment of the tools, as setup/release.txt pins them."""
    uv = (sys.executable, "-m", "uv")
    run(*uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, TOOLS)
    run(*uv, "pip", "sync", "--quiet", "--require-hashes", "--python", PYTHON, HOME / "setup" / "release.txt")


def python_of(version: str) -> tuple[Path, Path]:
    """Return an interpreter of a version that is installed on this machine, and the folder of its header files."""
    for python in _interpreters(version):
        done = subprocess.run([python, "-I", "-c", INCLUDE], capture_output=True, text=True, check=False)
        itself, _, include = done.stdout.strip().partition("\n")
        if itself == f"({version.replace('.', ', ')})" and Path(include, "Python.h").exists():
            return Path(python), Path(include)
    msg = f"there is no Python {version} with header files here. Install it (pyenv, or uv python install {version}), or name those to build for: make release PYTHONS=3.11"
    raise ReleaseError(msg)


def _interpreters(version: str) -> Iterator[str | Path]:
    name = f"python{version}"
    yield from filter(None, (sys.executable, shutil.which(name)))
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from sorted(pyenv.glob(f"versions/{version}.*/bin/{name}"), reverse=True)
    yield from sorted(Path.home().glob(f".local/share/uv/python/cpython-{version}.*/bin/{name}"), reverse=True)


def build(folder: Path, targets: Sequence[Target]) -> None:
    """Build everything from the commit's files, in a folder that has nothing else."""
    source, dist = folder / "source", folder / "dist"
    source.mkdir(parents=True)
    content = run("git", "archive", "HEAD", cwd=HOME)
    subprocess.run(["tar", "-x"], cwd=source, input=content, check=True)
    committed = run("git", "log", "-1", "--format=%ct", cwd=HOME).decode().strip()
    hatch = (PYTHON, "-m", "hatchling", "build", "-d", dist)
    run(*hatch, "-t", "sdist", cwd=source, SOURCE_DATE_EPOCH=committed)
    run(*hatch, "-t", "wheel", cwd=source, SOURCE_DATE_EPOCH=committed, HEADRACE_PURE_PYTHON="1")
    for target in targets:
        module = compiled(source, folder / "modules" / target.tag, target)
        given = {"HEADRACE_MODULE": str(module), "HEADRACE_WHEEL_TAG": target.tag}
        run(*hatch, "-t", "wheel", cwd=source, SOURCE_DATE_EPOCH=committed, **given)
        print(f"built {target.tag}", flush=True)


def compiled(source: Path, folder: Path, target: Target) -> Path:
    """Compile the module in C for a target; return its file."""
    folder.mkdir(parents=True)
    file = source / engine.SOURCE.relative_to(HOME)
    module = folder / f"_objects-{engine.digest(file)}{target.suffix}"
    sizes = folder / "sizes.c"
    sizes.write_text(SAME_SIZES)
    triple = f"{target.architecture}-linux-gnu.{GLIBC[0]}.{GLIBC[1]}"
    zig = (PYTHON, "-m", "ziglang", "cc", "-target", triple, f"-I{target.include}", f"-ffile-prefix-map={source}=.")
    cache = str(folder.parent / "zig")
    run(*zig, "-c", sizes, "-o", folder / "sizes.o", ZIG_GLOBAL_CACHE_DIR=cache, ZIG_LOCAL_CACHE_DIR=cache)
    run(
        *zig,
        *engine.FLAGS,
        *WARNINGS,
        "-g0",
        "-s",
        file,
        "-o",
        module,
        ZIG_GLOBAL_CACHE_DIR=cache,
        ZIG_LOCAL_CACHE_DIR=cache,
    )
    return module


def checksums(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file."""
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.iterdir())}


def compare(sums: Mapping[str, str], others: Mapping[str, str]) -> None:
    """Refuse two builds whose bytes differ."""
    if sums != others:
        differing = sorted(name for name in sums.keys() | others.keys() if sums.get(name) != others.get(name))
        msg = f"a second build has other bytes: {', '.join(differing)}"
        raise ReleaseError(msg)
    print(f"{len(sums)} files, and a second build has the same bytes", flush=True)


def audited(wheel: Path) -> str:
    """Return what auditwheel says of a wheel; refuse one that needs a newer glibc than its name says, or another library."""
    text = " ".join(run(PYTHON, "-m", "auditwheel", "show", wheel).decode().split())
    consistent = re.search(r'consistent with the following platform tag: "manylinux_(\d+)_(\d+)_(\w+)"', text)
    if consistent is None or (int(consistent[1]), int(consistent[2])) > GLIBC or not wheel.stem.endswith(consistent[3]):
        msg = f"auditwheel does not grant the tag: {text}"
        raise ReleaseError(msg)
    return text


def tried(target: Target) -> str:
    """Install a wheel into an empty environment, and run a new job there; return what the engine ran in."""
    (wheel,) = DIST.glob(f"*-{target.tag}.whl")
    with tempfile.TemporaryDirectory() as folder:
        programs = installed(wheel, target.interpreter, Path(folder, "environment"))
        run(programs / "headrace", "new", "shop", cwd=Path(folder))
        home = Path(folder, "shop")
        report = json.loads(run(programs / "headrace", "run", "shop", "--runner", "local", "--json", cwd=home))
        runs_in = run(programs / "python", "-c", "from headrace.native import runs_in; print(runs_in)", cwd=home)
    words = f"{report['rows_in']} rows in {runs_in.decode().strip()}"
    if words != EXPECTED:
        msg = f"{wheel.name} took in {words}, not {EXPECTED}"
        raise ReleaseError(msg)
    return words


def installed(wheel: Path, interpreter: Path, folder: Path) -> Path:
    """Install a wheel with its locked dependencies into a new environment; return the folder of its programs."""
    uv = (sys.executable, "-m", "uv")
    run(*uv, "venv", "--quiet", "--python", interpreter, folder)
    locked = ("--constraint", HOME / "requirements.txt", "--python", folder / "bin" / "python")
    run(*uv, "pip", "install", "--quiet", *locked, wheel)
    return folder / "bin"


def list_packages() -> None:
    """Write the SBOM of what the wheel brings with it, and the licences of all locked packages."""
    (pure,) = DIST.glob("*-none-any.whl")
    with tempfile.TemporaryDirectory() as folder:
        python = installed(pure, Path(sys.executable), Path(folder, "environment")) / "python"
        form = ("--output-reproducible", "--output-format", "JSON", "--output-file", DIST / "sbom.cdx.json")
        run(PYTHON, "-m", "cyclonedx_py", "environment", *form, "--pyproject", HOME / "pyproject.toml", python)
    packages = licences.locked_packages()
    (DIST / "LICENCES.txt").write_text(licences.as_text(packages))
    if refused := licences.refused(packages):
        raise ReleaseError("; ".join(refused))


def run(*command: str | Path, cwd: Path | None = None, **variables: str) -> bytes:
    """Run a command; return what it prints. Raises `ReleaseError` with its messages if it fails."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    done = subprocess.run(command, cwd=cwd, env={**ours, **variables}, capture_output=True, check=False)
    if done.returncode != 0:
        msg = f"{' '.join(map(str, command))}:\n{(done.stdout + done.stderr).decode(errors='replace')}"
        raise ReleaseError(msg)
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
