"""Handling of SIGTERM: end a run in order."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def ended_by_sigterm(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` on SIGTERM within the block, instead of ending the process. Works only in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGTERM, lambda *_: stop())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
