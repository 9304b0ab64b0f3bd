"""Remove the safeguards one by one: which seed first detects each removal? `python -m tests.simulation.safeguards 0-199`.

The table shows which faults the simulation can detect. A safeguard that no seed needs is either unnecessary or
untested.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import local
from typing import Any
from unittest.mock import patch

from headrace.commit import publish
from headrace.commit.job_tables import JobTables
from headrace.commit.protocol import OpenJob
from headrace.commit.restore_check import RestoreCheck
from headrace.commit.sink_position import SinkPosition
from headrace.edits import vacuum
from headrace.edits import vacuum as log_cleanup
from headrace.edits.vacuum import KeptCheckpoints
from headrace.log.lease import JobLease
from headrace.log.marks import VacuumIntent
from headrace.log.marks import open_intents as opened
from headrace.sinks.delta import DeltaTableSink
from headrace.sinks.registry import sink_of
from headrace.sinks.sink import NEVER
from headrace.storage.files import Files
from headrace.testing._memory_table import MemoryStore
from tests.simulation.simulation import Simulation

Removal = Callable[[], Any]
"""Takes a safeguard out for the length of a block."""


class ForgetfulSink(DeltaTableSink):
    """A sink that does not know what was published to it."""

    def published(self, _table: Any) -> int:
        return NEVER


def nothing(*_: Any, **__: Any) -> None:
    """Do nothing."""


@contextmanager
def without_parent_syncs() -> Iterator[None]:
    """Skip the first sync of each commit: the sync of its parent."""
    this = local()
    add, sync = MemoryStore._add_version, MemoryStore.sync_commit

    def add_version(store: MemoryStore, parent: int, info: Any, change: Any) -> int:
        this.skips = True
        try:
            return add(store, parent, info, change)
        finally:
            this.skips = False

    def sync_commit(store: MemoryStore, version: int) -> None:
        if getattr(this, "skips", False):
            this.skips = False
        else:
            sync(store, version)

    with patch.object(MemoryStore, "_add_version", add_version), patch.object(MemoryStore, "sync_commit", sync_commit):
        yield


@contextmanager
def without_intents() -> Iterator[None]:
    """Let a vacuum delete its listed files although no checkpoint names them."""
    this = local()

    def remember(_job: Any, listed: Any) -> None:
        this.intent = VacuumIntent("vacuum/none", frozenset(listed))

    def open_intents(config: Any, checkpoints: Any) -> list[VacuumIntent]:
        intents = opened(config, checkpoints)
        if (own := getattr(this, "intent", None)) is not None:
            this.intent = None
            intents.append(own)
        return intents

    with patch.object(vacuum, "commit_intent", remember), patch.object(vacuum, "open_intents", open_intents):
        yield


def _keeps_no_savepoint(checkpoints: Any, oldest: int) -> KeptCheckpoints:
    return KeptCheckpoints(KEPT(checkpoints, oldest).recent, [])


def _publishes_nothing(job: OpenJob, **_: Any) -> None:
    FENCE(job, publishes=False)


def _forgetful(*arguments: Any, **named: Any) -> DeltaTableSink:
    sink = SINK(*arguments, **named)
    return ForgetfulSink(**{name: getattr(sink, name) for name in DeltaTableSink.__slots__})


KEPT, FENCE, SINK = KeptCheckpoints.of, OpenJob.fence, sink_of

SAFEGUARDS: dict[str, Removal] = {
    "the record of a MERGE that changes nothing": lambda: patch.object(DeltaTableSink, "record", nothing),
    "the comparison of job and sinks before a run": lambda: patch.object(SinkPosition, "mismatch", None),
    "the comparison of their lives": lambda: patch.object(SinkPosition, "foreign", nothing),
    "the search for files before a restore": lambda: patch.object(RestoreCheck, "refuse_unless_restorable", nothing),
    "the sync of staged files": lambda: patch.object(Files, "sync", nothing),
    "the sync of commits": lambda: patch.object(MemoryStore, "sync_commit", nothing),
    "the sync of a commit's parent": without_parent_syncs,
    "the sync of a sink that has the last checkpoint already": lambda: patch.object(publish, "_sync", nothing),
    "the fence that undoes what was not committed": lambda: patch.object(
        JobTables, "_fence", lambda _, store, __: store.latest().version
    ),
    "the fence that publishes what was committed": lambda: patch.object(OpenJob, "fence", _publishes_nothing),
    "the look at what a sink has, before it is published to": lambda: patch.object(publish, "sink_of", _forgetful),
    "the refusal to append for a run whose lease is lost": lambda: patch.object(JobLease, "check", nothing),
    "the committed list of files that a vacuum deletes": without_intents,
    "the files of savepoints that a vacuum spares": lambda: patch.object(
        log_cleanup.KeptCheckpoints, "of", _keeps_no_savepoint
    ),
}


def first_seed(remove: Removal, first: int, last: int) -> int | None:
    """Return the first seed that fails without a safeguard; None if none does."""
    for seed in range(first, last + 1):
        try:
            with remove():
                Simulation(seed).run()
        except Exception:  # noqa: BLE001 - whatever it is, the seed has found it
            return seed
    return None


def main(seeds: str) -> None:
    """Print a table."""
    first, _, last = seeds.partition("-")
    print("| taken out | first seed |\n|---|---|")
    for name, remove in SAFEGUARDS.items():
        seed = first_seed(remove, int(first), int(last or first))
        print(f"| {name} | {'none' if seed is None else seed} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
