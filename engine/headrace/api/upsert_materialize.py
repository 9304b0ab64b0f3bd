"""Operators on a key's history: the sink upsert materializer (FLIP-544), first and last value, deduplication and lag."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from headrace.api.changelog_mode import StreamChanges
from headrace.api.state_ttl import OnGap, StateTtl, TtlTime, UpdateType, Visibility
from headrace.strategy import Strategy


class Emit(enum.Enum):
    """Changes that a materializer emits: every one, or one per key and micro-batch."""

    EVERY_CHANGE = "every_change"
    NET_CHANGE = "net_change"


class OnConflict(enum.Enum):
    """Resolution of several rows that claim one primary key (FLIP-558).

    All but `KEEP_HISTORY` decide when the watermark has reached the rows: by then, retractions that came late have
    removed their rows. They remove dropped rows from the history; a later retraction of a dropped row is reported as
    unmatched.
    """

    KEEP_HISTORY = "keep_history"
    """The last row is shown. When it is retracted, the row before it is shown again."""

    DO_NOTHING = "do_nothing"
    """The first row stays; later ones are dropped."""

    ERROR = "error"
    """The run fails; the error names the rows."""

    DEDUPLICATE = "deduplicate"
    """The row that was added or replaced last stays; earlier ones are dropped, and never return."""


class Keep(enum.Enum):
    """Row of a key that an operator shows."""

    FIRST = "first"
    """The earliest arrival among the rows that were not retracted."""

    LAST = "last"
    """The latest arrival among the rows that were not retracted."""


@dataclass(frozen=True, slots=True)
class UpsertMaterialize:
    """A sink upsert materializer (FLIP-544); with `keep`, also first value, last value and deduplication by a key.

    Raises `ValueError` for `Keep.FIRST` with a conflict policy, and for a `ttl` that rows of a history cannot have.
    """

    name: str
    primary_key: tuple[str, ...]
    upsert_key: tuple[str, ...] | None
    strategy: Strategy
    emit: Emit
    ttl: StateTtl | None = None
    on_conflict: OnConflict = OnConflict.KEEP_HISTORY
    force: bool = False
    keep: Keep = Keep.LAST

    def __post_init__(self) -> None:
        """Refuse a TTL that rows of a history cannot have, and two contradicting rules for the row to show."""
        if self.keep is Keep.FIRST and self.on_conflict not in {OnConflict.KEEP_HISTORY, OnConflict.DO_NOTHING}:
            msg = f"'{self.name}' cannot keep the first row and {self.on_conflict.value} on conflict"
            raise ValueError(msg)
        if self.ttl is None:
            return
        if self.ttl.time is TtlTime.PROCESSING and self.on_conflict is not OnConflict.KEEP_HISTORY:
            msg = f"'{self.name}': on_conflict goes by the watermark, so its ttl must be in event time"
            raise ValueError(msg)
        if self.ttl.update is not UpdateType.ON_CREATE_AND_WRITE:
            msg = f"ttl of '{self.name}': a row lives from its insertion, so `update` must be ON_CREATE_AND_WRITE"
            raise ValueError(msg)
        if self.ttl.visibility is not Visibility.NEVER_RETURN_EXPIRED:
            msg = f"ttl of '{self.name}': a dead row is never seen, so `visibility` must be NEVER_RETURN_EXPIRED"
            raise ValueError(msg)
        if self.ttl.time is TtlTime.EVENT and not self.ttl.expires_by_watermark:
            msg = f"ttl of '{self.name}': a row inserted in event time dies by the watermark, so `expiry` must be WATERMARK"
            raise ValueError(msg)
        if self.ttl.on_gap is not OnGap.EXPIRE:
            msg = f"ttl of '{self.name}': a pause prolongs no row's life, so `on_gap` must be EXPIRE"
            raise ValueError(msg)

    @property
    def is_needed(self) -> bool:
        """Return whether the operator keeps a history.

        It needs none where the upsert key is the primary key: then all changes of a key come from one place, in order,
        and the last one counts: a retraction deletes the key. `force`, a TTL and a policy for conflicts keep it anyway.
        """
        if self.force or self.ttl is not None or self.on_conflict is not OnConflict.KEEP_HISTORY:
            return True
        return self.upsert_key is None or {*self.upsert_key} != {*self.primary_key}

    def inferred_key(self, changes: StreamChanges) -> tuple[str, ...] | None:
        """Return the upsert key that the changes themselves have; None where rows are to be found as a whole.

        It is the key of upserts. Else it is the primary key, if that is unique in the changes, so that the sink needs no history;
        unless something else asks for one, or a log of every change would get other rows.
        """
        if changes.mode.is_upsert:
            return changes.mode.key or None
        asks_for_history = self.force or self.ttl is not None or self.on_conflict is not OnConflict.KEEP_HISTORY
        if asks_for_history or self.emit is Emit.EVERY_CHANGE:
            return None
        return next((self.primary_key for key in changes.unique if {*key} == {*self.primary_key}), None)

    @property
    def keyed_by(self) -> tuple[str, ...]:
        """Return the fields by which the input is keyed: each combination of their values has one history."""
        return self.primary_key

    @property
    def may_show_another(self) -> bool:
        """Return whether the sink may hold a row that is neither first nor last: one that was replaced in place."""
        if self.shows_first or self.on_conflict is OnConflict.DEDUPLICATE or not self.upsert_key:
            return False
        return not {*self.upsert_key} <= {*self.keyed_by}

    @property
    def shows_first(self) -> bool:
        """Return whether the first row of a key is shown, not the last."""
        return self.keep is Keep.FIRST or self.on_conflict is OnConflict.DO_NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag(UpsertMaterialize):
    """Each row with an earlier one of its partition, with support for retractions. `partition_by` keys the history.

    Raises `ValueError` as `UpsertMaterialize` does.
    """

    partition_by: tuple[str, ...]
    record: type[msgspec.Struct]
    function: Callable[[Any, Any], msgspec.Struct]
    offset: int = 1

    @property
    def keyed_by(self) -> tuple[str, ...]:
        """Return the fields by which the input is keyed: each combination of their values has one history."""
        return self.partition_by
