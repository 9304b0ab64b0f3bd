"""The jobs of the live test: small ones, without Spark, with an interval of a day that ended half a day ago."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from headrace import clock
from tests.jobs.home import LOCAL, PURCHASES, Home, merged
from tests.jobs.purchase_files import FIRST_DAY, SCHEMA, Row, day_name, purchases_of, write_rows
from tests.jobs.purchases_by_hand import assert_as_by_hand, by_hand

DAY: Final = timedelta(days=1)

_NOW: Final = datetime.fromtimestamp(clock.now() / 1000, UTC)
# No interval ends while the test runs.
_HOUR: Final = (_NOW.hour + 12) % 24
_LAST_TICK: Final = _NOW.replace(hour=_HOUR, minute=0, second=0, microsecond=0) - (
    DAY if _NOW.hour < _HOUR else 0 * DAY
)


def start_of(ago: int) -> datetime:
    """Return the start of an interval: 1 is the last complete interval, 2 the interval before."""
    return _LAST_TICK - ago * DAY


def intervals(oldest: int, newest: int) -> Sequence[int]:
    """Return intervals, oldest first."""
    return range(oldest, newest - 1, -1)


class DailyJob(Home):
    """A job in the folder of all jobs, with its own files: one for each interval."""

    def __init__(self, folder: Path, name: str, **changes: Any) -> None:
        own = {
            "job": name,
            "schedule": {"cron": f"0 {_HOUR} * * *", "start": "2024-01-01", "timezone": "UTC"},
            "run": {"budget": "5m", "grace": "1m", "retries": 1, "retry_delay": "2s"},
            "compaction": {"every": None},
            "sources": {"purchases": {"path": f"input/{name}"}},
            "sinks": {sink: {"path": f"lake/{name}/{sink}"} for sink in PURCHASES["sinks"]},
        }
        super().__init__(folder, merged(merged(PURCHASES, own), changes))
        self.write_cluster("local", {**LOCAL, "connection": "without_spark"})
        self.files = folder / "input" / name
        self._corrected: dict[int, Sequence[Row]] = {}

    def deliver(self, agos: Sequence[int]) -> None:
        """Write the files of some intervals."""
        for ago in agos:
            day = _day_of(ago)
            write_rows(self.files, day_name(day), purchases_of(day))

    def deliver_garbage(self, ago: int) -> None:
        """Write an unreadable file for an interval."""
        self.files.mkdir(parents=True, exist_ok=True)
        (self.files / day_name(_day_of(ago))).write_bytes(b"no Parquet")

    def correct(self, ago: int) -> None:
        """Write the file of an interval again, with half of its rows."""
        self._corrected[ago] = purchases_of(_day_of(ago))[::2]
        write_rows(self.files, day_name(_day_of(ago)), self._corrected[ago])

    def assert_has(self, agos: Sequence[int], *, corrected: bool = False) -> None:
        """Assert that state and sinks equal those of a straight run over these intervals, as delivered or as corrected."""
        changes = self._corrected if corrected else {}
        rows = [changes.get(ago, purchases_of(_day_of(ago))) for ago in agos]
        assert_as_by_hand(self.config(), by_hand(rows))


class TableJob(DailyJob):
    """A job that reads a Delta table of others, with a partition for each day, which they correct by MERGE."""

    def __init__(self, folder: Path, name: str, **changes: Any) -> None:
        self.table = str(folder / "lake" / f"{name}_input")
        interval = {"by": "partition", "column": "day"}
        source = {"format": "delta", "path": self.table, "interval": interval, "on_change": "skip"}
        super().__init__(folder, name, **merged({"sources": {"purchases": source}}, changes))

    def deliver(self, agos: Sequence[int]) -> None:
        """Append the partitions of some intervals."""
        for ago in agos:
            rows = pa.Table.from_pylist(purchases_of(_day_of(ago)), schema=SCHEMA)
            day = pa.repeat(pa.scalar(_partition_of(ago)), len(rows))
            write_deltalake(self.table, rows.append_column("day", day), mode="append", partition_by=["day"])

    def correct(self, ago: int) -> None:
        """Take every second row of an interval away."""
        rows = purchases_of(_day_of(ago))
        self._corrected[ago] = rows[::2]
        removed = pa.Table.from_pylist(rows[1::2], schema=SCHEMA)
        same = f"t.day = '{_partition_of(ago)}' AND t.seq = s.seq"
        merge = DeltaTable(self.table).merge(removed, same, source_alias="s", target_alias="t")
        merge.when_matched_delete().execute()


def _partition_of(ago: int) -> str:
    return day_name(_day_of(ago)).removesuffix(".parquet")


def _day_of(ago: int) -> int:
    """Return the day whose midnight lies in an interval; the file is named after that day."""
    start = start_of(ago)
    midnight: date = start.date() if _HOUR == 0 else start.date() + DAY
    return (midnight - FIRST_DAY.date()).days
