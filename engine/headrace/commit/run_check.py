"""Checks of a run before Spark starts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from headrace.api.graph import Process
from headrace.commit.former_keys import former_key_problems
from headrace.commit.protocol import check_key_groups, sinks_of
from headrace.commit.publish import Publisher
from headrace.commit.schema_check import operator_key_problems, sink_key_problems
from headrace.commit.sink_position import check_sinks
from headrace.config import JobConfig, job_problems, raise_problems
from headrace.errors import ConfigError, HeadraceError
from headrace.execution.bound_function import declared_blocks, declared_states
from headrace.log.checkpoint import Checkpoint
from headrace.log.declared import to_schemas
from headrace.log.log import CheckpointLog
from headrace.log.marks import refuse_dropped
from headrace.plan.bindings import binding_problems, import_pipeline
from headrace.plan.loader import plan_of, sink_schemas, with_names
from headrace.plan.planner import plan_stages, problems_of
from headrace.plan.stages import Plan, waits_of
from headrace.sinks.registry import sink_of
from headrace.stream.stream import Pipeline
from headrace.tables.folder import JobFolder
from headrace.tables.requests import holders, waiting_for
from headrace.tables.schemas import ASYNC_REQUESTS, BUFFERED_REQUESTS
from headrace.tables.view import has_keyed_rows, live_keys


def checked_plan(config: JobConfig) -> Plan:
    """Return the plan of a job's pipeline.

    Raises `ConfigError` with all problems of the job's file, of the pipeline, and of the names that connect both.
    """
    problems = job_problems(config)
    try:
        pipeline = import_pipeline(config)
    except ConfigError as error:
        raise_problems(config.file, [*problems, str(error)])
        raise
    raise_problems(config.file, [*problems, *binding_problems(config, pipeline), *_code_problems(config, pipeline)])
    return plan_of(config.code)


def only_on_spark(config: JobConfig, plan: Plan) -> Iterator[str]:
    """Yield a sentence for each feature of a job that needs Spark."""
    if config.profile.deploy_mode == "cluster":
        yield f"the cluster profile '{config.profile.name}' has deploy_mode cluster: its driver runs on Spark's cluster"
    for source in plan.sources:
        if (what := config.sources[source.name].kind.only_on_spark) is not None:
            yield f"source '{source.name}' {what}"
        if source.transform is not None:
            yield f"source '{source.name}' has a transform of Spark, .spark() or .sql(): write it as map, filter or flat_map"
    for name in config.replay.sources:
        if (what := config.corrected(name).kind.only_on_spark) is not None:
            yield f"the corrected input of source '{name}' {what}"
    for name, sink in config.sinks.items():
        if sink.kind.only_on_spark is not None:
            yield f"sink '{name}' {sink.kind.only_on_spark}"


def not_on_connect(config: JobConfig, plan: Plan) -> Iterator[str]:
    """Yield a sentence for each feature of a job, and key of its cluster profile, that Spark Connect does not have."""
    yield from only_on_spark(config, plan)
    profile = config.profile
    if profile.jars:
        yield "jars: a Connect server has its own"
    if profile.connection is not None:
        yield f"connection: '{profile.connection}' is for spark-submit, which submits nothing to a Connect server"
    for file in (*profile.py_files, *profile.archives, *profile.files):
        if "://" in file:
            yield f"'{file}' is not on this machine: Spark Connect sends files of this machine"


def _code_problems(config: JobConfig, pipeline: Pipeline) -> Iterator[str]:
    """Yield problems of the pipeline that do not depend on the job."""
    problems = problems_of(pipeline)
    yield from problems
    for operator in pipeline.operators:
        if isinstance(operator, Process):
            yield from _declaration_problems(operator)
    if not problems:
        yield from _sink_problems(config, with_names(plan_stages(pipeline), config.code))


def _declaration_problems(process: Process) -> Iterator[str]:
    for declared in (declared_states, declared_blocks):
        try:
            declared(process.function)
        except TypeError as error:
            yield f"process '{process.name}': {error}; give one of them another name"


def _sink_problems(config: JobConfig, plan: Plan) -> Iterator[str]:
    for name, sink in plan.sinks.items():
        try:
            sink_schemas(replace(plan, sinks={name: sink}), config.appended)
        except ConfigError as error:
            yield f"sink '{name}': {error}"


def stored_problems(config: JobConfig, log: CheckpointLog, plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield problems that stop a run from continuing from a job's checkpoints and sinks: the checked thing, and a sentence.

    Does not check types of states: see `schema_check`.
    """
    try:
        refuse_dropped(config)
    except ConfigError as error:
        yield "state", str(error)
        return
    yield from (("sinks", problem) for problem in _stored_sink_problems(config, log, plan))
    if log.last is None:
        return
    try:
        check_key_groups(config, log.last)
    except ConfigError as error:
        yield "state", str(error)
    view_of = JobFolder.of(config).views(log.last.versions)
    groups, keys = log.last.max_parallelism, log.last.operator_keys
    changed = operator_key_problems(config.job, keys, plan, lambda name: has_keyed_rows(view_of, name, groups))
    yield from (("state", problem) for problem in changed)
    former = former_key_problems(keys, plan, lambda name: live_keys(view_of, name, groups))
    yield from (("state", problem) for problem in former)
    yield from (("state", problem) for problem in lost_elements(config, log.last, log.last.versions, plan))


