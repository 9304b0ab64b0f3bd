"""Job files, `conf/jobs/<job>.yaml`. Every struct is frozen; loading has validated every value.

Settings for Airflow in a job's file, besides its schedule.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, Literal, Self
from zoneinfo import ZoneInfo

import msgspec
from msgspec.structs import replace as replace_fields

from headrace.config._cluster import HIDDEN, ClusterConfig
from headrace.config._sections import CorrectedInput, ExecutionConfig, OperatorConfig
from headrace.config._settings import shown_setting
from headrace.config._sink import SinkConfig
from headrace.config._source import SourceConfig
from headrace.config._types import (
    Count,
    Examples,
    FunctionRef,
    KeyGroups,
    Location,
    Memory,
    Name,
    PipelineCode,
    PipelineRef,
    Promote,
    Rate,
    Renames,
    Secret,
    Section,
    Span,
    Tasks,
    Whole,
    shown_repr,
)
from headrace.config._values import (
    shown_url,
    with_path,
)
from headrace.errors import ConfigError
from headrace.options import AsyncStateOptions, MaterializerOptions, Strategy


class AirflowConfig(Section, frozen=True, kw_only=True):
    """Where [Airflow](airflow.md) runs the tasks of the job's DAG, and whom it tells. Without Airflow it has no effect."""

    pool: str | None = None
    """The pool of the tasks; null: Airflow's default. Make it before the DAG runs."""

    pool_slots: Count = 1
    """The slots of the pool that the task `run` takes."""

    queue: str | None = None
    """The queue of the tasks, for executors that have several; null: Airflow's default."""

    priority: Count = 1
    """The priority weight of the tasks: tasks with more of it leave a full pool first."""

    approvers: tuple[str, ...] = ()
    """Ids of the Airflow users who may answer the questions of JOB_replay; none: everybody who may see to its required actions."""

    on_alert: FunctionRef | None = None
    """A function, or a notifier, as package.module:name, that the task `run` calls with its context when an alert is raised or over; the context has it as `alert`."""

    on_failure: FunctionRef | None = None
    """A function, as package.module:function, that Airflow calls with its context when a task has failed for good."""

    on_retry: FunctionRef | None = None
    """Likewise, when a task is tried again."""

    on_success: FunctionRef | None = None
    """Likewise, when the task `run` has ended well."""

    deadline: Span | None = None
    """How long a DAG run may take from when it is queued; null: no limit. It goes on after that: somebody is told."""

    on_deadline: FunctionRef | None = None
    """A function, as package.module:function, that Airflow calls when the deadline has passed; null: a line in the log. `async def` runs in the triggerer, `def` by the executor."""


class ScheduleConfig(Section, frozen=True, kw_only=True):
    """Intervals in which Airflow starts the job."""

    cron: str
    """Five cron fields, or @hourly, @daily, @weekly, @monthly, @yearly."""

    start: datetime
    """The beginning of the first interval; a day or a timestamp, in `timezone` unless it names one."""

    timezone: str = "UTC"
    """The time zone of `cron` and `start`, as in Europe/Berlin."""

    automatic: bool = True
    """Whether Airflow starts a run when an interval ends; false: it only starts backfills, and runs by hand."""

    after: tuple[str, ...] = ()
    """Names of assets, such as JOB.SINK: Airflow starts the run of an interval when each of them has an event for [the interval's partition](airflow.md#partitions). Empty: when the interval ends."""

    def starts_at(self) -> datetime:
        """Return `start` as an aware timestamp."""
        if self.start.tzinfo is not None:
            return self.start
        return self.start.replace(tzinfo=ZoneInfo(self.timezone))


