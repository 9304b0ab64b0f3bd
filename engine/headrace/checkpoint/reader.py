"""Reading a job's state at any checkpoint, without a JVM.

Versions come from `checkpoints` alone, never from the tables' own latest version: a table may be
ahead of its last commit. Filters go to deltalake's scan, which skips files by their statistics;
DuckDB then picks the last row per entry. Neither pyarrow's datasets nor pandas are imported: they
would cost more than all the rest of `headrace state get`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec

from headrace import clock
from headrace.checkpoint._log import CheckpointLog
from headrace.checkpoint._query import (
    Rows,
    ask,
    ask_once,
    connect,
    copy,
    gone,
    literal,
    milliseconds,
    moment,
    with_nulls,
)
from headrace.checkpoint.checkpoint import Checkpoint, Kind, last_micro_batch
from headrace.checkpoint.entry_history import IDENTITY, Compacted, EntryHistory
from headrace.checkpoint.expiry import NEVER, Expiry, expiries, is_dead
from headrace.checkpoint.state_list import with_types
from headrace.checkpoint.tables import (
    CHECKPOINTS,
    KEYED_STATE,
    MATERIALIZER_HISTORY,
    QUARANTINE,
    STATE_TABLES,
    TIMERS,
)
from headrace.checkpoint.ttl_history import Declared, declared_ttls
from headrace.config import JobConfig
from headrace.errors import ConfigError, StorageError
from headrace.state.key_groups import key_group
from headrace.state.timer_service import DOMAINS
from headrace.state.ttl import LiveTtl

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

    from headrace.api import StateTtl

__all__ = ["CHANGELOG", "PUBLISHED", "Rows", "StateReader", "resolve"]

CHANGELOG = "_changelog"
"""Suffix of the SQL views with the raw changes: keyed_state_changelog, ..."""

PUBLISHED = "headrace.checkpoint"
"""Key in a sink's commits that holds the id of the checkpoint that was published."""

HISTORY = "history"
"""What a materializer's rows are called where keyed states are listed."""

# The history of a materializer, in the columns of keyed_state.
_AS_STATE = (
    f"operator, key_group, key, '{HISTORY}' AS state, NULL AS namespace, "
    'sequence_number::VARCHAR AS user_key, "row" AS value, inserted_at AS last_access, NULL AS expires_at, NULL AS ttl_ms, '
    "checkpoint_id"
)

_IS_INTERNAL = f"domain IN ({', '.join(literal(each.name) for each in DOMAINS.values() if each.is_internal)})"
_AGES = ("last_access", "expires_at", "ttl_ms")
"""The columns from which it follows whether an entry is dead."""

