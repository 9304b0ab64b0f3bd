"""Pages of the view: `headrace report` makes them in processes of its own, and this module keeps them.

A page is asked for with a version, such as that of the job's log. As long as the version stays, the page that was made is shown. All viewers who ask
for a page at the same time wait for the same process.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Final

from headrace import clock
from headrace.airflow._submission import task_environment
from headrace.errors import ConfigError

LONGEST_PROCESS: Final = 60.0
MOST_PROCESSES: Final = 2
"""Processes at a time: the API server's machine has other work to do."""
MOST_PAGES: Final = 64
MOST_WAITING: Final = 32
"""Pages that may wait for their processes: whoever asks for one more is told to come back."""
_AFTER_THE_END: Final = 5.0
"""Seconds that the output of an ended process may still take."""
_FRESH: Final = 30.0
"""Seconds for which a page without a version is shown again, and a failure repeated; and ten times as long as it took, if that is more."""
_FRESH_AT_A_VERSION: Final = 600.0
"""A page also shows what no checkpoint counts, such as branches."""

_log = logging.getLogger(__name__)


class PageError(Exception):
    """There is no page; the message says why. `status` is that of the answer."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command `headrace report`, without what says where its page goes."""

    words: Sequence[str]
    home: Path
    python: str | None = None

    def __str__(self) -> str:
        """Return the command as a person types it."""
        return " ".join(["headrace report", *self.words])


@dataclass(frozen=True)
class Written:
    """Output of a command: the page, and its answer for machines."""

    html: str
    answer: dict[str, Any]
    at: float
    """When, in milliseconds since 1970."""
    seconds: float


@dataclass
class _Entry:
    version: str | None
    page: Future[Written]
    ended_at: float = 0.0
    """By a clock that only runs forward (s)."""

    def __post_init__(self) -> None:
        self.page.add_done_callback(self._end)

    def _end(self, _: Future[Written]) -> None:
        self.ended_at = clock.monotonic()

    def serves(self, version: str | None) -> bool:
        """Return whether somebody who asks for a version may have this page."""
        if version != self.version:
            return False
        if not self.page.done():
            return True
        return clock.monotonic() - self.ended_at < self._fresh_for()

    def _fresh_for(self) -> float:
        if self.page.cancelled() or self.page.exception() is not None:
            return _FRESH
        if self.version is not None:
            return _FRESH_AT_A_VERSION
        # A page about many jobs takes long: looking at it all day must not cost more than a tenth of a core.
        return max(_FRESH, 10 * self.page.result().seconds)


class Pages:
    """Pages by key, the last ones that were looked at. Processes run in threads of this object, never in those of the API server."""

    def __init__(self, longest: float = LONGEST_PROCESS) -> None:
        """`longest` is how many seconds a process may take."""
        self._longest = longest
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()
        self._pending: list[Future[Written]] = []
        """Also those whose job has gone on: another version of the page has taken their place."""
        self._running: set[subprocess.Popen[str]] = set()
        self._lock = Lock()
        self._threads = _threads()

    async def page(self, key: Hashable, version: str | None, command: Command) -> Written:
        """Return the page at a version, which a process makes if nobody has asked for it before. Raises `PageError`."""
        # A viewer who goes away must not take the page from the others.
        return await asyncio.shield(asyncio.wrap_future(self._asked(key, version, lambda: self._written(command))))

    def close(self) -> None:
        """End all processes, and start none for those who wait for their turn."""
        with self._lock:
            threads, self._threads = self._threads, _threads()
            self._entries.clear()
            running = [*self._running]
        threads.shutdown(wait=False, cancel_futures=True)
        for process in running:
            _kill(process)

    def _asked(self, key: Hashable, version: str | None, make: Callable[[], Written]) -> Future[Written]:
        with self._lock:
            entry = self._entries.get(key)
            if entry is None or not entry.serves(version):
                self._pending = [page for page in self._pending if not page.done()]
                if len(self._pending) >= MOST_PROCESSES + MOST_WAITING:
                    raise PageError(
                        f"{MOST_PROCESSES + MOST_WAITING} other pages are being made. Try again in a minute.", 503
                    )
                entry = self._entries[key] = _Entry(version, self._threads.submit(make))
                self._pending.append(entry.page)
            self._entries.move_to_end(key)
            while len(self._entries) > MOST_PAGES:
                self._entries.popitem(last=False)
            return entry.page

    def _written(self, command: Command) -> Written:
        with tempfile.TemporaryDirectory(prefix="headrace-view-") as folder:
            file, began = Path(folder, "page.html"), clock.monotonic()
            printed, exit_code = self._run(command, file)
            answer: Any = None
            with suppress(ValueError):
                answer = json.loads(printed)
            if exit_code == 0 and isinstance(answer, dict):
                with suppress(OSError):
                    return Written(file.read_text(encoding="utf-8"), answer, clock.now(), clock.monotonic() - began)
            message = answer.get("message") if isinstance(answer, dict) else None
            if message:
                raise PageError(str(message), 404 if exit_code == ConfigError.exit_code else 502)
            raise PageError(
                f"'{command}' ended with exit code {exit_code}. The log of the API server may say why.", 502
            )

    def _run(self, command: Command, file: Path) -> tuple[str, int]:
        """Return what the command prints, and its exit code."""
        try:
            process = self._started(command, file)
        except OSError as error:
            raise PageError(f"'{command}' cannot be started: {error.strerror}.", 502) from error
        with self._lock:
            self._running.add(process)
        try:
            printed, errors = process.communicate(timeout=self._longest)
        except subprocess.TimeoutExpired:
            message = f"'{command}' took longer than {self._longest:g} s and was ended. Run it in a terminal."
            raise PageError(message, 504) from None
        finally:
            _kill(process)
            with suppress(subprocess.TimeoutExpired, ValueError):  # somebody who left the group may hold the pipes
                process.communicate(timeout=_AFTER_THE_END)
            with self._lock:
                self._running.discard(process)
        if process.returncode:
            _log.warning("'%s' ended with exit code %s: %s", command, process.returncode, errors[-2000:])
        return printed, process.returncode

    @staticmethod
    def _started(command: Command, file: Path) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["headrace", "report", f"--out={file}", "--json", *command.words],
            env={**os.environ, **task_environment(command.home, command.python)},
            cwd=command.home, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, encoding="utf-8", errors="replace", start_new_session=True,
        )  # fmt: skip


def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(MOST_PROCESSES, thread_name_prefix="headrace-view")


def _kill(process: subprocess.Popen[str]) -> None:
    """End a process with all that it has started, also where it has ended itself; it leads a group of its own."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
