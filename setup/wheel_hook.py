"""A step of building the wheel: compile the engine's module in C, where this machine has a C compiler.

The wheel is then one for this platform and this version of Python. Without a compiler, or with HEADRACE_PURE_PYTHON=1, it is
one for all, and the engine runs in Python.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class WheelHook(BuildHookInterface[Any]):
    """Adds the compiled module to a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, unless the wheel is an editable one: `make setup` compiles beside the source."""
        if version == "editable":
            return
        self._folder = tempfile.TemporaryDirectory(prefix="headrace-wheel-")
        script = Path(self.root) / "setup" / "compile_engine.py"
        done = subprocess.run([sys.executable, script, self._folder.name], stdout=sys.stderr, check=False)
        if done.returncode == 0:
            (module,) = Path(self._folder.name).iterdir()
            build_data["force_include"][str(module)] = f"headrace/native/{module.name}"
            build_data["pure_python"] = False
            build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was compiled: the wheel has it now."""
        del build_data, artifact_path
        if version != "editable":
            self._folder.cleanup()
