"""Time to live of state (FLIP-25)."""

from __future__ import annotations

import enum
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta


class UpdateType(enum.Enum):
    """What renews an entry's life (FLIP-25, "TTL Update Type")."""

    DISABLED = "disabled"
    ON_CREATE = "on_create"
    ON_CREATE_AND_WRITE = "on_create_and_write"
    ON_READ_AND_WRITE = "on_read_and_write"


class Visibility(enum.Enum):
    """Whether an expired entry that is still stored may be seen (FLIP-25, "State Visibility")."""

    NEVER_RETURN_EXPIRED = "never_return_expired"
    RETURN_IF_NOT_CLEANED_UP = "return_if_not_cleaned_up"


class TtlTime(enum.Enum):
    """The clock that ages entries (FLIP-25, "Time Characteristic")."""

    EVENT = "event"
    PROCESSING = "processing"


@dataclass(frozen=True, slots=True)
class StateTtl:
    """How long an entry lives without being renewed.

    An entry is dead when `stamp + ttl <= clock`. In event time the stamp is the timestamp of the
    record that renewed it and the clock is the last watermark; in processing time both are the
    wall clock. `ttl` must be at least a millisecond, else `ValueError`.
    """

    ttl: timedelta
    _: KW_ONLY
    update: UpdateType = UpdateType.ON_CREATE_AND_WRITE
    visibility: Visibility = Visibility.NEVER_RETURN_EXPIRED
    time: TtlTime = TtlTime.EVENT

    def __post_init__(self) -> None:
        """Refuse a life of no length."""
        if self.ttl < timedelta(milliseconds=1):
            msg = f"a TTL must be at least 1 ms, not {self.ttl}"
            raise ValueError(msg)

    @property
    def milliseconds(self) -> int:
        """The length of a life in milliseconds."""
        return self.ttl // timedelta(milliseconds=1)
