"""Facts of a checkpoint: its operators, what the code declares of them, its work and its cause.

Facts of sources are in `sources.position`, timelines in `records.watermarks`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from headrace.log.declared import OperatorKey, OperatorKeys, SinkTables, StateSchema, StateSchemas
from headrace.state.ttl import Gap, StoredTtl, TtlHistory

T = TypeVar("T")


class Requeued(msgspec.Struct, frozen=True, tag="requeue", omit_defaults=True):
    """Cause of a requeue."""

    repeats: int | None = None
    """Requeue of the job that a branch repeats: its checkpoint. None: somebody asked for it."""
    operators: tuple[str, ...] = ()
    """Async operators whose failed elements it moved."""


class Restored(msgspec.Struct, frozen=True, tag="restore", omit_defaults=True):
    """Cause of a restore: somebody asked for it."""


class Promoted(msgspec.Struct, frozen=True, tag="promotion", omit_defaults=True):
    """Cause of a promotion: what was computed again on its branch."""

    start: int | None = None
    end: int | None = None
    """Input that the branch has taken in (ms); None without intervals."""
    partitions: dict[str, tuple[dict[str, str | None], ...]] = {}
    """Partitions whose rows differ from before, by sink; a sink is left out where any may."""
    is_ahead: bool = False
    """The branch had taken in more input than the job."""


class Edited(msgspec.Struct, frozen=True, tag="edit", omit_defaults=True):
    """Cause of an edit: what somebody changed by hand. It names no key and no value, which an erasure could not reach here."""

    command: str
    operator: str
    state: str | None = None
    """None for timers and calls."""


Cause = Requeued | Restored | Promoted | Edited


class JobWork(msgspec.Struct, frozen=True, omit_defaults=True):
    """Work for a later run, without new input."""

    held: int = 0
    """Number of records in `buffered_requests` that were taken in and that no operator has processed."""
    pending: int = 0
    """Number of elements in `async_requests`."""
    due: int | None = None
    """Time of the next call for one of these elements (ms); None without one."""

    def with_pending(self, pending: int, due: int | None) -> JobWork:
        """Return the work with another number of elements that wait; the next call is due at `due` (ms) if any waits."""
        return JobWork(self.held, max(0, pending), due if pending > 0 else None)


class RowTimes(msgspec.Struct, frozen=True):
    """Counts of rows of one operator or source. Rows that were `dropped`, or went `to_side_output`, are rows `behind` as well."""

    behind: int = 0
    """Rows that arrived at or behind the watermark. The operator may have processed them all the same."""
    dropped: int = 0
    """Rows that came too late for the operator, and that no side output takes: they are lost."""
    to_side_output: int = 0
    """Rows that came too late for the operator, and went to its side output."""
    ahead: int = 0
    """Rows too far ahead of the micro-batch (`max_ahead`): they are in the quarantine."""
    doubtful: int = 0
    """Numbers for times that look like seconds since 1970, or like the digits of a day; they were read as milliseconds."""

    def __add__(self, other: RowTimes) -> RowTimes:
        """Return the sums of both counts."""
        return RowTimes(
            self.behind + other.behind,
            self.dropped + other.dropped,
            self.to_side_output + other.to_side_output,
            self.ahead + other.ahead,
            self.doubtful + other.doubtful,
        )


NO_ROW_TIMES: Final = RowTimes()


class WatermarkStep(msgspec.Struct, frozen=True):
    """Next step of the watermark of sources that meet, or of one source."""

    sources: tuple[str, ...]
    rows_missing: int
    """Rows until the open bucket is full."""
    bucket: int
    """Rows of a bucket (`watermark.bucket`)."""
    time: int
    """Watermark after the step, if no later row comes (ms)."""
    operators: tuple[str, ...]
    """Operators that get the watermark."""


class OperatorFacts(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Facts of one operator that change from checkpoint to checkpoint."""

    timeline: str | None = None
    """First source of its timeline; None for an operator that the code no longer has."""
    rank: int | None = None
    """Its place in the order of records; None for an async wait behind a source, and where no record waits in that order."""
    fired_until: dict[str, int] = {}
    """By clock, the time up to which all its timers have fired (ms)."""
    local_copies: dict[str, str] = {}
    """By range of key groups, the local copy that this checkpoint's task left behind."""
    ttl_since: dict[str, int] = {}
    """By state, when its TTL was switched on (ms, of the clock that expires its entries)."""


