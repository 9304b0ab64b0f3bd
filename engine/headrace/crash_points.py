"""Named places at which a test may kill the process (`kill -9`), to prove that nothing is lost.

`HEADRACE_KILL_AT=commit.after` kills a process when it first reaches the place, `commit.after:2` the second time.
With `HEADRACE_KILL_ONCE=FILE` only the first process to reach it dies, and creates the file. With
`HEADRACE_KILL_WITH=SIGSTOP` it falls asleep instead, as a machine does that swaps or is suspended. In production no
place is set, and a call costs one look-up.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_PLACE = "HEADRACE_KILL_AT"
_ONCE = "HEADRACE_KILL_ONCE"
_WITH = "HEADRACE_KILL_WITH"

PLACES = frozenset(
    {
        *("create.half", "claim.created", "land.half", "ingest.after", "task.half", "run.after"),
        *("prepare.before", "prepare.half", "prepare.after", "commit.before", "commit.after"),
        *("publish.half", "deliver.before", "deliver.half", "publish.after", "fence.table", "fence.after"),
        *("take_over.before", "take_over.after", "sink_rename.before", "sink_rename.after"),
        *("migration.before", "migration.prepared", "state_migration.staged", "operator_state.staged", "edit.staged"),
        *("drop.marked", "drop.half", "drop.deleted"),
        *("compaction.prepared", "restore.prepared", "rescale.prepared", "vacuum.listed", "vacuum.committed"),
        *("erasure.prepared", "erasure.committed", "purge.listed", "purge.committed"),
        *("requeue.staged", "reconcile.planned", "fork.listed", "fork.tables", "branch.dropped"),
        *("promotion.begun", "promotion.staged", "promotion.prepared", "promotion.committed", "promotion.landed"),
        *("promotion.removed", "backfill.forked", "backfill.caught_up"),
    }
)
"""All places, by name."""

_visits: Counter[str] = Counter()
_observers: list[Callable[[str], None]] = []
_crashes: list[BaseException] = []


def reached(place: str) -> None:
    """Die here if the environment says so."""
    for observer in _observers:
        try:
            observer(place)
        except BaseException as crash:
            _crashes.append(crash)
            raise
    wanted = os.environ.get(_PLACE)
    if wanted is None:
        return
    _visits[place] += 1
    name, _, visit = wanted.partition(":")
    if name == place and _visits[place] == int(visit or 1) and _is_first():
        os.kill(os.getpid(), signal.Signals[os.environ.get(_WITH, "SIGKILL")])


def is_crash(error: BaseException) -> bool:
    """Return whether an observer has raised an exception, in place of the end of the process."""
    return any(error is crash for crash in _crashes)


@contextmanager
def observed(observer: Callable[[str], None]) -> Iterator[None]:
    """Within the block, call `observer` with each reached place, before a process dies there."""
    _observers.append(observer)
    try:
        yield
    finally:
        _observers.remove(observer)
        if not _observers:
            _crashes.clear()


def _is_first() -> bool:
    marker = os.environ.get(_ONCE)
    if marker is None:
        return True
    try:
        Path(marker).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