class StateConfig(Section, frozen=True, kw_only=True):
    """Where state is kept."""

    root: Location = "var/state"
    """Folder or URI of the Delta tables; the job's are in `<root>/<name>/`."""

    name: Name | None = None
    """The name that the job has in `root`, in `local` and in its sinks; null: the job's own. Set it to the former name when a job is [renamed](changing-jobs.md#rename-a-job), and keep it."""

    backend: Literal["rocksdb", "hashmap", "delta"] = "rocksdb"
    """[How tasks hold state](concepts.md#local-copies) while they run: on local disk, in memory, or looked up in the tables. Results do not depend on it."""

    local: Location = "var/local"
    """Folder on each worker for local copies of state. Losing it costs a reload, nothing else."""

    cache_bytes: Count = 268_435_456
    """Backend delta: bytes of state that a task keeps on local disk, so as not to look them up again (256 MiB)."""

    inline_reads_below: Whole = 268_435_456
    """Backend rocksdb: bytes of a task's files below which its reads are executed inline, each at once, not in batches (256 MiB); 0: never. Results do not depend on it."""


class WatermarkConfig(Section, frozen=True, kw_only=True):
    """How often [the watermark](concepts.md#buckets-and-watermarks) moves."""

    bucket: Count = 1000
    """Rows of arrival order between two watermarks. Part of the job's meaning: keep it."""


def _renames(bound: Mapping[str, SourceConfig] | Mapping[str, SinkConfig]) -> Renames:
    return tuple((name, tuple(config.rename.items())) for name, config in bound.items() if config.rename)


LINES: Final = "lines"
"""The folder of the branches, in the job's folder."""


class ServiceConfig(Section, frozen=True, kw_only=True):
    """A service that async functions call; `AsyncFunction.open` gets its URL by this name."""

    url: str
    """Base URL. Reports leave its query out: it may hold a secret."""

    health: str | None = "/health"
    """Path that responds 2xx while the service is well; null: not checked."""

    rate: Rate | None = None
    """Calls a second that each task may make, all operators that name the service taken together; null: no limit."""

    concurrency: Count | None = None
    """Calls at once that each task may make, likewise; null: no limit but the operators' capacity."""

    effects: bool = False
    """Whether a call changes something outside: sends, orders, pays. [Branches and backfills](backfill.md#services) then refuse to call it, unless asked to."""

    keep_responses: Span | None = None
    """How long the responses to each request are kept in the table `responses`, [for replays](backfill.md#services); null: they are not kept."""

    replay: Literal["responses", "call"] | None = None
    """What branches and backfills do. `responses`: they take the responses that the job got and kept, and call only for other requests. `call`: they call again. null: `responses` where they are kept, else `call`."""

    @property
    def of_calls(self) -> list[str]:
        """Return the names of the settings that hold for calls of operators which name the service, but for those that have their defaults."""
        defaults = {field.name: field.default for field in msgspec.structs.fields(self)}
        names = ("rate", "concurrency", "effects", "keep_responses", "replay")
        return [name for name in names if getattr(self, name) != defaults[name]]

    @property
    def takes_responses(self) -> bool:
        """Return whether branches take the kept responses of the job."""
        return self.keep_responses is not None and self.replay != "call"

    def health_url(self) -> str | None:
        """Return the address of the health check, or None if the service is not checked."""
        return None if self.health is None else with_path(self.url, self.health)

    def shown(self) -> dict[str, Any]:
        """Return the settings for printing: queries of URLs are left out."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain | {"url": shown_url(self.url), "health": self.health and shown_url(self.health)}

    def __repr__(self) -> str:
        """Return a struct's text without queries: configurations end up in tracebacks and logs."""
        return shown_repr(self, self.shown())


class AsyncIoConfig(Section, frozen=True, kw_only=True):
    """Overrides for one `async_wait`; what is null or left out, the pipeline decides."""

    capacity: Count | None = None
    """Calls at once in one task."""

    timeout: Span | None = None
    """Over all attempts for one record."""

    park_after: Span | None = None
    """An element [waits in `async_requests`](async-io.md), for a later micro-batch, if its next attempt is at least this time away."""


class RunConfig(Section, frozen=True, kw_only=True):
    """Limits of one run."""

    budget: Span = timedelta(minutes=30)
    """After this time no micro-batch starts, and the present one holds what has not begun."""

    grace: Span = timedelta(minutes=5)
    """How long a run may take to end after its budget, before Airflow stops it."""

    lease: Span = timedelta(seconds=60)
    """How long a run that went silent keeps the job to itself: the next one waits so long at most."""

    retries: Whole = 2
    """How often Airflow starts a failed run again."""

    retry_delay: Span = timedelta(minutes=1)
    """How long Airflow waits before that."""

    gaps: Literal["refuse", "fill"] = "refuse"
    """What a run of an interval does where earlier ones are missing: it ends (9), or takes them in first."""


