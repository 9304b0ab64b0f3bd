"""Ending a run when its process is told to end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def ended_by_sigterm(stop: Callable[[], None]) -> Iterator[None]:
    """Within the block, SIGTERM calls `stop` instead of killing the process. Only the main thread can have that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGTERM, lambda *_: stop())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
