"""ColumnLineage of a job's columns: for each column of a sink, the columns of sources that it comes from.

Each operator says what it reads of its inputs (`api.column_reads`). From the sources on, in the order of the graph, this replaces the
fields of inputs by the columns of sources that these come from.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from headrace.api.changelog_inference import changes_of
from headrace.api.column_reads import (
    TIME,
    ColumnReads,
    Kind,
    Read,
    Readable,
    Reads,
    copied,
    fields_read,
    read_by_user,
    read_of_value,
    results_of_user,
    rows_of_user,
)
from headrace.api.graph import (
    Additions,
    AssignEventTime,
    AsyncWait,
    Filter,
    FlatMap,
    Input,
    LagNode,
    Map,
    Node,
    OnConflict,
    OperatorFunction,
    Process,
    SinkNode,
    SourceNode,
    SparkTransform,
    UpsertMaterialize,
    name_of,
)
from headrace.config import PipelineCode
from headrace.plan.loader import load_pipeline
from headrace.plan.planner import record_of
from headrace.records.column_types import Column, columns_of
from headrace.stream.pipeline import PipelineGraph


class Origin(NamedTuple):
    """Column of a source, and how it is read. `by` names a function of a user on the way, the last one.

    It is not sure where such a function does not declare what it reads, and so may read the column.
    """

    source: str
    column: str
    kind: Kind
    by: str = ""
    is_sure: bool = True

    def read_by(self, reader: Read) -> Origin:
        """Return the origin of what reads a column with this origin."""
        is_sure = self.is_sure and reader.is_sure
        if not self.kind.is_direct:
            return self._replace(is_sure=is_sure)
        kind = reader.kind.after(self.kind) if reader.kind.is_direct else reader.kind
        return self._replace(kind=kind, by=reader.by or self.by, is_sure=is_sure)


Origins = frozenset[Origin]


@dataclass(frozen=True, slots=True)
class ColumnLineage:
    """Origins of the columns of a stream or a sink, and, in `rows`, those that decide which rows it has.

    A sink's columns have the names of its table.
    """

    columns: Mapping[str, Origins]
    rows: Origins

    def of(self, column: str) -> Origins:
        """Return all that a column depends on."""
        return self.columns[column] | self.rows


@dataclass(frozen=True, slots=True)
class JobColumnLineage:
    """Columns of a job's sources, and the lineage of its sinks."""

    sources: Mapping[str, tuple[Column, ...]]
    sinks: Mapping[str, ColumnLineage]
    sink_columns: Mapping[str, tuple[Column, ...]]


Names = Sequence[tuple[str, Sequence[tuple[str, str]]]]
"""Names that a job's file gives to the fields of its sources, or of its sinks."""


def job_lineage(code: PipelineCode, appended: Collection[str]) -> JobColumnLineage:
    """Return the lineage of a job, with the names that columns have in its tables and files. Sinks `appended` have a row for each change.

    Raises `ConfigError` when the pipeline cannot be loaded.
    """
    return lineage_of(load_pipeline(code), code.source_names, code.sink_names, appended)


def lineage_of(
    pipeline: PipelineGraph, source_names: Names = (), sink_names: Names = (), appended: Collection[str] = ()
) -> JobColumnLineage:
    """Return the lineage of a pipeline; sinks `appended` have a row for each change. Raises `ConfigError` for a record that columns cannot hold."""
    of_sources, of_sinks = dict(source_names), dict(sink_names)
    streams: dict[tuple[int, str | None], ColumnLineage] = {}
    sources: dict[str, tuple[Column, ...]] = {}
    sinks: dict[str, ColumnLineage] = {}
    sink_columns: dict[str, tuple[Column, ...]] = {}
    for node in pipeline.nodes:
        inputs = [streams[id(edge.node), edge.side] for edge in node.inputs]
        operator = node.operator
        if isinstance(operator, SourceNode):
            sources[operator.name] = _columns(operator.record, of_sources.get(operator.name, ()))
            streams[id(node), None] = _of_source(operator, sources[operator.name])
        elif isinstance(operator, SinkNode):
            columns = sink_columns[operator.name] = _columns(record_of(node.inputs[0]), of_sinks.get(operator.name, ()))
            taken = _behind(_stored(node, is_appended=operator.name in appended), inputs)
            own = {column.stored: taken.columns[column.name] for column in columns}
            sinks[operator.name] = ColumnLineage(own, taken.rows)
        else:
            for side, reads in _outputs(node):
                streams[id(node), side] = _behind(reads, inputs)
    return JobColumnLineage(sources, sinks, sink_columns)


