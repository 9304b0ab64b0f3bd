"""Retraction of one row by hand: it leaves the history of a materializer, and the sink gets what its retraction emits.

The materializer itself does it, in memory: so its rules hold, whatever its strategy, its TTL and its `on_conflict` are. The new rows of
the history, the timers that sweep it and the rows for the sink are one checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, cast

import msgspec
import pyarrow as pa

from headrace import clock
from headrace.api.graph import Emit, LagNode, UpsertMaterialize
from headrace.api.records import RowKind
from headrace.config import JobConfig
from headrace.edits.edit import HandEdit, JobView
from headrace.edits.entries.declared import check_stored, entries_of_key
from headrace.edits.entries.written import refuse_several
from headrace.errors import ConfigError
from headrace.execution.element import Element, make_emitted
from headrace.log.declared import HISTORY_STATE, to_stored
from headrace.log.facts import Edited
from headrace.log.ttl import history_ttls
from headrace.materializer.histories import HistoryChange
from headrace.materializer.identities import upsert_key_of
from headrace.materializer.lag import Lagging
from headrace.materializer.upsert_materializer import Output, UpsertMaterializer
from headrace.names import counted
from headrace.plan.loader import plan_of, sink_schemas
from headrace.plan.stages import KeyedStage, Plan, ToSink
from headrace.records.order import processing_time_order
from headrace.sinks.registry import sink_of
from headrace.sinks.sink import OutputFile
from headrace.sinks.staged_rows import StagedRows
from headrace.state.codec import written_keys
from headrace.state.key_groups import key_group
from headrace.state.timers import TimerChange
from headrace.storage.predicate import OneOf
from headrace.storage.table import TableMissingError
from headrace.tables.schemas import MATERIALIZER_HISTORY, TIMERS
from headrace.tables.view import in_milliseconds

if TYPE_CHECKING:
    from headrace.commit.protocol import OpenJob


class RowName(NamedTuple):
    """One row of a history, as a person names it: `key` is JSON, or plain text."""

    operator: str
    key: str
    number: int | None = None
    """Sequence number of the row."""
    fields: Mapping[str, str] | None = None
    """Values of fields that only this row has, as JSON or plain text."""


class HistoryLine(NamedTuple):
    """One row of a history before the edit, and whether the edit removes it."""

    number: int
    kind: str
    inserted_at: int
    row: str
    """JSON text."""
    is_taken_out: bool
    has_ended: bool
    """It goes as well: its lifetime is over, or a conflict is decided."""


@dataclass(frozen=True, slots=True)
class Retraction:
    """What the retraction of a row does."""

    operator: str
    sink: str
    key: str
    lines: Sequence[HistoryLine]
    changes: Sequence[HistoryChange]
    timers: Sequence[TimerChange]
    outputs: Sequence[Output]
    """Rows for the sink; none if it shows another row than the one that goes."""
    shows_first: bool = False
    may_stay: bool = False
    """Nothing tells whether the sink shows the row that goes: it may have been updated in place since. If so, the sink keeps it."""

    @property
    def number(self) -> int:
        """Return the number of the row that goes."""
        return next(line.number for line in self.lines if line.is_taken_out)


def materializer_of(config: JobConfig, operator: str | None, sink: str | None) -> str:
    """Return the name of the materializer that a person means by its name or its sink, who may leave both out where there is only one.

    Raises `ConfigError` when several are meant, or none.
    """
    known = {stage.name: _sink_behind(stage) for stage in _stages(plan_of(config.code))}
    meant = [name for name, its in known.items() if operator in {None, name} and sink in {None, its}]
    if len(meant) == 1:
        return meant[0]
    listed = "; ".join(f"--operator {name} (sink {its})" for name, its in known.items()) or "none"
    which = "several materializers are meant" if meant else "the code has no such materializer"
    raise ConfigError(f"{which}: name one of them ({listed}). Nothing was changed.")


def _stages(plan: Plan) -> list[KeyedStage]:
    return [stage for stage in plan.keyed if isinstance(stage.operator, UpsertMaterialize)]


def _sink_behind(stage: KeyedStage) -> str:
    (use,) = stage.flows[None].uses  # by the planner
    return cast("ToSink", use.to).sink


@dataclass(frozen=True, slots=True)
class RetractRow(HandEdit[Retraction]):
    """Edit that takes one row out of a materializer's history.

    Raises `ConfigError` for an operator that keeps no history, a key without one, a name that no row or several rows have, and where
    the sink cannot get the change; `StateSchemaError` when the code cannot read what is stored.
    """

    name: RowName
    why: str = ""

    command: ClassVar[str] = "retract"

    def look(self, job: JobView) -> Retraction:
        """See `StateEdit.look`."""
        plan, name = plan_of(job.config.code), self.name
        stage = next((stage for stage in _stages(plan) if stage.name == name.operator), None)
        if stage is None:
            materializer_of(job.config, name.operator, None)
        assert stage is not None  # noqa: S101 - as said there
        work = _Work(job, plan, stage)
        work.check()
        rows = _history(job, name)
        return work.retraction(rows, _named(rows, name))

    def additions(self, job: OpenJob, effect: Retraction) -> Iterator[tuple[str, pa.Table]]:
        """See `StateEdit.additions`."""
        work = _Work.of(job, effect.operator)
        changelog = self.changelog(job, effect.operator)
        upsert_key = upsert_key_of(work.operator.upsert_key, work.stage.takes[0])
        yield MATERIALIZER_HISTORY, changelog.history(effect.changes, upsert_key)
        if effect.timers:
            yield TIMERS, changelog.timers(effect.timers)

    def outputs(self, job: OpenJob, effect: Retraction) -> Mapping[str, Sequence[OutputFile]]:
        """See `StateEdit.outputs`."""
        if not effect.outputs:
            return {}
        work = _Work.of(job, effect.operator)
        decode = msgspec.json.Decoder(work.stage.record).decode
        rows = [make_emitted((order, 0, kind, decode(raw))) for order, kind, _, raw in effect.outputs]
        staged = StagedRows.of(job.config, effect.sink, job.stagings[effect.sink], lambda: self._new_name(job))
        return {effect.sink: staged.changes(work.plan.sinks[effect.sink], rows)}

    def _new_name(self, job: OpenJob) -> str:
        return f"{job.next_id:010d}-{self.name.operator}-edit-{job.attempt_id[:12]}-{clock.unique_id()[:12]}.parquet"

    def facts(self, job: OpenJob, effect: Retraction, rows: int) -> dict[str, Any]:  # noqa: ARG002 - timers are rows, too
        """See `StateEdit.facts`."""
        return {
            "base": job.last.without_copies({effect.operator}),
            "metrics": {"rows_retracted": 1, "rows_out": len(effect.outputs)},
            "note": f"row of the history of '{effect.operator}' taken out: {self.why}",
            "cause": Edited(self.command, effect.operator, HISTORY_STATE),
        }


def _history(job: JobView, name: RowName) -> list[dict[str, Any]]:
    """Return the rows in the history of a key, in order. Raises `ConfigError` where there are none, or several keys are meant."""
    keys = written_keys(name.key)
    groups = {key_group(key.encode(), job.last.max_parallelism) for key in keys}
    view = job.view(MATERIALIZER_HISTORY).of(name.operator, keys=keys).where(OneOf("key_group", tuple(sorted(groups))))
    rows = sorted(in_milliseconds(view.live()).to_pylist(), key=lambda row: row["sequence_number"])
    refuse_several("key", name.key, (row["key"] for row in rows))
    if not rows:
        msg = (
            f"operator '{name.operator}' has no history of key {name.key}: 'headrace history {job.config.job} --largest' shows keys that have "
            "one. Nothing was changed."
        )
        raise ConfigError(msg)
    return rows


def _named(rows: Sequence[Mapping[str, Any]], name: RowName) -> int:
    """Return the number of the row that a name means. Raises `ConfigError` where it means none, or several."""
    meant = [row for row in rows if _is_meant(row, name)]
    if len(meant) == 1:
        return int(meant[0]["sequence_number"])
    which = f"{counted(len(meant), 'row')} are meant" if meant else "no row of the history is meant"
    listed = "\n".join(f"  --row {row['sequence_number']}  {row['row']:.200}" for row in (meant or rows)[:_LISTED])
    more = (
        "" if len(meant or rows) <= _LISTED else f"\n  and {len(meant or rows) - _LISTED:,} more ('headrace history')"
    )
    raise ConfigError(f"{which}: name one of them. Nothing was changed.\n{listed}{more}")


_LISTED = 20


def _is_meant(row: Mapping[str, Any], name: RowName) -> bool:
    if name.number not in {None, row["sequence_number"]}:
        return False
    fields = msgspec.json.decode(row["row"], type=dict[str, msgspec.Raw])
    wanted = (name.fields or {}).items()
    return all(field in fields and bytes(fields[field]).decode() in written_keys(text) for field, text in wanted)


@dataclass(frozen=True, slots=True)
class _Work:
    """One materializer of a job, with what a retraction needs of it."""

    job: JobView
    plan: Plan
    stage: KeyedStage
    sink: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sink", _sink_behind(self.stage))

    @classmethod
    def of(cls, job: JobView, operator: str) -> _Work:
        plan = plan_of(job.config.code)
        return cls(job, plan, next(stage for stage in _stages(plan) if stage.name == operator))

    @property
    def operator(self) -> UpsertMaterialize:
        """Return the operator, as it works for its sink."""
        own = self.stage.operator
        assert isinstance(own, UpsertMaterialize)  # noqa: S101 - by `_stages`
        return replace(own, emit=Emit.NET_CHANGE) if self._merges else own

    @property
    def _merges(self) -> bool:
        return self.sink not in self.job.config.appended

    def check(self) -> None:
        """Raise the reasons why no row can be taken out."""
        job, name = self.job.config.job, self.operator.name
        if not self.operator.is_needed:
            msg = f"operator '{name}' keeps no history: the last change of a key counts. Nothing was changed. Correct the input, or what feeds it."
            raise ConfigError(msg)
        check_stored(self.job, self.plan, name, HISTORY_STATE)
        if self.job.last.holds_records and not self._merges:
            msg = (
                f"records are held (headrace waiting {job} --held), and come before this change in the log of changes that sink '{self.sink}' is: "
                f"run the job (headrace run {job}), then take the row out. Nothing was changed."
            )
            raise ConfigError(msg)
        schemas = sink_schemas(self.plan, self.job.config.appended)
        if to_stored(schemas)[self.sink] != self.job.last.sink_tables.get(self.sink):
            msg = (
                f"sink '{self.sink}' has other columns in the code than in the last checkpoint: run the job once (headrace run {job}), then "
                "take the row out. Nothing was changed."
            )
            raise ConfigError(msg)
        schema, keys = schemas[self.sink]
        sink = sink_of(self.job.config, self.sink, schema, keys)
        with suppress(TableMissingError):
            table = sink.latest()
            rule, needs = sink.rule_problem(table), sink.needs_spark(table)
            if rule is not None or needs:
                why = (
                    f"its rule {rule} refuses it"
                    if rule is not None
                    else f"only Spark can write it ({', '.join(needs)})"
                )
                msg = (
                    f"the table of sink '{self.sink}' at {sink.uri} cannot get the change: {why}. Nothing was changed."
                )
                raise ConfigError(msg)

    def retraction(self, rows: Sequence[Mapping[str, Any]], number: int) -> Retraction:
        """Return what the retraction of the row with this number does."""
        key = str(rows[0]["key"])
        raw = next(row["row"] for row in rows if row["sequence_number"] == number)
        materializer = self._materializer(key.encode())
        record = msgspec.json.decode(raw, type=self.stage.takes[0])
        materializer.take_out(Element(self._order, self._time, RowKind.DELETE, key.encode(), record), number)
        if materializer.unmatched:
            msg = f"row {number} of key {key} has expired: the next change of the key removes it. Nothing was changed."
            raise ConfigError(msg)
        changes, outputs = materializer.changes(), materializer.outputs()
        removed = {change.sequence_number for change in changes if change.row is None}
        lines = [_line(row, number, removed) for row in rows]
        operator = self.operator
        return Retraction(
            operator.name,
            self.sink,
            key,
            lines,
            changes,
            materializer.timer_changes(),
            outputs,
            shows_first=operator.shows_first,
            may_stay=operator.may_show_another and not outputs,
        )

    def _materializer(self, key_json: bytes) -> UpsertMaterializer:
        job, operator = self.job, self.operator
        options = job.config.upsert_materialize(operator.name)
        make: Callable[..., UpsertMaterializer] = Lagging if isinstance(operator, LagNode) else UpsertMaterializer
        return make(
            operator,
            entries_of_key(job, operator.name, key_json),
            record=self.stage.takes[0],
            layouts=options.layouts(operator.strategy, job.config.state.backend),
            watermark=job.last.watermark_of(operator.name),
            processing_time=clock.now(),
            ttl_since=self._ttl_since,
        )

    @property
    def _ttl_since(self) -> int | None:
        """Return the time at which the next micro-batch takes the operator's TTL to be switched on (ms)."""
        last = self.job.last
        history = last.state_ttl.advanced(
            history_ttls(self.plan),
            paused_since=self.job.lineage.last_micro_batch(),
            watermark_of=last.latest_watermark_of,
            latest_event_of=last.latest_event_of,
            processing_time=clock.now(),
        )
        return history.lifetimes(self.operator.name).since.get(HISTORY_STATE)

    @property
    def _order(self) -> bytes:
        last = self.job.last
        return processing_time_order(last.timeline(self.stage.sources).bucket.next_ordinal, last.checkpoint_id + 1)

    @property
    def _time(self) -> int:
        last, name = self.job.last, self.operator.name
        reached = (last.watermark_of(name), last.latest_event_of(name), clock.now())
        return next(time for time in reached if time is not None)


def _line(row: Mapping[str, Any], number: int, removed: set[int]) -> HistoryLine:
    own = int(row["sequence_number"])
    is_out = own == number
    return HistoryLine(own, row["row_kind"], row["inserted_at"], row["row"], is_out, own in removed and not is_out)
