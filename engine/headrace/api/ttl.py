"""Time to live of state, and lifetimes of rows (FLIP-25).

Lifetime of state that only a duration can free: `state_ttl=` of joins, rankings, and first and last records.
"""

from __future__ import annotations

import enum
from dataclasses import KW_ONLY, dataclass, field
from datetime import timedelta

_MILLISECOND = timedelta(milliseconds=1)
_LONGEST = timedelta(days=3_652_425)


class UpdateType(enum.Enum):
    """Accesses that renew an entry's lifetime (FLIP-25, "TTL Update Type")."""

    DISABLED = "disabled"
    ON_CREATE = "on_create"
    ON_CREATE_AND_WRITE = "on_create_and_write"
    ON_READ_AND_WRITE = "on_read_and_write"


class Visibility(enum.Enum):
    """Visibility of an expired entry that is still stored (FLIP-25, "State Visibility")."""

    NEVER_RETURN_EXPIRED = "never_return_expired"
    RETURN_IF_NOT_CLEANED_UP = "return_if_not_cleaned_up"
    """The first read of an expired entry that is still stored returns it and removes it."""


class TtlTime(enum.Enum):
    """Time that stamps entries (FLIP-25, "Time Characteristic")."""

    EVENT = "event"
    PROCESSING = "processing"


class ExpiryClock(enum.Enum):
    """Clock that a stamp is compared with (FLIP-25, "Current timestamp to check expiration")."""

    WATERMARK = "watermark"
    PROCESSING_TIME = "processing_time"


class OnGap(enum.Enum):
    """Effect of a pause of the job on the lifetimes that it interrupts (FLIP-25, "prolonging of state TTL")."""

    EXPIRE = "expire"
    PROLONG = "prolong"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleanup:
    """How expired entries leave the state (FLIP-25, "Additional Cleanup Strategies").

    With every choice, a read of an expired entry removes it, and `NEVER_RETURN_EXPIRED` never shows one.
    `is_empty` and `remaining` do not count as reads.

    Raises `ValueError` for a number below 0.
    """

    entries_per_record: int = 1
    """Incremental: for each record, a lazy iterator checks this many entries of the state, and starts over at the end.
    It runs after a task's records, on `hashmap` and `rocksdb`. 0 turns it off."""

    entries_per_access: int = 0
    """Like `entries_per_record`, for each access to the state."""

    at_compaction: bool = True
    """True: a compaction drops expired entries from the tables, and a rebuilt local copy leaves them out."""

    exact: bool = False
    """True: a timer for each entry group (state, key, namespace) removes entries in the micro-batch in which they expire,
    even if nothing reads them. Costs a stored timer for each group. No expired entry is ever visible, whatever the
    visibility."""

    def __post_init__(self) -> None:
        """Refuse negative numbers."""
        for name in ("entries_per_record", "entries_per_access"):
            if (number := getattr(self, name)) < 0:
                msg = f"{name} must be at least 0, not {number}"
                raise ValueError(msg)


@dataclass(frozen=True, slots=True)
class StateTtl:
    """How long an entry lives without being renewed.

    An entry is expired when `stamp + ttl <= clock`. In event time the stamp is the timestamp of the record that renewed
    it, and the clock is the last watermark, or with `expiry=ExpiryClock.PROCESSING_TIME` the processing time of the
    micro-batch. In an event-time timer the watermark is at the timer's time, and what expires then is still there. In
    processing time, stamp and clock are both processing time. Values expire as a whole; list elements and map entries
    one by one.

    `ttl` is at least a millisecond, and counts whole milliseconds. Time in which the job was paused counts, unless
    `on_gap` is `PROLONG`: then every pause longer than `gap_threshold` (measured from the last committed checkpoint to
    the start of a micro-batch) is added to the lifetimes that it interrupts. Where the clock is the watermark, only the
    part of the pause that the watermark had not passed is added: expired entries stay expired.

    Raises `ValueError` for a `ttl` or `gap_threshold` below 1 ms, for a `ttl` beyond 10,000 years, for processing time that expires by the watermark,
    and when only one of `PROLONG` and `gap_threshold` is given.
    """

    ttl: timedelta
    _: KW_ONLY
    update: UpdateType = UpdateType.ON_CREATE_AND_WRITE
    visibility: Visibility = Visibility.NEVER_RETURN_EXPIRED
    time: TtlTime = TtlTime.EVENT
    expiry: ExpiryClock | None = None
    """None: the watermark in event time, processing time in processing time."""
    cleanup: Cleanup = field(default_factory=Cleanup)
    on_gap: OnGap = OnGap.EXPIRE
    gap_threshold: timedelta | None = None

    def __post_init__(self) -> None:
        """Refuse combinations that have no meaning."""
        milliseconds_of(self.ttl)
        if self.time is TtlTime.PROCESSING and self.expiry is ExpiryClock.WATERMARK:
            msg = "entries stamped in processing time cannot expire by the watermark: leave expiry out, or use TtlTime.EVENT"
            raise ValueError(msg)
        if self.on_gap is OnGap.PROLONG and self.gap_threshold is None:
            msg = "OnGap.PROLONG needs gap_threshold: how long the job must have been paused, such as twice its schedule's step"
            raise ValueError(msg)
        if self.on_gap is OnGap.EXPIRE and self.gap_threshold is not None:
            msg = "gap_threshold has no effect without on_gap=OnGap.PROLONG"
            raise ValueError(msg)
        if self.gap_threshold is not None and self.gap_threshold < _MILLISECOND:
            msg = f"gap_threshold must be at least 1 ms, not {self.gap_threshold}"
            raise ValueError(msg)

    @property
    def milliseconds(self) -> int:
        """Return the length of a lifetime in milliseconds."""
        return self.ttl // _MILLISECOND

    @property
    def is_active(self) -> bool:
        """Return whether entries expire at all: not with `UpdateType.DISABLED`."""
        return self.update is not UpdateType.DISABLED

    @property
    def expires_by_watermark(self) -> bool:
        """Return whether the clock is the watermark, not processing time."""
        return self.time is TtlTime.EVENT and self.expiry is not ExpiryClock.PROCESSING_TIME


