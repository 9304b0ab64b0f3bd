"""What edits of entries by hand have in common: names of entries, their differences, and what is stored of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import pyarrow as pa

from headrace import clock
from headrace.api.graph import Process
from headrace.config import JobConfig
from headrace.edits.edit import HandEdit, JobView
from headrace.errors import ConfigError
from headrace.execution.bound_function import declared_states
from headrace.log.checkpoint import Checkpoint
from headrace.log.facts import Edited
from headrace.log.ttl import declared_ttls, row_expiries
from headrace.plan.loader import plan_of
from headrace.state.backend import EntryChange
from headrace.state.key_groups import key_group
from headrace.state.timers import TimerChange
from headrace.storage.predicate import OneOf
from headrace.tables.changelog import KeyedState
from headrace.tables.expiry import RowExpiry, deleted_if_dead
from headrace.tables.schemas import KEYED_STATE, TIMERS
from headrace.tables.view import TableView, in_milliseconds

if TYPE_CHECKING:
    from headrace.commit.protocol import OpenJob


class EntryName(NamedTuple):
    """Entries of one key, as a person names them: `key` and `entry` are JSON, or plain text."""

    operator: str
    state: str
    key: str
    namespace: str | None = None
    """None: of all namespaces, for entries that go; none of them for a value that is set."""
    entry: str | None = None
    """Key within a map."""


class EntryDifference(NamedTuple):
    """One entry before and after an edit: values as JSON text, None where there is none."""

    key: str
    namespace: str | None
    user_key: str | None
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class EntryEffect:
    """What an edit of entries does."""

    name: EntryName
    differences: tuple[EntryDifference, ...]
    changes: tuple[tuple[KeyedState, Sequence[EntryChange]], ...]
    timers: Sequence[TimerChange] = ()
    timers_left: int = 0
    """Timers of the key that stay, though nothing else is left of it."""


class EditEntries(HandEdit[EntryEffect]):
    """Edit of entries by hand. Raises `ConfigError` where it would change nothing."""

    __slots__ = ()

    name: EntryName
    why: str
    command: ClassVar[str]

    def additions(self, job: OpenJob, effect: EntryEffect) -> Iterator[tuple[str, pa.Table]]:
        """See `StateEdit.additions`."""
        changelog = self.changelog(job, effect.name.operator)
        for store, changes in effect.changes:
            yield KEYED_STATE, changelog.values(store, changes)
        if effect.timers:
            yield TIMERS, changelog.timers(effect.timers)

    def facts(self, job: OpenJob, effect: EntryEffect, rows: int) -> dict[str, Any]:  # noqa: ARG002 - timers are rows, too
        """See `StateEdit.facts`."""
        name = effect.name
        return {
            "base": self.base(job.last, job.config.code),
            "metrics": {"entries_edited": len(effect.differences)},
            "note": f"state {self.command} of '{name.operator}.{name.state}': {self.why}",
            "cause": Edited(self.command, name.operator, name.state),
        }

    def base(self, last: Checkpoint, code: Any) -> Checkpoint:  # noqa: ARG002 - for those that read the code
        """Return the checkpoint on which the edit builds."""
        return last.without_copies({self.name.operator})


def named_state(config: JobConfig, operator: str | None, state: str | None) -> tuple[str, str]:
    """Return the operator and the state that a person means, who may leave out what only one has.

    Raises `ConfigError` when several are meant, or none. What the code does not declare must be named in full.
    """
    if operator is not None and state is not None:
        return operator, state
    declared = [
        (stage.name, own.name)
        for stage in plan_of(config.code).keyed
        if isinstance(stage.operator, Process)
        for own in declared_states(stage.operator.function).values()
    ]
    meant = [pair for pair in declared if operator in {None, pair[0]} and state in {None, pair[1]}]
    if len(meant) == 1:
        return meant[0]
    pairs = "; ".join(f"--operator {name} --state {own}" for name, own in meant or declared) or "none"
    which = "several states are meant" if meant else "the code declares no such state"
    raise ConfigError(f"{which}: name one of them ({pairs}). Nothing was changed.")


def live_entries(job: JobView, operator: str, states: Iterable[str], keys: Iterable[str]) -> list[dict[str, Any]]:
    """Return the entries of some keys (JSON texts) that are stored and have not expired, with times in milliseconds."""
    keys = [*keys]
    groups = {key_group(key.encode(), job.last.max_parallelism) for key in keys}
    view: TableView = (
        job.view(KEYED_STATE).of(operator, keys=keys, states=states).where(OneOf("key_group", tuple(sorted(groups))))
    )
    rows = deleted_if_dead(view.live(), expiries(job))
    return [row for row in in_milliseconds(rows).to_pylist() if not row["deleted"]]


def expiries(job: JobView) -> list[RowExpiry]:
    """Return when entries of the job's states expire, as of now."""
    declared = declared_ttls(plan_of(job.config.code))
    paused_since = job.lineage.last_micro_batch()
    return row_expiries(declared, job.last, processing_time=clock.now(), paused_since=paused_since)


def no_entry(job: JobView, name: EntryName, key: str) -> str:
    """Return a sentence for people: a key has no such entry."""
    return (
        f"{shown_name(name)} has no live entry of key {key}: it isn't there, or it has expired. 'headrace state get {job.config.job} KEY' shows "
        "what a key has."
    )


def shown_name(name: EntryName) -> str:
    """Return how messages call the state of a name, with its namespace and its key within a map."""
    within = "".join(
        f", {label} {text}"
        for label, text in (("namespace", name.namespace), ("entry", name.entry))
        if text is not None
    )
    return f"state '{name.state}' of operator '{name.operator}'{within}"
