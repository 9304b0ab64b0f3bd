"""Errors of user functions in a task, with the step, the record, and what to do."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from headrace.errors import UserFunctionError
from headrace.execution.element import Emitted
from headrace.execution.record_codec import shown_record
from headrace.interrupts import is_interrupt
from headrace.plan.record_columns import UnfitRecord


def called(step: str, function: Callable[[Any], Any], record: msgspec.Struct) -> Any:
    """Return the result of a step's function on a record.

    Raises `UserFunctionError` with step, record and traceback when the function fails, or tries to end the process.
    """
    try:
        return function(record)
    except BaseException as error:
        if is_interrupt(error):
            raise
        raise failed(step, record, "".join(traceback.format_exception(error))) from error


def failed(step: str, record: msgspec.Struct, why: str) -> UserFunctionError:
    """Return the error of a step at a record."""
    return UserFunctionError(step, None, shown_record(record), why)


@contextmanager
def refusing_unfit(maker: str, emitted: Sequence[Emitted]) -> Iterator[None]:
    """Raise `UserFunctionError` when columns cannot store a record that the operator or step `maker` has made."""
    try:
        yield
    except UnfitRecord as error:
        why = (
            f"it emitted this record, and {error.field or 'it'} {error.why}: what is stored must be the same when it is read "
            "again. Let it emit values of the declared types."
        )
        raise UserFunctionError(maker, None, f"{emitted[error.index].record!r:.500}", why) from error
