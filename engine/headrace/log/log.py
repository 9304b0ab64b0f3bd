"""Log of checkpoints: read and append the table `checkpoints`, the only source of truth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace import clock
from headrace.config import JobConfig, parse_timestamp
from headrace.errors import ConfigError, FencedError, StorageError
from headrace.log.checkpoint import Checkpoint, Kind, Lease
from headrace.log.facts import NO_DECLARATIONS, Declarations, JobWork
from headrace.log.lineage import Lineage
from headrace.log.marks import drop_of, live_savepoints
from headrace.names import did_you_mean
from headrace.sources.interval import timestamp_text
from headrace.storage.table import TableMissingError, VersionTakenError, damaged
from headrace.tables.folder import JobFolder
from headrace.tables.schemas import CHECKPOINTS, CHECKPOINTS_SCHEMA, FORMAT_VERSION
from headrace.tables.view import in_milliseconds

_MANY_FILES = 20
"""Number of files from which on the table is compacted: a run adds three and more."""

_JSON = (
    "sources",
    "timelines",
    "versions",
    "outputs",
    "operators",
    "edges",
    "pauses",
    "declared",
    "metrics",
    "seconds",
    "services",
    "row_times",
    "watermark_steps",
    "erased",
    "cause",
)
_TIMES = (
    "interval_start",
    "interval_end",
    "watermark",
    "due",
    "processing_time",
    "ended_at",
    "committed_at",
    "lease_expires_at",
)


class CheckpointLog:
    """Table `checkpoints` of one job, as of the version last read.

    Appending is a compare-and-set: it succeeds only if nobody has appended since `refresh`.
    """

    def __init__(self, folder: JobFolder) -> None:
        """Open the table in a job's folder. It may be missing; see `exists`."""
        self._files_of_table = folder.below(CHECKPOINTS)
        self._store = folder.table(CHECKPOINTS)
        self._version = -1
        self._table_id = ""
        self._files = 0
        self.checkpoints: list[Checkpoint] = []
        self.lease: Lease | None = None
        self._declared_by: dict[int, int | None] = {}
        """By checkpoint, the one whose row has its declarations."""
        self.refresh()

    @property
    def exists(self) -> bool:
        """Return whether the table exists: the job was initialised."""
        return self._version >= 0

    @property
    def last(self) -> Checkpoint | None:
        """Return the last committed checkpoint."""
        return self.checkpoints[-1] if self.checkpoints else None

    def refresh(self) -> None:
        """Read the table's latest version."""
        try:
            table = self._store.latest()
        except TableMissingError:
            return
        if (table.version, table.table_id) == (self._version, self._table_id):
            return
        _check_columns(self._store.uri, table.schema)
        rows = in_milliseconds(table.read(CHECKPOINTS_SCHEMA)).combine_chunks()
        is_lease = pc.equal(rows["kind"], Kind.LEASE.value)
        committed = rows.filter(pc.invert(is_lease))
        _check_format(self._store.uri, pc.max(committed["format_version"]).as_py() or 0)
        _check_kinds(self._store.uri, rows)
        _check_leases(self._store.uri, rows.filter(is_lease))
        decoded = _Rows(self._store.uri, committed).checkpoints()
        _check_ids(self._store.uri, decoded)
        self.checkpoints = sorted(decoded, key=lambda checkpoint: checkpoint.checkpoint_id)
        self._declared_by = dict(
            zip(*(committed[name].to_pylist() for name in ("checkpoint_id", "declared_by")), strict=True)
        )
        self.lease = _last_lease(rows)
        self._version, self._table_id, self._files = table.version, table.table_id, len(table.files())

    def check_newest(self) -> None:
        """Raise `FencedError` if somebody else has appended since the last refresh, `StorageError` if the table cannot be read."""
        try:
            newest = self._store.latest()
        except TableMissingError as error:
            raise self._gone("its work") from error
        if newest.table_id != self._table_id:
            raise self._gone("its work")
        if newest.version != self._version:
            raise self._fenced("its work")

    @property
    def lineage(self) -> Lineage:
        """Return the lineage that leads to the last checkpoint."""
        return Lineage(self.checkpoints)

    def get(self, checkpoint_id: int, job: str = "JOB") -> Checkpoint:
        """Return the checkpoint with this id. `job` is named in errors.

        Raises `ConfigError` when there is none.
        """
        for checkpoint in self.checkpoints:
            if checkpoint.checkpoint_id == checkpoint_id:
                return checkpoint
        known = _ranges([checkpoint.checkpoint_id for checkpoint in self.checkpoints]) or "none yet"
        msg = f"there is no checkpoint {checkpoint_id} (known: {known}); see 'headrace checkpoints {job}'"
        raise ConfigError(msg)

    def savepoint(self, name: str, job: str = "JOB") -> Checkpoint:
        """Return the latest savepoint of this name. `job` is named in errors.

        Raises `ConfigError` when there is none.
        """
        savepoints = [savepoint for savepoint in live_savepoints(self.checkpoints) if savepoint.name == name]
        if not savepoints:
            raise ConfigError(_no_savepoint(self.checkpoints, name, job))
        return savepoints[-1]

    def resolve(self, config: JobConfig, at: int | str | None = None) -> Checkpoint:
        """Return the checkpoint that `at` names: an id, a savepoint's name, a time, or the last one (None).

        A time names the checkpoint that was the last one at that time.
        Raises `ConfigError` when there is none.
        """
        if self.last is None:
            msg = (
                f"job '{config.job}' has no checkpoint yet: nothing is committed in {config.job_folder}. "
                f"Start it with 'headrace run {config.job}'."
            )
            raise ConfigError(msg)
        if at is None:
            return self.last
        text = str(at)
        if text.isdecimal():
            return self.get(int(text), config.job)
        try:
            timestamp = parse_timestamp(text)
        except ValueError:
            return self.savepoint(text, config.job)
        return self._last_at(timestamp, text, config.job)

    def resolve_as_of(self, config: JobConfig, text: str) -> Checkpoint:
        """Return the last checkpoint of the live lineage whose watermark is at or before a timestamp of event time.

        `text` is ISO 8601, in UTC unless it says otherwise. Checkpoints that a restore left behind do not count. Raises
        `ConfigError` for anything else, and when no checkpoint's watermark is that early.
        """
        self.resolve(config)
        try:
            timestamp = parse_timestamp(text)
        except ValueError as error:
            msg = f"--as-of '{text}' is not a timestamp; write it as 2013-01-31 or 2013-01-31T05:00"
            raise ConfigError(msg) from error
        lineage = self.lineage.with_watermarks
        earlier = [checkpoint for checkpoint, watermark in lineage if watermark <= timestamp]
        if earlier:
            return next((checkpoint for checkpoint in reversed(earlier) if checkpoint.has_state), earlier[-1])
        watermarks = [watermark for _, watermark in lineage]
        known = (
            f"they go from {timestamp_text(watermarks[0])} to {timestamp_text(watermarks[-1])}"
            if watermarks
            else "none has one yet"
        )
        msg = (
            f"no checkpoint of job '{config.job}' has a watermark at or before {text} (UTC unless it says otherwise): {known}. "
            f"See 'headrace checkpoints {config.job}'; --at takes the time of a commit"
        )
        raise ConfigError(msg)

    def _last_at(self, timestamp: int, text: str, job: str) -> Checkpoint:
        """Return the last checkpoint at a timestamp (ms), even if a restore left it behind later. Errors show the timestamp as `text`."""
        earlier = [checkpoint for checkpoint in self.checkpoints if checkpoint.committed_at <= timestamp]
        if earlier:
            # Checkpoints that a promotion brought were committed on a branch, and were never the last one of the job.
            return next((checkpoint for checkpoint in reversed(earlier) if checkpoint.has_state), earlier[-1])
        msg = (
            f"job '{job}' had no checkpoint at {text} (UTC unless it says otherwise); see 'headrace checkpoints {job}'"
        )
        raise ConfigError(msg)

    @property
    def incarnation(self) -> int | None:
        """Return the incarnation of the job; None before its first checkpoint."""
        return incarnation_of(self.checkpoints)

    def create(self) -> None:
        """Create the table if it is missing."""
        self._store.create(CHECKPOINTS_SCHEMA)
        self.refresh()

    def append(self, checkpoint: Checkpoint, lease: Lease | None, before: Sequence[Checkpoint] = ()) -> None:
        """Commit `checkpoint` and renew `lease` in the same row. Checkpoints `before` it join the same commit.

        Raises `FencedError` when somebody else has appended since the last refresh.
        """
        rows = self._rows([*before, checkpoint])
        if lease is not None:
            rows[-1] |= {"lease_expires_at": lease.expires_at, "holder": lease.holder}
        self._append(rows, f"checkpoint {checkpoint.checkpoint_id}")
        self._added([*before, checkpoint], rows)
        if lease is not None:
            self.lease = lease

    def begin(self, checkpoints: Sequence[Checkpoint]) -> None:
        """Commit the first checkpoints of a branch together. Raises `FencedError` when somebody else has committed some meanwhile."""
        rows = self._rows(checkpoints)
        self._append(rows, "the fork")
        self._added(checkpoints, rows)

    def claim(self, lease: Lease) -> None:
        """Append a lease row; an expiry in the past gives the job up.

        Raises `FencedError` when somebody else appended since the last refresh.
        """
        row: dict[str, Any] = {
            "kind": Kind.LEASE.value,
            "run_id": lease.run_id,
            "attempt_id": lease.attempt_id,
            "committed_at": lease.claimed_at,
            "lease_expires_at": lease.expires_at,
            "holder": lease.holder,
            "format_version": FORMAT_VERSION,
        }
        self._append([row], "its lease")
        self.lease = lease

    def tidy(self) -> None:
        """Compact a table of many files. Called by the holder of the job, right after it has claimed it.

        Each commit adds a file, so the runs of a few days would make the next one read hundreds of them.
        """
        if self._files >= _MANY_FILES:
            self.compact()

    def compact(self) -> None:
        """Rewrite the table as one file without ended leases, so that it is quick to read.

        Raises `FencedError` when somebody else appended since the last refresh.
        """
        rows = self._store.at(self._version).read(CHECKPOINTS_SCHEMA)
        is_lease = pc.equal(rows["kind"], Kind.LEASE.value)
        is_newest = pc.equal(rows["log_version"], pc.max(rows["log_version"]))
        kept = rows.filter(pc.or_(pc.invert(is_lease), is_newest))
        staged = self._files_of_table.stage(f"compaction-{clock.unique_id()}.parquet", kept)
        self._version = self._committed(
            "the compaction of checkpoints", lambda: self._store.replace(self._version, CHECKPOINTS_SCHEMA, [staged])
        )
        self._files = 1

    def _rows(self, added: Sequence[Checkpoint]) -> list[dict[str, Any]]:
        """Return the rows of checkpoints. A row has declarations only where they differ from its parent's, else it names their row."""
        declared = {checkpoint.checkpoint_id: checkpoint.declared for checkpoint in (*self.checkpoints, *added)}
        declared_by = dict(self._declared_by)
        rows = []
        for checkpoint in added:
            number, parent = checkpoint.checkpoint_id, checkpoint.parent_id
            if checkpoint.declared == NO_DECLARATIONS:
                declared_by[number] = None
            elif parent is not None and declared.get(parent) == checkpoint.declared:
                declared_by[number] = declared_by[parent]
            else:
                declared_by[number] = number
            row = _row(checkpoint) | {"declared_by": declared_by[number]}
            if declared_by[number] != number:
                del row["declared"]
            rows.append(row)
        return rows

    def _added(self, checkpoints: Sequence[Checkpoint], rows: Sequence[dict[str, Any]]) -> None:
        self.checkpoints.extend(checkpoints)
        self._declared_by |= {row["checkpoint_id"]: row["declared_by"] for row in rows}

    def _append(self, added: Sequence[dict[str, Any]], what: str) -> None:
        rows = _encode([{**row, "log_version": self._version + 1} for row in added])
        self._version = self._committed(what, lambda: self._store.append_rows(self._version, rows))

    def _committed(self, what: str, commit: Callable[[], int]) -> int:
        try:
            if self._store.latest().table_id != self._table_id:
                raise self._gone(what)  # made anew meanwhile, perhaps with as many versions
            return commit()
        except VersionTakenError as error:
            raise self._fenced(what) from error
        except TableMissingError as error:
            raise self._gone(what) from error

    def _gone(self, what: str) -> FencedError:
        return FencedError(
            f"lost the job before {what} was committed: {self._store.uri} is gone, or was made anew. Somebody has dropped the job meanwhile, or the "
            "branch that this is the log of was dropped, promoted, or forked anew. Nothing was committed."
        )

    def _fenced(self, what: str) -> FencedError:
        self.refresh()
        holder = self.lease
        who = f"run {holder.run_id}, attempt {holder.attempt_id} ({holder.holder})" if holder else "another writer"
        return FencedError(
            f"lost the job before {what} was committed: {who} wrote to {self._store.uri} meanwhile. "
            "Nothing was committed; let that run finish, then run again."
        )


