"""Edits of entries by hand: set, delete, expire.

A value is set as user code would set it. Entries are deleted or expire as rows, so that also those go that no code of today can read.

The next micro-batch sees the new entries. No sink changes before: its rows are results of records and timers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from headrace.edits.edit import JobView
from headrace.edits.entries.declared import DeclaredEntry, as_declared
from headrace.edits.entries.edit import (
    EditEntries,
    EntryDifference,
    EntryEffect,
    EntryName,
    expiries,
    live_entries,
    no_entry,
    shown_name,
)
from headrace.edits.entries.written import refuse_several
from headrace.errors import ConfigError
from headrace.log.checkpoint import Checkpoint
from headrace.plan.loader import plan_of
from headrace.state.backend import EntryChange
from headrace.state.cleanup import CLEANUP_DOMAINS
from headrace.state.codec import written_keys
from headrace.state.ttl import LiveTtl
from headrace.tables.schemas import TIMERS


@dataclass(frozen=True, slots=True)
class SetEntry(EditEntries):
    """Edit that sets the value of an entry, typed by the state that the code declares.

    `value` is JSON, or plain text for a state of texts; of a list, a JSON array takes the place of all elements. With `fields`, the
    value has these fields of its record changed, each given as JSON or plain text.

    Raises `ConfigError` for an operator or a state that the code does not declare, for a key that has no such entry unless it
    `creates` one, and for a key or a value that does not fit its declared type; `StateSchemaError` when the code cannot read what is stored.
    """

    name: EntryName
    value: str | None = None
    fields: Mapping[str, str] | None = None
    creates: bool = False
    why: str = ""

    command: ClassVar[str] = "set"

    def look(self, job: JobView) -> EntryEffect:
        """See `StateEdit.look`."""
        declared = DeclaredEntry.of(plan_of(job.config.code), self.name, job)
        before = declared.live_rows(job)
        rows = [row for row in before if declared.is_meant(row)]
        if not rows and not self.creates:
            raise ConfigError(
                f"{no_entry(job, self.name, declared.key_json.decode())} To make a new one: --create. Nothing was changed."
            )
        value = declared.value(self.value, self.fields, rows)
        process = declared.set(job, value)
        changes = tuple((store, of_store) for store, of_store in process.changes() if of_store)
        after = {row.user_key: row for store, own in changes if store.name == self.name.state for row in own}
        differences = tuple(_differences(declared, rows, after))
        if not differences:
            raise ConfigError(f"{shown_name(self.name)} has that value already. Nothing was changed.")
        return EntryEffect(self.name, differences, changes, process.timers.changes())

    def base(self, last: Checkpoint, code: Any) -> Checkpoint:
        """See `EditEntries.base`."""
        return as_declared(last, plan_of(code), self.name.operator)


def _differences(
    declared: DeclaredEntry, rows: Sequence[Mapping[str, Any]], after: Mapping[bytes | None, EntryChange]
) -> Iterator[EntryDifference]:
    key = declared.key_json.decode()
    left = dict(after)
    for row in rows:
        user_key = None if row["user_key"] is None else row["user_key"].encode()
        change = left.pop(user_key, None)
        if change is None:
            continue
        raw = None if change.raw is None else change.raw.decode()
        if raw != row["value"]:
            yield EntryDifference(key, row["namespace"], row["user_key"], row["value"], raw)
    for user_key, change in left.items():
        if change.raw is not None:
            shown = None if user_key is None else user_key.decode()
            yield EntryDifference(key, change.namespace or None, shown, None, change.raw.decode())


@dataclass(frozen=True, slots=True)
class DeleteEntries(EditEntries):
    """Edit that deletes entries of a key. Its timers stay. Raises `ConfigError` when nothing is stored under the name."""

    name: EntryName
    why: str = ""

    command: ClassVar[str] = "delete"

    def look(self, job: JobView) -> EntryEffect:
        """See `StateEdit.look`."""
        rows = _named_rows(job, self.name)
        changes = [EntryChange(row["key"].encode(), None, 0, 0, row["namespace"] or "", _bytes(row)) for row in rows]
        deleted = _gone(rows)
        return EntryEffect(
            self.name, deleted, ((_Stored(self.name.state), changes),), timers_left=_timers_left(job, self.name, rows)
        )


@dataclass(frozen=True, slots=True)
class ExpireEntries(EditEntries):
    """Edit that ends the lifetime of entries of a key, as if their TTL had passed.

    Raises `ConfigError` when nothing is stored under the name, and for a state without a TTL, or whose clock has not begun.
    """

    name: EntryName
    why: str = ""

    command: ClassVar[str] = "expire"

    def look(self, job: JobView) -> EntryEffect:
        """See `StateEdit.look`."""
        rows = _named_rows(job, self.name)
        expiry = next((expiry for expiry in expiries(job) if (expiry.operator, expiry.state) == self.name[:2]), None)
        stamps = [None if expiry is None else expiry.live.dead_until(expiry.clock, row["ttl_ms"] or 0) for row in rows]
        if expiry is None or None in stamps:
            msg = (
                f"state '{self.name.state}' of operator '{self.name.operator}' has no TTL, or its clock has not begun, so that nothing in it "
                "expires: delete the entries instead (headrace state delete). Nothing was changed."
            )
            raise ConfigError(msg)
        changes = [
            EntryChange(
                row["key"].encode(),
                row["value"].encode(),
                stamp or 0,
                row["ttl_ms"] or 0,
                row["namespace"] or "",
                _bytes(row),
            )
            for row, stamp in zip(rows, stamps, strict=True)
        ]
        deleted = _gone(rows)
        return EntryEffect(self.name, deleted, ((_Stored(self.name.state, expiry.live), changes),))


@dataclass(slots=True)
class _Stored:
    """State whose entries are changed as rows. Without `lifetime` they go."""

    name: str
    lifetime: LiveTtl | None = None

    def expires_at(self, stamp: int, own_ttl: int = 0, /) -> int | None:
        """Return when an entry expires (ms); None if it is removed."""
        return None if self.lifetime is None else self.lifetime.expires_at(stamp, own_ttl)


def _gone(rows: Sequence[Mapping[str, Any]]) -> tuple[EntryDifference, ...]:
    """Return the differences of entries that go."""
    return tuple(EntryDifference(row["key"], row["namespace"], row["user_key"], row["value"], None) for row in rows)


def _named_rows(job: JobView, name: EntryName) -> list[dict[str, Any]]:
    rows = [
        row for row in live_entries(job, name.operator, (name.state,), written_keys(name.key)) if _is_named(name, row)
    ]
    if not rows:
        raise ConfigError(f"{no_entry(job, name, name.key)} Nothing was changed.")
    for what, column in (("key", "key"), ("entry", "user_key")):
        if what == "key" or name.entry is not None:
            refuse_several(what, getattr(name, what), (row[column] for row in rows if row[column] is not None))
    return rows


def _is_named(name: EntryName, row: Mapping[str, Any]) -> bool:
    is_in = name.namespace is None or (row["namespace"] or "") == name.namespace
    return is_in and (name.entry is None or row["user_key"] in written_keys(name.entry))


def _timers_left(job: JobView, name: EntryName, rows: Sequence[Mapping[str, Any]]) -> int:
    """Return the number of user code's timers of the rows' keys."""
    timers = job.view(TIMERS).of(name.operator, keys={row["key"] for row in rows}).live(["domain"])
    return sum(domain not in CLEANUP_DOMAINS for domain in timers["domain"].to_pylist())


def _bytes(row: Mapping[str, Any]) -> bytes | None:
    return None if row["user_key"] is None else row["user_key"].encode()
