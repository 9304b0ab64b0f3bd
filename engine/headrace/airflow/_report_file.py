"""The file in which a driver on this machine tells its task what it did."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self


class ReportFile:
    """A file in a temporary folder of its own, for the length of a block."""

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
        """Return where the driver writes it."""
        return self._folder / "report.json"

    def content(self) -> dict[str, Any] | None:
        """Return what the driver wrote; None if it came to no end of its own."""
        with contextlib.suppress(OSError, ValueError):
            content = json.loads(self.path.read_bytes())
            return content if isinstance(content, dict) else None
        return None