def incarnation_of(checkpoints: Sequence[Checkpoint]) -> int | None:
    """Return a job's incarnation, that of its last checkpoint; None without one."""
    return checkpoints[-1].incarnation if checkpoints else None


def _ranges(ids: Sequence[int]) -> str:
    """Return ids as `0 to 5, 8 to 9`. A reconciliation skips ids."""
    starts = [position for position, number in enumerate(ids) if not position or number != ids[position - 1] + 1]
    ends = [*(start - 1 for start in starts[1:]), len(ids) - 1]
    return ", ".join(f"{ids[start]} to {ids[end]}" for start, end in zip(starts, ends, strict=False) if ids)


def _no_savepoint(checkpoints: Sequence[Checkpoint], name: str, job: str) -> str:
    """Return the message that no savepoint has this name."""
    dropped = drop_of(checkpoints, name)
    if dropped is None:
        names = dict.fromkeys(savepoint.name or "" for savepoint in live_savepoints(checkpoints))
        known = f"there are: {', '.join(names)}" if names else "there is none"
        return f"there is no savepoint '{name}'{did_you_mean(name, names)}; {known}. See 'headrace checkpoints {job}'"
    return f"savepoint '{name}' was dropped with checkpoint {dropped.checkpoint_id}; see 'headrace checkpoints {job}'"


