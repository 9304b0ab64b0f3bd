"""Report file: a driver on this machine passes its report to its task in it."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self


class ReportFile:
    """File in its own temporary folder, for the length of a block."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="headrace-run-"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def path(self) -> Path:
        """Return the path to which the driver writes the report."""
        return self._folder / "report.json"

    def content(self) -> dict[str, Any] | None:
        """Return the driver's report; None if the driver was killed before it wrote one."""
        with contextlib.suppress(OSError, ValueError):
            content = json.loads(self.path.read_bytes())
            return content if isinstance(content, dict) else None
        return None
