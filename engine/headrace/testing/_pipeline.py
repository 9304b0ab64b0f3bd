"""Harness that drives a whole pipeline without Spark: sources, operators, commits and sinks, on a virtual clock."""

from __future__ import annotations

import itertools
import shutil
import sys
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import InitVar, dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import msgspec

from headrace import crash_points
from headrace.api.graph import SinkNode, SourceNode, UpsertMaterialize
from headrace.api.records import RowKind
from headrace.names import counted
from headrace.stream.stream import Pipeline
from headrace.testing._clocks import JobClock
from headrace.testing._memory_topic import MemoryTopic
from headrace.testing._runs import JobRuns, PipelineBranch, at, known
from headrace.testing._shared import BackendName

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.config import JobConfig
    from headrace.run.options import Event
    from headrace.testing._memory_disk import DiskCopy


_names = itertools.count(1)


class _CrashError(BaseException):
    """Simulated end of the process: no code of the run catches it."""


class _Copy:
    """Copy of a job's folder. It is removed with this object, which each snapshot of it keeps."""

    def __init__(self, folder: Path) -> None:
        """Copy a folder to a temporary one."""
        self.folder = _new_folder()
        weakref.finalize(self, shutil.rmtree, self.folder.parent, ignore_errors=True)
        shutil.copytree(folder, self.folder)
        _copies[self.folder] = self


_copies: weakref.WeakValueDictionary[Path, _Copy] = weakref.WeakValueDictionary()


@dataclass(frozen=True)
class PipelineSnapshot:
    """A copy of everything that a job has stored, and the clock's time.

    A copy that `PipelineHarness.snapshot` has made lasts as long as its snapshots; any other folder stays.
    """

    job: str
    folder: Path
    now: int
    fed: int
    disk: DiskCopy | None = None
    """Copy of the state and the sinks of a job whose storage is in memory."""

    def __post_init__(self) -> None:
        """Keep the copy as long as this object."""
        object.__setattr__(self, "_copy", _copies.get(self.folder))


