"""`headrace check` and `headrace verify`: checks before and after each run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.arguments import Branch, Cluster, Job, load
from headrace.cli.findings import Finding, Outcome, as_warnings, of_findings, runner
from headrace.report import Report, Time

if TYPE_CHECKING:
    from headrace.config import JobConfig
    from headrace.log.log import CheckpointLog
    from headrace.plan.stages import Plan


_DETERMINISM = (
    "a micro-batch may run again, and must give the same: take no random numbers, no hash() of texts (hashlib gives the same everywhere), "
    "and no time of today (use the record's event time; or ctx.processing_time in a keyed function)"
)
_PATIENCE = 2.0  # seconds for a health check, so that `check` stays quick


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("check")(check)
    app.command("verify")(verify)


def check(
    job: Job = None,
    cluster: Cluster = None,
    strict: Annotated[bool, typer.Option("--strict", help="A sick service or a held job fails the check.")] = False,
    sample: Annotated[
        bool,
        typer.Option(
            "--sample/--no-sample",
            help="Try functions of the pipeline on rows of the input; without, the run decides on its own input, and problems of files are warnings.",
        ),
    ] = True,
) -> Report:
    """Check whether a run could start. Changes nothing.

    Checks configuration, pipeline, Java, pyspark and jars, stored state and sinks, input with the columns of the newest
    file and what has changed in them, services, and whether another run holds the job. Tries filters, event times and keys on rows of the input, in two processes, and refuses
    those that depend on chance or on the date. With --no-sample, as `headrace run --check` does, it tries none, and input that a run would refuse is a warning:
    the run may need other files. Lists all problems of the job's file and pipeline at once.

    Example:  headrace check flights --strict

    Exit codes: 0 fine, warnings included; 1 something would fail; 2 the configuration or the pipeline is wrong.
    """
    config = load(job, cluster, checked=False)
    return of_findings(findings_of(config, sample=sample, strict=strict), config.job)


def findings_of(config: JobConfig, *, sample: bool, strict: bool) -> list[Finding]:
    """Return what `check` finds. Raises `ConfigError` with all problems of the job's file and pipeline."""
    from headrace.commit.run_check import checked_plan
    from headrace.log.log import CheckpointLog
    from headrace.tables.folder import JobFolder

    plan = checked_plan(config)
    findings = [Finding("configuration", "ok", str(config.file)), Finding("pipeline", "ok", config.pipeline)]
    findings += runner(config, plan)
    findings += [*row_kinds(config), *null_keys(plan), *names(plan)]
    log = CheckpointLog(JobFolder.of(config))
    findings += stored(config, plan, log)
    of_input = [*sources(config, plan, log)]
    failing = {finding.check for finding in of_input if finding.outcome == "fail"}
    of_input += [finding for finding in changed_input(config, log) if finding.check not in failing]
    findings += of_input if sample else as_warnings(of_input)
    findings += step_tables(config)
    findings += determinism(config, plan) if sample else ()
    outside = [*services(config), lease(log)]
    return findings + (outside if strict else as_warnings(outside))


Full = Annotated[bool, typer.Option("--full", help="Also read all rows of the data files.")]


def verify(job: Job = None, branch: Branch = None, *, full: Full = False) -> Report:
    """Check the committed checkpoints, tables and sinks. Changes nothing.

    Each data file must have the size that its table's log has, and a footer with as many rows. --full also reads all rows: this finds
    damage between both ends of a file, and takes as long as reading the tables does.

    Example:  headrace verify flights

    Exit codes: 0 all checks hold; 1 a check failed; 2 the configuration is wrong.
    """
    config = load(job, branch=branch)
    return of_findings(verified(config, reads_rows=full), config.job)


def verified(config: JobConfig, *, reads_rows: bool = False) -> list[Finding]:
    """Return what `verify` finds."""
    from headrace.commit.verify import verify as verify_job

    return [Finding(f.check, "ok" if f.ok else "fail", f.detail) for f in verify_job(config, reads_rows=reads_rows)]


