"""The engine's hottest code in C (`_engine.c`), where it has been compiled.

Everything is written in Python. The module in C replaces some methods by ones that do the same sooner, in the common case. It
is not used where it is missing, where it was made of another version's source, and where HEADRACE_PURE_PYTHON is 1. The name
of the compiled file has the digest of its source (setup/compile_engine.py).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TypeVar

C = TypeVar("C", bound=type)

PURE_PYTHON = "HEADRACE_PURE_PYTHON"
"""Environment variable: 1 leaves the compiled module out."""


def _compiled() -> Path:
    """Return the file that was compiled from the source beside this module, which may be absent.

    Raises: OSError: there is no source, as in an archive.
    """
    folder = Path(__file__).parent
    digest = sha256((folder / "_engine.c").read_bytes()).hexdigest()[:16]
    return folder / f"_engine-{digest}{EXTENSION_SUFFIXES[0]}"


def _load(file: Path) -> ModuleType:
    loader = ExtensionFileLoader(f"{__name__}._engine", str(file))
    spec = spec_from_file_location(loader.name, file, loader=loader)
    assert spec is not None, "a spec is made for each loader"  # noqa: S101
    module = module_from_spec(spec)
    loader.exec_module(module)
    sys.modules[loader.name] = module
    return module


def _loaded() -> tuple[ModuleType | None, str]:
    """Return the module in C, and what the engine runs in; None with the reason."""
    if os.environ.get(PURE_PYTHON) == "1":
        return None, f"Python ({PURE_PYTHON} is 1)"
    try:
        file = _compiled()
        if not file.exists():
            return None, "Python (the module in C is not compiled)"
        module = _load(file)
    except OSError:
        return None, "Python (the module in C is not compiled)"
    except ImportError as error:
        return None, f"Python (the module in C cannot be loaded: {error})"
    return module, "C"


_module, runs_in = _loaded()


def accelerated(cls: C) -> C:
    """Class decorator: replace the methods that the module in C has, too. Without it, the class stays as it is."""
    if _module is not None:
        _module.attach(cls)
    return cls


def is_on() -> bool:
    """Return whether the module in C is used."""
    return _module is not None and bool(_module.is_on())


@contextmanager
def in_python() -> Iterator[None]:
    """Leave everything to Python. For tests."""
    if _module is None:
        yield
        return
    before = _module.switch(False)
    try:
        yield
    finally:
        _module.switch(before)


if _module is not None:
    run_at_once = _module.run_at_once
