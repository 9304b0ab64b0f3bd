"""Recognition of change feeds in files of JSON, for `headrace new --from`: events of Debezium have a row, what happened to it, and where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from headrace.config import EventOptions
from headrace.sources.envelope import changes_a_row, plain_rows

TIME: Final = "__source_ts_ms"
"""Column for the time at which the database made a change."""
_USUAL_KEY: Final = "id"

_OPS: Final = frozenset("crudtm")


class Feed(NamedTuple):
    """Events of a change feed, and how a job's file names it."""

    settings: Mapping[str, str]
    rows: Sequence[Mapping[str, Any]]
    """The rows in the events, as plain values."""
    key: str
    """Column that may be the primary key."""
    doubts: Sequence[str]
    """What the user has to look at."""


def feed_of(contents: Sequence[bytes]) -> Feed | None:
    """Return the feed whose events the first rows of a file are; None where any of them is none. `contents` has the rows as JSON."""
    changes = [_object(content) for content in contents if changes_a_row(EventOptions(feed="debezium"), content)]
    events = [_payload(change) for change in changes]
    if not events or not all(map(_is_event, events)):
        return None
    tables = Counter(str(event["source"]["table"]) for event in events if event["source"].get("table") is not None)
    table, doubts = None, []
    if len(tables) > 1:
        table = tables.most_common(1)[0][0]
        doubts.append(f"it has events of the tables {', '.join(sorted(tables))}: this source reads those of {table}")
    if not any(change.get("schema") for change in changes):
        doubts.append(
            "its events have no schemas, so days and times may be numbers, and decimals text: declare what they are"
        )
    options = EventOptions(feed="debezium", table=table)
    settings = {"envelope": "debezium", **({} if table is None else {"envelope_table": table})}
    rows = plain_rows(options, contents)
    if not rows or not rows[0]:
        return None
    key = _key_of(rows)
    doubts.append(f"the key ({key}) is a guess: name the primary key of the table in the pipeline")
    return Feed(settings, rows, key, doubts)


def _key_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the column that may be the key: one that all rows have, deleted ones as well, of which `before` may have the key alone."""
    everywhere = [name for name in rows[0] if all(row.get(name) is not None for row in rows)]
    return _USUAL_KEY if _USUAL_KEY in everywhere else next(iter(everywhere or rows[0]))


def _object(content: bytes) -> Mapping[str, Any]:
    """Return the members of a row; none of one that is no object."""
    try:
        return msgspec.json.decode(content, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}


def _payload(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an event without its schema."""
    payload = row.get("payload")
    return payload if isinstance(payload, dict) and "op" not in row else row


def _is_event(row: Mapping[str, Any]) -> bool:
    """Return whether an object is an event of Debezium about a row, a table or the log."""
    has_row = "before" in row or "after" in row
    return has_row and isinstance(row.get("source"), dict) and isinstance(row.get("op"), str) and row["op"] in _OPS
