"""Discard: rows leave the quarantine for good, since nobody needs them any more. No run sees them again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.edits.edit import HandEdit, JobView
from headrace.edits.requeue import QuarantinedRow, removed_rows
from headrace.errors import ConfigError
from headrace.log.facts import Edited
from headrace.tables.schemas import QUARANTINE
from headrace.tables.view import entries_of

if TYPE_CHECKING:
    from headrace.commit.protocol import OpenJob


@dataclass(frozen=True, slots=True)
class DiscardRows(HandEdit[Sequence[QuarantinedRow]]):
    """Edit that removes rows of the quarantine. Raises `ConfigError` where it has none of them."""

    operator: str | None = None
    """Operator or source that set them aside; None: any."""
    files: tuple[str, ...] = ()
    """Files of sources, whose rows alone go; empty: all rows."""
    why: str = ""

    def look(self, job: JobView) -> Sequence[QuarantinedRow]:
        """See `StateEdit.look`."""
        rows = job.view(QUARANTINE).where(*entries_of(self.operator)).live_rows()
        chosen = [row for row in rows if not self.files or row["file"] in self.files]
        unknown = [file for file in self.files if file not in {row["file"] for row in chosen}]
        if unknown or not chosen:
            of = "" if self.operator is None else f" of '{self.operator}'"
            what = f"row{of} of file {unknown[0]}" if unknown else f"row{of}"
            msg = f"the quarantine of job '{job.config.job}' has no {what}: headrace quarantine {job.config.job} lists what it has. Nothing was changed."
            raise ConfigError(msg)
        return sorted(chosen, key=_place)

    def additions(self, job: OpenJob, effect: Sequence[QuarantinedRow]) -> Iterator[tuple[str, pa.Table]]:
        """See `StateEdit.additions`."""
        yield QUARANTINE, removed_rows(effect, job.next_id)

    def facts(self, job: OpenJob, effect: Sequence[QuarantinedRow], rows: int) -> dict[str, Any]:  # noqa: ARG002 - as many
        """See `StateEdit.facts`."""
        operators = ", ".join(sorted({row["operator"] for row in effect}))
        return {
            "metrics": {"discarded": len(effect)},
            "note": f"quarantined rows of {operators} discarded: {self.why}",
            "cause": Edited("quarantine discarded", operators),
        }


def _place(row: QuarantinedRow) -> tuple[Any, ...]:
    """Return by what rows are sorted: the newest checkpoint first, then files, and numbers of rows."""
    return -row["checkpoint_id"], row["source"], row["file"] or "", row["first_row"] or 0, row["position"]
