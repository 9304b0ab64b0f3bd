"""What `headrace state expired` prints."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.checkpoint._query import Rows
    from headrace.checkpoint.expired import ExpiredReader

_OFF = "off"


def print_expired(reader: ExpiredReader, entries: Rows, *, as_json: bool) -> None:
    """Print what has expired, by state and one by one, and when its bytes are gone."""
    from headrace.cli._output import decoded, print_json, records, show, table

    states, removals, savepoints = reader.states(), reader.removals(), reader.savepoints()
    checkpoint = reader.checkpoint.checkpoint_id
    if as_json:
        answer = {"checkpoint": checkpoint, "states": decoded(states), "entries": decoded(entries)}
        print_json({**answer, "removals": removals, "savepoints": savepoints})
        return
    if states.rows:
        show(records(states), records(entries, drop=("ttl_ms",)))
        show("They are hidden from user code and readers. The next 'headrace compact' drops them from the tables;")
        show(f"files that had them stay for {reader.retention_hours} hours more, and then until 'headrace vacuum'.")
    else:
        show(f"nothing that has expired is stored, at checkpoint {checkpoint}")
    if removals:
        rows = [(each.checkpoint_id, each.at, each.entries, each.files_until) for each in removals]
        show(table(("compaction", "at", "expired entries", "vacuum removes their files from"), rows))
    if savepoints and (states.rows or removals):
        show(f"Savepoints keep all that was stored then, for ever: {', '.join(savepoints)}.")


def print_supposed(reader: ExpiredReader, operator: str | None, state: str | None, ttl: str, *, as_json: bool) -> None:
    """Print what another TTL would do."""
    import msgspec

    from headrace.cli._output import print_json, show

    name = reader.name_of(operator, state)
    supposed = reader.suppose(name, _parsed(ttl))
    if as_json:
        answer = {"checkpoint": reader.checkpoint.checkpoint_id, "state": name, "ttl": ttl}
        print_json({**answer, **msgspec.to_builtins(supposed)})
        return
    show(
        f"{name} with a TTL of {ttl}, at checkpoint {reader.checkpoint.checkpoint_id} (nothing was changed):",
        f"  {supposed.entries_that_go:,} of {supposed.entries:,} entries would be dead at once,",
        f"  {supposed.keys_that_go:,} of {supposed.keys:,} keys would have nothing left,",
        f"  {supposed.entries_that_come_back:,} entries that are dead now, and still stored, would live again.",
    )
    if supposed.was_off and ttl != _OFF:
        show("It has no TTL so far: lives of what is stored begin with the first micro-batch that has one.")
    if supposed.entries_that_come_back:
        show("Compact first ('headrace compact') if they must not.")


def _parsed(text: str) -> timedelta | None:
    from headrace.config import parse_duration
    from headrace.errors import ConfigError

    if text == _OFF:
        return None
    try:
        ttl = parse_duration(text)
    except ValueError as error:
        msg = f"--ttl: {error}, or '{_OFF}'"
        raise ConfigError(msg) from error
    if not ttl:
        msg = f"--ttl: a TTL must be at least 1 ms, or '{_OFF}'"
        raise ConfigError(msg)
    return ttl