@dataclass
class PipelineHarness(JobRuns):
    """Runs one pipeline as a job of its own, in a temporary folder and without Spark.

        h = PipelineHarness(pipeline)
        h.feed("orders", [Order("a", 1), Order("b", 2)])
        h.run()
        assert h.sink("totals") == [Total("a", 1), Total("b", 2)]

    It runs the code of a job's driver and tasks, and writes real tables, checkpoints and sinks. Only Spark is replaced:
    tasks run one after the other in this process. Processing time is that of `clock`, which does not run:
    `h.clock.advance(ms)` advances it, and the next `run` fires timers that are due.

    `parallelism` is the number of tasks of an operator, `bucket` the rows between two watermarks, `files_per_batch` the
    largest number of files of each source in a micro-batch, `now` the clock's start time (ms), or
    the clock of a world. Without it, the clock starts on 1 January 2020, and each run advances it to the first event time of each file fed before, if that is later. Rows further ahead of the
    clock than `max_ahead` of their source are refused, as in a job. `job` overrides the
    job's configuration, as in `conf/jobs/*.yaml`: `job={"sources": {"orders": {"idle_after": "1h"}}}`. A sink behind a
    materializer has the mode `merge`, others `append`. A source with one of `topics` has the format kafka.

    The folder is removed with the harness. Raises `TypeError` unless `pipeline` is a `Pipeline`.
    """

    pipeline: Pipeline
    backend: BackendName = "hashmap"
    parallelism: int = 2
    max_parallelism: int = 128
    bucket: int = 1000
    files_per_batch: int = 16
    job: dict[str, Any] = field(default_factory=dict)
    topics: dict[str, MemoryTopic] = field(default_factory=dict)
    """Topics of the sources of format kafka, by name of the source."""
    storage: str | None = None
    """Place of state and sinks instead of `folder`, in memory: "memory://NAME/PATH"."""
    now: InitVar[int | JobClock | None] = None
    clock: JobClock = field(init=False)
    events: list[Event] = field(default_factory=list, init=False, repr=False)
    """Events that the runs reported, in order."""
    folder: Path = field(init=False)
    """Home of the job: it contains `conf`, `input/SOURCE`, `lake/SINK` and `state`."""

    def __post_init__(self, now: int | JobClock | None) -> None:
        """Create the folder and the job's configuration. Raises `TypeError` unless `pipeline` is a `Pipeline`."""
        given: object = self.pipeline
        if not isinstance(given, Pipeline):
            msg = f"PipelineHarness takes a Pipeline, not {given!r:.200}: end the stream with sink(), which returns it"
            raise TypeError(msg)
        self.clock = now if isinstance(now, JobClock) else JobClock(now)
        self._known_files: set[tuple[str, str]] = set()
        self.folder = _new_folder()
        self._modules: list[str] = []
        weakref.finalize(self, _remove, self.folder.parent, self._modules)
        self._fed = 0
        self._runs = 0
        self._configure()

    # ---------------------------------------------------------------------------------------------------- what goes in

    def feed(
        self,
        source: str,
        records: Sequence[msgspec.Struct],
        *,
        kinds: Sequence[RowKind] | None = None,
        file: str | None = None,
    ) -> str:
        """Write a file with `records` into a source's folder, and return its name.

        `kinds` are their row kinds, for a source that has them (default: all inserts). Names sort in the order of the
        calls, unless `file` gives one.

        Raises `ValueError` for an unknown source, values that do not fit the record's types (`feed_table` accepts
        them), and a number of `kinds` other than that of the records; `TypeError` for records of another type.
        """
        import pyarrow as pa

        from headrace.records.column_types import columns_of
        from headrace.records.columns import table_schema, to_columns

        names = self.job.get("sources", {}).get(source, {}).get("rename", {})
        node = replace(self._source(source), rename=tuple(names.items()))
        _check_fed(node, records, kinds)
        table = to_columns(records, table_schema(columns_of(node.record, node.names)), node.record)
        if node.row_kind is not None and node.row_kind not in node.record.__struct_fields__:
            values = {kind: value for value, kind in reversed(node.kinds)}
            fed = [values[kind] for kind in kinds or [RowKind.INSERT] * len(records)]
            table = table.append_column(node.row_kind, pa.array(fed, pa.string()))
        return self.feed_table(source, table, file=file)

    def feed_table(self, source: str, table: pa.Table, *, file: str | None = None) -> str:
        """Write a file with the rows of `table` into a source's folder, and return its name; as `feed`, without checks of the rows.

        Raises `ValueError` for an unknown source, and one that does not read Parquet files.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._source(source)
        kind = self.job.get("sources", {}).get(source, {}).get("format", "parquet")
        if kind == "delta":
            msg = f"source '{source}' reads a Delta table: write rows to it, as with deltalake.write_deltalake"
            raise ValueError(msg)
        if source in self.topics:
            msg = f"source '{source}' reads a topic: append messages to it, as with topics['{source}'].append"
            raise ValueError(msg)
        if kind != "parquet":
            msg = f"source '{source}' reads {kind} files: write them with feed_bytes"
            raise ValueError(msg)
        content = pa.BufferOutputStream()
        pq.write_table(table, content)
        return self.feed_bytes(source, content.getvalue().to_pybytes(), file=file or f"{self._fed + 1:06d}.parquet")

    def feed_bytes(self, source: str, content: bytes, *, file: str) -> str:
        """Write a file with these bytes into a source's folder, and return its name: JSON lines, CSV or Avro, as the job says.

        A name may begin with subfolders, as `day=2026-03-02/a.json`.

        Raises `ValueError` for an unknown source, and a file that exists already.
        """
        self._source(source)
        self._fed += 1
        path = self.folder / "input" / source / file
        if path.exists():
            msg = f"source '{source}' has a file {file} already: a source's files never change, so give it another name"
            raise ValueError(msg)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return file

    # ----------------------------------------------------------------------------------------------------------- runs

    def _advance_clock(self) -> None:
        """Advance the clock to the first event time of each file that came since the last run, if that is later.

        Without it, rows would be refused because nobody has set the clock. A clock that was set stays.
        """
        from headrace.testing._output import last_begin

        if not self.clock.follows_input:
            return
        files = {
            (name, path.relative_to(folder).as_posix())
            for name in self._declared()
            for folder in [self.folder / "input" / name]
            for path in folder.rglob("*")
            if path.is_file()
        }
        begin = last_begin(self.config, self.topics, files - self._known_files)
        self._known_files = files
        if begin is not None:
            self.clock.reach(begin)

    def snapshot(self) -> PipelineSnapshot:
        """Return a copy of everything that the job has stored, its input included."""
        copy = _Copy(self.folder)
        return PipelineSnapshot(self.pipeline.name, copy.folder, self.clock.now(), self._fed, self._disk_copy())

    def restore(self, snapshot: PipelineSnapshot) -> None:
        """Continue from a snapshot, of this harness or another one; the clock returns to the snapshot's time.

        Raises `ValueError` for a snapshot of another job.
        """
        if snapshot.job != self.pipeline.name:
            msg = f"the snapshot is of job '{snapshot.job}', and this harness runs '{self.pipeline.name}'"
            raise ValueError(msg)
        copy = self.folder.with_name("restored")
        shutil.copytree(snapshot.folder, copy)
        self._replace(copy)
        if self.storage is not None and snapshot.disk is not None:
            snapshot.disk.bring_back(self.storage)
        self.clock.advance(snapshot.now - self.clock.now())
        self._fed = snapshot.fed
        self._configure()

    def change(
        self, *, pipeline: Pipeline | None = None, parallelism: int | None = None, job: dict[str, Any] | None = None
    ) -> None:
        """Continue with another version of the pipeline, another number of tasks, or other settings of the job."""
        self.pipeline = pipeline or self.pipeline
        self.parallelism = parallelism or self.parallelism
        self.job = self.job if job is None else job
        self._configure()

    def branch(
        self,
        name: str,
        *,
        at: int | str | None = None,
        settings: Mapping[str, str] | None = None,
        note: str | None = None,
    ) -> PipelineBranch:
        """Fork a branch, as `headrace branch create` does, and return it.

        `at` is the checkpoint at which it begins: its id, a savepoint's name, or the last one (None). `settings` replace values of the job's file on the branch, and
        `note` is the reason for it. Raises the errors of the command.
        """
        from headrace.edits.fork import fork

        with self.on_its_clock():
            fork(self.config, name, at, "test", note, settings=settings)
        return PipelineBranch(self, name)

    @property
    def config(self) -> JobConfig:
        """Return the job's configuration, for `headrace.commit` and the readers."""
        from headrace.config import load_job

        return load_job(self.pipeline.name, self.folder)

    # ---------------------------------------------------------------------------------------------------- private

    def _source(self, name: str) -> SourceNode:
        sources = self._declared()
        return sources[known("source", name, sources)]

    def _declared(self) -> dict[str, SourceNode]:
        """Return the sources by name; with Spark's transform over it, a source has the rows of the step's result."""
        from headrace.plan.planner import sources_of

        return {source.name: source for source in sources_of(self.pipeline)}

    def _configure(self) -> None:
        import yaml

        from headrace.config import allow_scheme
        from headrace.testing._memory_table import open_memory

        allow_scheme(open_memory())
        module = ModuleType(f"_headrace_harness_{next(_names)}")
        module.pipeline = self.pipeline  # type: ignore[attr-defined]  # a module made here
        sys.modules[module.__name__] = module
        self._modules.append(module.__name__)
        job = _laid_over(
            {
                "job": self.pipeline.name,
                "pipeline": f"{module.__name__}:pipeline",
                "max_parallelism": self.max_parallelism,
                "state": {"root": self._place("state"), "local": "local", "backend": self.backend},
                "watermark": {"bucket": self.bucket},
                "sources": self._sources(),
                "sinks": self._sinks(),
            },
            self.job,
        )
        cluster = {"master": "none", "parallelism": self.parallelism}
        for kind, name, content in (("jobs", self.pipeline.name, job), ("clusters", "local", cluster)):
            path = self.folder / "conf" / kind / f"{name}.yaml"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(yaml.safe_dump(content), encoding="utf-8")
        for source in job["sources"]:
            (self.folder / "input" / source).mkdir(parents=True, exist_ok=True)

    def _sources(self) -> dict[str, Any]:
        return {name: self._bound(name) | self._tables(name) for name in self._declared()}

    def _bound(self, name: str) -> dict[str, Any]:
        if name in self.topics:
            return {"format": "kafka", "servers": "in-memory:9092", "topic": self.topics[name].name}
        return {"max_files_per_batch": self.files_per_batch, "path": f"input/{name}"}

    def _tables(self, name: str) -> dict[str, Any]:
        """Bind the tables of Spark's transform over a source, which the harness never reads."""
        step = self._declared()[name].transform
        return {} if step is None or not step.tables else {"tables": {table: f"lake/{table}" for table in step.tables}}

    def _sinks(self) -> dict[str, Any]:
        modes = {
            node.operator.name: "merge" if isinstance(node.inputs[0].node.operator, UpsertMaterialize) else "append"
            for node in self.pipeline.nodes
            if isinstance(node.operator, SinkNode)
        }
        return {name: {"path": self._place(f"lake/{name}"), "mode": mode} for name, mode in modes.items()}

    def _place(self, path: str) -> str:
        return path if self.storage is None else f"{self.storage}/{path}"

    def _next_run(self) -> str:
        self._advance_clock()
        self._runs += 1
        return f"run-{self._runs}"

    @contextmanager
    def crashing_at(self, place: str | None) -> Iterator[None]:
        """Let the process die when the block reaches a place, as in `run`: what it wrote by then stays, and the block ends."""
        crashed = self.folder.with_name("crashed")
        disks: list[DiskCopy | None] = []

        def crash() -> None:
            shutil.copytree(self.folder, crashed)
            disks.append(self._disk_copy())
            raise _CrashError

        try:
            with crash_points.observed(at(place, crash)):
                yield
        except _CrashError:
            self._replace(crashed)
            for disk in disks:
                if disk is not None:
                    disk.bring_back()

    def _disk_copy(self) -> DiskCopy | None:
        from headrace.testing._memory_disk import DiskCopy

        return None if self.storage is None else DiskCopy(self.storage)

    def _replace(self, folder: Path) -> None:
        shutil.rmtree(self.folder)
        folder.rename(self.folder)