T = TypeVar("T")

_WORK = ("held", "pending", "due")


def _row(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the columns of a checkpoint. What is left to do has columns of its own, so that SQL can ask for it."""
    columns: dict[str, Any] = msgspec.to_builtins(checkpoint)
    del columns["work"]
    return {**columns, **msgspec.structs.asdict(checkpoint.work)}


def _encode(rows: Sequence[dict[str, Any]]) -> pa.Table:
    columns = {}
    for column in CHECKPOINTS_SCHEMA:
        values = [row.get(column.name) for row in rows]
        if column.name in _JSON:
            values = [None if value is None else msgspec.json.encode(value).decode() for value in values]
        if column.name in _TIMES:
            columns[column.name] = pa.array(values, pa.timestamp("ms", tz="UTC")).cast(column.type)
        else:
            columns[column.name] = pa.array(values, column.type)
    return pa.table(columns, schema=CHECKPOINTS_SCHEMA)


def _check_kinds(uri: str, rows: pa.Table) -> None:
    unknown = set(rows["kind"].unique().to_pylist()) - _KINDS.keys()
    for kind in unknown:
        row = rows["kind"].index(kind).as_py()
        raise damaged(uri, f"column 'kind' is '{kind}' in the row of checkpoint {rows['checkpoint_id'][row]}")


def _check_leases(uri: str, leases: pa.Table) -> None:
    for lease in leases.to_pylist():
        if None in {lease["lease_expires_at"], lease["holder"]}:
            raise damaged(
                uri, f"a lease of run {lease['run_id']} has no holder or no end (columns 'holder', 'lease_expires_at')"
            )


_KINDS = {kind.value: kind for kind in Kind}
_FIELDS = {field.name: field for field in msgspec.structs.fields(Checkpoint)}
_DEFAULTS = {
    name: field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    for name, field in _FIELDS.items()
}
"""Default of each field; `NODEFAULT` for those whose column has no null."""

_DECODERS = {name: msgspec.json.Decoder(_FIELDS[name].type) for name in _JSON}


class _Rows:
    """Committed rows of the table at `uri`, as checkpoints.

    Decodes column by column, and a text that rows share once. Every opening of a job decodes all checkpoints: row by row that took
    12 us of CPU each, and takes 4.
    """

    def __init__(self, uri: str, rows: pa.Table) -> None:
        self._uri = uri
        self._rows = rows
        self._ids: list[int | None] = rows["checkpoint_id"].to_pylist()

    def checkpoints(self) -> list[Checkpoint]:
        """Return them in the order of the rows. Raises `StorageError` for a damaged row."""
        if not self._ids:
            return []
        columns = {name: self._values(name) for name in _FIELDS if self._has_values(name)}
        columns |= {"work": self._work(), "declared": self._declarations()}
        self._check_versions(columns["versions"])
        names = list(columns)
        return [Checkpoint(**dict(zip(names, row))) for row in zip(*columns.values(), strict=True)]  # noqa: B905 - slower

    def _has_values(self, name: str) -> bool:
        """Return whether a field's own column has values. Raises `StorageError` for a null where there is no default."""
        if name in {"work", "declared"}:
            return False
        column = self._rows[name]
        if _FIELDS[name].required and column.null_count:
            raise self._damaged(column.to_pylist().index(None), f"column '{name}' is null")
        return bool(column.null_count < len(column))

    def _values(self, name: str) -> list[Any]:
        """Return the values of a field; its default where the column is null."""
        if name in _JSON:
            return self._decoded(name, _DEFAULTS[name])
        values = self._rows[name].to_pylist()
        return [_KINDS[kind] for kind in values] if name == "kind" else values

    def _decoded(self, name: str, default: Any) -> list[Any]:
        """Return the values of a column of JSON texts."""
        column = self._rows[name].combine_chunks().dictionary_encode()
        places: list[int] = column.indices.fill_null(len(column.dictionary)).to_pylist()
        decode, values = _DECODERS[name].decode, []
        for text in column.dictionary.to_pylist():
            try:
                values.append(decode(text))
            except msgspec.ValidationError as error:
                raise self._damaged(places.index(len(values)), f"column '{name}': {error}") from error
            except msgspec.DecodeError as error:
                row = places.index(len(values))
                raise self._damaged(row, f"column '{name}' is no JSON", f" ({error})") from error
        values.append(default)
        return [values[place] for place in places]

    def _work(self) -> list[JobWork]:
        """Return what is left to do behind each row; a null is nothing, at no time."""
        held, pending, due = (self._rows[name] for name in _WORK)
        rows = zip(held.fill_null(0).to_pylist(), pending.fill_null(0).to_pylist(), due.to_pylist(), strict=True)
        shared: dict[tuple[int, int, int | None], JobWork] = {}
        return [shared.get(row) or shared.setdefault(row, JobWork(*row)) for row in rows]

    def _check_versions(self, versions: list[dict[str, int]]) -> None:
        for row, of_tables in enumerate(versions):
            if min(of_tables.values(), default=0) < 0:
                raise self._damaged(row, "column 'versions' has one below 0")

    def _declarations(self) -> list[Declarations]:
        """Return the declarations of each row, which has its own or names the row that has them."""
        own = dict(zip(self._ids, self._decoded("declared", None), strict=True))
        declared = {None: NO_DECLARATIONS} | {number: its for number, its in own.items() if its is not None}
        named = self._rows["declared_by"].to_pylist()
        for row, by in enumerate(named):
            if by not in declared:
                raise self._damaged(row, f"column 'declared_by' names checkpoint {by}, whose row has no 'declared',")
        return [declared[by] for by in named]

    def _damaged(self, row: int, problem: str, why: str = "") -> StorageError:
        return damaged(self._uri, f"{problem} in the row of checkpoint {self._ids[row]}{why}")


def _check_ids(uri: str, checkpoints: Sequence[Checkpoint]) -> None:
    counted = Counter(checkpoint.checkpoint_id for checkpoint in checkpoints)
    twice = [number for number, count in counted.items() if count > 1]
    if twice:
        raise damaged(uri, f"{counted[twice[0]]} rows have the checkpoint_id {twice[0]}")


def _check_columns(uri: str, stored: pa.Schema) -> None:
    """Raise `ConfigError` for a table without all columns of format 1: no release has made one."""
    missing = [name for name in CHECKPOINTS_SCHEMA.names if name not in stored.names]
    if missing:
        raise _unknown_format(uri, "a development version of Headrace", f"'checkpoints' has no column '{missing[0]}'")


def _check_format(uri: str, newest: int) -> None:
    """Raise `ConfigError` for a newer format than this program's: the program would misread or damage it."""
    if newest > FORMAT_VERSION:
        known = f"it has format {newest}, and this program knows up to {FORMAT_VERSION}"
        raise _unknown_format(uri, "a development version of Headrace, or by a newer release", known)


def _unknown_format(uri: str, writer: str, why: str) -> ConfigError:
    return ConfigError(
        f"the state in {uri.rpartition('/')[0]} was written by {writer}: {why}. Nothing was changed. Start a new job, with another "
        "state.root and other sinks, or go on with the program that wrote it."
    )


def _last_lease(rows: pa.Table) -> Lease | None:
    columns = rows.select(["run_id", "attempt_id", "holder", "lease_expires_at", "committed_at", "log_version"])
    claims = columns.filter(pc.is_valid(columns["lease_expires_at"]))
    newest = claims.filter(pc.equal(claims["log_version"], pc.max(claims["log_version"]))).slice(0, 1)
    for row in newest.to_pylist():
        return Lease(row["run_id"], row["attempt_id"], row["holder"], row["lease_expires_at"], row["committed_at"])
    return None


def lease_until(run_id: str, attempt_id: str, holder: str, seconds: float) -> Lease:
    """Return a lease that starts now."""
    now = clock.now()
    return Lease(run_id, attempt_id, holder, now + round(seconds * 1000), now)
