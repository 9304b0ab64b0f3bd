"""Deletions in an async wait over a stream of upserts: a `-D` makes no call, and a record without results deletes its key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import attrgetter

import msgspec

from headrace.api.graph import AsyncWait
from headrace.api.records import RowKind
from headrace.async_io.attempts import user_error
from headrace.async_io.pending_call import QUARANTINED, PendingCall, outputs_of
from headrace.execution.element import Emitted, make_emitted
from headrace.interrupts import is_interrupt
from headrace.records.order import FIRST_OUTPUT


def settling_retractions(wait: AsyncWait, deletions: Deletions | None) -> Callable[[PendingCall], bool] | None:
    """Return the function that settles retractions without a call; None where they call as other elements do.

    Where nothing declares what the stream's changes mean, it raises `UserFunctionError`.
    """
    if deletions is not None:
        return deletions.settle
    return partial(_refuse, wait) if wait.takes_inserts_alone else None


def _refuse(wait: AsyncWait, element: PendingCall) -> bool:
    symbol = RowKind(element.emitted.kind).symbol
    error = ValueError(
        f"the row is {symbol}, and another response to it would take back a row that never was. Nothing declares what the stream's "
        "changes mean: let process() emit inserts alone, or declare emits=ChangelogMode.upsert(KEY) there; or declare deterministic = "
        f"True in {type(wait.function).__name__} if equal records always have equal responses"
    )
    raise user_error(wait.name, f"{element.emitted.record!r:.300}", error)


class Deletions:
    """Makes the deletions of one async wait in one task."""

    def __init__(self, wait: AsyncWait) -> None:
        """Take the wait, which has an upsert key."""
        self._wait = wait
        self._key_of = attrgetter(*wait.upsert_key)

    def settle(self, element: PendingCall) -> bool:
        """Complete a retraction without a call; return False for other elements.

        Raises `UserFunctionError` where the function's `deleted` fails.
        """
        kind = element.emitted.kind
        if kind == RowKind.DELETE:
            element.complete([self._deleted(element)])
        elif kind == RowKind.UPDATE_BEFORE:
            element.complete(())
        return element.is_done

    def outputs(self, elements: Iterable[PendingCall]) -> Iterable[Emitted]:
        """Yield the results of elements, and a deletion for each one without results.

        Raises `UserFunctionError` for a result with another key than its record's.
        """
        for element in elements:
            self._check_key(element)
            if element.results or element.emitted.kind == RowKind.UPDATE_BEFORE:
                yield from outputs_of([element])
            else:
                order, timestamp, _, _ = element.emitted
                yield make_emitted((order + FIRST_OUTPUT, timestamp, int(RowKind.DELETE), self._deleted(element)))

    def left(self, elements: Sequence[PendingCall]) -> list[PendingCall]:
        """Return elements that wait for earlier ones: a deletion in place of each that failed for good."""
        return [self._deletion_of(element) if element.status is QUARANTINED else element for element in elements]

    def _deletion_of(self, element: PendingCall) -> PendingCall:
        deletion = PendingCall(element.emitted._replace(kind=int(RowKind.DELETE)))
        deletion.key_json = element.key_json
        deletion.complete([self._deleted(element)])
        return deletion

    def _deleted(self, element: PendingCall) -> msgspec.Struct:
        record = element.emitted.record
        try:
            deleted: msgspec.Struct = self._wait.function.deleted(record)
        except BaseException as error:
            if is_interrupt(error):
                raise
            raise user_error(self._wait.name, f"{record!r:.300}: deleted() failed", error) from error
        self._compare(element, deleted)
        return deleted

    def _check_key(self, element: PendingCall) -> None:
        for result in element.results or ():
            self._compare(element, result)

    def _compare(self, element: PendingCall, result: msgspec.Struct) -> None:
        record = element.emitted.record
        if self._key_of(result) != self._key_of(record):
            error = ValueError(
                f"the stream changes rows by {', '.join(self._wait.upsert_key)}, and the result {result!r:.300} has another key: "
                "let the results keep these fields"
            )
            raise user_error(self._wait.name, f"{record!r:.300}", error)
