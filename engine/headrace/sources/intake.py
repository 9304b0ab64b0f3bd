"""Planner of the next micro-batch's slice of all sources of a job.

Sources that meet are merged (`headrace.sources.merge`). A source that meets no other source and has no punctuations is
taken by whole files, and its rows are not read here.

The merge takes pieces of sources: each partition of a topic is a piece, any other source is one piece. Outside the
merge a topic is one source, and its position has one for each partition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain

import msgspec

from headrace.config import IntervalPattern, JobConfig
from headrace.errors import ConfigError, SourceError
from headrace.execution.process_context import END_OF_INPUT
from headrace.plan.stages import Plan
from headrace.records.watermarks import Timelines, timeline_of
from headrace.sources.arrival import ArrivalTimeline
from headrace.sources.corrected import section_of, section_text
from headrace.sources.interval import Interval
from headrace.sources.kafka.landed import Topic
from headrace.sources.merge import Merge, MergeRules
from headrace.sources.position import (
    NO_FACTS,
    SourceFacts,
    TopicPosition,
    digest,
    last_number,
)
from headrace.sources.registry import KINDS, corrected_source, source_of
from headrace.sources.requeued import RequeuedSlice
from headrace.sources.slices import NEXT_SLICE, GroupSlice, JobPosition, Slice, SliceRequest, TimelineSlice, Waiting
from headrace.sources.source import Ahead, InputFile, ListedFile, Source, TakenIn, Want
from headrace.sources.transformed.source import Derivation


class Pieces:
    """Pieces of a group of sources. By name of the piece: `sources`, `facts`, and the name of its source (`owners`)."""

    def __init__(
        self,
        names: Sequence[str],
        sources: Mapping[str, Source],
        facts: Mapping[str, SourceFacts],
        recorded: Mapping[str, SourceFacts],
        until: Mapping[str, SourceFacts] | None = None,
    ) -> None:
        """Divide the sources `names` into pieces; `recorded` are the facts of the last checkpoint.

        `until` are the facts after the recorded micro-batch that the slice repeats, if any.
        """
        self.names = tuple(names)
        self._whole = {name: sources[name] for name in names}
        self._divided = {
            name: source.pieces(
                name, facts[name], recorded.get(name, NO_FACTS), None if until is None else until.get(name, NO_FACTS)
            )
            for name, source in self._whole.items()
        }
        pieces = [*chain.from_iterable(self._divided.values())]
        self.sources = {piece.name: piece.source for piece in pieces}
        self.facts = {piece.name: piece.facts for piece in pieces}
        self.owners = {piece.name: name for name, own in self._divided.items() for piece in own}
        ends = {piece.name: piece.until for piece in pieces if piece.until is not None}
        self._until = None if until is None else {**until, **ends}

    def request(self, wanted: SliceRequest) -> SliceRequest:
        """Return a request whose recorded facts are those of pieces."""
        return replace(wanted, until=self._until)

    def join(self, part: GroupSlice, facts: Mapping[str, SourceFacts]) -> GroupSlice:
        """Return the part of a slice with its pieces joined to sources; `facts` are those before the slice."""
        return replace(
            part,
            timeline=replace(part.timeline, sources=self.names),
            files=tuple(msgspec.structs.replace(file, source=self.owners[file.source]) for file in part.files),
            sources={
                name: source.joined(facts[name], [part.sources[piece.name] for piece in self._divided[name]])
                for name, source in self._whole.items()
            },
        )


class Intake:
    """Planner of slices of a job's sources. It reads files and stages ordinals, and changes nothing else."""

    def __init__(
        self,
        plan: Plan,
        config: JobConfig,
        sources: Mapping[str, Source] | None = None,
        topics: Mapping[str, Topic] | None = None,
        steps: Mapping[str, Derivation] | None = None,
        *,
        corrected: Interval | None = None,
    ) -> None:
        """Make the planner for a job's sources, or for the `sources` given.

        `topics` are the connections of sources that need one, and `steps` run the Spark transforms over sources; both by the
        name of the source. Without its step, a source has the rows that were landed for it. In the `corrected` interval, sources that
        `replay.sources` names have other input.
        """
        self._groups = plan.groups
        self._config = config
        self._own: Mapping[str, Source] = sources or {
            node.name: source_of(node, config, (topics or {}).get(node.name), (steps or {}).get(node.name))
            for node in plan.sources
        }
        self._sources = self._own
        self._topics, self._nodes = topics or {}, {node.name: node for node in plan.sources}
        self._corrected = corrected
        self._rules = MergeRules(
            bucket=config.watermark.bucket,
            out_of_orderness={node.name: node.out_of_orderness for node in plan.sources},
            job=config.job,
            configs=config.sources,
        )
        self.waiting: tuple[Waiting, ...] = ()
        """Set by `next`: rows that were read, and that wait for a source without more input."""

    @property
    def names(self) -> Sequence[str]:
        """Return the names of the sources."""
        return [*self._sources]

    def listed(self, taken_in: Mapping[str, TakenIn]) -> dict[str, Sequence[ListedFile]]:
        """Return by source the files that are there, to compare them with what was `taken_in`.

        Raises `SourceError` when a folder is gone, or a name does not fit the pattern.
        """
        return {name: source.listed(taken_in.get(name, TakenIn())) for name, source in self._sources.items()}

    def check_intervals(self, taken_in: Mapping[str, TakenIn]) -> None:
        """Refuse an interval run that a source could not continue after `taken_in`.

        Raises `ConfigError` for a source without intervals, and `SourceError` for a late file of an interval taken in already.
        """
        self._refuse_without_intervals()
        for name, source in self._sources.items():
            source.check_intervals(taken_in.get(name, TakenIn()))

    def _refuse_without_intervals(self) -> None:
        for name in self._sources:
            kind = self._config.sources[name].kind
            if self._config.sources[name].intervals is None:
                what = "'interval' pattern" if "name" in kind.intervals_by else "'interval'"
                raise ConfigError(
                    f"source '{name}' has no {what} in its configuration, so an interval run cannot tell which {kind.parts} to take; set it, or use "
                    "--mode caught-up"
                )

    def check_cut(self, wanted: Interval, taken_in: Mapping[str, TakenIn]) -> None:
        """Refuse an interval that does not fit the intervals of the files: it would have no rows, or rows that were `taken_in` before.

        Raises `ConfigError` where no file of any source can begin in it; `SourceError` where it cuts through a source's intervals and no
        file of the source begins in it, and where a file that begins in it was taken in by an earlier interval.
        """
        patterns = {name: self._config.sources[name].pattern for name in self._sources}
        begins = {
            name: pattern
            for name, pattern in patterns.items()
            if pattern and pattern.begins_in(wanted.start, wanted.end)
        }
        if not begins and all(patterns.values()):
            listed = "; ".join(f"'{name}': {_cut_of(pattern, wanted)}" for name, pattern in patterns.items() if pattern)
            msg = (
                f"no file of a source can begin in interval {wanted}, so it would have no rows ({listed}). Nothing was taken in. Give the schedule "
                "intervals that are at least as long as those of the files, or use --mode caught-up."
            )
            raise ConfigError(msg)
        for name, pattern in begins.items():
            files = self._files_of(name, wanted, taken_in.get(name, TakenIn()))
            self._check_taken_once(name, pattern, files, taken_in.get(name, TakenIn()))
            if not files and not pattern.is_whole(wanted.start, wanted.end):
                msg = (
                    f"source '{name}': no file begins in interval {wanted}, which cuts through the intervals of its files ({_cut_of(pattern, wanted)}). "
                    f"Nothing was taken in. Cut the schedule like the files; if the times in file names are in another time zone than {pattern.zone}, "
                    f"set sources.{name}.timezone. If the file only is not there yet, run again."
                )
                raise SourceError(msg)

    def _files_of(self, name: str, wanted: Interval, taken_in: TakenIn) -> list[str]:
        """Return the files of a source that begin in an interval."""
        return [
            file.name
            for file, interval in self._sources[name].listed(taken_in)
            if interval and wanted.start <= interval.start < wanted.end
        ]

    def _check_taken_once(self, name: str, pattern: IntervalPattern, files: Sequence[str], taken_in: TakenIn) -> None:
        """Refuse files of the next interval that an earlier one had, when file names were read in another time zone."""
        again = [] if pattern.zone.key == "UTC" else [file for file in files if digest(file) in (taken_in.names or ())]
        if again:
            msg = (
                f"source '{name}': {again[0]} begins in this interval by the time zone {pattern.zone}, and an earlier interval has taken it in "
                f"already, so its rows would count twice: sources.{name}.timezone was another one then. Nothing was taken in. Restore the checkpoint "
                f"before that interval ('headrace checkpoints {self._config.job}' lists them), and run the intervals from there again."
            )
            raise SourceError(msg)

    def next(self, at: JobPosition, wanted: SliceRequest = NEXT_SLICE) -> Slice | None:
        """Return the next slice; None when nothing can be taken in. An interval has a slice, which may be empty, unless a repeated one was passed before.

        Raises `SourceError` when a folder is gone, a file cannot be read, a late file would never be read, or the input has
        ended; `ConfigError` when the pipeline lacks a source whose rows are not all taken in.
        """
        self._check_left_over(at.sources)
        if wanted.interval is not None and wanted.until is None:
            self._refuse_without_intervals()
        given = self._given(wanted)
        self._sources = {name: self._source_of(name, given.get(name)) for name in self._own}
        facts = self._with_pieces(numbered([*self._sources], at.sources), wanted)
        parts = [self._plan_group(names, facts, at, wanted) for names in self._groups]
        self.waiting = tuple(waiting for part in parts for waiting in part.waiting)
        if not any(part.moves for part in parts) and not _moves_position(at, wanted):
            return None
        moved = {
            name: msgspec.structs.replace(own.with_other_versions(), corrected=given.get(name))
            for part in parts
            for name, own in part.sources.items()
        }
        files = tuple(file for part in parts for file in part.files)
        interval = wanted.interval or self._interval_of(files, {**facts, **moved}, at)
        return Slice(files, tuple(part.timeline for part in parts), moved, interval, at.now)

    def _given(self, wanted: SliceRequest) -> dict[str, str]:
        """Return the sources that a recorded micro-batch has corrected input for, or that a backfill does in the requested intervals; as JSON."""
        if wanted.until is None or wanted.interval is None:
            return {}
        given = {name: own.corrected for name, own in wanted.until.items() if own.corrected is not None}
        if self._corrected is not None and self._corrected.contains(wanted.interval):
            given |= {name: section_text(own) for name, own in self._config.replay.sources.items()}
        return given

    def _source_of(self, name: str, given: str | None) -> Source:
        if given is None:
            return self._own[name]
        return corrected_source(self._own[name], self._nodes[name], self._config, section_of(given), self._topics)

    def _with_pieces(self, facts: Mapping[str, SourceFacts], wanted: SliceRequest) -> dict[str, SourceFacts]:
        """Return the facts of all sources, with all of their pieces. New pieces get numbers that no source ever had."""
        result, until = dict(facts), wanted.until
        for name, source in self._sources.items():
            recorded = None if until is None else until.get(name, NO_FACTS)
            number = last_number(result.values()) + 1
            result[name] = source.with_pieces(result[name], number, recorded, wanted.interval)
        return result

    def requeued(self, at: JobPosition) -> Slice | None:
        """Return the next slice of rows that have left the quarantine; None when no such rows wait.

        It comes before all new input, and belongs to no interval. Raises `SourceError` when a file of these rows is gone or
        has changed; `ConfigError` when the pipeline lacks the source.
        """
        self._check_left_over(at.sources)
        facts = numbered([*self._sources], at.sources)
        return RequeuedSlice(self._rules, self._sources, facts, at.timelines, at.now).of(self._groups)

    def _plan_group(
        self, names: tuple[str, ...], facts: Mapping[str, SourceFacts], at: JobPosition, wanted: SliceRequest
    ) -> GroupSlice:
        first = facts[names[0]]
        if self._rules.are_merged(names, first) or self._sources[names[0]].is_corrected:
            pieces = Pieces(names, self._sources, facts, at.sources, wanted.until)
            return pieces.join(self._merged(pieces, at, wanted), facts)
        ahead = self._ahead(names[0], self._sources[names[0]], first, at, wanted, meets=False)
        if first.ended and ahead.files:
            raise _input_has_ended(self._config.job, names[0], ahead)
        return self._take_whole_files(names[0], ahead, first, at, wanted)

    def _merged(self, pieces: Pieces, at: JobPosition, wanted: SliceRequest) -> GroupSlice:
        ahead = {
            piece: self._ahead(pieces.owners[piece], source, pieces.facts[piece], at, wanted, meets=True)
            for piece, source in pieces.sources.items()
        }
        for piece, own in ahead.items():
            if pieces.facts[piece].ended and own.files:
                raise _input_has_ended(self._config.job, piece, own)
        rules = self._rules.of_pieces(pieces.owners)
        return Merge(
            rules, pieces.sources, ahead, pieces.facts, at.timeline(pieces.names), at, pieces.request(wanted)
        ).plan()

    def _ahead(
        self, name: str, source: Source, facts: SourceFacts, at: JobPosition, wanted: SliceRequest, *, meets: bool
    ) -> Ahead:
        until = None if wanted.until is None else wanted.until.get(name, NO_FACTS).last
        recorded = [] if self._config.reads_latest_tables else wanted.recorded(name)
        source.begin(at.sources.get(name, NO_FACTS), at.timeline([name]), recorded)
        self._check_format(name, at.sources.get(name, NO_FACTS))
        return source.plan(facts, Want(at.taken_in.get(name, TakenIn()), wanted.interval, until, meets=meets))

    def _check_format(self, name: str, facts: SourceFacts) -> None:
        """Refuse a source that has changed its kind (folder, table, topic): its position has no meaning there."""
        position, own = facts.position, KINDS[self._config.sources[name].format].position
        if position is not None and position.frontier() and not isinstance(position, own):
            msg = (
                f"source '{name}' has read {position.kind_text} up to {position.reached}, "
                f"and the job's file says format: {self._config.sources[name].format} now. Nothing was taken in. Go back to the "
                "former format, or begin a new job."
            )
            raise ConfigError(msg)

    def _take_whole_files(
        self, name: str, ahead: Ahead, facts: SourceFacts, at: JobPosition, wanted: SliceRequest
    ) -> GroupSlice:
        source = self._sources[name]
        chosen = ahead.files if wanted.is_whole else source.within_limits(ahead.files)
        source.prepare(chosen)
        before = at.timeline([name]).bucket
        ordinal = before.next_ordinal
        files: list[InputFile] = []
        for file in chosen:
            rows = source.rows(file)
            files.append(file.taken(name, rows, ordinal))
            ordinal += rows
        timeline = TimelineSlice((name,), before, ordinal - before.next_ordinal)
        if not chosen and wanted.interval is None and not ahead.needs_checkpoint:
            return GroupSlice(timeline)
        passed = source.facts_after(facts, ahead, chosen)
        taken_at = at.now if files else facts.taken_at
        return GroupSlice(
            timeline,
            tuple(files),
            {name: msgspec.structs.replace(passed, taken_at=taken_at)},
            moves=bool(chosen) or ahead.needs_checkpoint,
        )

    def _interval_of(
        self, files: Sequence[InputFile], facts: Mapping[str, SourceFacts], at: JobPosition
    ) -> Interval | None:
        """Return the interval of a slice that was planned without one: it ends where all sources are taken in completely."""
        intervals = [self._sources[file.source].interval_of(file.name) for file in files if self._tells(file)]
        starts = [interval.start for interval in intervals if interval is not None]
        if not starts or len(starts) < len(intervals):
            return None
        end = self._whole_up_to(facts)
        if len(self._sources) == 1 and not any(own.partitions for own in facts.values()):
            start = starts[0]
        else:
            before = [taken_in.intervals[-1].end for taken_in in at.taken_in.values() if taken_in.intervals]
            start = max(before, default=min(starts))
        return None if end is None or end <= start else Interval(start, end)

    def _tells(self, file: InputFile) -> bool:
        """Return whether a file has an interval: a range of offsets may have no message."""
        return file.rows > 0 or not self._config.sources[file.source].kind.lands_files

    def _whole_up_to(self, facts: Mapping[str, SourceFacts]) -> int | None:
        """Return the time up to which all sources are taken in completely (ms); ignore idle sources that never had a file."""
        ends: list[int] = []
        for name, source in self._sources.items():
            if (topic := facts[name].position_as(TopicPosition)) is not None:
                if topic.whole_up_to is None:
                    return None
                ends.append(topic.whole_up_to)
                continue
            begun = facts[name].begun
            last = begun[0] if begun else facts[name].last
            interval = source.interval_of(last) if last else None
            if interval is not None:
                end, ahead = interval.start if begun else interval.end, source.whole_up_to(facts[name].last)
                ends.append(end if ahead is None else min(end, ahead))
            elif last or not facts[name].idle:
                return None
        return min(ends, default=None)

    def _check_left_over(self, facts: Mapping[str, SourceFacts]) -> None:
        """Refuse a pipeline without a source whose rows are not all taken in: they would be lost."""
        left = {name: own for name, own in facts.items() if name not in self._sources}
        if requeued := sorted(name for name, own in left.items() if own.requeued):
            listed = ", ".join(f"'{name}'" for name in requeued)
            msg = (
                f"the pipeline has no source {listed} any more, and rows of it that were requeued from the quarantine wait to be "
                "taken in again. Nothing was taken in. Bring the source back until they are taken in, or restore a checkpoint "
                f"before the requeue ('headrace checkpoints {self._config.job}' lists them)."
            )
            raise ConfigError(msg)
        unfinished = sorted(name for name, own in left.items() if own.begun)
        if unfinished:
            listed = ", ".join(f"'{name}'" for name in unfinished)
            msg = (
                f"the pipeline has no source {listed} any more, and rows of it were not taken in yet: they were ahead of the "
                "sources that it met. Nothing was taken in. Bring the source back until no rows of it wait ('idle_after' of "
                "the others lets them pass), or restore a checkpoint before it was read."
            )
            raise ConfigError(msg)


