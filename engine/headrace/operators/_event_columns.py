"""Events of a feed of changes over columns: their places, and which of them delete."""

from __future__ import annotations

import enum
from datetime import datetime, time, timedelta
from functools import cached_property
from operator import attrgetter
from typing import Any, Final
from uuid import UUID

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.api.batches import KeyedColumns
from headrace.api.records import RowKind
from headrace.operators._change_events import ChangeEvents
from headrace.operators._column_lifetimes import last_watermarks
from headrace.operators._part_columns import objects_of
from headrace.operators._running_fields import Flags, NotInColumnsError, Numbers, has_limits, is_plain
from headrace.operators._value_types import annotated_type, has_own_equality

_record_of = attrgetter("record")


def fit_columns(events: ChangeEvents) -> bool:
    """Return whether columns can order the events and compare the rows, and neither needs code of its class."""
    takes, gives = events.takes, events.gives
    fields = {field.name: field for field in msgspec.structs.fields(takes)}
    return (
        not any(hasattr(record, "__post_init__") for record in (takes, gives))
        and gives.__eq__ is msgspec.Struct.__eq__
        and gives.__ne__ is msgspec.Struct.__ne__
        and gives.__struct_config__.eq
        and all(annotated_type(fields[name].type).type is int for name in events.rules.sequence_by)
        and all(map(_is_one_value, (*(fields[name] for name in events.copied), *msgspec.structs.fields(gives))))
    )


class EventColumns:
    """Events as columns."""

    def __init__(self, events: ChangeEvents, columns: KeyedColumns) -> None:
        """Take what reads the events, and the events."""
        self.reader, self.columns = events, columns
        self.key_numbers: Numbers = columns.key_numbers.to_numpy().astype(np.int64)

    def places(self) -> list[Numbers]:
        """Return the fields of the sequence; 0 for null."""
        records = self.columns.records
        return [pc.fill_null(records.field(name), 0).to_numpy() for name in self.reader.rules.sequence_by]

    @cached_property
    def deletes(self) -> Flags:
        """Return whether each event deletes its row. Raises `NotInColumnsError` for a function that fails, or gets too many records."""
        if self.reader.rules.deletes is None:
            by_kind: Flags = pc.equal(self.columns.kinds, int(RowKind.DELETE)).to_numpy(zero_copy_only=False)
            return by_kind
        equal = None if self.reader.deleting is None else self._equals(*self.reader.deleting)
        return self._called() if equal is None else equal

    def _equals(self, name: str, value: Any) -> Flags | None:
        """Return whether a field of each event is a value; None where columns cannot tell."""
        field = next(field for field in msgspec.structs.fields(self.reader.takes) if field.name == name)
        column = self.columns.records.field(name)
        if value is None:
            equal = column.is_null()
        elif is_plain(field):
            try:
                wanted = pa.scalar(value, column.type)
            except (ArithmeticError, TypeError, ValueError):  # the column holds no such value
                return None
            if wanted.as_py() != value:  # a float of 32 bits is another number
                return None
            equal = pc.fill_null(pc.equal(column, wanted), False)
        else:
            return None
        flags: Flags = equal.to_numpy(zero_copy_only=False)
        return flags

    def _called(self) -> Flags:
        """Return what the function says about each event."""
        records = [*map(_record_of, objects_of(self.columns))]
        try:
            return np.fromiter(map(self.reader.deletes, records), bool, len(records))
        except Exception as error:  # one by one, to name the record
            raise NotInColumnsError from error

    @cached_property
    def is_forgotten(self) -> Flags:
        """Return for each event whether it is a deletion that may be forgotten before the last event of its key."""
        lifetime = self.reader.rules.tombstones
        if lifetime is None:
            return np.zeros(len(self.key_numbers), bool)
        ends_soon: Flags = (
            self.columns.timestamps.to_numpy() + lifetime <= np.array(last_watermarks(self.columns))[self.key_numbers]
        )
        return self.deletes & ends_soon if ends_soon.any() else ends_soon

    @cached_property
    def has_no_place(self) -> Flags:
        """Return for each event whether it is a row before an update, or its sequence is null."""
        marked: Flags = pc.equal(self.columns.kinds, int(RowKind.UPDATE_BEFORE)).to_numpy(zero_copy_only=False).copy()
        for name in self.reader.rules.sequence_by:
            marked |= self.columns.records.field(name).is_null().to_numpy(zero_copy_only=False)
        return marked


def _is_one_value(field: msgspec.structs.FieldInfo) -> bool:
    """Return whether columns hold equal values of a field as one value, and a record takes any value of its type."""
    kind = annotated_type(field.type).type
    is_stored_otherwise = kind in _ONE_VALUE or (isinstance(kind, type) and issubclass(kind, enum.Enum))
    return is_plain(field) or (is_stored_otherwise and not has_limits(field.type) and not has_own_equality(kind))


_ONE_VALUE: Final = (datetime, time, timedelta, UUID)
