"""A step of building the wheel: compile the engine's module in C, where this machine has a C compiler.

The wheel is then one for this platform and this version of Python. Without a compiler, or with HEADRACE_PURE_PYTHON=1, it is
one for all, and the engine runs in Python. `make release` compiles itself, for other machines: HEADRACE_MODULE is its file, and
HEADRACE_WHEEL_TAG the tag of the wheel.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class WheelHook(BuildHookInterface[Any]):
    """Adds the compiled module to a wheel."""

    _folder: tempfile.TemporaryDirectory[str] | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, unless the wheel is an editable one: `make setup` compiles beside the source."""
        if version == "editable":
            return
        if module := os.environ.get("HEADRACE_MODULE"):
            _add(Path(module), build_data)
            build_data["tag"] = os.environ["HEADRACE_WHEEL_TAG"]
            return
        self._folder = tempfile.TemporaryDirectory(prefix="headrace-wheel-")
        script = Path(self.root) / "setup" / "compile_engine.py"
        done = subprocess.run([sys.executable, script, self._folder.name], stdout=sys.stderr, check=False)
        if done.returncode == 0:
            (compiled,) = Path(self._folder.name).iterdir()
            _add(compiled, build_data)
            build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was compiled: the wheel has it now."""
        del version, build_data, artifact_path
        if self._folder is not None:
            self._folder.cleanup()


def _add(module: Path, build_data: dict[str, Any]) -> None:
    build_data["force_include"][str(module)] = f"headrace/native/{module.name}"
    build_data["pure_python"] = False
