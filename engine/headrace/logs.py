"""Lines of a process on standard error, by Python's `logging`: text, or one JSON object a line.

The command line sets them up, and so do worker processes. Each JSON line says of which job, run and checkpoint it is. In text, only
Headrace's own loggers are changed: Python's defaults, or user code, decide about all others. In JSON, lines of user code, of libraries
and of `warnings`, what user code prints, and tracebacks of threads are objects as well.
"""

from __future__ import annotations

import logging
import math
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

FORMAT: Final = "HEADRACE_LOG"
"""Variable that chooses the form of the lines: `text` (also if it is empty or unset), or `json`."""

_FORMATS: Final = ("", "text", "json")
_QUIET: Final = ("py4j", "deltalake", "opentelemetry", "urllib3", "httpx")
"""Libraries of which only warnings and errors are shown. The last one writes the whole URL of each call, which may hold a secret."""


def in_json() -> bool:
    """Return whether the environment asks for JSON lines."""
    return os.environ.get(FORMAT) == "json"


def check_format() -> None:
    """Raise `ValueError` if the environment asks for an unknown form of lines."""
    if (form := os.environ.get(FORMAT, "")) not in _FORMATS:
        raise ValueError(f"{FORMAT} is '{form}': set it to text or json, or unset it. Nothing was done.")


@dataclass(frozen=True, slots=True)
class Position:
    """Where a process is: in which job, branch, run and checkpoint. None: in none."""

    job: str | None = None
    branch: str | None = None
    run: str | None = None
    checkpoint: int | None = None
    """Checkpoint that a micro-batch makes; between micro-batches, the last one."""


# Of the whole process, no context variable: threads of the protocol and of user code would not have it. A process works on one job at once.
_position = Position()


def position() -> Position:
    """Return where this process is."""
    return _position


def move_to(new: Position) -> None:
    """Set where this process is."""
    global _position  # noqa: PLW0603
    _position = new


def move(**changes: Any) -> None:
    """Change fields of the position."""
    move_to(replace(_position, **changes))


@dataclass(frozen=True, slots=True)
class RecordParts:
    """What a record of Headrace has besides its message."""

    kind: str | None
    fields: Mapping[str, Any]
    text: str
    """The whole line in text."""


def write(
    log: logging.Logger,
    message: str,
    *,
    level: int = logging.INFO,
    kind: str | None = None,
    text: str | None = None,
    fields: Mapping[str, Any] | None = None,
    error: BaseException | None = None,
) -> None:
    """Log a message of Headrace. In text, the line is `text`, by default `KIND: message`; a traceback of `error` is in JSON alone."""
    shown = text if text is not None else message if kind is None else f"{kind}: {message}"
    log.disabled = False  # `logging.config` of user code disables all loggers that it does not name
    # The message is an argument: a percent sign in it is no placeholder.
    log.log(level, "%s", message, exc_info=error, extra={_LINE: RecordParts(kind, fields or {}, shown)})


_LINE: Final = "headrace_line"


class _TextLines(logging.Formatter):
    """Form for people."""

    def format(self, record: logging.LogRecord) -> str:
        line = getattr(record, _LINE, None)
        return line.text if isinstance(line, RecordParts) else super().format(record)


class JsonLines(logging.Formatter):
    """Form for machines: always valid JSON in ASCII, whatever is in the record."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as one JSON object."""
        import json

        document: dict[str, Any] = {
            "time": f"{datetime.fromtimestamp(record.created, UTC):%Y-%m-%dT%H:%M:%S}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": _plain(record.name),
            "message": _plain(_message(record)),
            "job": _position.job,
            "branch": _position.branch,
            "run": _plain(_position.run),
            "checkpoint": _position.checkpoint,
        }
        line = getattr(record, _LINE, None)
        kind, fields = (line.kind, line.fields) if isinstance(line, RecordParts) else (None, _extra(record))
        if kind is not None:
            document["kind"] = kind
        if fields:
            document["fields"] = _fields(fields)
        if record.exc_info and record.exc_info[0] is not None:
            document["exception"] = _plain(self.formatException(record.exc_info))
        return json.dumps(document, allow_nan=False)


def _message(record: logging.LogRecord) -> str:
    """Return the message of a record; of one whose arguments do not fit it, both."""
    try:
        return record.getMessage()
    except Exception:  # noqa: BLE001  user code's arguments
        return f"{_text(record.msg)} {_text(record.args)}"


_OF_EVERY_RECORD: Final = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"})


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    """Return what user code has given as `extra`."""
    return {name: value for name, value in vars(record).items() if name not in _OF_EVERY_RECORD}


def _fields(fields: Mapping[str, Any]) -> Any:
    try:
        return _plain(fields)
    except Exception as error:  # noqa: BLE001  a value may refer to itself
        return {"not_shown": type(error).__name__}


