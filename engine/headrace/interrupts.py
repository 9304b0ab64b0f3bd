"""Tells Ctrl-C from a `KeyboardInterrupt` that user code raises.

Both are the same exception. A signal handler that `watch` puts in front of the present one notes that SIGINT came; only then an exception
ends the process as Ctrl-C does. Every other exception that user code raises is an error of user code, also those that are no `Exception`:
`SystemExit`, `KeyboardInterrupt`, `GeneratorExit`, `asyncio.CancelledError`, and subclasses of `BaseException` of its own.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from headrace.crash_points import is_crash


class _Sigint:
    """Handler of SIGINT: it notes that the signal came, and calls the handler before it."""

    def __init__(self) -> None:
        self.came = False
        self.handle: Callable[[int, FrameType | None], Any] = signal.default_int_handler

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.came = True
        self.handle(number, frame)


_sigint = _Sigint()


def watch() -> None:
    """Note SIGINT from now on, and handle it as before. Does nothing outside of the main thread, and where SIGINT is ignored.

    Call it again after another package has installed a handler of its own, as Spark does.
    """
    present = signal.getsignal(signal.SIGINT)
    if present is _sigint or not callable(present) or threading.current_thread() is not threading.main_thread():
        return
    _sigint.handle = present
    signal.signal(signal.SIGINT, _sigint)


def is_interrupt(error: BaseException) -> bool:
    """Return whether an exception is that of Ctrl-C, or of a simulated crash, and so none of user code's."""
    return (_sigint.came and isinstance(error, KeyboardInterrupt)) or is_crash(error)
