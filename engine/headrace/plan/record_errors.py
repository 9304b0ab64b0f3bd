"""Errors of code that a record contains."""

from __future__ import annotations

import traceback
from typing import Any

from headrace.errors import UserFunctionError
from headrace.interrupts import is_interrupt


def record_error(record: Any, row: object, error: BaseException) -> BaseException:
    """Return the error for code of a record that failed at a row, or tried to end the process; Ctrl-C stays what it is."""
    if is_interrupt(error):
        return error
    name = getattr(record, "__name__", str(record))
    return UserFunctionError(name, None, f"{row!r:.500}", "".join(traceback.format_exception(error)))