def row_kinds(config: JobConfig) -> Iterator[Finding]:
    """Yield a warning for each sink that loses the kinds of its rows."""
    from headrace.plan.bindings import import_pipeline, kindless_sinks

    for name in kindless_sinks(config, import_pipeline(config)):
        where = config.where(f"sinks.{name}.mode")
        detail = (
            f"{where}: the stream may take rows back (-U, -D), and mode append keeps all of them, without their kinds"
        )
        way_out = "put upsert_materialize() before the sink, or additions() where it gets late records: it leaves -U and -D out"
        yield Finding(f"sink {name}", "warn", detail, way_out)


def null_keys(plan: Plan) -> Iterator[Finding]:
    """Yield a warning for each sink in whose key a field may be null, by its type."""
    from headrace.records.column_types import columns_of

    for name, sink in plan.sinks.items():
        may_be_null = [
            column.name for column in columns_of(sink.record) if column.nullable and column.name in sink.primary_key
        ]
        if may_be_null:
            detail = (
                f"{', '.join(may_be_null)} of {sink.record.__name__} may be null, and is in the key ({', '.join(sink.primary_key)}): a row in "
                "which it is null goes to the quarantine"
            )
            yield Finding(
                f"sink {name}", "warn", detail, "give such rows a value before the sink, or take them out with a filter"
            )


def names(plan: Plan) -> Iterator[Finding]:
    """Yield a finding for each source and sink whose columns have other names than their fields."""
    from headrace.records.column_types import columns_of

    read = [(f"source {node.name}", node.stored.record, node.stored.names) for node in plan.sources]
    written = [(f"sink {name}", sink.record, sink.names) for name, sink in plan.sinks.items()]
    for what, record, own in (*read, *written):
        other = [column for column in columns_of(record, own) if column.stored != column.name]
        if other:
            listed = ", ".join(f"{column.name} is {column.stored!r}" for column in other)
            yield Finding(what, "ok", f"names of columns: {listed}")


def stored(config: JobConfig, plan: Plan, log: CheckpointLog) -> Iterator[Finding]:
    """Yield findings on stored state and sinks: whether a run could continue, and what it would migrate first."""
    from headrace.commit.run_check import new_sink_columns, sinks_of_spark, stored_problems

    yield from state_types(config.job, log, plan)
    problems = [*stored_problems(config, log, plan)]
    yield from (Finding(what, "fail", problem) for what, problem in problems)
    if not any(what == "sinks" for what, _ in problems):
        yield Finding("sinks", "ok", f"{len(plan.sinks)} declared, and all existing tables fit")
        for columns in new_sink_columns(config, log, plan):
            yield Finding("sinks", "warn", columns, "if they are not meant, change the pipeline before it")
        yield from (Finding("sinks", "ok", sentence) for sentence in sinks_of_spark(config, log, plan))


def state_types(job: str, log: CheckpointLog, plan: Plan) -> Iterator[Finding]:
    """Yield findings on types: whether the pipeline can read all stored state, and what the next run migrates first."""
    from headrace.commit.schema_check import check_schemas, declared_schemas
    from headrace.log.warnings import new_operator_warnings, stateful

    declared = declared_schemas(plan)
    schema_check = check_schemas({} if log.last is None else log.last.state_schemas, declared, job)
    for problem in schema_check.problems:
        yield Finding("state", "fail", problem)
    for migration in schema_check.migrations:
        detail = f"state '{migration.state}' of operator '{migration.operator}' is of an older type"
        yield Finding(
            "state", "warn", detail, "the next run migrates it first; a savepoint before that makes it easy to undo"
        )
    for warning in (
        ()
        if schema_check.problems
        else new_operator_warnings(job, log.lineage.checkpoints, stateful(schema_check.schemas))
    ):
        yield Finding("state", "warn", warning.message)
    if not schema_check.problems and not schema_check.migrations:
        count = sum(map(len, declared.values()))
        yield Finding("state", "ok", f"{count} declared, and all stored values fit")


def sources(config: JobConfig, plan: Plan, log: CheckpointLog) -> Iterator[Finding]:
    """Yield a finding for each source: whether its folder or table can be read, and is the one that was read before."""
    from headrace.sources.position import NO_FACTS
    from headrace.sources.registry import source_of

    facts = {} if log.last is None else log.last.sources
    nodes = {node.name: node for node in plan.sources}
    former = ", ".join(f"'{name}'" for name in sorted(facts.keys() - nodes.keys()) if facts[name].position is not None)
    for name in sorted(nodes.keys() - facts.keys()) if former else ():
        what = f"new, while the job has read {former}, which the pipeline has no more"
        yield Finding(f"source {name}", "warn", what, "if it was renamed, give it its former name back")
    for name in config.sources:
        for remark in source_of(nodes[name].stored, config).remarks(facts.get(name, NO_FACTS)):
            mend = "" if remark.key is None else f" {config.where(f'sources.{name}.{remark.key}')}"
            yield Finding(f"source {name}", remark.outcome, remark.text, f"{remark.advice}{mend}")


