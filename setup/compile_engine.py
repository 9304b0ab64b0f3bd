"""Compile the engine's module in C, `engine/headrace/native/_objects.c`, with the C compiler of this machine.

    PYTHON setup/compile_engine.py [FOLDER]      (`make setup` and the wheel's build call it)

Writes the module into FOLDER, by default beside its source, for the PYTHON that runs this. Prints one sentence, and returns 1
where nothing was compiled: the engine then runs in Python. Uses only the standard library.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

NATIVE = Path(__file__).resolve().parent.parent / "engine" / "headrace" / "native"
SOURCE = NATIVE / "_objects.c"
COMPILERS = ("gcc", "clang", "cc")
LINKED = ("-bundle", "-undefined", "dynamic_lookup") if sys.platform == "darwin" else ("-shared",)
FLAGS = ("-O3", "-fPIC", "-fno-strict-aliasing", "-fwrapv", "-Wall", "-Wextra", *LINKED)
IN_PYTHON = "It works the same, at 45 % of the speed."

LOAD = """
import sys
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
loader = ExtensionFileLoader("headrace.native._objects", sys.argv[1])
spec = spec_from_file_location(loader.name, sys.argv[1], loader=loader)
loader.exec_module(module_from_spec(spec))
"""


def main() -> int:
    """Compile the module; return the exit code."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else NATIVE
    message = obstacle()
    if message is None:
        message = _compile(folder)
    elif compiled(folder).exists() and not _is_switched_off():
        message = None  # it was compiled when this machine still had a compiler
    print(message or f"The engine runs in C: {compiled(folder).name}")
    return 1 if message else 0


def compiled(folder: Path = NATIVE) -> Path:
    """Return the file of the module. Its name has the digest of its source, so one of an older source is never loaded."""
    return folder / f"_objects-{digest(SOURCE)}{EXTENSION_SUFFIXES[0]}"


def digest(source: Path) -> str:
    """Return the part of a module's name that says which source it was compiled from."""
    return hashlib.sha256(source.read_bytes()).hexdigest()[:16]


def obstacle() -> str | None:
    """Return why nothing can be compiled here; None if nothing is in the way."""
    if _is_switched_off():
        return "The engine runs in Python: HEADRACE_PURE_PYTHON is 1."
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return f"The engine runs in Python: this Python has no global lock (GIL). {IN_PYTHON}"
    if compiler() is None:
        return f"The engine runs in Python: no C compiler was found (gcc or clang). {IN_PYTHON}"
    if not (_include() / "Python.h").exists():
        return f"The engine runs in Python: there is no Python.h in {_include()}. {IN_PYTHON}"
    return None


def compiler() -> str | None:
    """Return the C compiler."""
    return next((path for path in map(shutil.which, COMPILERS) if path), None)


def _is_switched_off() -> bool:
    return os.environ.get("HEADRACE_PURE_PYTHON") == "1"


def _include() -> Path:
    return Path(sysconfig.get_paths()["include"])


def _compile(folder: Path) -> str | None:
    """Compile under another name, load the result in a new process, and rename it; return why it failed."""
    target = compiled(folder)
    target.unlink(missing_ok=True)
    unproven = folder / f".{os.getpid()}-{target.name}"
    try:
        if not _succeeds(str(compiler()), *FLAGS, f"-I{_include()}", str(SOURCE), "-o", str(unproven)):
            return f"The engine runs in Python: {compiler()} could not compile {SOURCE.name}. {IN_PYTHON}"
        if not _succeeds(sys.executable, "-I", "-c", LOAD, str(unproven)):
            return f"The engine runs in Python: what {compiler()} made cannot be loaded. {IN_PYTHON}"
        unproven.replace(target)
    finally:
        unproven.unlink(missing_ok=True)
    _remove_older(target)
    return None


def _remove_older(target: Path) -> None:
    for file in target.parent.glob(f"_*{EXTENSION_SUFFIXES[0]}"):
        if file != target:
            file.unlink(missing_ok=True)


def _succeeds(*command: str) -> bool:
    sys.stdout.flush()
    return subprocess.run(command, stderr=subprocess.STDOUT, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