class ReplayConfig(Section, frozen=True, kw_only=True):
    """[Backfills](backfill.md): past intervals that are computed again, on a branch."""

    promote: Promote = Promote.APPROVAL
    """automatic: the result becomes live when it is there. approval: somebody looks at it, and promotes it; if nothing differs, it needs no approval. refuse: it is compared with the live tables, and no more."""

    tables: Literal["recorded", "latest"] = "recorded"
    """Versions of dimension tables that a branch makes the rows of [Spark transforms](backfill.md#tables-of-spark-transforms) with. recorded: those that the job had for the same micro-batch. latest: the present ones, for example after a correction of a table."""

    follow: Literal["ask", "automatic", "never"] = "ask"
    """What a job does with a correction of its input by [another job's promotion](backfill.md#jobs-downstream). ask: runs name it, until somebody starts the backfill. automatic: the run that has met it starts the backfill, or asks the replay DAG for it. never: `headrace status` lists it."""

    max_calls: Whole | None = None
    """Most calls to services that a backfill may expect by its plan. It begins beyond that only [if a person allows it](backfill.md#what-it-does); null: any number."""

    max_minutes: Count | None = None
    """Most minutes likewise."""

    show_rows: Examples = 0
    """Most changed rows of sinks that the question of the replay DAG shows. Airflow's database keeps their values then; 0: it has only numbers of rows."""

    sources: dict[Name, CorrectedInput] = msgspec.field(default_factory=dict)
    """[Corrected input](backfill.md#topics): what a backfill reads in the requested intervals in place of these sources of the job. `headrace backfill --source` sets it for one backfill."""

    dag: bool = True
    """true: Airflow has [a DAG JOB_replay](airflow.md#replays). A run that was cleared or backfilled, or whose input has changed, registers an interval there that was taken in already. false: such runs fail."""


class PublishConfig(Section, frozen=True, kw_only=True):
    """How sinks are written."""

    spark_above_rows: Whole = 500_000
    """A micro-batch with more changed rows is published by Spark, a smaller one without it."""


class CompactionConfig(Section, frozen=True, kw_only=True):
    """How often state tables are rewritten to one row per live entry. The DAG has the task `compact` unless `every` is null."""

    every: Count | None = 7
    """After this many runs; null: only by `headrace maintain`."""


class RetentionConfig(Section, frozen=True, kw_only=True):
    """How long old checkpoints stay restorable. Savepoints stay for ever. [Sinks](state-tables.md#how-far-back) have a retention of their own."""

    hours: Count = 168
    """Files that no checkpoint of this age or younger needs may be removed by `headrace maintain`."""


class TellConfig(Section, frozen=True, kw_only=True):
    """Who is told when an [alert](alerts.md) is raised, and when it is over. The log of the run says it in any case."""

    command: tuple[Secret, ...] = ()
    """A command and its arguments. It starts in the project's folder, and reads the alert as JSON from its standard input."""

    webhook: Secret | None = None
    """A URL that gets the alert as JSON (POST). It often holds a secret: write `${NAME}`. Reports do not show it."""


class JobFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job: a pipeline, bound to places, with limits and a schedule."""

    job: Name
    """The job's name; the file's name without .yaml."""

    pipeline: PipelineRef
    """Where the pipeline is, as package.module:variable."""

    description: str = ""
    """One or two sentences; Airflow shows them."""

    owner: str = "headrace"
    """Who is asked when the job fails."""

    tags: tuple[str, ...] = ()
    """Airflow tags."""

    schedule: ScheduleConfig | None = None
    """When Airflow starts the job; null: only when somebody starts it."""

    mode: Literal["caught_up", "interval"] = "caught_up"
    """caught_up: a run takes in all there is. interval: a run takes in the files of its interval."""

    max_parallelism: KeyGroups = 128
    """Number of key groups: the most tasks an operator can ever have. Fixed with the first run; [`headrace rescale`](changing-jobs.md#another-max_parallelism) changes it."""

    parallelism: Tasks | None = None
    """Tasks per operator; null: as the cluster profile says. May change between runs."""

    max_memory: Memory | None = None
    """[Bytes of rows](performance.md#memory) that a task holds at once, from 16 MiB; null: no limit. Results do not depend on it."""

    cluster: Name = "local"
    """The profile in conf/clusters/ that the job runs on."""

    state: StateConfig = StateConfig()
    watermark: WatermarkConfig = WatermarkConfig()

    sources: dict[Name, SourceConfig]
    """One mapping for each `.source(...)` of the pipeline."""

    sinks: dict[Name, SinkConfig]
    """One mapping for each `.sink(...)` and each `sink=` of a side output. `merge` needs an `upsert_materialize` before the sink; a side output can only be appended."""

    services: dict[Name, ServiceConfig] = {}
    async_io: dict[Name, AsyncIoConfig] = {}
    execution: ExecutionConfig = ExecutionConfig()
    operators: dict[Name, OperatorConfig] = {}
    run: RunConfig = RunConfig()
    replay: ReplayConfig = ReplayConfig()
    publish: PublishConfig = PublishConfig()
    compaction: CompactionConfig = CompactionConfig()
    retention: RetentionConfig = RetentionConfig()

    alerts: dict[str, str] = {}
    """[Conditions on metrics](alerts.md), such as `lag: "> 2h"`; the command `headrace alerts` says which there are. An alert is raised while its condition holds."""

    tell: TellConfig = TellConfig()
    airflow: AirflowConfig = AirflowConfig()


class JobConfig(JobFile, frozen=True, kw_only=True):
    """A job as loaded: the file's values, its cluster profile, and where each value stands."""

    home: Path
    """The folder that relative paths started from."""

    file: Path
    """The job's YAML file."""

    profile: ClusterConfig
    """The cluster profile that `cluster` names."""

    lines: dict[str, int] = {}
    """Line of each key, by its dotted path, for messages."""

    branch: str | None = None
    """The branch whose tables are meant; None: those of the job itself. See `on_branch`."""

    settings: dict[str, str] = {}
    """Values of the branch that replace those of the file: YAML, by dotted key. See `with_settings`."""

    @property
    def code(self) -> PipelineCode:
        """Return the location of the job's pipeline, for `headrace.plan.loader`."""
        names = (_renames(self.sources), _renames(self.sinks))
        return PipelineCode(self.pipeline, str(self.home), self.profile.py_files, *names)

    def corrected(self, source: str) -> SourceConfig:
        """Return the settings of the corrected input of a source; see `replay.sources`."""
        return self.sources[source].corrected_by(self.replay.sources[source])

    @property
    def all_sources(self) -> list[SourceConfig]:
        """Return the settings of all sources, and of corrected input."""
        return [*self.sources.values(), *map(self.corrected, self.replay.sources)]

    @property
    def reads_latest_tables(self) -> bool:
        """Return whether this is a branch whose steps read the latest versions of dimension tables also where the job has recorded some."""
        return self.branch is not None and self.replay.tables == "latest"

    @property
    def stored_name(self) -> str:
        """Return the job's name where it is stored: its folder, and its transactions in sinks. It does not change with a renaming."""
        return self.state.name or self.job

    @property
    def job_folder(self) -> str:
        """Return the folder or URI of the job's state tables, or of the branch's."""
        folder = f"{self.state.root}/{self.stored_name}"
        return folder if self.branch is None else f"{folder}/{LINES}/{self.branch}"

    @property
    def local_folder(self) -> Path:
        """Return the folder of the job's local copies of state, or of the branch's."""
        name = self.stored_name if self.branch is None else f"{self.stored_name}@{self.branch}"
        return Path(self.state.local) / name

    def on_branch(self, name: str) -> Self:
        """Return the job on a branch: a job folder of its own, and sinks in it that readers of the live sinks do not see.

        A sink is a Delta table there, whatever its format is: no message is sent. Raises `ConfigError` on a branch: a branch has
        no branches.

        This says where the branch is. Its own code, input and settings are applied by `headrace.commit.branch_code`.
        """
        if self.branch is not None:
            msg = f"'{name}' would be a branch of branch '{self.branch}', and a branch has no branches: fork the job itself"
            raise ConfigError(msg)
        on_branch = replace_fields(self, branch=name)
        sinks = {
            sink: replace_fields(
                config,
                format="delta",
                path=f"{on_branch.job_folder}/sinks/{sink}",
                servers=None,
                topic=None,
                options={},
                key=None,
            )
            for sink, config in self.sinks.items()
        }
        return replace_fields(on_branch, sinks=sinks)

    @property
    def itself(self) -> Self:
        """Return the job that a branch is of, for its folder and its branches. Settings and sinks stay those of the branch."""
        return replace_fields(self, branch=None)

    @property
    def tasks(self) -> int:
        """Return the number of tasks per operator: the job's own number, else the profile's; never more than the key groups."""
        return min(self.parallelism or self.profile.parallelism, self.max_parallelism)

    @property
    def keeps_responses(self) -> bool:
        """Return whether a service keeps its responses."""
        return any(service.keep_responses is not None for service in self.services.values())

    @property
    def appended(self) -> tuple[str, ...]:
        """Return the sinks in mode append."""
        return tuple(name for name, sink in self.sinks.items() if sink.mode == "append")

    @property
    def credentials(self) -> dict[str, str] | None:
        """Return what reaches the object store, by deltalake's names; None on local disks."""
        return dict(self.profile.storage) or None

    def async_state(self, operator: str, *, enabled: bool | None = None) -> AsyncStateOptions:
        """Return the options of state access of a keyed process: those under `operators`, else the job's, else the defaults.

        `enabled`, unless None, overrides all of them, as the command line does.
        """
        own = self.operators.get(operator, OperatorConfig())
        options = own.execution.async_state.over(self.execution.async_state.over(AsyncStateOptions()))
        return options if enabled is None else replace(options, enabled=enabled)

    def upsert_materialize(self, operator: str, backend: str | None = None) -> MaterializerOptions:
        """Return the history options of an upsert materializer: those under `operators`, else the job's, else the defaults.

        `backend` is the one that the job runs on, by default its own. Raises `ConfigError` where the two thresholds
        contradict each other, or a given one contradicts the backend's default of the other.
        """
        own = self.operators.get(operator, OperatorConfig()).execution.upsert_materialize
        key = "execution.upsert-materialize"
        try:
            options = self.execution.upsert_materialize.over(MaterializerOptions())
            if own.threshold_high is not None or own.threshold_low is not None:
                key = f"operators.{operator}.{key}"
            options = own.over(options)
            options.layouts(Strategy.ADAPTIVE, backend or self.state.backend)
        except ValueError as error:
            raise ConfigError(f"{self.where(key)}: {error}") from None
        return options

    def where(self, key: str) -> str:
        """Return `file:line: key`, for a message about `key` (its dotted path in the file), or the setting that replaces it."""
        if any(f"{key}.".startswith(f"{setting}.") for setting in self.settings):
            return shown_setting(key) if self.branch is None else f"branch '{self.branch}', {shown_setting(key)}"
        line = self.lines.get(key)
        return f"{self.file}:{line}: {key}" if line else f"{self.file}: {key}"

    def shown(self) -> dict[str, Any]:
        """Return all settings as plain values for printing, with secrets hidden."""
        plain: dict[str, Any] = msgspec.to_builtins(self, enc_hook=str)
        del plain["lines"]
        plain["profile"] = self.profile.shown()
        if self.tell.webhook is not None:
            plain["tell"]["webhook"] = HIDDEN
        plain["services"] = {name: service.shown() for name, service in self.services.items()}
        for name, source in self.sources.items():
            plain["sources"][name]["options"] = source.shown()["options"]
        for name, sink in self.sinks.items():
            plain["sinks"][name]["options"] = sink.shown()["options"]
        return plain
