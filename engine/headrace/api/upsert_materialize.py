"""Operators on a key's history: the sink upsert materializer (FLIP-544) and what else the same history is good for."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from headrace.api.state_ttl import OnGap, StateTtl, TtlTime, UpdateType, Visibility


class Strategy(enum.Enum):
    """Layouts of a materializer's history (FLIP-544, "Public Interfaces"). None of them changes results, TTL of LEGACY apart."""

    LEGACY = "legacy"
    """A list, as Flink's first materializer has it. A TTL counts for the key as a whole."""

    VALUE = "value"
    """A list; a TTL counts for each row."""

    MAP = "map"
    """Linked rows: a change takes as long in a history of a million rows as in one of ten."""

    ADAPTIVE = "adaptive"
    """A list while a history is short, linked rows when it is long."""


class Emit(enum.Enum):
    """The changes that a materializer sends on: each change, or one per key and micro-batch."""

    EVERY_CHANGE = "every_change"
    NET_CHANGE = "net_change"


class OnConflict(enum.Enum):
    """The way out where several rows want to be the one of a primary key (FLIP-558).

    All but `KEEP_HISTORY` decide when the watermark has reached the rows: by then a row that only came before the retraction
    of another one is alone. What they drop is gone from the history; a retraction of it finds nothing, and says so.
    """

    KEEP_HISTORY = "keep_history"
    """The last row is shown. When it is taken back, the one before it is again."""

    DO_NOTHING = "do_nothing"
    """The first row stays; later ones are dropped."""

    ERROR = "error"
    """The run fails, and names the rows."""

    DEDUPLICATE = "deduplicate"
    """The row that was added or replaced last stays; earlier ones are dropped, and never come back."""


class Keep(enum.Enum):
    """Which of the rows of a key an operator shows."""

    FIRST = "first"
    """The one that came first of those that were not taken back."""

    LAST = "last"
    """The one that came last of those that were not taken back."""


@dataclass(frozen=True, slots=True)
class UpsertMaterialize:
    """A sink upsert materializer (FLIP-544); with `keep`, also first value, last value and deduplication by a key."""

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
        """Refuse a TTL that rows of a history cannot have, and two opinions on which row to show."""
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
        """Tell whether the operator keeps a history.

        It need not where the upsert key is the primary key: then changes of a key come from one place, in order, and the
        last one counts. `force` keeps it all the same, and so do a TTL and a policy for conflicts.
        """
        if self.force or self.ttl is not None or self.on_conflict is not OnConflict.KEEP_HISTORY:
            return True
        return self.upsert_key is None or {*self.upsert_key} != {*self.primary_key}

    @property
    def keyed_by(self) -> tuple[str, ...]:
        """The fields that key its input: a history belongs to one value of them."""
        return self.primary_key

    @property
    def may_show_another(self) -> bool:
        """Tell whether the sink may hold a row that stands neither first nor last: one that was replaced in place."""
        if self.shows_first or self.on_conflict is OnConflict.DEDUPLICATE or not self.upsert_key:
            return False
        return not {*self.upsert_key} <= {*self.keyed_by}

    @property
    def shows_first(self) -> bool:
        """Tell whether the first row of a key is shown, not the last."""
        return self.keep is Keep.FIRST or self.on_conflict is OnConflict.DO_NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag(UpsertMaterialize):
    """Each row with one that came before it, retraction-aware. The history is that of `partition_by`."""

    partition_by: tuple[str, ...]
    record: type[msgspec.Struct]
    function: Callable[[Any, Any], msgspec.Struct]
    offset: int = 1

    @property
    def keyed_by(self) -> tuple[str, ...]:
        """The fields that key its input: a history belongs to one value of them."""
        return self.partition_by