def _stored(sink: Node, *, is_appended: bool) -> ColumnReads:
    """Return what the rows of a sink read. Without a key, and where it is only appended to, the sink has one row for each change."""
    [taken] = sink.inputs
    is_table = isinstance(taken.node.operator, UpsertMaterialize) and not is_appended
    rule = _passed if is_table or changes_of(taken).mode.is_insert else _logged
    return rule(sink, taken, [record_of(taken)])


def _columns(record: type[msgspec.Struct], rename: Sequence[tuple[str, str]]) -> tuple[Column, ...]:
    return tuple(columns_of(record, tuple(rename)))


def _of_source(source: SourceNode, stored: Sequence[Column]) -> ColumnLineage:
    names = {column.name: column.stored for column in stored}

    def origins(fields: Iterable[str], kind: Kind) -> Origins:
        return frozenset(Origin(source.name, names.get(field, field), kind) for field in fields)

    columns = {field: origins([field], Kind.IDENTITY) for field in names}
    columns[TIME] = origins([source.event_time], Kind.IDENTITY) | origins(source.order_by, Kind.SORT)
    return ColumnLineage(columns, origins([source.row_kind] if source.row_kind else [], Kind.FILTER))


def _behind(reads: ColumnReads, inputs: Sequence[ColumnLineage]) -> ColumnLineage:
    """Return the lineage of results that read these inputs. Many columns may read the same, which is looked up once."""
    known: dict[Reads, Origins] = {}
    nothing: Origins = frozenset()

    def origins(wanted: Reads) -> Origins:
        if wanted not in known:
            # Fields that a function of a user has made mostly have the same origins: each set of them is walked once.
            steps = {
                (inputs[reader.input].columns.get(reader.field, nothing), reader._replace(field="", input=0))
                for reader in wanted
            }
            known[wanted] = frozenset(origin.read_by(reader) for before, reader in steps for origin in before)
        return known[wanted]

    columns = {field: origins(wanted) for field, wanted in reads.columns.items()}
    return ColumnLineage(columns, origins(reads.rows).union(*(taken.rows for taken in inputs)))


def _outputs(node: Node) -> Iterator[tuple[str | None, ColumnReads]]:
    """Yield the outputs of an operator by side, and what each reads."""
    takes = [record_of(edge) for edge in node.inputs]
    keys = _keys(node, takes)
    sides = node.operator.side_outputs if isinstance(node.operator, Process) else ()
    for side in (None, *(side.name for side in sides)):
        rule: _Rule = _RULES.get(type(node.operator), _passed) if side is None else _side
        reads = rule(node.operator, Input(node, side), takes)
        yield side, _with_time(reads._replace(rows=reads.rows | keys), len(takes))


def _keys(node: Node, takes: Sequence[type[msgspec.Struct]]) -> Reads:
    """Return what the keys of an operator's inputs read."""
    function = getattr(node.operator, "function", None)
    kind = function.key_kind if isinstance(function, OperatorFunction) else Kind.GROUP_BY
    reads = [
        edge.key.column_reads(record, kind, number)
        for number, (edge, record) in enumerate(zip(node.inputs, takes, strict=True))
        if edge.key is not None
    ]
    return frozenset[Read]().union(*reads)


def _with_time(reads: ColumnReads, inputs: int) -> ColumnReads:
    """Return what is read, with the time of the results: by default it depends on all that they read, and on the times of the inputs."""
    if TIME in reads.columns:
        return reads
    return reads._replace(columns={**reads.columns, TIME: reads.time(inputs)})


# ------------------------------------------------------------------------------------------------------ rules, by operator

_Takes = Sequence[type[msgspec.Struct]]
_Rule = Callable[[Any, Input, _Takes], ColumnReads]


def _passed(_: Any, __: Input, takes: _Takes) -> ColumnReads:
    """Return what is read where records stay as they are; of several inputs, a record comes from one of them."""
    columns: dict[str, Reads] = {}
    for number, record in enumerate(takes):
        for field, reads in copied([*record.__struct_fields__, TIME], number=number).items():
            columns[field] = columns.get(field, frozenset()) | reads
    return ColumnReads(columns)


def _mapped(transform: Map | FlatMap, output: Input, takes: _Takes) -> ColumnReads:
    by = name_of(transform.function)
    columns = results_of_user(by, takes, record_of(output), transform.reads, transform.keeps)
    rows = rows_of_user(by, takes, transform.reads) if isinstance(transform, FlatMap) else frozenset[Read]()
    return ColumnReads(columns | copied([TIME]), rows)


def _filtered(transform: Filter, output: Input, takes: _Takes) -> ColumnReads:
    return _passed(transform, output, takes)._replace(
        rows=rows_of_user(name_of(transform.predicate), takes, transform.reads)
    )