def end_of_input(plan: Plan, facts: Mapping[str, SourceFacts], timelines: Timelines) -> Slice:
    """Return a slice without rows that ends all sources.

    The watermark advances to the last event, as if more rows had come, and then to the end of time.
    """
    known = numbered([node.name for node in plan.sources], facts)
    slices = []
    for names in plan.groups:
        timeline = timeline_of(timelines, names)
        before = timeline.bucket
        # Both have their own ordinal, so they come after everything that earlier micro-batches caused.
        after = msgspec.structs.replace(before, next_ordinal=before.next_ordinal + 2)
        watermarks = [(after.next_ordinal, END_OF_INPUT)]
        arrivals = ArrivalTimeline(before, timeline.watermark)
        if arrivals.key is not None and (arrivals.watermark is None or arrivals.key > arrivals.watermark):
            watermarks.insert(0, (after.next_ordinal - 1, arrivals.key))
        slices.append(TimelineSlice(names, before, 2, after, watermarks))
    ended = {name: msgspec.structs.replace(own, ended=True) for name, own in known.items()}
    return Slice(timelines=tuple(slices), sources=ended)


def _moves_position(at: JobPosition, wanted: SliceRequest) -> bool:
    """Return whether an interval without input is to be committed: one that is asked for, or a repeated one that ends behind the job's position."""
    if wanted.interval is None or wanted.until is None:
        return wanted.interval is not None
    return all(own.reached is None or own.reached < wanted.interval.end for own in at.taken_in.values())


def numbered(names: Sequence[str], facts: Mapping[str, SourceFacts]) -> dict[str, SourceFacts]:
    """Return the facts of each source; a new source gets the next number that no source ever had."""
    known = {name: facts[name] for name in names if name in facts}
    number = last_number(facts.values())
    for name in names:
        if name not in known:
            number += 1
            known[name] = SourceFacts(number=number)
    return known


def _cut_of(pattern: IntervalPattern, wanted: Interval) -> str:
    """Return how a pattern cuts time at both ends of an interval."""
    periods = dict.fromkeys(Interval(*pattern.period_at(timestamp)) for timestamp in (wanted.start, wanted.end))
    return f"{pattern.text} in {pattern.zone} gives {', '.join(map(str, periods))}"


def _input_has_ended(job: str, name: str, ahead: Ahead) -> SourceError:
    return SourceError(
        f"source '{name}': the end of input was declared (--end-of-input), and now there is {ahead.files[0].name}. Nothing "
        f"was taken in. The last windows are closed: to take in more, restore the checkpoint before the end ('headrace checkpoints {job}' "
        "lists them), and run again."
    )
