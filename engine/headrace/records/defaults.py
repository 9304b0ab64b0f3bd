"""Defaults of a record's fields as columns hold them, and errors of a record's own code."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import msgspec
import pyarrow as pa
from msgspec.structs import fields

from headrace.errors import UserFunctionError
from headrace.interrupts import is_interrupt
from headrace.records.column_types import Column, columns_of
from headrace.records.value_arrays import UnfitRecord, to_array


def record_error(record: Any, row: object, error: BaseException) -> BaseException:
    """Return the error for code of a record that failed at a row, or tried to end the process; Ctrl-C stays what it is."""
    if is_interrupt(error):
        return error
    name = getattr(record, "__name__", str(record))
    return UserFunctionError(name, None, f"{row!r:.500}", "".join(traceback.format_exception(error)))


@cache
def defaults_of(record: type[msgspec.Struct]) -> Mapping[str, pa.Scalar]:
    """Return the default of each field that has one which a column can hold. A factory is called once.

    Raises `UserFunctionError` for a factory that fails.
    """
    columns = {column.name: column for column in columns_of(record)}
    defaults = {}
    for info in fields(record):
        if not info.required:
            try:
                value = info.default if info.default is not msgspec.NODEFAULT else info.default_factory()
            except BaseException as error:
                raise record_error(record, {info.name: "the default"}, error) from error
            try:
                defaults[info.name] = to_array([value], replace(columns[info.name], nullable=True))[0]
            except UnfitRecord:
                continue
    return defaults


def default_for_null(record: type[msgspec.Struct], column: Column) -> pa.Scalar | None:
    """Return what a null means in a field that may not be null: its default. None where null is null, or refused."""
    if column.nullable or column.required:
        return None
    return defaults_of(record).get(column.name)
