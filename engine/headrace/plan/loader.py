"""Loader of user code: driver, tasks and command line import pipelines only through it."""

from __future__ import annotations

import functools
import importlib
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import msgspec

from headrace.errors import ConfigError
from headrace.interrupts import is_interrupt
from headrace.names import did_you_mean

if TYPE_CHECKING:
    from headrace.api import Pipeline

_OWN_CODE = str(Path(__file__).parent.parent) + os.sep


class PipelineCode(msgspec.Struct, frozen=True):
    """Location of a pipeline: `package.module:variable`, and the places of its modules."""

    reference: str

    home: str
    """Folder of the project. Importable in the driver, and in tasks on machines that have it at the same path."""

    py_files: tuple[str, ...] = ()
    """Archives (.zip, .egg, .whl) and single modules (.py), as Spark's `--py-files`."""

    def make_importable(self) -> None:
        """Put the home and the `py_files` that this machine has at the start of `sys.path`, the home first."""
        entries = (self.home, *(_entry(file) for file in self.py_files if "://" not in file))
        for entry in reversed(entries):
            if entry not in sys.path and Path(entry).exists():
                sys.path.insert(0, entry)

    def described(self) -> str:
        """Return the searched places, for messages."""
        archives = f", its py_files ({', '.join(self.py_files)})" if self.py_files else ""
        return f"the job's home folder ({self.home}){archives} or the environment of {sys.executable}"


@functools.cache
def load_pipeline(code: PipelineCode) -> Pipeline:
    """Import the pipeline of a job, once in a process.

    Raises `ConfigError` when its module cannot be imported, has no such variable, or the variable is no `Pipeline`.
    """
    from headrace.api import ConnectedStreams, Pipeline, Stream

    code.make_importable()
    module_name, _, variable = code.reference.partition(":")
    module = _module(module_name, code)
    if not hasattr(module, variable):
        public = [name for name in vars(module) if not name.startswith("_")]
        msg = f"{module_name} has no variable '{variable}'{did_you_mean(variable, public)}"
        raise ConfigError(msg)
    pipeline = getattr(module, variable)
    if not isinstance(pipeline, Pipeline):
        msg = f"'{code.reference}' is of type {type(pipeline).__name__}, not a Pipeline"
        if isinstance(pipeline, Stream | ConnectedStreams):
            msg += ": end the stream with sink(), which returns the pipeline, or name the variable that Pipeline() is kept in"
        raise ConfigError(msg)
    return pipeline


def _entry(py_file: str) -> str:
    return str(Path(py_file).parent) if py_file.endswith(".py") else py_file


def _module(name: str, code: PipelineCode) -> ModuleType:
    try:
        return importlib.import_module(name)
    except BaseException as error:
        if is_interrupt(error):
            raise
        # User code runs here, so any error is possible; the reader needs its place in user code, not ours.
        msg = f"module '{name}' cannot be imported: {_reason(name, error, code)}"
        raise ConfigError(msg) from error


def _reason(name: str, error: BaseException, code: PipelineCode) -> str:
    """Return the error of the import of module `name`, and its place in user code."""
    if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
        return f"there is no module '{error.name}' in {code.described()}"
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, SyntaxError) or not frames:
        return f"{type(error).__name__}: {error}"
    place = next((frame for frame in reversed(frames) if not frame.filename.startswith(_OWN_CODE)), frames[-1])
    return f"{type(error).__name__}: {error} ({place.filename}:{place.lineno})"
