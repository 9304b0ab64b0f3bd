"""Events of a feed of changes: what orders them, which of them delete, and the rows that they make."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Annotated, Any, get_args, get_origin

import msgspec

from headrace.api.column_reads import TIME, Kind, Reads, copied, fields_read, read_of_value
from headrace.api.functions import BroadcastContext, Context
from headrace.api.options import ChangeRules
from headrace.api.records import RowKind, Struct
from headrace.api.types import check_field, check_plain
from headrace.operators._ranking import sort_text
from headrace.operators._value_types import ValueType, annotated_type, are_equal, value_type

VALID_FROM = "valid_from"
VALID_TO = "valid_to"


@dataclass(frozen=True, slots=True)
class ValidFrom:
    """Marks the field of a version that takes the place where it begins: `begins: Annotated[int, ValidFrom()]`.

    `field` is one of the fields of `sequence_by`, by default the first. A field named `valid_from` needs no mark.
    """

    field: str | None = None


@dataclass(frozen=True, slots=True)
class ValidTo:
    """Marks the field of a version that takes the place where the next one begins; None for the current version.

    `field` is one of the fields of `sequence_by`, by default the first. A field named `valid_to` needs no mark.
    """

    field: str | None = None


class ChangeEvents:
    """Reads the events of a feed, and makes the rows of its table.

    `takes` is the type of the events, `gives` of the rows. `sequence` is the type of an event's place: a record with the fields of
    `sequence_by`. Raises `ValueError` for a field that the events or rows lack, and for rules that do not fit each other;
    `TypeError` for a sequence without an order, and for a field of the rows that nothing defines.
    """

    def __init__(self, takes: type[Struct], gives: type[Struct], rules: ChangeRules) -> None:
        """Read the types."""
        self.takes, self.gives, self.rules = takes, gives, rules
        fields = {field.name: field.type for field in msgspec.structs.fields(takes)}
        self._shown = ", ".join(rules.sequence_by)
        self._texts = [
            (name, sort_text(repr(name), value_type(takes, name), descending=False)) for name in rules.sequence_by
        ]
        self.sequence: Any = msgspec.defstruct(
            f"{takes.__name__}Sequence", [(name, fields[name]) for name in rules.sequence_by], frozen=True
        )
        self._deletes = event_predicate(takes, rules.deletes, "deletes")
        self.deleting: tuple[str, Any] | None = None
        """The field that deletes, and its value as the field holds it, if `deletes` is a field with a value."""
        if isinstance(rules.deletes, tuple):
            name, value = rules.deletes
            self.deleting = name, _value_of(takes, name, value, "deletes")
        self.bounds = {field.name: mark for field in msgspec.structs.fields(gives) if (mark := self._mark(field))}
        self.copied = [name for name in gives.__struct_fields__ if name not in self.bounds]
        self._check_bounds()
        self._places = [(name, str(mark.field), isinstance(mark, ValidFrom)) for name, mark in self.bounds.items()]
        self._tracked = self._tracking()
        taken = {*rules.key, *rules.sequence_by}
        self._filled = [name for name in self.copied if name not in taken] if rules.ignore_nulls else []

    # -------------------------------------------------------------------------------------------------- annotations

    def _mark(self, field: msgspec.structs.FieldInfo) -> ValidFrom | ValidTo | None:
        """Return the bound that a field of the rows holds; None if it holds a field of the event."""
        metadata = get_args(field.type)[1:] if get_origin(field.type) is Annotated else ()
        mark = next((mark for mark in metadata if isinstance(mark, ValidFrom | ValidTo)), None)
        if mark is None and self.rules.has_versions and field.name in {VALID_FROM, VALID_TO}:
            mark = ValidFrom() if field.name == VALID_FROM else ValidTo()
        wanted = annotated_type(field.type)
        if mark is None:
            if field.name not in self.takes.__struct_fields__:
                bounds = ", or mark it with ValidFrom() or ValidTo()" if self.rules.has_versions else ""
                msg = f"field '{field.name}' of {self.gives.__name__} is none of {self.takes.__name__}: leave it out{bounds}"
                raise TypeError(msg)
            self._check_type(field.name, wanted, value_type(self.takes, field.name), f"field '{field.name}'")
            return None
        if mark.field is not None and mark.field not in self.rules.sequence_by:
            msg = (
                f"field '{field.name}' of {self.gives.__name__} is marked by {mark}, and sequence_by has {self._shown}"
            )
            raise ValueError(msg)
        given = value_type(self.takes, mark.field or self.rules.sequence_by[0])
        given = ValueType(given.type, isinstance(mark, ValidTo), given.digits, given.unit)
        self._check_type(field.name, wanted, given, str(mark))
        return type(mark)(mark.field or self.rules.sequence_by[0])

    def _check_type(self, name: str, wanted: ValueType, given: ValueType, shown: str) -> None:
        if not wanted.takes(given):
            msg = f"field '{name}' of {self.gives.__name__} is {wanted}, but {shown} gives {given}: correct the annotation"
            raise TypeError(msg)

    def _check_bounds(self) -> None:
        """Refuse rows that cannot tell versions apart, bounds of rows without versions, and rows without their key."""
        bounds = {type(mark) for mark in self.bounds.values()}
        if self.rules.has_versions and bounds != {ValidFrom, ValidTo}:
            msg = (
                f"History.SCD2 gives a row for each version: {self.gives.__name__} needs the fields '{VALID_FROM}' and '{VALID_TO}', "
                "with the type of the sequence, the second one or None"
            )
            raise ValueError(msg)
        if bounds and not self.rules.has_versions:
            msg = f"{', '.join(self.bounds)} of {self.gives.__name__}: a row of History.SCD1 has no versions; give History.SCD2"
            raise ValueError(msg)
        if missing := [name for name in self.rules.key if name not in self.copied]:
            msg = f"{self.gives.__name__} has no field {', '.join(missing)}: a row needs its key"
            raise ValueError(msg)

    def _tracking(self) -> Callable[[Any], Any]:
        """Return the function that reads the fields whose change opens a version: all but the key and the sequence, or those of `track`."""
        if unknown := [name for name in self.rules.track if name not in self.copied]:
            msg = f"track has {', '.join(unknown)}, and {self.gives.__name__} takes no such field of {self.takes.__name__}"
            raise ValueError(msg)
        taken = {*self.rules.key, *self.rules.sequence_by}
        self.tracked = self.rules.track or tuple(name for name in self.copied if name not in taken)
        fields = {field.name: field.type for field in msgspec.structs.fields(self.takes)}
        values: Any = msgspec.defstruct("Tracked", [(name, fields[name]) for name in self.tracked], frozen=True)
        return lambda record: values(*(getattr(record, name) for name in self.tracked))

    @property
    def columns(self) -> dict[str, Reads]:
        """Return what each field of a row reads."""
        bounds = {name: fields_read([mark.field or ""], Kind.TRANSFORMATION) for name, mark in self.bounds.items()}
        return copied(self.copied) | bounds

    @property
    def rows(self) -> Reads:
        """Return what decides which rows there are."""
        rules, times = self.rules, (self.rules.tombstones, self.rules.corrections)
        deletes = rules.deletes[0] if isinstance(rules.deletes, tuple) else rules.deletes
        return frozenset().union(
            fields_read(rules.sequence_by, Kind.SORT),
            () if deletes is None else read_of_value(deletes, Kind.FILTER, self.takes),
            fields_read(self.tracked, Kind.CONDITIONAL) if rules.has_versions else (),
            () if times == (None, None) else fields_read([TIME], Kind.CONDITIONAL),
        )

    def key_of_versions(self) -> tuple[str, ...]:
        """Return the fields that tell the versions of a key apart; none if they do not hold all fields of the sequence."""
        begins = {mark.field: name for name, mark in self.bounds.items() if isinstance(mark, ValidFrom)}
        return tuple(begins.values()) if {*begins} >= {*self.rules.sequence_by} else ()

    # ------------------------------------------------------------------------------------------------------- events

    def read(self, record: Any, ctx: Context) -> tuple[str, Any] | None:
        """Return the text that sorts an event, and its record, or None where it deletes.

        Returns None for an event that was refused: one whose sequence is null, or has no order. Raises `ValueError` for a row
        before an update.
        """
        if ctx.row_kind is RowKind.UPDATE_BEFORE:
            msg = (
                "apply_changes got a row before an update (-U), which has no place of its own in the sequence: call drop_update_before(KEY) "
                "before it"
            )
            raise ValueError(msg)
        order = self.order_of(record, ctx)
        return None if order is None else (order, None if self._is_deletion(record, ctx) else record)

    def order_of(self, record: Any, ctx: Context | BroadcastContext) -> str | None:
        """Return the text that sorts an event. None for one that was refused: its sequence is null, or has no order."""
        try:
            return self.text_of(record)
        except ValueError as error:
            ctx.quarantine(str(error))
            return None

    def text_of(self, record: Any) -> str:
        """Return the text that sorts an event. Raises `ValueError` where its sequence is null, or has no order."""
        if null := [name for name in self.rules.sequence_by if getattr(record, name) is None]:
            msg = f"{', '.join(null)} is null, and orders the events of a key"
            raise ValueError(msg)
        return "".join(text(getattr(record, name)) for name, text in self._texts)

    def _is_deletion(self, record: Any, ctx: Context) -> bool:
        return ctx.row_kind is RowKind.DELETE or self.deletes(record)

    def deletes(self, record: Any) -> bool:
        """Return whether an event deletes its row, as `deletes=` says it."""
        return self._deletes is not None and bool(self._deletes(record))

    def sequence_of(self, record: Any) -> Any:
        """Return the place of an event."""
        return self.sequence(*(getattr(record, name) for name in self.rules.sequence_by))

    def refuse_unless_equal(self, record: Any, stored: Any, ctx: Context) -> None:
        """Set an event aside that has the sequence of another one, unless they are equal. `record` and `stored` are None for deletions."""
        if not are_equal(record, stored):
            msg = (
                f"another event of its key has the same {self._shown}, and is not equal to it: nothing says which one is the later. "
                'Order them by a further field, as in sequence_by=("lsn", "number")'
            )
            ctx.quarantine(msg)

    def filled(self, record: Any, before: Any) -> Any:
        """Return a record with the values of the record before it in place of its nulls."""
        nulls = [name for name in self._filled if getattr(record, name) is None]
        return msgspec.structs.replace(record, **{name: getattr(before, name) for name in nulls}) if nulls else record

    def opens_version(self, record: Any, before: Any) -> bool:
        """Return whether the tracked fields of two records of a key differ."""
        return not are_equal(self._tracked(record), self._tracked(before))

    # --------------------------------------------------------------------------------------------------------- rows

    def row(self, record: Any) -> Any:
        """Return the current row that a record makes."""
        return record if self.gives is self.takes else self.gives(**self.values(record))

    def version(self, record: Any, begins: Any, ends: Any) -> Any:
        """Return the row of a version, from one place of the sequence to another one, or None."""
        values = self.values(record)
        for name, field, is_begin in self._places:
            place = begins if is_begin else ends
            values[name] = None if place is None else getattr(place, field)
        return self.gives(**values)

    def values(self, record: Any) -> dict[str, Any]:
        """Return the fields that a row takes from a record."""
        return {name: getattr(record, name) for name in self.copied}


def _value_of(takes: type[Struct], name: str, value: Any, argument: str) -> Any:
    """Return a value as a field holds it: an enumeration's member for its stored value. Raises `TypeError` for one that it cannot hold."""
    field = next(field for field in msgspec.structs.fields(takes) if field.name == name)
    try:
        return msgspec.convert(value, field.type)
    except msgspec.ValidationError as error:
        msg = f"{argument}=({name!r}, {value!r}): field '{name}' of {takes.__name__} cannot hold this value: {error}"
        raise TypeError(msg) from None


def event_predicate(
    takes: type[Struct], given: Callable[[Any], object] | tuple[str, Any] | None, argument: str
) -> Callable[[Any], object] | None:
    """Return the function that says whether an event deletes or truncates, as `argument` gives it; None if none does.

    Raises `ValueError` for a field that the events lack, `TypeError` for a value that it cannot hold, and a coroutine function.
    """
    if given is None:
        return None
    if isinstance(given, tuple):
        name, value = given
        check_field(takes, name)
        read, wanted = attrgetter(name), _value_of(takes, name, value, argument)
        return lambda record: read(record) == wanted
    check_plain(argument, given)
    return given
