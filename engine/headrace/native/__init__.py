"""The hot objects of a record: those in C (`_objects.c`) where they are compiled, else those in Python (`objects`).

Both define the same types (PEP 399). Each is a base: `StateFuture`, `RecordContext`, `Outputs` and the others have a class in the
package that uses them, which adds what is not hot. Those in C are not used where they are missing, where they were made of
another version's source, and where HEADRACE_PURE_PYTHON is 1. The name of the compiled file has the digest of its source
(setup/compile_engine.py).
"""

from __future__ import annotations

import os
import sys
from hashlib import sha256
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from headrace.native import objects

PURE_PYTHON = "HEADRACE_PURE_PYTHON"
"""Environment variable: 1 leaves the compiled module out."""


def _compiled() -> Path:
    """Return the file that was compiled from the source beside this module. Raises `ImportError` if there is none."""
    folder = Path(__file__).parent
    try:
        digest = sha256((folder / "_objects.c").read_bytes()).hexdigest()[:16]
    except OSError:  # in an archive, there is no source
        digest = ""
    file = folder / f"_objects-{digest}{EXTENSION_SUFFIXES[0]}"
    if not file.exists():
        raise ImportError("the module in C is not compiled")
    return file


def _load_compiled() -> ModuleType:
    """Load the compiled module. Raises `ImportError` with the reason if it is not used."""
    if os.environ.get(PURE_PYTHON) == "1":
        msg = f"{PURE_PYTHON} is 1"
        raise ImportError(msg)
    file, name = _compiled(), f"{__name__}._objects"
    loader = ExtensionFileLoader(name, str(file))
    spec = spec_from_file_location(name, file, loader=loader)
    assert spec is not None, "a spec is made for each loader"  # noqa: S101
    try:
        module = module_from_spec(spec)
        loader.exec_module(module)
    except ImportError as error:
        msg = f"the module in C cannot be loaded: {error}"
        raise ImportError(msg) from error
    sys.modules[name] = module
    return module


_objects = objects
try:
    _objects = _load_compiled()
    runs_in = "C"
except ImportError as error:
    runs_in = f"Python ({error})"

if TYPE_CHECKING:
    from headrace.native.objects import (
        LOOP_CODE,
        CachedHandle,
        Cell,
        Outputs,
        ProcessContext,
        RecordContext,
        RecordLoop,
        RunningTask,
        StateFuture,
        ValueCells,
    )
else:
    LOOP_CODE = _objects.LOOP_CODE
    CachedHandle = _objects.CachedHandle
    Cell = _objects.Cell
    Outputs = _objects.Outputs
    ProcessContext = _objects.ProcessContext
    RecordContext = _objects.RecordContext
    RecordLoop = _objects.RecordLoop
    RunningTask = _objects.RunningTask
    StateFuture = _objects.StateFuture
    ValueCells = _objects.ValueCells

__all__ = [
    "LOOP_CODE",
    "CachedHandle",
    "Cell",
    "Outputs",
    "ProcessContext",
    "RecordContext",
    "RecordLoop",
    "RunningTask",
    "StateFuture",
    "ValueCells",
    "runs_in",
]
