"""Operators of a changelog: they keep a history of each key's rows, and reconcile rows that arrive out of order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from headrace.api.graph import Emit, Keep, Lag, OnConflict, UpsertMaterialize
from headrace.api.ttl import StateTtl
from headrace.api.types import check_field, check_record
from headrace.options import Strategy
from headrace.stream.base import StreamBase

if TYPE_CHECKING:
    from headrace.stream.stream import Stream


R = TypeVar("R", bound=msgspec.Struct)
S = TypeVar("S", bound=msgspec.Struct)


class ChangelogStream(StreamBase[R]):
    """Methods of `Stream` that send a changelog to a materializer."""

    def upsert_materialize(
        self,
        name: str,
        /,
        *,
        primary_key: tuple[str, ...],
        upsert_key: tuple[str, ...] | None = None,
        strategy: Strategy = Strategy.LEGACY,
        emit: Emit = Emit.NET_CHANGE,
        ttl: StateTtl | None = None,
        on_conflict: OnConflict = OnConflict.KEEP_HISTORY,
        force: bool = False,
    ) -> Stream[R]:
        """Reconcile a changelog whose rows may come out of order, by primary key (FLIP-544).

        `strategy` is the layout of a key's history; the job's file may choose another one, and the history stays. `ttl`
        is the time after its insertion at which a row expires; nothing is emitted then. `on_conflict` says what happens
        to a second row of a key (FLIP-558). Where the upsert key is the primary key no history is kept, unless `force`: the last change
        of a key counts, and a retraction deletes the key. Without `upsert_key` it is taken from the graph: the key of a stream of
        upserts, or the primary key where it is a unique key of the stream, as behind `aggregate`; but not with a `ttl`, a policy for
        conflicts, or `Emit.EVERY_CHANGE`. Else rows are found as a whole.

        Raises `ValueError` without a primary key, for a field that the record lacks, and for a `ttl` that is renewed by
        reading, shows expired rows, is prolonged by pauses, or expires rows inserted in event time by processing time.
        """
        if not primary_key:
            msg = f"upsert_materialize '{name}' needs a primary key"
            raise ValueError(msg)
        for column in (*primary_key, *(upsert_key or ())):
            check_field(self._record, column)
        materializer = UpsertMaterialize(
            name, primary_key, upsert_key, strategy, emit, ttl=ttl, on_conflict=on_conflict, force=force
        )
        return self._materialized(materializer, self._record)

    def first_value(
        self,
        name: str,
        /,
        *,
        key: tuple[str, ...],
        upsert_key: tuple[str, ...] | None = None,
        strategy: Strategy = Strategy.ADAPTIVE,
        ttl: StateTtl | None = None,
    ) -> Stream[R]:
        """Keep the first row of each key. When it is retracted, the row after it takes its place.

        Arguments and errors are as for `upsert_materialize`; the sink is merged by `key`.
        """
        return self._kept(name, Keep.FIRST, key=key, upsert_key=upsert_key, strategy=strategy, ttl=ttl)

    def last_value(
        self,
        name: str,
        /,
        *,
        key: tuple[str, ...],
        upsert_key: tuple[str, ...] | None = None,
        strategy: Strategy = Strategy.ADAPTIVE,
        ttl: StateTtl | None = None,
    ) -> Stream[R]:
        """Keep the last row of each key. When it is retracted, the row before it takes its place.

        Arguments and errors are as for `upsert_materialize`; the sink is merged by `key`.
        """
        return self._kept(name, Keep.LAST, key=key, upsert_key=upsert_key, strategy=strategy, ttl=ttl)

    def deduplicate(
        self,
        name: str,
        /,
        *,
        key: tuple[str, ...],
        keep: Keep = Keep.FIRST,
        strategy: Strategy = Strategy.ADAPTIVE,
        ttl: StateTtl | None = None,
    ) -> Stream[R]:
        """Keep one row of each key, however many arrive, as long as one of them is not retracted.

        With a `ttl`, a key counts as new again when this time has passed since its row. Arguments and errors
        are as for `upsert_materialize`.
        """
        return self._kept(name, keep, key=key, upsert_key=None, strategy=strategy, ttl=ttl)

    def lag(
        self,
        name: str,
        function: Callable[[Any, Any], S],
        /,
        *,
        record: type[S],
        partition_by: tuple[str, ...],
        primary_key: tuple[str, ...],
        upsert_key: tuple[str, ...] | None = None,
        offset: int = 1,
        strategy: Strategy = Strategy.ADAPTIVE,
        ttl: StateTtl | None = None,
    ) -> Stream[S]:
        """Make a `record` of each row and the row `offset` places before it in its partition, or None.

        `function(row, before)` is called for each row that arrives, and again for the rows after a row that is replaced
        or retracted. It must depend on its arguments alone. Rows are in order of arrival within `partition_by`, and
        identified by `upsert_key` or as a whole; the sink is merged by the `primary_key` of `record`, which must
        distinguish all rows.

        `ttl` is the time after its insertion at which a row expires; nothing is emitted then. Results that were made of
        the row stay in the sink, and later results are made without it.

        Raises `ValueError` for an `offset` below 1, an empty key, a field that the record lacks, and a `ttl` that rows
        of a history cannot have (see `upsert_materialize`).
        """
        if offset < 1 or not primary_key or not partition_by:
            msg = f"lag '{name}' needs partition_by, a primary key, and an offset of at least 1, not {offset}"
            raise ValueError(msg)
        for column in (*partition_by, *(upsert_key or ())):
            check_field(self._record, column)
        check_record(f"lag '{name}'", record)
        for column in primary_key:
            check_field(record, column)
        lag = Lag(
            name,
            primary_key,
            upsert_key,
            strategy,
            Emit.NET_CHANGE,
            ttl=ttl,
            force=True,
            partition_by=partition_by,
            record=record,
            function=function,
            offset=offset,
        )
        return self._materialized(lag, record)

    def _kept(
        self,
        name: str,
        keep: Keep,
        *,
        key: tuple[str, ...],
        upsert_key: tuple[str, ...] | None,
        strategy: Strategy,
        ttl: StateTtl | None,
    ) -> Stream[R]:
        stream = self.upsert_materialize(
            name, primary_key=key, upsert_key=upsert_key, strategy=strategy, ttl=ttl, force=True
        )
        node = stream._node
        assert isinstance(node.operator, UpsertMaterialize)  # noqa: S101 - made above
        node.operator = replace(node.operator, keep=keep)
        return stream

    def _materialized(self, materializer: UpsertMaterialize, record: type[S]) -> Stream[S]:
        """Return the output stream of a materializer."""
        raise NotImplementedError