def _in_spark(transform: SparkTransform, output: Input, takes: _Takes) -> ColumnReads:
    columns = results_of_user(transform.name, takes, record_of(output))
    return ColumnReads(columns, rows_of_user(transform.name, takes))


def _added(transform: Additions, output: Input, takes: _Takes) -> ColumnReads:
    rule = _passed if changes_of(output.node.inputs[0]).mode.is_insert else _logged
    return rule(transform, output, takes)


def _logged(_: Any, __: Input, takes: _Takes) -> ColumnReads:
    """Return what is read where changes become rows: an operator before may emit no change where no column changes.

    These may be columns that the stream does not have any more: its times depend on them.
    """
    return _passed(_, __, takes)._replace(rows=fields_read([*takes[0].__struct_fields__, TIME], Kind.FILTER))


def _timed(transform: AssignEventTime, output: Input, takes: _Takes) -> ColumnReads:
    passed = _passed(transform, output, takes)
    kind = Kind.IDENTITY if isinstance(transform.time, str) else Kind.TRANSFORMATION
    order = fields_read([TIME], Kind.SORT)
    return passed._replace(columns={**passed.columns, TIME: read_of_value(transform.time, kind, takes[0]) | order})


def _answered(wait: AsyncWait, output: Input, takes: _Takes) -> ColumnReads:
    by = wait.name  # lookup() wraps its function in a class of its own
    columns = results_of_user(by, takes, record_of(output), wait.reads)
    return ColumnReads(columns | copied([TIME]), rows_of_user(by, takes, wait.reads))


def _processed(process: Process, output: Input, takes: _Takes) -> ColumnReads:
    function = process.function
    if isinstance(function, Readable):
        return function.column_reads()
    return _by_user(process, takes, record_of(output), process.reads)


def _by_user(process: Process, takes: _Takes, gives: type[msgspec.Struct], declared: Any = None) -> ColumnReads:
    """Return what a keyed function of a user reads.

    Its state depends on the order of records. What decides whether there is a row also decides when: as the time of a timer.
    """
    by = type(process.function).__name__
    columns = results_of_user(by, takes, gives, declared)
    order = frozenset[Read]().union(*(fields_read([TIME], Kind.SORT, number=number) for number in range(len(takes))))
    rows = rows_of_user(by, takes, declared)
    times = {reader._replace(kind=Kind.TRANSFORMATION) for reader in order}
    return ColumnReads({**columns, TIME: rows.union(times)}, rows | order)


def _side(process: Process, output: Input, takes: _Takes) -> ColumnReads:
    """Return what a side output reads. Those of operators have records of an input, late ones or others."""
    function = process.function
    if not isinstance(function, OperatorFunction):
        return _by_user(process, takes, record_of(output))
    number = function.late_sides().get(str(output.side), 0)
    every = read_by_user("", Kind.FILTER, [takes[number]])
    reads = frozenset(reader._replace(input=number) for reader in every) | fields_read(
        [TIME], Kind.FILTER, number=number
    )
    return ColumnReads(copied([*takes[number].__struct_fields__, TIME], number=number), reads)


def _materialized(materializer: UpsertMaterialize, output: Input, takes: _Takes) -> ColumnReads:
    """Return what the rows of a table read. Their order decides, unless a key has one row at a time: then there is no choice."""
    passed = _passed(materializer, output, takes)
    changes = changes_of(output.node.inputs[0])
    has_one = not changes.mode.is_upsert and any({*key} <= {*materializer.primary_key} for key in changes.unique)
    chooses = not has_one or materializer.ttl is not None or materializer.on_conflict is not OnConflict.KEEP_HISTORY
    order = fields_read([TIME] if chooses else [], Kind.SORT)
    return passed._replace(rows=fields_read(materializer.primary_key, Kind.GROUP_BY) | order)


def _lagging(lag: LagNode, output: Input, takes: _Takes) -> ColumnReads:
    columns = results_of_user(name_of(lag.function), takes, lag.record, lag.reads)
    del output
    return ColumnReads(columns, fields_read([TIME], Kind.SORT))


_RULES: dict[type, _Rule] = {
    Map: _mapped,
    FlatMap: _mapped,
    Filter: _filtered,
    SparkTransform: _in_spark,
    Additions: _added,
    AssignEventTime: _timed,
    AsyncWait: _answered,
    Process: _processed,
    UpsertMaterialize: _materialized,
    LagNode: _lagging,
}
"""Rules by operator. Operators without one, a union and dropped rows before updates, give records as they take them."""
