"""The log of spark-submit as a task shows it: the driver's lines, and Spark's only where they matter."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

_SPARK_CHATTER = re.compile(r"\d\d/\d\d/\d\d \d\d:\d\d:\d\d (INFO|DEBUG|TRACE) ")
_SPARK_UI = re.compile(r"\bSpark UI at (https?://\S+)")


class DriverLog:
    """A logger that leaves out what Spark logs at level INFO and below, and tells where the Spark UI is.

    It stands in for the logger of the Spark provider's hook, which logs each line of spark-submit's output.
    """

    def __init__(self, log: Any, *, on_spark_ui: Callable[[str], None], spark_info: bool = False) -> None:
        """Pass lines on to `log`. `on_spark_ui` gets the address when a line has it. `spark_info` leaves nothing out."""
        self._log = log
        self._on_spark_ui = on_spark_ui
        self._spark_info = spark_info

    def info(self, line: object, *arguments: object, **fields: object) -> None:
        """Log a line, unless it is Spark's chatter."""
        text = str(line)
        if (address := _SPARK_UI.search(text)) is not None:
            self._on_spark_ui(address[1])
        if self._spark_info or not _SPARK_CHATTER.match(text):
            self._log.info(line, *arguments, **fields)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)