_LONGEST_INT: Final = 64
"""Bits of a number that readers of JSON take. Python itself writes none with more than 4,300 digits."""


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: what UTF-8 or JSON cannot hold as text."""
    if value is None or (isinstance(value, int) and value.bit_length() <= _LONGEST_INT):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(_plain(str(key))): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    return _text(value).encode(errors="backslashreplace").decode()


def _text(value: object) -> str:
    try:
        return str(value)
    except Exception:  # noqa: BLE001  user code's value
        return f"<{type(value).__name__}>"


class _StderrLines(logging.Handler):
    """Writer of lines to standard error, whichever stream that is by then. A line that cannot be written is lost: it ends no run."""

    def emit(self, record: logging.LogRecord) -> None:
        # With `handleError`, Python would write to the same stream that has just failed.
        with suppress(Exception):
            if sys.stderr is not None:
                sys.stderr.write(f"{self.format(record)}\n")
                sys.stderr.flush()


_LONGEST_LINE: Final = 8192
"""Characters after which a printed line is written, although it has not ended."""


class _PrintedLines:
    """Standard output of user code: a record for each line that it prints. No logger has them: one of user code may write to this stream."""

    def __init__(self) -> None:
        self._lines, self._rest, self._lock = _StderrLines(), "", threading.Lock()
        self._lines.setFormatter(JsonLines())

    def write(self, text: str) -> int:
        """Log the lines that end within `text`, and keep the rest for the next call."""
        with self._lock:
            *lines, self._rest = f"{self._rest}{text}".split("\n")
            if len(self._rest) > _LONGEST_LINE:
                lines, self._rest = [*lines, self._rest], ""
        for line in filter(None, lines):
            self._lines.handle(logging.makeLogRecord({"name": "stdout", "levelname": "INFO", "msg": line}))
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write several texts."""
        for text in lines:
            self.write(text)

    def flush(self) -> None:
        """Do nothing: a line is written when it ends."""

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr, name)  # `buffer`, say: its bytes go where text goes without JSON


def output_of_user_code() -> Any:
    """Return the stream to which user code prints: standard error, or what makes JSON lines of it."""
    return _PrintedLines() if in_json() else sys.stderr


@contextmanager
def on_stderr() -> Iterator[None]:
    """Show the lines of this process on standard error for the length of the block, and then return to the position before it."""
    undo, before = set_up(), _position
    try:
        yield
    finally:
        undo()
        move_to(before)


def set_up_worker() -> None:
    """Show the lines of a process that runs tasks, and what user code prints there."""
    set_up()
    if in_json() and not isinstance(sys.stdout, _PrintedLines):
        sys.stdout = output_of_user_code()


def set_up() -> Callable[[], None]:
    """Show the lines of this process on standard error, once; return the function that ends it."""
    ours, root = logging.getLogger(__package__), logging.getLogger()
    if any(isinstance(handler, _StderrLines) for handler in ours.handlers):
        return lambda: None
    handler = _StderrLines()
    handler.setFormatter(JsonLines() if in_json() else _TextLines())
    before = ours.level, ours.propagate
    ours.addHandler(handler)
    ours.setLevel(logging.INFO)
    ours.propagate = False  # a handler of user code would show lines twice
    undo_others = _set_up_others(root, handler) if in_json() else lambda: None

    def undo() -> None:
        undo_others()
        ours.removeHandler(handler)
        ours.setLevel(before[0])
        ours.propagate = before[1]

    return undo


def _set_up_others(root: logging.Logger, handler: logging.Handler) -> Callable[[], None]:
    """Show lines of all other loggers, warnings, and errors of threads by `handler`; return the function that ends it."""
    level, of_threads = root.level, threading.excepthook
    levels = {log: log.level for log in map(logging.getLogger, _QUIET) if log.level == logging.NOTSET}
    root.addHandler(handler)
    root.setLevel(min(level or logging.INFO, logging.INFO))
    for log in levels:
        log.setLevel(logging.WARNING)
    logging.captureWarnings(True)
    threading.excepthook = _log_error_of_thread

    def undo() -> None:
        threading.excepthook = of_threads
        logging.captureWarnings(False)
        for log, before in levels.items():
            log.setLevel(before)
        root.setLevel(level)
        root.removeHandler(handler)

    return undo


def _log_error_of_thread(arguments: threading.ExceptHookArgs) -> None:
    error, thread = arguments.exc_value, arguments.thread
    if error is not None and not isinstance(error, SystemExit):
        name = "a thread" if thread is None else f"thread {thread.name}"
        logging.getLogger("threading").error("%s ended with %s", name, type(error).__name__, exc_info=error)
