"""Time to live of state (FLIP-25)."""

from __future__ import annotations

import enum
from dataclasses import KW_ONLY, dataclass, field
from datetime import timedelta

_MILLISECOND = timedelta(milliseconds=1)


class UpdateType(enum.Enum):
    """The accesses that renew an entry's life (FLIP-25, "TTL Update Type")."""

    DISABLED = "disabled"
    ON_CREATE = "on_create"
    ON_CREATE_AND_WRITE = "on_create_and_write"
    ON_READ_AND_WRITE = "on_read_and_write"


class Visibility(enum.Enum):
    """Visibility of an expired entry that is still stored (FLIP-25, "State Visibility")."""

    NEVER_RETURN_EXPIRED = "never_return_expired"
    RETURN_IF_NOT_CLEANED_UP = "return_if_not_cleaned_up"
    """A read that finds an expired entry returns it and removes it: it is seen once at most."""


class TtlTime(enum.Enum):
    """The time that stamps entries (FLIP-25, "Time Characteristic")."""

    EVENT = "event"
    PROCESSING = "processing"


class ExpiryClock(enum.Enum):
    """The clock that a stamp is compared with (FLIP-25, "Current timestamp to check expiration")."""

    WATERMARK = "watermark"
    PROCESSING_TIME = "processing_time"


class OnGap(enum.Enum):
    """The effect of a pause of the job on lives that ran meanwhile (FLIP-25, "prolonging of state TTL")."""

    EXPIRE = "expire"
    PROLONG = "prolong"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleanup:
    """How expired entries leave the state (FLIP-25, "Additional Cleanup Strategies").

    Whatever is chosen, a read that finds a dead entry removes it, and under `NEVER_RETURN_EXPIRED` nobody sees one.
    `is_empty` and `remaining` are no reads.
    A number below 0 is a `ValueError`.
    """

    entries_per_record: int = 1
    """Incremental: a lazy iterator over the state looks at so many entries for each record, and starts over at the end.
    It runs when a task has taken in its records, on `hashmap` and `rocksdb`. 0 switches it off."""

    entries_per_access: int = 0
    """As `entries_per_record`, for each access to the state."""

    at_compaction: bool = True
    """Tells whether a compaction drops expired entries from the tables, and a rebuilt local copy does without them."""

    exact: bool = False
    """A timer for each entry group (state, key, namespace) removes what has expired in the micro-batch in which it does,
    whether or not anybody looks. Costs a stored timer a group. Nothing expired is ever seen then, whatever the visibility."""

    def __post_init__(self) -> None:
        """Refuse negative numbers."""
        for name in ("entries_per_record", "entries_per_access"):
            if (number := getattr(self, name)) < 0:
                msg = f"{name} must be at least 0, not {number}"
                raise ValueError(msg)


@dataclass(frozen=True, slots=True)
class StateTtl:
    """How long an entry lives without being renewed.

    An entry is dead when `stamp + ttl <= clock`. In event time the stamp is the timestamp of the record that renewed it, and
    the clock is the last watermark, or with `expiry=ExpiryClock.PROCESSING_TIME` the processing time of the micro-batch. In
    processing time, stamp and clock are both that. Values live and die whole; list elements and map entries one by one.

    `ttl` is at least a millisecond, and counted in whole ones. Time in which the job was paused counts, unless `on_gap` is
    `PROLONG`: then every pause longer than `gap_threshold` (measured from the last committed checkpoint to the start of a
    micro-batch) is taken out of the lives that it interrupts. By the watermark, only the part of it that the watermark had not
    passed yet: what has expired stays so.

    Raises `ValueError` for a shorter `ttl`, for processing time that expires by the watermark, and when only one of `PROLONG` and
    `gap_threshold` is given.
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
        """Refuse what has no meaning."""
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
        """The length of a life in milliseconds."""
        return self.ttl // _MILLISECOND

    @property
    def is_active(self) -> bool:
        """Tell whether entries expire at all: not with `UpdateType.DISABLED`."""
        return self.update is not UpdateType.DISABLED

    @property
    def expires_by_watermark(self) -> bool:
        """Tell whether the clock is the watermark, not processing time."""
        return self.time is TtlTime.EVENT and self.expiry is not ExpiryClock.PROCESSING_TIME


def milliseconds_of(ttl: timedelta) -> int:
    """A life's length in whole milliseconds. Raises `ValueError` below 1."""
    if ttl < _MILLISECOND:
        msg = f"a TTL must be at least 1 ms, not {ttl}"
        raise ValueError(msg)
    return ttl // _MILLISECOND