def _laid_over(content: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    result = dict(content)
    for key, value in changes.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = _laid_over(result[key], value) if both else value
    return result


def _new_folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="headrace-")) / "job"


def _remove(folder: Path, modules: Sequence[str]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    for name in modules:
        sys.modules.pop(name, None)


def _check_fed(source: SourceNode, records: Sequence[msgspec.Struct], kinds: Sequence[RowKind] | None) -> None:
    for record in records:
        if not isinstance(record, source.record):
            msg = f"source '{source.name}' has records of type {source.record.__name__}, not {record!r:.200}"
            raise TypeError(msg)
    if kinds is None and (source.row_kind is None or RowKind.INSERT in {kind for _, kind in source.kinds}):
        return
    kinds = kinds or [RowKind.INSERT] * len(records)
    if source.row_kind is None:
        msg = (
            f"source '{source.name}' has no row kinds: give source(..., row_kind=COLUMN) the name of a column for them"
        )
        raise ValueError(msg)
    if source.row_kind in source.record.__struct_fields__:
        msg = f"source '{source.name}' takes row kinds from the field {source.row_kind} of its records: set it there"
        raise ValueError(msg)
    if strange := {*kinds} - {kind for _, kind in source.kinds}:
        msg = f"no value of {source.row_kind} in source '{source.name}' stands for {', '.join(sorted(kind.symbol for kind in strange))}"
        raise ValueError(msg)
    if len(kinds) != len(records):
        msg = f"{counted(len(kinds), 'row kind')} for {counted(len(records), 'record')}: give one for each"
        raise ValueError(msg)