def changed_input(config: JobConfig, log: CheckpointLog) -> Iterator[Finding]:
    """Yield a finding for each kind of input that no run takes in: files that changed, came late, look like others, or are passed over."""
    from headrace.commit.input_report import InputKind, input_warnings

    stopping = {InputKind.TWIN, InputKind.UNREADABLE}
    if config.mode == "caught_up":
        stopping.add(InputKind.LATE)  # an interval run passes over late files from before the first interval
    for warning in input_warnings(config, log.lineage.checkpoints):
        source = warning.fields["source"]
        fails = warning.kind in stopping or (
            warning.kind in {InputKind.CHANGED, InputKind.GONE} and config.sources[source].on_changed_file == "fail"
        )
        yield Finding(f"source {source}", "fail" if fails else "warn", warning.message)


def step_tables(config: JobConfig) -> Iterator[Finding]:
    """Yield a finding for each table that Spark's steps over sources read."""
    from headrace.errors import HeadraceError
    from headrace.sources.transformed.rows import DimensionTables
    from headrace.tables.folder import JobFolder

    for source, bound in config.sources.items():
        for name, path in bound.tables.items():
            what = f"table {name}"
            try:
                (version,) = DimensionTables(source, {name: path}, JobFolder.of(config)).latest().values()
                yield Finding(what, "ok", f"{path}: version {version}")
            except HeadraceError as error:
                yield Finding(what, "fail", str(error))


def determinism(config: JobConfig, plan: Plan) -> Iterator[Finding]:
    """Yield a finding for each function whose result depends on chance, on the seed of `hash`, or on the date."""
    from headrace.errors import HeadraceError
    from headrace.local.determinism import DETERMINES_ROWS, differences

    try:
        for difference in differences(config, plan):
            outcome: Outcome = "fail" if difference.kind in DETERMINES_ROWS else "warn"
            yield Finding("determinism", outcome, str(difference), _DETERMINISM)
    except HeadraceError as error:
        yield Finding("determinism", "warn", str(error))


def services(config: JobConfig) -> Iterator[Finding]:
    """Yield a finding for each service: whether it responds to its health check."""
    from headrace.config import shown_url

    for name, service in config.services.items():
        url = service.health_url()
        if url is None:
            yield Finding(f"service {name}", "ok", f"{shown_url(service.url)} (no health check)")
        else:
            yield _service(f"service {name}", url)


def _service(what: str, url: str) -> Finding:
    from http.client import HTTPException
    from urllib.error import HTTPError, URLError
    from urllib.request import urlopen

    from headrace.config import shown_url

    place = shown_url(url)
    try:
        with urlopen(url, timeout=_PATIENCE) as response:  # noqa: S310 - loading allows http and https only
            return Finding(what, "ok", f"{place}: {response.status}")
    except HTTPError as error:
        with error:
            return _away(what, f"{place}: {error.reason}")
    except (URLError, OSError) as error:
        return _away(what, f"{place}: {getattr(error, 'reason', error)}")
    except (HTTPException, ValueError) as error:  # their messages repeat the URL
        return Finding(what, "fail", f"{place}: {type(error).__name__}", "is the URL right, and what responds there?")


def _away(what: str, detail: str) -> Finding:
    return Finding(what, "fail", detail, "start it; until then calls to it are retried, then fail")


def lease(log: CheckpointLog) -> Finding:
    """Return a finding on the lease: whether another run holds the job."""
    from headrace import clock

    held = log.lease
    left = 0 if held is None else held.left(clock.now())
    if held is None or not left:
        return Finding("lease", "ok", "no run holds the job")
    detail = f"run {held.run_id} ({held.holder}) holds the job until {Time(clock.now() + left)}, and may renew that"
    return Finding("lease", "fail", detail, "let it finish, or wait until it has stopped renewing")