_EXACT = 1 << 53
"""Integers from which on not each is a float."""

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class StateReader:
    """The state of a job as of one checkpoint.

    `at` is a checkpoint id, the name of a savepoint, or None for the last checkpoint. Entries that the TTL which the job
    declares now has expired are hidden unless `with_expired`: by the checkpoint's watermark, or in processing time by the
    clock, which for a checkpoint that is named stands at its commit.
    Raises `ConfigError` when the job has no checkpoint yet or `at` names none; any method raises `StorageError` when the
    files of an old checkpoint are gone.
    """

    def __init__(self, config: JobConfig, at: int | str | None = None, *, with_expired: bool = False) -> None:
        """Read the list of checkpoints and resolve `at`."""
        self._config = config
        self._log = CheckpointLog(config.job_folder, config.storage_options)
        self._with_expired = with_expired
        self.checkpoint = resolve(self._log, config, at)
        self._is_now = at is None
        self._now = clock.now() if self._is_now else self.checkpoint.committed_at
        self._expiries, self.not_declared = self._expiring()
        """`not_declared` says why nobody knows what the job declares: then the moment that was stored with an entry counts."""

    def list_states(self, *, internal: bool = False) -> Rows:
        """What is stored: per operator and state the live entries, keys, bytes and last change, kind and type.

        With `internal`, also the timers that the engine set. The type is the newest one of those that values may be stored as.
        State from before types were recorded has neither.
        """
        timers = [] if internal else [f"NOT {_IS_INTERNAL}"]
        parts = [self._count(KEYED_STATE, "state", "value"), self._count(TIMERS, "domain", "domain", timers)]
        parts.append(self._count(MATERIALIZER_HISTORY, f"'{HISTORY}'", "row"))
        rows = sorted(row for part in parts for row in part.rows)
        return with_types(Rows(parts[0].columns, rows), self._log.state_schemas(self.checkpoint) or {})

    def get(self, key: str, operator: str | None = None, state: str | None = None) -> Rows:
        """The live entries of one key, the rows of a materializer included.

        `key` is JSON, or the bare text of a text key. A materializer's rows have the state
        `history` and their sequence number as user key.
        """
        filters = [*self._key_filter(key), *equal(operator=operator)]
        order = "ORDER BY operator, state, namespace, user_key"
        found = self._entries([*filters, *equal(state=state)], order)
        if state not in {None, HISTORY}:
            return found
        columns = f"{_AS_STATE}, false AS expired" if self._with_expired else _AS_STATE
        rows = self._live_rows(MATERIALIZER_HISTORY, filters, "ORDER BY operator, sequence_number", columns=columns)
        return Rows(found.columns, [*found.rows, *rows.rows])

    def scan(
        self, operator: str | None = None, state: str | None = None, prefix: str | None = None, limit: int = 50
    ) -> Rows:
        """Live entries in key order, of keys that begin with `prefix`."""
        filters = equal(operator=operator, state=state)
        if prefix is not None:
            filters.append(
                f'(starts_with("key", {literal(prefix)}) OR starts_with("key", {literal(chr(34) + prefix)}))'
            )
        order = "ORDER BY operator, state, key, namespace, user_key LIMIT ?"
        return self._entries(filters, order, [limit])

    def history(self, key: str, operator: str | None = None, state: str | None = None) -> Rows:
        """What happened to one key up to the checkpoint, oldest first, also before compactions; see `EntryHistory.told`.

        Versions whose files were vacuumed are left out. A change that a restore undid is no part of
        the checkpoint's past, and not listed.
        """
        filters = [*self._key_filter(key), *equal(operator=operator, state=state)]
        connection = connect()
        sources = []
        for number, version in enumerate(self._past_versions()):
            try:
                copy(connection, f"part{number}", self._state(KEYED_STATE, version, filters))
            except StorageError:
                continue
            sources.append(f"FROM part{number}")
        if not sources:
            return Rows([], [])
        union = " UNION BY NAME ".join(sources)
        changes = ask(connection, f"FROM ({union}) ORDER BY checkpoint_id, operator, state, namespace, user_key")
        expiries = self._expiries or []
        ttls = {(each.operator, each.state): each.live for each in expiries}
        return EntryHistory(self._log.checkpoints, self._compacted(filters), ttls, self._clock).told(changes)

    def _compacted(self, filters: Sequence[str]) -> Iterator[Compacted]:
        """The compactions before the checkpoint, with the entries that each of them left."""
        for compaction in (at for at in self._past() if at.kind is Kind.COMPACTION):
            try:
                stream = self._state(KEYED_STATE, compaction.versions.get(KEYED_STATE, 0), filters)
                found = ask_once(stream, f"SELECT {', '.join(IDENTITY)} FROM raw")  # noqa: S608 - our own columns
            except StorageError:
                continue
            yield Compacted(compaction.checkpoint_id, set(found.rows))

    def _clock(self, operator: str, ttl: LiveTtl, at: Checkpoint | None) -> int | None:
        """Return what the clock of an operator's TTL said at a checkpoint, or says now."""
        checkpoint = self.checkpoint if at is None else at
        if ttl.by_watermark:
            return checkpoint.watermark_of(operator)
        return self._now if at is None else checkpoint.committed_at

    def materialized(self, key: str, operator: str | None = None) -> Rows:
        """The rows of one primary key's history, in order. `key` is as for `get`."""
        filters = [*self._key_filter(key), *equal(operator=operator)]
        columns = 'operator, key, sequence_number, row_kind, inserted_at, upsert_key, checkpoint_id, "row"'
        return self._live_rows(MATERIALIZER_HISTORY, filters, "ORDER BY operator, sequence_number", columns=columns)

    def largest_histories(self, operator: str | None = None, limit: int = 20) -> Rows:
        """The keys with the longest histories, the longest first: rows, bytes, and the earliest and latest insertion."""
        columns = ["operator", "key", "sequence_number", "row", "inserted_at", "checkpoint_id", "deleted"]
        return ask_once(
            self._changes(MATERIALIZER_HISTORY, equal(operator=operator), columns=columns),
            """SELECT operator, key, count(*) AS rows, sum(bytes)::BIGINT AS bytes, min(inserted_at) AS first_insertion,
                      max(inserted_at) AS last_insertion
               FROM (SELECT operator, key, sequence_number, arg_max_null(deleted, checkpoint_id) AS gone,
                            arg_max_null(strlen("row"), checkpoint_id) AS bytes,
                            arg_max_null(inserted_at, checkpoint_id) AS inserted_at
                     FROM raw GROUP BY ALL)
               WHERE NOT gone GROUP BY ALL ORDER BY rows DESC, operator, key LIMIT ?""",
            [limit],
        )

    def timers(self, limit: int = 50, *, internal: bool = False) -> Rows:
        """Registered timers, the next one first; with `internal`, also those that the engine set (see `internal_timers`)."""
        filters = [] if internal else [f"NOT {_IS_INTERNAL}"]
        return self._live_rows(TIMERS, filters, "ORDER BY timestamp, operator, key LIMIT ?", [limit])

    def internal_timers(self) -> int:
        """How many timers the engine has set, to clean up: exact cleanup of TTL, and sweeps of materializers."""
        query = f"SELECT count(*) FROM ({self._live(TIMERS, 'raw')})"  # noqa: S608 - our own names
        ((count,),) = ask_once(self._changes(TIMERS, [_IS_INTERNAL]), query).rows
        return int(count)

    def quarantine(self, limit: int = 50) -> Rows:
        """What could not be processed, newest first."""
        order = "ORDER BY checkpoint_id DESC, source, position LIMIT ?"
        return self._live_rows(QUARANTINE, [], order, [limit])

    def sql(self, query: str) -> Rows:
        """Run one query over the views that it mentions.

        Views: each state table by its name (live entries) and with `_changelog` (all changes),
        `checkpoints`, and the sinks by their names. The query can reach nothing else: no files, no
        network. Raises `ConfigError` with DuckDB's message when the query fails.
        """
        import duckdb

        connection = connect()
        self._register(connection, {word.lower() for word in _WORD.findall(query)})
        try:
            if len(connection.extract_statements(query)) != 1:
                msg = "give one query at a time, without a second one after ';'"
                raise ConfigError(msg)
            return ask(connection, query)
        except duckdb.Error as error:
            msg = f"the query failed: {error}\nViews: {', '.join(self.views())}"
            raise ConfigError(msg) from error

    def views(self) -> list[str]:
        """The names that `sql` knows."""
        changelogs = [f"{name}{CHANGELOG}" for name in STATE_TABLES]
        return [*STATE_TABLES, *changelogs, CHECKPOINTS, *self._config.sinks]

    def _register(self, connection: duckdb.DuckDBPyConnection, words: set[str]) -> None:
        for name in STATE_TABLES:
            raw = f"{name}{CHANGELOG}"
            if words & {name, raw}:
                copy(connection, raw, self._changes(name))
            if name in words:
                connection.execute(f"CREATE VIEW {name} AS {self._live(name, raw)}")
        if CHECKPOINTS in words:
            copy(connection, CHECKPOINTS, self._stream(f"{self._config.job_folder}/{CHECKPOINTS}", None))
            connection.execute(f"DELETE FROM {CHECKPOINTS} WHERE kind = '{Kind.LEASE.value}'")  # noqa: S608
        for name in self._config.sinks.keys() & words - STATE_TABLES.keys():
            path = self._config.sinks[name].path
            copy(connection, name, self._stream(path, self._sink_version(path)))

    def _count(self, table: str, state: str, size: str, filters: Sequence[str] = ()) -> Rows:
        """Grouping beats the window of `_live` by far where only sums are asked for."""
        identity = [column for column in STATE_TABLES[table].entry if column != "key_group"]
        entry = ", ".join(f'"{column}"' for column in identity)
        # arg_max_null: the plain one passes over nulls, to an older change.
        ages = _AGES if table == KEYED_STATE else ()
        of_age = "".join(f", arg_max_null({age}, checkpoint_id) AS {age}" for age in ages)
        columns = {*identity, size, "checkpoint_id", "deleted", *ages}
        return ask_once(
            self._changes(table, filters, columns=sorted(columns)),
            f"""SELECT operator, state, count(*) AS entries, count(DISTINCT key) AS keys,
                       sum(bytes)::BIGINT AS bytes, max(changed) AS last_change
                FROM (SELECT {entry}, {state} AS state, arg_max_null(deleted, checkpoint_id) AS gone,
                             coalesce(arg_max_null(strlen("{size}"), checkpoint_id), 0) AS bytes,
                             max(checkpoint_id) AS changed{of_age}
                      FROM raw GROUP BY ALL)
                WHERE NOT gone AND {self._unexpired() if ages else "true"}
                GROUP BY ALL ORDER BY ALL""",  # noqa: S608 - names of columns and a number, all ours
        )

    def _live_rows(
        self, table: str, filters: Sequence[str], order: str, parameters: Sequence[Any] = (), *, columns: str = "*"
    ) -> Rows:
        query = f"SELECT {columns} FROM ({self._live(table, 'raw')}) {order}"  # noqa: S608 - our own names
        return ask_once(self._changes(table, filters), query, parameters)

    def _live(self, table: str, raw: str) -> str:
        """SQL for the live entries of a changelog: the last row of each, unless it is gone."""
        entry = ", ".join(f'"{column}"' for column in STATE_TABLES[table].entry)
        # By name: a migration, or an older format, puts new columns at the end.
        columns = ", ".join(f'"{name}"' for name in STATE_TABLES[table].schema.names if name != "deleted")
        expiry = f"AND {self._unexpired()}" if table == KEYED_STATE else ""
        return (
            f"SELECT {columns} FROM (SELECT * FROM {raw} QUALIFY "  # noqa: S608
            f"row_number() OVER (PARTITION BY {entry} ORDER BY checkpoint_id DESC) = 1) WHERE NOT deleted {expiry}"
        )

    def _unexpired(self) -> str:
        return "true" if self._with_expired else f"NOT {self._is_dead()}"

    def _is_dead(self) -> str:
        """SQL for rows of keyed_state."""
        if self._expiries is not None:
            return is_dead(self._expiries)
        watermark = self.checkpoint.watermark
        return NEVER if watermark is None else f"coalesce(epoch_ms(expires_at) <= {int(watermark)}, false)"

    def _expiring(self) -> tuple[list[Expiry] | None, str | None]:
        """What expires, as the job declares it now. A pipeline that cannot be loaded is no reason to hide the state."""
        try:
            return self._expiring_by(self._declared()), None
        except (ConfigError, TypeError) as error:
            why = f"the pipeline cannot be loaded ({error}), so its TTLs are not known: what counts is 'expires_at' as stored"
            return None, why

    def _declared(self) -> dict[str, StateTtl | None]:
        from headrace.config import load_pipeline
        from headrace.plan.planner import plan_stages

        return declared_ttls(plan_stages(load_pipeline(self._config)))

    def _expiring_by(self, declared: Declared) -> list[Expiry]:
        """What would expire if this were declared, as a micro-batch would see it that starts now, or at the checkpoint's commit."""
        return expiries(
            declared,
            self.checkpoint,
            processing_time=self._now,
            paused_since=last_micro_batch(self._log.checkpoints) if self._is_now else None,
        )

    def _entries(self, filters: Sequence[str], order: str, parameters: Sequence[Any] = ()) -> Rows:
        """Rows of keyed_state; `expired` says whether they are dead."""
        columns = f"*, {self._is_dead()} AS expired" if self._with_expired else "*"
        return self._with_deaths(self._live_rows(KEYED_STATE, filters, order, parameters, columns=columns))

    def _with_deaths(self, found: Rows) -> Rows:
        """Rows of keyed_state with the moment at which they die by the TTL declared now."""
        if self._expiries is None:
            return found
        live = {(each.operator, each.state): each.live for each in self._expiries}
        place = {name: found.columns.index(name) for name in ("operator", "state", *_AGES)}
        return Rows(found.columns, [_as_declared(row, place, live) for row in found.rows])

    def _key_filter(self, key: str) -> list[str]:
        candidates = _key_candidates(key)
        groups = {key_group(text.encode(), self.checkpoint.max_parallelism) for text in candidates}
        keys = ", ".join(literal(text) for text in candidates)
        return [f'"key_group" IN ({", ".join(map(str, sorted(groups)))})', f'"key" IN ({keys})']

    def _past_versions(self) -> Iterator[int]:
        """The versions of keyed_state that together hold all changes: now, and before each compaction."""
        yield self.checkpoint.versions.get(KEYED_STATE, 0)
        for at, before in pairwise(self._past()):
            if at.kind is Kind.COMPACTION:
                yield before.versions.get(KEYED_STATE, 0)

    def _past(self) -> Iterator[Checkpoint]:
        """The checkpoint, and those that led to it, newest first."""
        known = {checkpoint.checkpoint_id: checkpoint for checkpoint in self._log.checkpoints}
        at: Checkpoint | None = self.checkpoint
        while at is not None:
            yield at
            before = at.restored_from if at.kind is Kind.RESTORE else at.parent_id
            at = known.get(before) if before is not None else None

    def _changes(self, table: str, filters: Sequence[str] = (), *, columns: Sequence[str] = ()) -> Any:
        """The rows of a state table at the checkpoint. A table that the checkpoint lacks is empty."""
        version = self.checkpoint.versions.get(table)
        if version is None:
            return STATE_TABLES[table].schema.empty_table().to_reader()
        return self._state(table, version, filters, columns)

    def _state(self, table: str, version: int, filters: Sequence[str] = (), columns: Sequence[str] = ()) -> Any:
        """Rows of a state table. A column that it did not have yet at this version is null."""
        schema = STATE_TABLES[table].schema
        wanted = [schema.field(name) for name in columns or schema.names]
        return self._stream(f"{self._config.job_folder}/{table}", version, filters, wanted)

    def _stream(
        self, uri: str, version: int | None, filters: Sequence[str] = (), wanted: Sequence[pa.Field] = ()
    ) -> Any:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError

        try:
            table = DeltaTable(uri, version=version, storage_options=self._config.storage_options)
            there = {field.name for field in table.schema().fields}
            present = [field.name for field in wanted if field.name in there]
            found = table.scan(columns=present or None, predicate=" AND ".join(filters) or None)
            return with_nulls(found, [field for field in wanted if field.name not in there])
        except TableNotFoundError as error:
            msg = f"there is no table {uri} (yet)"
            raise StorageError(msg) from error
        except (DeltaError, OSError) as error:
            raise gone(uri, version, error) from error

    def _sink_version(self, path: str) -> int | None:
        """The sink's version just before the first publication after this checkpoint; None: the latest."""
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        last = self._log.last
        if last is None or self.checkpoint.checkpoint_id >= last.checkpoint_id:
            return None
        try:
            commits = DeltaTable(path, storage_options=self._config.storage_options).history()
        except TableNotFoundError:
            return None
        later = [int(c["version"]) for c in commits if _published(c) > self.checkpoint.checkpoint_id]
        return max(min(later) - 1, 0) if later else None


