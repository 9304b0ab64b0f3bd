"""Slice of rows that have left the quarantine: they are taken in again before all new input, with new ordinals.

In a timeline that sources share, they come after all rows taken in before. They get the merge key of the last of these
rows, so their own times advance neither the merge key nor the watermark: they make no row of another source late.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from headrace.errors import SourceError
from headrace.names import counted
from headrace.records.watermarks import Timelines, lag_of, timeline_of
from headrace.sources.arrival import EARLIEST, ArrivalTimeline, Released
from headrace.sources.merge import MergeRules
from headrace.sources.position import RequeuedRows, SourceFacts
from headrace.sources.slices import Slice, TimelineSlice
from headrace.sources.source import InputFile, Source, SourceFile


@dataclass(frozen=True, slots=True)
class RequeuedSlice:
    """Planner of a slice of requeued rows, from the facts of each source."""

    rules: MergeRules
    sources: Mapping[str, Source]
    facts: Mapping[str, SourceFacts]
    timelines: Timelines
    now: int
    """Processing time of the micro-batch (ms)."""

    def of(self, groups: Iterable[tuple[str, ...]]) -> Slice | None:
        """Return the next slice, within the limits of each source; None when no such rows wait.

        Raises `SourceError` for a file that is gone, or has another number of rows than when its rows were requeued.
        """
        files: list[InputFile] = []
        timelines: list[TimelineSlice] = []
        moved: dict[str, SourceFacts] = {}
        for names in groups:
            if any(self.facts[name].requeued for name in names):
                bucket = timeline_of(self.timelines, names).bucket
                own: list[InputFile] = []
                for name in names:
                    ordinal = bucket.next_ordinal + sum(file.taken for file in own)
                    taken = self._files(name, ordinal)
                    if taken:
                        own += taken
                        moved[name] = self._behind(name, len(taken))
                files += own
                timelines.append(self._timeline_slice(names, sum(file.taken for file in own)))
        return Slice(tuple(files), tuple(timelines), moved, began_at=self.now) if files else None

    def _behind(self, name: str, files: int) -> SourceFacts:
        facts = self.facts[name]
        return msgspec.structs.replace(facts.for_next(), requeued=facts.requeued[files:])

    def _files(self, name: str, ordinal: int) -> list[InputFile]:
        """Return the files taken from a source, with ordinals from `ordinal` on."""
        waiting, config = self.facts[name].requeued, self.rules.configs[name]
        listed = self.sources[name].find({rows.file for rows in waiting}) if waiting else {}
        files: list[InputFile] = []
        taken = 0
        for rows in waiting[: config.max_files_per_batch]:
            file = self._file(name, rows, listed, ordinal + taken)
            # A file is never split: the order of its rows must not depend on limits. So take at least one file.
            if files and config.max_rows_per_batch is not None and taken + file.taken > config.max_rows_per_batch:
                break
            files.append(file)
            taken += file.taken
        return files

    def _file(self, name: str, rows: RequeuedRows, listed: Mapping[str, SourceFile], ordinal: int) -> InputFile:
        if rows.file not in listed:
            raise self._refused(name, f"{rows.file} of {self.rules.configs[name].place} is gone, and")
        stored = listed[rows.file]
        count = self.sources[name].rows(stored)
        if rows.file_rows not in {None, count}:
            what = f"{stored.path} has changed (it had {counted(rows.file_rows or 0, 'row')}, and now {count} can be read), and"
            raise self._refused(name, what)
        return stored.taken(name, count, ordinal, picked=rows.ranges)

    def _refused(self, name: str, what: str) -> SourceError:
        return SourceError(
            f"source '{name}': {what} rows of it that were requeued from the quarantine wait to be taken in again. Nothing was "
            f"taken in. Put the former file back, or restore a checkpoint before the requeue ('headrace checkpoints {self.rules.job}' lists them)."
        )

    def _timeline_slice(self, names: tuple[str, ...], rows: int) -> TimelineSlice:
        own = {name: self.facts[name] for name in names}
        timeline = timeline_of(self.timelines, names)
        if not self.rules.are_merged(names, own[names[0]]):
            return TimelineSlice(names, timeline.bucket, rows)
        punctuated = {facts.number: facts.punctuated for facts in own.values() if facts.punctuated is not None}
        arrivals = ArrivalTimeline(timeline.bucket, timeline.watermark, punctuated)
        key = pa.scalar(EARLIEST if arrivals.key is None else arrivals.key, pa.int64())
        lags = {facts.number: lag_of(self.rules.out_of_orderness[name]) for name, facts in own.items()}
        after, watermarks = arrivals.advanced(Released(pa.repeat(key, rows), {}, ()), size=self.rules.bucket, lags=lags)
        return TimelineSlice(names, timeline.bucket, rows, after.bucket, watermarks)