def milliseconds_of(ttl: timedelta) -> int:
    """Return a lifetime in whole milliseconds. Raises `ValueError` below 1, and beyond 10,000 years, which state tables cannot store."""
    if ttl < _MILLISECOND:
        msg = f"a TTL must be at least 1 ms, not {ttl}"
        raise ValueError(msg)
    if ttl > _LONGEST:
        msg = f"a TTL must be at most {_LONGEST.days:,} days, not {ttl.days:,}: give Lifetime.FOREVER where an operator takes it, or no TTL"
        raise ValueError(msg)
    return ttl // _MILLISECOND


class Lifetime(enum.Enum):
    """How long an operator keeps a record when no duration limits it."""

    FOREVER = "forever"
    """Until the record is retracted or replaced: for state that stays small."""


AnyTtl = timedelta | StateTtl | Lifetime
"""How long an operator keeps a record."""


def declared_ttl(given: object) -> StateTtl | None:
    """Return the TTL of a state that a function declares; None without one, and for `Lifetime.FOREVER`.

    Raises `TypeError` for anything that is no `AnyTtl`, `ValueError` for a duration below 1 ms.
    """
    if given is None or isinstance(given, StateTtl):
        return given
    return _ttl(given, "ttl")


def ttl_of(state_ttl: AnyTtl | None, *, kept: str, after: str) -> StateTtl | None:
    """Return the TTL of an operator's state; None for `Lifetime.FOREVER`.

    `kept` and `after` complete the error of a state without any limit: the records that would be kept for ever, and the
    effect of the TTL. Raises `ValueError` for such a state and for a TTL that shows expired entries, `TypeError` for
    anything else that is no `AnyTtl`.
    """
    if state_ttl is None:
        msg = (
            f"nothing bounds the state, so {kept} would be kept for good: give state_ttl=timedelta(...), the time after which {after}; "
            "or state_ttl=Lifetime.FOREVER, if the keys stay few"
        )
        raise ValueError(msg)
    return _ttl(state_ttl)


def span_of(given: object, argument: str, *, kept: str, after: str) -> int | None:
    """Return a length of event time in ms that bounds a state; None for `Lifetime.FOREVER`.

    `argument` is the name of the operator's argument; `kept` and `after` complete the error of a state without any limit, as for
    `ttl_of`. Raises `ValueError` for such a state and a length below 1 ms, `TypeError` for anything that is no length.
    """
    if given is None:
        msg = (
            f"nothing bounds the state, so {kept} would be kept for good: give {argument}=timedelta(...), the length of event time "
            f"after which {after}; or {argument}=Lifetime.FOREVER"
        )
        raise ValueError(msg)
    if given is Lifetime.FOREVER:
        return None
    if not isinstance(given, timedelta):
        msg = f"{argument} must be a timedelta or Lifetime.FOREVER, not {given!r:.60}"
        raise TypeError(msg)
    if given < _MILLISECOND:
        msg = f"{argument} must be at least 1 ms, not {given}"
        raise ValueError(msg)
    return given // _MILLISECOND


def ttls_of_sides(state_ttl: AnyTtl | tuple[AnyTtl, AnyTtl]) -> tuple[StateTtl | None, StateTtl | None]:
    """Return the TTLs of the left and the right side of a join; None for a side that is kept until it is retracted.

    Raises `TypeError` for anything that is no `AnyTtl`, `ValueError` unless there are one or two, and for a TTL that
    shows expired entries.
    """
    lifetimes = state_ttl if isinstance(state_ttl, tuple) else (state_ttl, state_ttl)
    if len(lifetimes) != len(("left", "right")):
        msg = f"state_ttl takes one duration, or two (left, right), not {len(lifetimes)}"
        raise ValueError(msg)
    left, right = map(_ttl, lifetimes)
    return left, right


def _ttl(given: object, argument: str = "state_ttl") -> StateTtl | None:
    if given is Lifetime.FOREVER:
        return None
    if isinstance(given, timedelta):
        return StateTtl(given)
    if not isinstance(given, StateTtl):
        msg = f"{argument} must be a timedelta, a StateTtl or Lifetime.FOREVER, not {given!r:.60}"
        raise TypeError(msg)
    if given.visibility is not Visibility.NEVER_RETURN_EXPIRED:
        msg = "state_ttl: nothing uses a record that has expired, so `visibility` must be NEVER_RETURN_EXPIRED"
        raise ValueError(msg)
    return given
