"""Latest event time that a micro-batch accepts: rows further ahead of its begin are bad rows (`max_ahead`)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


class EventTimeLimit(msgspec.Struct, frozen=True):
    """Limit of event times in one micro-batch: at most `max_ahead` (ms) after its recorded begin, `began_at` (ms)."""

    began_at: int
    max_ahead: int
    is_strict: bool = False
    """True: a row beyond the limit fails the run; false: it goes to the quarantine."""

    @property
    def latest(self) -> int:
        """Return the latest event time that is accepted (ms)."""
        return self.began_at + self.max_ahead

    def problem(self, time: int) -> str:
        """Return why an event time (ms) beyond the limit is refused: a text that follows the name of its field."""
        ahead, allowed = timedelta(milliseconds=time - self.began_at), timedelta(milliseconds=self.max_ahead)
        return (
            f"is {_shown(time)}, {ahead} ahead of the micro-batch, which began at {_shown(self.began_at)}: the source's max_ahead is "
            f"{allowed}"
        )


def limit_of(began_at: int, max_ahead: timedelta, *, is_strict: bool = False) -> EventTimeLimit:
    """Return the limit of a micro-batch that began at `began_at` (ms)."""
    return EventTimeLimit(began_at, max_ahead // _MILLISECOND, is_strict)


def _shown(time: int) -> str:
    """Return a time as ISO 8601 in UTC; as milliseconds where it is outside the years 1 to 9999."""
    try:
        moment = _EPOCH + time * _MILLISECOND
    except OverflowError:
        return f"{time} ms after 1970"
    return moment.isoformat(timespec="milliseconds" if time % 1000 else "seconds").replace("+00:00", "Z")
