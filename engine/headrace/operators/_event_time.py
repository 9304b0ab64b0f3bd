"""Event time of operators: calendar, lengths, and what frees their state.

Calendar: the times that `datetime`, SQL and the tables can represent.
"""

from __future__ import annotations

from headrace.api.ttl import StateTtl

FIRST_TIME = -62_135_596_800_000
LAST_TIME = 253_402_300_799_999
"""Milliseconds of the years 1 and 9999."""


def check_in_calendar(at: int, start: int, end: int, lateness: int = 0, *, what: str = "window") -> None:
    """Check that the window of a record at `at` lies in the years 1 to 9999; `at`, `start`, `end` and `lateness` are in ms.

    Raises `ValueError` for a window that begins before, or that ends or takes late records after. `what` names it for
    people.
    """
    if start >= FIRST_TIME and end + lateness <= LAST_TIME:
        return
    side = "begins before the year 1" if start < FIRST_TIME else "ends after the year 9999"
    msg = (
        f"the record has the event time {at} (ms since 1970), and the {what} of that time {side}, which no table can hold. "
        "Nothing was changed. Take such records out with filter() before it, or correct their event time"
    )
    raise ValueError(msg)


_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1))


def shown_length(milliseconds: int) -> str:
    """Return a length in its largest whole unit: `5m`. Names of states contain it, so the text must not change."""
    unit, size = next((unit, size) for unit, size in _UNITS if milliseconds % size == 0)
    return f"{milliseconds // size}{unit}"


def freed_by(ttl: StateTtl | None) -> str:
    """Return the text that says when a TTL frees the state of a key."""
    if ttl is None or not ttl.is_active:
        return "never (Lifetime.FOREVER)"
    return f"when its state_ttl of {shown_length(ttl.milliseconds)} is over"