def resolve(log: CheckpointLog, config: JobConfig, at: int | str | None) -> Checkpoint:
    """The checkpoint that `at` names: an id, a savepoint's name, or the last one (None).

    Raises `ConfigError` when there is none.
    """
    if log.last is None:
        msg = (
            f"job '{config.job}' has no checkpoint yet: nothing is committed in {config.job_folder}. "
            f"Start it with 'headrace run {config.job}'."
        )
        raise ConfigError(msg)
    if at is None:
        return log.last
    text = str(at)
    return log.get(int(text)) if text.isdecimal() else log.savepoint(text)


def _as_declared(
    row: tuple[Any, ...], place: Mapping[str, int], live: Mapping[tuple[str, str], LiveTtl]
) -> tuple[Any, ...]:
    """A row with the `expires_at` that the TTL declared now gives it."""
    ttl, stamp = live.get((row[place["operator"]], row[place["state"]])), row[place["last_access"]]
    values = list(row)
    values[place["expires_at"]] = None
    if ttl is not None and stamp is not None:
        end = ttl.expires_at(milliseconds(stamp), row[place["ttl_ms"]] or 0)
        values[place["expires_at"]] = moment(end)
    return tuple(values)


def _published(commit: dict[str, Any]) -> int:
    """The checkpoint that a sink's commit published, or -1."""
    value = commit.get(PUBLISHED)
    if value is None and isinstance(commit.get("userMetadata"), str):  # commits by Spark
        try:
            value = msgspec.json.decode(commit["userMetadata"], type=dict[str, Any]).get(PUBLISHED)
        except msgspec.DecodeError:
            return -1
    return int(str(value)) if str(value).isdecimal() else -1


def _key_candidates(key: str) -> list[str]:
    """The JSON texts that `key` may stand for: itself if it is JSON, a number as a float too, and its text as a JSON string."""
    candidates = [msgspec.json.encode(key).decode()]
    try:
        value = msgspec.json.decode(key)
    except msgspec.DecodeError:
        return candidates
    candidates.insert(0, msgspec.json.encode(value).decode())
    if type(value) is int and abs(value) < _EXACT:
        candidates.append(msgspec.json.encode(float(value)).decode())
    return candidates


def equal(**values: str | None) -> list[str]:
    """SQL filters for columns that must have these values, of those that are given."""
    return [f'"{column}" = {literal(value)}' for column, value in values.items() if value is not None]
