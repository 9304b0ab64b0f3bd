"""Rows that a source refuses in one micro-batch, and the check whether they are too many for the quarantine.

A row that does not fit is an exception. Where no row of a file fits, the file or the record is wrong, and a run that ends well
would hide that. The verdict depends on the rows of the micro-batch and on the job's file alone, so a retry repeats it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from headrace.config import SourceConfig
from headrace.errors import SourceError
from headrace.names import counted

_MESSAGES: Final = 10
"""A micro-batch with fewer messages of a topic has no whole of which to judge: one bad message may have come alone."""


class RefusedRows(msgspec.Struct, frozen=True):
    """Number of rows of a file that a task has refused. `is_whole`: the file has no other row."""

    path: str
    rows: int
    is_whole: bool
    error: str
    """Reason of the first one."""


@dataclass(frozen=True, slots=True)
class QuarantineCheck:
    """Check of the rows that one source refuses in a micro-batch."""

    source: str
    config: SourceConfig

    def check(self, refused: Sequence[RefusedRows], taken: int) -> None:
        """Raise `SourceError` if too many of the `taken` rows are refused."""
        limit, rows = self.config.quarantine_limit, sum(file.rows for file in refused)
        if limit is not None:
            if not limit.allows(rows, taken):
                raise self._too_many(refused[0], rows, taken)
        elif whole := [*self._whole_files(refused, taken)]:
            raise self._nothing_fits(whole)

    def _whole_files(self, refused: Sequence[RefusedRows], taken: int) -> Iterator[RefusedRows]:
        if self.config.on_bad_file == "quarantine":
            return
        if self.config.format == "kafka":
            rows = sum(file.rows for file in refused)
            if rows == taken >= _MESSAGES:
                yield msgspec.structs.replace(refused[0], path=self.config.place, rows=rows)
            return
        yield from (file for file in refused if file.is_whole)

    def _nothing_fits(self, files: Sequence[RefusedRows]) -> SourceError:
        first, what = files[0], "message" if self.config.format == "kafka" else "row"
        rows = (
            f"the only {what} of {first.path} does"
            if first.rows == 1
            else f"all {first.rows:,} {what}s of {first.path} do"
        )
        more = f" The same holds for {len(files) - 1:,} more of its files." if len(files) > 1 else ""
        return SourceError(
            f"source '{self.source}': {rows} not fit. The first problem: {first.error}.{more} Nothing was taken in. Correct the "
            f"{'record' if what == 'message' else 'file or the record'}, then run again. To put them into the quarantine instead, set "
            f"'sources.{self.source}.max_quarantined', as a number of rows, a share such as 5%, or none.{self._passing_over(first)}"
        )

    def _passing_over(self, file: RefusedRows) -> str:
        if self.config.format in {"kafka", "delta"}:
            return ""
        name = file.path.rpartition("/")[2]
        return f" 'headrace input' with --acknowledge {name} passes the file over for good."

    def _too_many(self, first: RefusedRows, rows: int, taken: int) -> SourceError:
        return SourceError(
            f"source '{self.source}': refused {rows:,} of {counted(taken, 'row')} of this micro-batch, more than "
            f"'sources.{self.source}.max_quarantined: {self.config.max_quarantined}' allows. The first one is in {first.path}: "
            f"{first.error}. Nothing was taken in. Correct the files or the record, or raise the limit, then run again."
        )
