"""Log of spark-submit in a task: the driver's lines, and Spark's warnings and errors."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

_SPARK_CHATTER = re.compile(r"\d\d/\d\d/\d\d \d\d:\d\d:\d\d (INFO|DEBUG|TRACE) ")
_SPARK_UI = re.compile(r"\bSpark UI at (https?://\S+)")


class DriverLog:
    """Logger that leaves out Spark's lines of level INFO and below, and reports the address of the Spark UI.

    It replaces the logger of the Spark provider's hook, which logs each line of spark-submit's output.
    """

    def __init__(self, log: Any, *, on_spark_ui: Callable[[str], None], spark_info: bool = False) -> None:
        """Pass lines to `log`. `on_spark_ui` gets the address when a line has it. With `spark_info`, leave nothing out."""
        self._log = log
        self._on_spark_ui = on_spark_ui
        self._spark_info = spark_info

    def info(self, line: object, *arguments: object, **fields: object) -> None:
        """Log a line, unless Spark wrote it at level INFO or below."""
        text = str(line)
        if (address := _SPARK_UI.search(text)) is not None:
            self._on_spark_ui(address[1])
        if self._spark_info or not _SPARK_CHATTER.match(text):
            self._log.info(line, *arguments, **fields)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)