Operators = Mapping[str, OperatorFacts]
"""By name."""


def without_copies(operators: Operators, names: Collection[str] | None = None) -> dict[str, OperatorFacts]:
    """Return facts without the local copies of these operators; None: of all."""
    return {
        name: replace(facts, local_copies={}) if names is None or name in names else facts
        for name, facts in operators.items()
    }


class OperatorDeclaration(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the code declares of an operator, as far as stored state depends on it. It changes with the code alone."""

    keys: tuple[OperatorKey | None, ...] = ()
    """Key of each input; None for a broadcast input."""
    states: dict[str, StateSchema] = {}
    """Types of its states, by name."""
    ttls: dict[str, StoredTtl | None] = {}
    """TTL of each state, by name; None: off."""


_NOTHING = OperatorDeclaration()


class Declarations(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the code declares, as checkpoints record it: operators, also those that it no longer has, and tables of sinks."""

    operators: dict[str, OperatorDeclaration] = {}
    sinks: SinkTables = {}

    @property
    def states(self) -> StateSchemas:
        """Return the types of the states, by operator."""
        return {name: own.states for name, own in self.operators.items() if own.states}

    @property
    def keys(self) -> OperatorKeys:
        """Return the keys of the operators that have some."""
        return {name: own.keys for name, own in self.operators.items() if own.keys}

    @property
    def ttls(self) -> dict[str, StoredTtl | None]:
        """Return the TTL of each state, by `operator.state`."""
        return {f"{name}.{state}": ttl for name, own in self.operators.items() for state, ttl in own.ttls.items()}

    def with_states(self, states: StateSchemas) -> Declarations:
        """Return them with these types of states."""
        return self._with_each("states", states)

    def with_keys(self, keys: OperatorKeys) -> Declarations:
        """Return them with these keys."""
        return self._with_each("keys", keys)

    def with_ttls(self, ttls: Mapping[str, StoredTtl | None]) -> Declarations:
        """Return them with these TTLs, by `operator.state`."""
        return self._with_each("ttls", by_operator(ttls))

    def renamed(self, old: str, new: str) -> Declarations:
        """Return them with an operator under its new name."""
        return self._with(renamed(self.operators, old, new))

    def without(self, operator: str) -> Declarations:
        """Return them without an operator."""
        return self._with({name: own for name, own in self.operators.items() if name != operator})

    def _with_each(self, field: str, values: Mapping[str, Any]) -> Declarations:
        """Return them with the values of one field, by operator; an operator without a value has none of it."""
        nothing = getattr(_NOTHING, field)
        return self._with(
            {
                name: replace(self.operators.get(name, _NOTHING), **{field: values.get(name, nothing)})
                for name in {*self.operators, *values}
            }
        )

    def _with(self, operators: Mapping[str, OperatorDeclaration]) -> Declarations:
        return Declarations(
            {name: operators[name] for name in sorted(operators) if operators[name] != _NOTHING}, self.sinks
        )


NO_DECLARATIONS = Declarations()


def by_operator(by_state: Mapping[str, T]) -> dict[str, dict[str, T]]:
    """Return a mapping by `operator.state` as mappings by state, by operator."""
    parts: dict[str, dict[str, T]] = {}
    for name, value in by_state.items():
        operator, _, state = name.partition(".")
        parts.setdefault(operator, {})[state] = value
    return parts


def renamed(by_name: Mapping[str, T], old: str, new: str) -> dict[str, T]:
    """Return a mapping by operator with `old` under the name `new`; what `new` had is left out."""
    return {new if name == old else name: value for name, value in by_name.items() if name != new}


def history_of(operators: Operators, declared: Declarations, pauses: Iterable[Gap]) -> TtlHistory:
    """Return the values that lifetimes of entries depend on."""
    since = {f"{name}.{state}": at for name, facts in operators.items() for state, at in facts.ttl_since.items()}
    return TtlHistory(tuple(pauses), declared.ttls, since)
