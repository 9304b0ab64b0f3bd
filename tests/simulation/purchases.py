"""The simulated job's work on its records, and the oracle: a loop over the records.

A record is a number, its place in the input. When the input is corrected, the record at a place is `CORRECTION` more.
A bad record goes into quarantine. One in four asks a service, which may fail: then the record waits in
`async_requests` for a later micro-batch. Every other record is counted for its customer, in keyed state and on the
board (a merged sink), and becomes a row of the reminders (an append sink). A customer with a multiple of three
records is not on the board, so merges delete rows, also rows that do not exist.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from headrace import threads
from headrace.async_io.pending_call import Status
from headrace.commit.protocol import OpenJob
from headrace.log.checkpoint import Checkpoint, Kind
from headrace.log.facts import JobWork
from headrace.log.lineage import Lineage
from headrace.sinks.sink import OutputFile
from headrace.sources.position import FolderPosition, SourceFacts
from headrace.storage.files import StagedFile
from headrace.storage.table import ROW_KIND
from headrace.tables.folder import JobFolder
from headrace.tables.schemas import ASYNC_REQUESTS, KEYED_STATE, QUARANTINE, STATE_TABLES
from tests.unit.support.memory_job import BOARD, REMINDERS, sink_rows_of

SOURCE = "purchases"
CUSTOMERS = 5
GONE_AT = 3
"""A customer is not on the board if the number of its records is a multiple of this."""

CORRECTION = 1003
"""How much more a corrected record is. It may be of another customer, bad or not, asked of the service or not."""

RECORD = "record "
"""Name of the metric of each record that a micro-batch takes in, before its number."""
"""The metric of a micro-batch that has the records that it took in."""


def is_bad(record: int) -> bool:
    return record % 11 == 7


def is_asked(record: int) -> bool:
    return record % 4 == 1


def customer_of(record: int) -> str:
    return f"c{record * record % CUSTOMERS}"


def position_of(checkpoint: Checkpoint) -> int:
    """Return how many records a checkpoint has taken in."""
    facts = checkpoint.sources.get(SOURCE)
    return facts.rows if facts else 0


def taken_in(checkpoints: Sequence[Checkpoint], head: Checkpoint) -> list[int]:
    """Return the records that the line to a checkpoint has taken in. `checkpoints` are all of its log."""
    line = Lineage(checkpoints, head.checkpoint_id).checkpoints
    counted = [checkpoint.metrics for checkpoint in line if checkpoint.kind is Kind.BATCH]
    return [int(name.removeprefix(RECORD)) for metrics in counted for name in metrics]


class MicroBatch:
    """A micro-batch on top of an open job."""

    def __init__(self, job: OpenJob, answers: Callable[[], bool], corrections: Mapping[int, int] | None = None) -> None:
        """`responses` says whether the service answers the next call.

        `corrections` counts the corrections of each place.
        """
        self._job, self._answers, self._corrections = job, answers, corrections or {}

    def commit(self, size: int, records: int) -> Checkpoint:
        """Process up to `size` of the job's `records`, and the waiting records."""
        begin = position_of(self._job.last)
        end = min(begin + size, records)
        waited = sorted(int(row["key"]) for row in self._rows(ASYNC_REQUESTS))
        new = [place + CORRECTION * self._corrections.get(place, 0) for place in range(begin, end)]
        bad = [record for record in new if is_bad(record)]
        asked = [*waited, *(record for record in new if not is_bad(record) and is_asked(record))]
        answered = [record for record in asked if self._answers()]
        counted = [*answered, *(record for record in new if not is_bad(record) and not is_asked(record))]
        failed = set(asked) - set(answered)
        before = {row["key"]: int(row["value"]) for row in self._rows(KEYED_STATE)}
        counts = {name: before.get(name, 0) + more for name, more in Counter(map(customer_of, counted)).items()}
        pieces: list[Callable[[], tuple[str, Any]]] = [
            lambda: self._state(KEYED_STATE, [self._count(name, count) for name, count in counts.items()]),
            lambda: self._state(ASYNC_REQUESTS, [*self._asked(failed - set(waited), set(waited) & set(answered))]),
            lambda: self._state(QUARANTINE, [self._bad(record) for record in bad]),
            lambda: self._board(counts),
            lambda: self._reminders(counted),
        ]
        staged = dict(threads.in_parallel(lambda piece: piece(), pieces))
        outputs = {sink: staged.pop(sink) for sink in (BOARD, REMINDERS)}
        sources = {SOURCE: SourceFacts(position=FolderPosition(f"{end:04d}", rows=end))}
        work = JobWork(pending=len(failed))
        metrics = {f"{RECORD}{number}": 1 for number in new}
        return self._job.commit(Kind.BATCH, files=staged, outputs=outputs, sources=sources, work=work, metrics=metrics)

    def _rows(self, table: str) -> list[dict[str, Any]]:
        return self._job.view(table).live_rows()

    def _state(self, table: str, rows: list[dict[str, Any]]) -> tuple[str, list[StagedFile]]:
        schema = STATE_TABLES[table].schema
        entry = {"operator": "count", "key_group": 1, "checkpoint_id": self._job.next_id, "deleted": False}
        full = [{**dict.fromkeys(schema.names), **entry, **row} for row in rows]
        return table, [self._job.stage(table, "0", pa.Table.from_pylist(full, schema))] if rows else []

    def _count(self, name: str, count: int) -> dict[str, Any]:
        return {"key": name, "state": "count", "value": str(count)}

    def _asked(self, failed: Iterable[int], answered: Iterable[int]) -> Iterator[dict[str, Any]]:
        waits = {"element": "?", "status": Status.WAITING_FOR_RETRY.value, "attempts": 1, "cost_ms": 0}
        yield from ({"key": str(record), "sequence": record, **waits} for record in sorted(failed))
        yield from ({"key": str(record), "sequence": record, "deleted": True} for record in sorted(answered))

    def _bad(self, record: int) -> dict[str, Any]:
        return {
            "key": str(record),
            "source": SOURCE,
            "position": str(record),
            "error": "bad",
            "raw": "?",
            "origin": "record",
        }

    def _board(self, counts: dict[str, int]) -> tuple[str, list[OutputFile]]:
        rows = [
            {"item": name, "customer": name, "bought": count, "cents": 0, "in_basket": 0, "idle": False}
            for name, count in counts.items()
        ]
        kinds = ["-D" if count % GONE_AT == 0 else "+U" for count in counts.values()]
        table = sink_rows_of(self._job, BOARD, rows).append_column(ROW_KIND, pa.array(kinds, pa.string()))
        return BOARD, self._staged(self._job.config.job_folder, f"outputs/{BOARD}/{self._name()}", table)

    def _reminders(self, counted: list[int]) -> tuple[str, list[OutputFile]]:
        rows = [{"customer": str(record), "due": 1, "purchases": 1, "cents": 1} for record in counted]
        table = sink_rows_of(self._job, REMINDERS, rows)
        return REMINDERS, self._staged(self._job.config.sinks[REMINDERS].path, self._name(), table)

    def _staged(self, folder: str, name: str, rows: pa.Table) -> list[OutputFile]:
        if not rows.num_rows:
            return []
        file = JobFolder.of(self._job.config).at(folder).stage(name, rows)
        return [OutputFile(file.path, file.rows, file.size)]

    def _name(self) -> str:
        return f"{self._job.next_id}-{self._job.attempt_id[-8:]}.parquet"


