"""Async waits in one task: resume elements that earlier micro-batches have left, and store those left now."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Self

import msgspec

from headrace import clock
from headrace.api.graph import AsyncWait, OutputMode
from headrace.api.types import input_type, output_type
from headrace.async_io.async_wait import AsyncWaitOperator
from headrace.async_io.keyed_ordered import run_keyed_ordered
from headrace.async_io.limits import ServiceLimit
from headrace.async_io.pending_call import PendingCall, StoredCall, came_as, check_stored, loaded
from headrace.async_io.responses import KeptResponse, KeptResponses, Wanted, kept_responses
from headrace.async_io.traced_calls import CallNotes
from headrace.errors import StateSchemaError, UserFunctionError
from headrace.execution.element import Element, Emitted
from headrace.log.progress import TaskProgress
from headrace.names import counted
from headrace.records.keys import key_reader
from headrace.run.messages import AsyncSettings, BatchSettings
from headrace.run.output import TaskOutput
from headrace.run.watch import TaskNotes
from headrace.state.codec import encode
from headrace.state.key_groups import KeyGroupRange
from headrace.tables.changelog import Changelog, QuarantineRow
from headrace.tables.requests import load_waiting_elements, read_responses, waiting_element_rows
from headrace.tables.schemas import ASYNC_REQUESTS, QUARANTINE, RESPONSES


@dataclass(slots=True)
class AsyncStage:
    """Async waits of one task."""

    batch: BatchSettings
    settings: AsyncSettings
    key_groups: KeyGroupRange
    output: TaskOutput
    stop: Callable[[], bool]
    notes: TaskNotes
    limits: dict[str, ServiceLimit] = field(default_factory=dict)
    runner: asyncio.Runner = field(init=False)

    def __enter__(self) -> Self:
        """Open the task's event loop. All waits of a source's stage use it: their shared limits belong to one loop."""
        self.runner = asyncio.Runner()
        return self

    def __exit__(self, *error: object) -> None:
        """Close the loop."""
        self.runner.close()

    def run(self, wait: AsyncWait, emitted: list[Emitted]) -> list[Emitted]:
        """Send records through a wait of a source's stage."""
        resumed = self._resumed(wait)
        operator = self._operator(wait, len(emitted) + len(resumed))
        with operator.guarded():
            answered = self.runner.run(operator.run_async(emitted, resumed))
        for element in [*operator.pending, *operator.quarantined]:
            if element.sequence is None:
                element.key_json = b"%d" % int.from_bytes(element.emitted.order[:8])
        self._keep(operator)
        operator.drop()
        return answered

    def run_keyed(self, wait: AsyncWait, elements: Iterable[Sequence[Element]]) -> list[Emitted]:
        """Send records through a keyed-ordered wait."""
        keyed = (
            (key_json, Emitted(order, timestamp, kind, record))
            for batch in elements
            for order, timestamp, kind, key_json, record, _ in batch
        )
        operator, resumed = self._operator(wait), self._resumed(wait)
        emitted = run_keyed_ordered(operator, keyed, resumed)
        self._keep(operator)
        operator.drop()
        return emitted

    def _operator(self, wait: AsyncWait, of: int | None = None) -> AsyncWaitOperator:
        """Return the wait's operator in this task. `of` is the number of elements that will go through it, None if unknown."""
        settings = self.settings
        operator = AsyncWaitOperator(
            configured(wait, settings),
            settings.services,
            limit=self._limit(wait.service),
            open_until=settings.open_until.get(wait.name),
            stop=self.notes.asked_along(self.stop, lambda: _progress(operator, of)),
            finishes=settings.finishes,
            responses=self._live_responses(wait),
            job=self.batch.job,
            notes=self._call_notes(wait),
        )
        return operator

    def _call_notes(self, wait: AsyncWait) -> CallNotes | None:
        """Return the notes of the wait's calls for the task's trace; None without one."""
        trace = self.output.report.trace
        return None if trace is None else CallNotes(trace.calls, wait.name, wait.service or "")

    def _live_responses(self, wait: AsyncWait) -> KeptResponses | None:
        """Return the responses of the live lineage that a wait takes; None on the job itself, and if the service is called again."""
        live = self.settings.responses
        if live is None or wait.service not in live.services:
            return None

        def read(wanted: Wanted) -> list[KeptResponse]:
            if live.version is None:
                return []
            return read_responses(live.folder, live.version, wait.name, wanted)

        return KeptResponses(wait, read, never_calls=wait.service in live.never_called)

    def _limit(self, service: str | None) -> ServiceLimit | None:
        """Return the limit of a service. All waits of the task that name the service share this limit."""
        if service is None or service not in self.settings.limits:
            return None
        if service not in self.limits:
            self.limits[service] = ServiceLimit(*self.settings.limits[service])
        return self.limits[service]

    def _resumed(self, wait: AsyncWait) -> list[PendingCall]:
        if not self.settings.resumes:
            return []
        batch = self.batch
        version = batch.versions[ASYNC_REQUESTS]
        rows = load_waiting_elements(batch.folder, version, wait.name, self.key_groups)
        try:
            elements = loaded(rows, input_type(wait.function), output_type(wait.function))
        except msgspec.MsgspecError as error:
            msg = (
                f"an element that waits for operator '{wait.name}' does not fit its record types any more: {error}. Nothing was committed. Add fields "
                "with defaults only. Or go back to the code that took it in, and let that finish what waits (headrace waiting "
                f"{batch.job} --calls): headrace run {batch.job} --finish"
            )
            raise StateSchemaError(msg) from error
        _check_keys(wait, elements, batch.job)
        return elements

    def _keep(self, operator: AsyncWaitOperator) -> None:
        """Store the remaining elements, and report the operator's progress to the driver."""
        wait, output, report = operator.operator, self.output, self.output.report
        changelog = Changelog(wait.name, self.batch.checkpoint_id, self.batch.max_parallelism)
        rows, deleted = waiting_element_rows(operator.pending, operator.settled, self.batch.checkpoint_id)
        _check_rows(wait, [row for row, is_gone in zip(rows, deleted, strict=True) if not is_gone])
        output.state(ASYNC_REQUESTS, changelog.requests(rows, deleted))
        output.state(QUARANTINE, changelog.quarantine([_given_up(wait, element) for element in operator.quarantined]))
        keep_for = None if wait.service is None else self.settings.keep_responses.get(wait.service)
        if keep_for is not None:
            responses = [*kept_responses(wait, operator.answered, now=clock.now(), keep_for=keep_for)]
            operator.metrics.responses_kept = len(responses)
            output.state(RESPONSES, changelog.responses(responses))
        metrics = report.services[wait.name] = operator.metrics
        output.count(
            requests=metrics.elements,
            retries=metrics.retries,
            timeouts=metrics.timeouts,
            parked=metrics.parked,
            responses_taken=metrics.responses_taken,
            quarantined=len(operator.quarantined),
        )
        report.pending += len(operator.pending)
        waiting = [element for element in operator.pending if not element.is_done]
        if not waiting:
            return
        first = waiting[0].emitted.order
        if wait.mode is OutputMode.ORDERED:
            report.cuts[wait.name] = first
        elif wait.mode is not OutputMode.UNORDERED_PROCESSING_TIME:
            report.blocks[wait.name] = first
        now, probe = clock.now(), metrics.open_until or 0
        due = min(max(element.next_attempt_at or now, probe) for element in _next_called(wait, waiting))
        report.due = due if report.due is None else min(report.due, due)