def _stored_sink_problems(config: JobConfig, log: CheckpointLog, plan: Plan) -> Iterator[str]:
    """Yield problems of the sinks. One that cannot be opened at all is a problem, too, and hides those behind it."""
    try:
        sinks = sinks_of(config, log, plan)
        publisher = Publisher(config, to_schemas(sinks))
        yield from publisher.column_problems({} if log.last is None else to_schemas(log.last.sink_tables))
        yield from publisher.rule_problems(publisher.tables())
        yield from sink_key_problems(config, log, sinks)
        check_sinks(config, log.checkpoints)
        yield from _place_problems(config)
    except HeadraceError as error:
        yield str(error)


def _place_problems(config: JobConfig) -> Iterator[str]:
    problems = (sink_of(config, name).place_problem() for name in sorted(config.sinks))
    yield from filter(None, problems)


def new_sink_columns(config: JobConfig, log: CheckpointLog, plan: Plan) -> Iterator[str]:
    """Yield a sentence for each sink that the next run adds columns to."""
    for name, columns in Publisher(config, to_schemas(sinks_of(config, log, plan))).new_columns().items():
        listed = ", ".join(f"{column.name} ({column.type})" for column in columns)
        yield f"the next run adds to sink '{name}' at {config.sinks[name].path}: {listed}. Existing rows get null"


def sinks_of_spark(config: JobConfig, log: CheckpointLog, plan: Plan) -> Iterator[str]:
    """Yield a sentence for each sink whose table only Spark can write."""
    yield from Publisher(config, to_schemas(sinks_of(config, log, plan))).needs_spark()


def lost_elements(config: JobConfig, last: Checkpoint, versions: dict[str, int], plan: Plan) -> Iterator[str]:
    """Yield a sentence for waiting elements and held records whose operators the pipeline no longer has."""
    folder = JobFolder.of(config)
    if last.work.pending:
        waiting = waiting_for(folder, versions[ASYNC_REQUESTS])
        if lost := _listed(waiting - {wait.name for wait in waits_of(plan)}):
            yield (
                f"elements wait for operator {lost} (headrace waiting {config.job} --calls), and the pipeline has no such async wait any "
                f"more. Bring the name back and let the job finish what waits (headrace run {config.job} --finish), or restore "
                "to a checkpoint before."
            )
    if last.holds_records or last.work.pending:
        yield from _moved_places(config.job, last, plan)
        yield from _joined_timelines(config.job, last, plan)
    if last.holds_records:
        held = holders(folder, versions[BUFFERED_REQUESTS])
        inputs = {stage.name: len(stage.takes) for stage in plan.keyed}
        if lost := _listed({name for name, number in held if number >= inputs.get(name, number + 1)}):
            yield (
                f"operator {lost} holds records of its second input in a run that had to stop, and has no such input any more. "
                "Bring the input back until a run has gone through, or restore to a checkpoint before the run that stopped."
            )
        if lost := _listed({name for name, _ in held} - {*inputs}):
            yield (
                f"operator {lost} holds records of a run that had to stop, and the pipeline has no such operator any more. "
                "Bring the name back until a run has gone through, or restore to a checkpoint before the run that stopped."
            )


def _moved_places(job: str, last: Checkpoint, plan: Plan) -> Iterator[str]:
    """Yield a sentence if the plan gives places of waiting records to other records.

    A place consists of ranks of operators, and of edges of streams that are used more than once.
    """
    before = {name: facts.rank for name, facts in last.operators.items() if facts.rank is not None}
    now, edges = plan.ranks(), plan.edges()
    both = before.keys() & now.keys()
    moved_ranks = {name for name in both if before[name] != now[name]}
    moved_edges = {name for name in last.edges.keys() & edges.keys() if last.edges[name] != edges[name]}
    # A new edge to a new operator moves no record.
    other_edges = {name for name in last.edges.keys() ^ edges.keys() if _leads_to(name) & both}
    if moved := _listed(moved_ranks | moved_edges | other_edges):
        yield (
            f"records wait in the order of an earlier graph, which has changed at {moved}: they might overtake "
            "each other. Nothing was changed. Go back to the code that took them in and let it finish what waits (headrace run "
            f"{job} --finish), or "
            "restore to a checkpoint before they came."
        )


def _joined_timelines(job: str, last: Checkpoint, plan: Plan) -> Iterator[str]:
    """Yield a sentence for sources that meet now, but did not when waiting records arrived: records may have equal places."""
    for group in plan.groups:
        timelines = {facts.timeline for facts in last.operators.values() if facts.timeline in group}
        if len(timelines) > 1:
            yield (
                f"records of sources {_listed(timelines)} wait. The sources did not meet when they arrived, and now they do: the order "
                f"of these records is unknown. Go back to the code that took them in and let it finish what waits (headrace run {job} "
                "--finish), or restore to a checkpoint before they came."
            )


def _leads_to(edge: str) -> set[str]:
    """Return the operators to which an edge leads."""
    return {end.partition("/")[0] for end in edge.partition("->")[2].split(",")}


def _listed(names: set[str]) -> str:
    return ", ".join(f"'{name}'" for name in sorted(names))