class Content:
    """The state of the job at a checkpoint, as its tables have it."""

    def __init__(self, job_folder: str, checkpoints: Sequence[Checkpoint], checkpoint: Checkpoint) -> None:
        """Read the tables at the versions that the checkpoint names. `checkpoints` are all of its log."""

        def rows(table: str) -> list[dict[str, Any]]:
            return JobFolder(str(job_folder)).view(table, checkpoint.versions[table]).live_rows()

        self.position = position_of(checkpoint)
        self.taken = taken_in(checkpoints, checkpoint)
        self.waiting = sorted(int(row["key"]) for row in rows(ASYNC_REQUESTS))
        self.quarantined = sorted(int(row["key"]) for row in rows(QUARANTINE))
        self.counts = {row["key"]: int(row["value"]) for row in rows(KEYED_STATE)}

    @property
    def counted(self) -> list[int]:
        """Return the counted records, if the state is right."""
        return sorted(set(self.taken) - set(self.waiting) - set(self.quarantined))

    def problem(self) -> str | None:
        """Compare with a loop over the records; return the first difference."""
        taken = self.taken
        if [record % CORRECTION for record in taken] != [*range(self.position)]:
            return f"at record {self.position} the line has taken in {taken}"
        if self.quarantined != sorted(record for record in taken if is_bad(record)):
            return f"at record {self.position} the quarantine has {self.quarantined}"
        if strangers := [
            record for record in self.waiting if record not in taken or is_bad(record) or not is_asked(record)
        ]:
            return f"at record {self.position} there wait {strangers}"
        counts = dict(Counter(map(customer_of, self.counted)))
        if self.counts != counts:
            return f"at record {self.position}, with {self.waiting} waiting, the state has {self.counts}, not {counts}"
        return None

    def board(self) -> dict[str, int]:
        """Return the board's rows, if the state is right and published."""
        return {name: count for name, count in self.counts.items() if count % GONE_AT}
