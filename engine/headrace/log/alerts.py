"""Table `alerts` in a job's folder: who was told of which alert, and when.

No checkpoint names its versions, and no result depends on it. It is there from the first alert on; each change adds a row for each of those
who are told.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec
import pyarrow as pa

from headrace.errors import StorageError
from headrace.storage.table import TableMissingError, VersionTakenError
from headrace.tables.folder import JobFolder
from headrace.tables.schemas import ARROW_TIMESTAMP

ALERTS = "alerts"
_SCHEMA = pa.schema(
    [
        pa.field("sent_at", ARROW_TIMESTAMP, nullable=False),
        pa.field("recipient", pa.string(), nullable=False),
        pa.field("metric", pa.string(), nullable=False),
        pa.field("condition", pa.string(), nullable=False),
        pa.field("is_raised", pa.bool_(), nullable=False),
        pa.field("value", pa.float64(), nullable=False),
        pa.field("checkpoint_id", pa.int64(), nullable=False),
    ]
)
_MOST_TRIES = 5


class SentAlert(msgspec.Struct, frozen=True, kw_only=True):
    """Row of the table: somebody was told that an alert is raised, or over."""

    sent_at: int
    """When (ms)."""
    recipient: str
    """Who: `log`, `command`, `webhook` or `airflow`."""
    metric: str
    condition: str
    is_raised: bool
    value: float
    checkpoint_id: int
    """Last checkpoint of the job at that time."""


class AlertLog:
    """The table of one job. Several processes may add to it at once."""

    def __init__(self, folder: JobFolder) -> None:
        """Open the table. It may be missing."""
        self._store = folder.table(ALERTS)

    def last(self) -> dict[tuple[str, str], SentAlert]:
        """Return what was said last, by metric and who was told."""
        try:
            rows = self._store.latest().read(_SCHEMA).to_pylist()
        except TableMissingError:
            return {}
        alerts = [SentAlert(**{**row, "sent_at": round(row["sent_at"].timestamp() * 1000)}) for row in rows]
        return {(alert.metric, alert.recipient): alert for alert in sorted(alerts, key=lambda alert: alert.sent_at)}

    def add(self, alerts: Sequence[SentAlert]) -> None:
        """Add rows. Raises `StorageError` if the table cannot be written, or others write to it again and again."""
        rows = [
            {**msgspec.structs.asdict(alert), "sent_at": datetime.fromtimestamp(alert.sent_at / 1000, UTC)}
            for alert in alerts
        ]
        self._store.create(_SCHEMA)
        for _ in range(_MOST_TRIES):
            try:
                self._store.append_rows(self._store.latest().version, pa.Table.from_pylist(rows, _SCHEMA))
            except VersionTakenError:
                continue
            return
        raise StorageError(f"{self._store.uri}: others write to the table again and again. Nothing was added.")
