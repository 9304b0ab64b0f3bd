"""Edits of what waits: timers that somebody sets or deletes, calls that somebody drops or has made again now.

A dropped call goes to the quarantine, from where a requeue brings it back: nothing is lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from headrace import clock
from headrace.api.functions import TimeDomain, has_timers
from headrace.api.graph import OperatorFunction, Process
from headrace.async_io.pending_call import Status, StoredCall
from headrace.edits.edit import HandEdit, JobView
from headrace.edits.entries.declared import keyed_stage
from headrace.edits.entries.written import refuse_several, stored_key
from headrace.errors import ConfigError
from headrace.log.facts import Edited
from headrace.plan.loader import plan_of
from headrace.plan.stages import waits_of
from headrace.report import Time
from headrace.state.codec import written_keys
from headrace.state.timers import Timer, TimerChange
from headrace.storage.predicate import OneOf
from headrace.tables.changelog import QuarantineRow
from headrace.tables.schemas import ASYNC_REQUESTS, QUARANTINE, TIMERS

if TYPE_CHECKING:
    from headrace.commit.protocol import OpenJob


DUE_NOW = "due now"
"""Command of edits that make calls due. They change no result, so a branch may lack them."""


class TimerName(NamedTuple):
    """Timers of one key, as a person names them: `key` is JSON, or plain text, `time` in milliseconds."""

    operator: str
    key: str
    time: int | None = None
    """None: any time, for timers that go."""
    domain: TimeDomain = TimeDomain.EVENT_TIME
    namespace: str | None = None
    """None: of all namespaces, for timers that go; none of them for one that is set."""


class EditTimers(HandEdit[Sequence[TimerChange]]):
    """Edit of timers by hand."""

    __slots__ = ()

    name: TimerName
    why: str
    command: ClassVar[str]

    def additions(self, job: OpenJob, effect: Sequence[TimerChange]) -> Iterator[tuple[str, pa.Table]]:
        """See `StateEdit.additions`."""
        yield TIMERS, self.changelog(job, self.name.operator).timers(effect)

    def facts(self, job: OpenJob, effect: Sequence[TimerChange], rows: int) -> dict[str, Any]:  # noqa: ARG002 - one for each
        """See `StateEdit.facts`."""
        return {
            "base": job.last.without_copies({self.name.operator}),
            "metrics": {"timers_edited": rows},
            "note": f"timers of '{self.name.operator}' {self.command}: {self.why}",
            "cause": Edited(f"timers {self.command}", self.name.operator),
        }


@dataclass(frozen=True, slots=True)
class SetTimer(EditTimers):
    """Edit that sets a timer of a key. The operator's `on_timer` is called when its clock reaches the time.

    Raises `ConfigError` for an operator that the code does not declare, or whose function has no `on_timer`, for a key that does not
    fit its type, and for a time that the clock has passed: no run would look for the timer.
    """

    name: TimerName
    why: str = ""

    command: ClassVar[str] = "set"

    def look(self, job: JobView) -> Sequence[TimerChange]:
        """See `StateEdit.look`."""
        name = self.name
        stage = keyed_stage(plan_of(job.config.code), name.operator, job.config.job)
        assert isinstance(stage.operator, Process)  # noqa: S101 - by `keyed_stage`
        if isinstance(stage.operator.function, OperatorFunction):
            msg = (
                f"operator '{name.operator}' is a ready-made one, whose timers follow rules of its own: only those of a function of the pipeline can be "
                "set. Nothing was changed."
            )
            raise ConfigError(msg)
        if not has_timers(stage.operator.function):
            raise ConfigError(
                f"operator '{name.operator}' has no on_timer(): nothing would hear of a timer. Nothing was changed."
            )
        assert name.time is not None  # noqa: S101 - a timer that is set has one
        passed = job.last.fired_until(name.operator).get(name.domain)
        if name.domain is TimeDomain.EVENT_TIME:
            passed = max(
                (time for time in (passed, job.last.latest_watermark_of(name.operator)) if time is not None),
                default=None,
            )
        if passed is not None and name.time <= passed:
            clock_ = "the watermark" if name.domain is TimeDomain.EVENT_TIME else "the last micro-batch"
            msg = f"{clock_} of operator '{name.operator}' has passed that time: give one after {Time(passed)}. Nothing was changed."
            raise ConfigError(msg)
        timer = Timer(name.time, stored_key(stage, name.key), name.domain, name.namespace or "")
        return [TimerChange(timer, registered=True)]


@dataclass(frozen=True, slots=True)
class DeleteTimers(EditTimers):
    """Edit that deletes timers of a key. Raises `ConfigError` when it has none of them."""

    name: TimerName
    why: str = ""

    command: ClassVar[str] = "deleted"

    def look(self, job: JobView) -> Sequence[TimerChange]:
        """See `StateEdit.look`."""
        name = self.name
        view = job.view(TIMERS).of(name.operator, keys=written_keys(name.key)).where(OneOf("domain", (name.domain,)))
        timers = [
            Timer(row["timestamp"], row["key"].encode(), row["domain"], row["namespace"] or "")
            for row in view.live_rows()
            if name.time in {None, row["timestamp"]} and name.namespace in {None, row["namespace"] or ""}
        ]
        if not timers:
            msg = f"operator '{name.operator}' has no such timer of key {name.key}: headrace waiting {job.config.job} --timers lists them. Nothing was changed."
            raise ConfigError(msg)
        refuse_several("key", name.key, (timer.key_json.decode() for timer in timers))
        return [TimerChange(timer, registered=False) for timer in timers]


# --------------------------------------------------------------------------------------------------------------- calls


class CallName(NamedTuple):
    """Calls of one async operator, as a person names them. `key` is JSON, or plain text; None: of all keys."""

    operator: str
    key: str | None = None


class EditCalls(HandEdit[Sequence[StoredCall]]):
    """Edit of waiting calls by hand. Raises `ConfigError` when no call waits under the name."""

    __slots__ = ()

    name: CallName
    why: str
    command: ClassVar[str]

    def look(self, job: JobView) -> Sequence[StoredCall]:
        """See `StateEdit.look`."""
        waits = {wait.name: wait for wait in waits_of(plan_of(job.config.code))}
        wait = waits.get(self.name.operator)
        if self.name.key is not None and (wait is None or wait.key is None):
            msg = f"calls of operator '{self.name.operator}' have no key: leave --key out. Nothing was changed."
            raise ConfigError(msg)
        keys = None if self.name.key is None else written_keys(self.name.key)
        rows = job.view(ASYNC_REQUESTS).of(self.name.operator, keys=keys).live_rows(StoredCall.__struct_fields__)
        calls = [StoredCall(**row) for row in rows]
        waiting = [call for call in calls if call.status != Status.COMPLETED.value]
        if not waiting:
            known = ", ".join(waits) or "none"
            if wait is None:
                raise ConfigError(
                    f"no async operator is called '{self.name.operator}' (there are: {known}). Nothing was changed."
                )
            msg = f"no call of operator '{self.name.operator}' waits under that name: headrace waiting {job.config.job} --calls lists them. Nothing was changed."
            raise ConfigError(msg)
        if self.name.key is not None:
            refuse_several("key", self.name.key, (call.key for call in waiting))
        return waiting

    def facts(self, job: OpenJob, effect: Sequence[StoredCall], rows: int) -> dict[str, Any]:  # noqa: ARG002 - a dropped call has two
        """See `StateEdit.facts`."""
        return {
            "metrics": {"calls_edited": len(effect)},
            "note": f"calls of '{self.name.operator}' {self.command}: {self.why}",
            "cause": Edited(f"calls {self.command}", self.name.operator),
        }


@dataclass(frozen=True, slots=True)
class RetryCalls(EditCalls):
    """Edit that makes waiting calls due at once. The next run makes them; their number of attempts stays."""

    name: CallName
    why: str = ""

    command: ClassVar[str] = DUE_NOW

    def additions(self, job: OpenJob, effect: Sequence[StoredCall]) -> Iterator[tuple[str, pa.Table]]:
        """See `StateEdit.additions`."""
        now = clock.now()
        due = [replace(call, next_attempt_at=now) for call in effect]
        yield ASYNC_REQUESTS, self.changelog(job, self.name.operator).requests(due, [False] * len(due))

    def facts(self, job: OpenJob, effect: Sequence[StoredCall], rows: int) -> dict[str, Any]:
        """See `StateEdit.facts`."""
        work = job.last.work
        return {**EditCalls.facts(self, job, effect, rows), "work": work.with_pending(work.pending, clock.now())}


@dataclass(frozen=True, slots=True)
class DropCalls(EditCalls):
    """Edit that gives waiting calls up: they go to the quarantine, as if the service had refused them for good."""

    name: CallName
    why: str = ""

    command: ClassVar[str] = "dropped"

    def additions(self, job: OpenJob, effect: Sequence[StoredCall]) -> Iterator[tuple[str, pa.Table]]:
        """See `StateEdit.additions`."""
        changelog = self.changelog(job, self.name.operator)
        yield ASYNC_REQUESTS, changelog.requests(effect, [True] * len(effect))
        yield QUARANTINE, changelog.quarantine([self._aside(call) for call in effect])

    def facts(self, job: OpenJob, effect: Sequence[StoredCall], rows: int) -> dict[str, Any]:
        """See `StateEdit.facts`."""
        work = job.last.work  # responses that waited for the dropped calls are due now
        return {
            **EditCalls.facts(self, job, effect, rows),
            "work": work.with_pending(work.pending - len(effect), clock.now()),
        }

    def _aside(self, call: StoredCall) -> QuarantineRow:
        order = msgspec.json.decode(call.element, type=_Order).order
        reason = f"dropped by hand: {self.why}" + (f" (last error: {call.last_error})" if call.last_error else "")
        return QuarantineRow(self.name.operator, order, call.key, call.element, reason, "call")


class _Order(msgspec.Struct, frozen=True):
    """The part of a stored element that says its place in arrival order."""

    order: str
