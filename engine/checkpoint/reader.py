"""Reading a job's state at any checkpoint, without a JVM.

Versions come from `checkpoints` alone, never from the tables' own latest version: a table may be
ahead of its last commit. Filters go to deltalake's scan, which skips files by their statistics;
DuckDB then picks the last row per entry. Neither pyarrow's datasets nor pandas are imported: they
would cost more than all the rest of `headrace state get`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from engine.checkpoint._log import CheckpointLog
from engine.checkpoint._query import Rows, ask, ask_once, connect, copy, gone, literal
from engine.checkpoint.checkpoint import Checkpoint, Kind
from engine.checkpoint.tables import (
    CHECKPOINTS,
    KEYED_STATE,
    MATERIALIZER_HISTORY,
    QUARANTINE,
    STATE_TABLES,
    TIMERS,
)
from engine.config import JobConfig
from engine.errors import ConfigError, StorageError
from engine.state.key_groups import key_group

if TYPE_CHECKING:
    import duckdb

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

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class StateReader:
    """The state of a job as of one checkpoint.

    `at` is a checkpoint id, the name of a savepoint, or None for the last checkpoint. Entries that
    had expired by the checkpoint's watermark are hidden unless `with_expired`. Raises `ConfigError`
    when the job has no checkpoint yet or `at` names none; any method raises `StorageError` when
    the files of an old checkpoint are gone.
    """

    def __init__(self, config: JobConfig, at: int | str | None = None, *, with_expired: bool = False) -> None:
        """Read the list of checkpoints and resolve `at`."""
        self._config = config
        self._log = CheckpointLog(config.job_folder, config.storage_options)
        self._with_expired = with_expired
        self.checkpoint = resolve(self._log, config, at)

    def list_states(self) -> Rows:
        """What is stored: per operator and state the live entries, keys, bytes and last change."""
        parts = [self._count(KEYED_STATE, "state", "value"), self._count(TIMERS, "domain", "domain")]
        parts.append(self._count(MATERIALIZER_HISTORY, f"'{HISTORY}'", "row"))
        rows = sorted(row for part in parts for row in part.rows)
        return Rows(parts[0].columns, rows)

    def get(self, key: str, operator: str | None = None, state: str | None = None) -> Rows:
        """The live entries of one key, the rows of a materializer included.

        `key` is JSON, or the bare text of a text key. A materializer's rows have the state
        `history` and their sequence number as user key.
        """
        filters = [*self._key_filter(key), *_equal(operator=operator)]
        order = "ORDER BY operator, state, namespace, user_key"
        found = self._live_rows(KEYED_STATE, [*filters, *_equal(state=state)], order)
        if state not in {None, HISTORY}:
            return found
        rows = self._live_rows(MATERIALIZER_HISTORY, filters, "ORDER BY operator, sequence_number", columns=_AS_STATE)
        return Rows(found.columns, [*found.rows, *rows.rows])

    def scan(
        self, operator: str | None = None, state: str | None = None, prefix: str | None = None, limit: int = 50
    ) -> Rows:
        """Live entries in key order, of keys that begin with `prefix`."""
        filters = _equal(operator=operator, state=state)
        if prefix is not None:
            filters.append(
                f'(starts_with("key", {literal(prefix)}) OR starts_with("key", {literal(chr(34) + prefix)}))'
            )
        order = "ORDER BY operator, state, key, namespace, user_key LIMIT ?"
        return self._live_rows(KEYED_STATE, filters, order, [limit])

    def history(self, key: str, operator: str | None = None, state: str | None = None) -> Rows:
        """Every change of one key up to the checkpoint, oldest first, also from before compactions.

        Versions whose files were vacuumed are left out. A change that a restore undid is no part of
        the checkpoint's past, and not listed.
        """
        filters = [*self._key_filter(key), *_equal(operator=operator, state=state)]
        uri = f"{self._config.job_folder}/{KEYED_STATE}"
        connection = connect()
        sources = []
        for number, version in enumerate(self._past_versions()):
            try:
                copy(connection, f"part{number}", self._stream(uri, version, filters))
            except StorageError:
                continue
            sources.append(f"FROM part{number}")
        if not sources:
            return Rows([], [])
        union = " UNION ".join(sources)
        return ask(connection, f"FROM ({union}) ORDER BY checkpoint_id, operator, state, user_key")

    def timers(self, limit: int = 50) -> Rows:
        """Registered timers, the next one first."""
        return self._live_rows(TIMERS, [], "ORDER BY timestamp, operator, key LIMIT ?", [limit])

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

    def _count(self, table: str, state: str, size: str) -> Rows:
        """Grouping beats the window of `_live` by far where only sums are asked for."""
        identity = [column for column in STATE_TABLES[table].entry if column != "key_group"]
        entry = ", ".join(f'"{column}"' for column in identity)
        # arg_max_null: the plain one passes over nulls, to an older change.
        expires = "arg_max_null(expires_at, checkpoint_id)" if table == KEYED_STATE else "NULL::TIMESTAMPTZ"
        columns = {*identity, size, "checkpoint_id", "deleted", *(["expires_at"] if table == KEYED_STATE else [])}
        return ask_once(
            self._changes(table, columns=sorted(columns)),
            f"""SELECT operator, state, count(*) AS entries, count(DISTINCT key) AS keys,
                       sum(bytes)::BIGINT AS bytes, max(changed) AS last_change
                FROM (SELECT {entry}, {state} AS state, arg_max_null(deleted, checkpoint_id) AS gone,
                             coalesce(arg_max_null(strlen("{size}"), checkpoint_id), 0) AS bytes,
                             max(checkpoint_id) AS changed, {expires} AS expires_at
                      FROM raw GROUP BY ALL)
                WHERE NOT gone AND {self._unexpired()}
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
        expiry = f"AND {self._unexpired()}" if table == KEYED_STATE else ""
        return (
            f"SELECT * EXCLUDE (deleted) FROM (SELECT * FROM {raw} QUALIFY "  # noqa: S608
            f"row_number() OVER (PARTITION BY {entry} ORDER BY checkpoint_id DESC) = 1) WHERE NOT deleted {expiry}"
        )

    def _unexpired(self) -> str:
        watermark = self.checkpoint.watermark
        if self._with_expired or watermark is None:
            return "true"
        return f"(expires_at IS NULL OR epoch_ms(expires_at) > {int(watermark)})"

    def _key_filter(self, key: str) -> list[str]:
        candidates = _key_candidates(key)
        groups = {key_group(text.encode(), self.checkpoint.max_parallelism) for text in candidates}
        keys = ", ".join(literal(text) for text in candidates)
        return [f'"key_group" IN ({", ".join(map(str, sorted(groups)))})', f'"key" IN ({keys})']

    def _past_versions(self) -> Iterator[int]:
        """The versions of keyed_state that together hold all changes: now, and before each compaction."""
        at: Checkpoint | None = self.checkpoint
        yield self.checkpoint.versions.get(KEYED_STATE, 0)
        known = {checkpoint.checkpoint_id: checkpoint for checkpoint in self._log.checkpoints}
        while at is not None:
            before = at.restored_from if at.kind is Kind.RESTORE else at.parent_id
            parent = known.get(before) if before is not None else None
            if at.kind is Kind.COMPACTION and parent is not None:
                yield parent.versions.get(KEYED_STATE, 0)
            at = parent

    def _changes(self, table: str, filters: Sequence[str] = (), *, columns: Sequence[str] = ()) -> Any:
        """The rows of a state table at the checkpoint. A table that the checkpoint lacks is empty."""
        version = self.checkpoint.versions.get(table)
        if version is None:
            return STATE_TABLES[table].schema.empty_table().to_reader()
        return self._stream(f"{self._config.job_folder}/{table}", version, filters, columns)

    def _stream(self, uri: str, version: int | None, filters: Sequence[str] = (), columns: Sequence[str] = ()) -> Any:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError

        try:
            table = DeltaTable(uri, version=version, storage_options=self._config.storage_options)
            return table.scan(columns=list(columns) or None, predicate=" AND ".join(filters) or None)
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
    """The JSON texts that `key` may stand for: itself if it is JSON, and its text as a JSON string."""
    candidates = [msgspec.json.encode(key).decode()]
    try:
        candidates.insert(0, msgspec.json.encode(msgspec.json.decode(key)).decode())
    except msgspec.DecodeError:
        return candidates
    return candidates


def _equal(**values: str | None) -> list[str]:
    return [f'"{column}" = {literal(value)}' for column, value in values.items() if value is not None]
