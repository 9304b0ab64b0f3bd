"""Lines of a command in the log of its task: objects of `HEADRACE_LOG=json` with their level, message and fields, others as they are."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any, Final

_LEVELS: Final = {"debug": "debug", "info": "info", "warning": "warning", "error": "error", "critical": "error"}
# Airflow has its own time and logger in each line.
_RENAMED: Final = {"logger": "of_logger", "exception": "traceback"}
_LEFT_OUT: Final = frozenset({"time", "level", "message"})
_KEYS: Final = _LEFT_OUT | _RENAMED.keys() | {"job", "branch", "run", "checkpoint", "kind", "fields"}
"""Those of Headrace's objects. Others are arguments of Airflow's logger, or have a meaning for it."""


def object_of(line: str) -> dict[str, Any] | None:
    """Return a line as the object that Headrace wrote; None for any other line."""
    if not line.startswith('{"time": "'):
        return None
    with suppress(ValueError, RecursionError):
        content = json.loads(line)
        if (
            isinstance(content, dict)
            and content.keys() <= _KEYS
            and str(content.get("level")) in _LEVELS
            and isinstance(content.get("message"), str)
        ):
            return content
    return None


def log_object(log: Any, content: dict[str, Any]) -> None:
    """Log an object of Headrace. Airflow's logger takes its fields as keyword arguments."""
    given = {name: value for name, value in content.items() if value is not None and name not in _LEFT_OUT}
    fields = {_RENAMED.get(name, name): value for name, value in given.items()}
    getattr(log, _LEVELS[content["level"]])(content["message"], **fields)


def log_line(log: Any, line: str) -> None:
    """Log a line of a command."""
    if (content := object_of(line)) is None:
        log.info(line)
    else:
        log_object(log, content)