def _progress(operator: AsyncWaitOperator, of: int | None) -> TaskProgress:
    """Return the progress of a wait. An element that is left to a later micro-batch counts as done for this one."""
    attempts = operator.attempts
    under_way, retrying = (0, 0) if attempts is None else (len(attempts.under_way), len(attempts.retrying))
    return TaskProgress(
        operator=operator.operator.name,
        rows=operator.metrics.elements + operator.metrics.responses_taken - under_way,
        of=of,
        in_flight=under_way - retrying,
        waiting=retrying,
    )


def _next_called(wait: AsyncWait, waiting: Sequence[PendingCall]) -> Iterable[PendingCall]:
    """Return the elements that may be called next: with keys, the first of each key."""
    if wait.mode is not OutputMode.KEYED_ORDERED:
        return waiting
    return {element.key_json: element for element in reversed(waiting)}.values()


def _check_rows(wait: AsyncWait, rows: Sequence[StoredCall]) -> None:
    takes, gives = input_type(wait.function), output_type(wait.function)
    for row in rows:
        try:
            check_stored(row, takes, gives)
        except msgspec.MsgspecError as error:
            msg = (
                f"it has to wait in async_requests, but the element, or its response {row.result!s:.300}, does not fit "
                f"{takes.__name__} and {gives.__name__}: {error}. (JSON has no NaN and no infinity: they become null.)"
            )
            raise UserFunctionError(wait.name, None, row.element[:500], msg) from error


def _check_keys(wait: AsyncWait, resumed: Sequence[PendingCall], job: str) -> None:
    if wait.key is None:
        return
    read = key_reader(wait.key)
    for element in resumed:
        key = encode(read(element.emitted.record))
        if key != element.key_json:
            msg = (
                f"an element that waits for operator '{wait.name}' was taken in as {element.key_json.decode()}, and by "
                f"key_by('{wait.key}') it is {key.decode()}: the operator's mode or key has changed, so elements "
                "would overtake each other. Nothing was committed. Go back to the former code and let it finish what waits (headrace run "
                f"{job} --finish), or restore to a checkpoint before they came."
            )
            raise StateSchemaError(msg)


def configured(wait: AsyncWait, settings: AsyncSettings) -> AsyncWait:
    """Return an operator with the settings of the job's file that override the pipeline's."""
    given = settings.overrides.get(wait.name, {})
    changes: dict[str, Any] = {
        name: timedelta(seconds=value) if name in {"timeout", "park_after"} else value
        for name, value in given.items()
        if value is not None
    }
    return replace(wait, **changes)


def _given_up(wait: AsyncWait, element: PendingCall) -> QuarantineRow:
    error = element.last_error or "abandoned"
    position, key = element.emitted.order.hex(), element.key_json.decode()
    reason = f"{error} (after {counted(element.attempts, 'call')})"
    return QuarantineRow(wait.name, position, key, came_as(element.emitted), reason, "call")
