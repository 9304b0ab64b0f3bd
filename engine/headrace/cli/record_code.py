"""Code of a record type from the columns of data, for `headrace new --from`."""

from __future__ import annotations

import json
import keyword
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from textwrap import wrap
from typing import Final, NamedTuple

import pyarrow as pa
import yaml

from headrace.api.records import MOST_DIGITS
from headrace.cli.data_columns import FIRST_ROWS, Data
from headrace.errors import ConfigError
from headrace.names import counted

RECORD: Final = "Row"
NO_TIME: Final = "FILL IN"
"""Event time of a source whose data has no column for it."""

_COMMENT_WIDTH: Final = 86

_UNSIGNED: Final = {
    pa.uint8(): "Int16",
    pa.uint16(): "Int32",
    pa.uint32(): "int",
    pa.uint64(): "Annotated[Decimal, Digits(20, 0)]",
}
_SIMPLE: Final = {
    pa.bool_(): "bool",
    pa.int8(): "Int8",
    pa.int16(): "Int16",
    pa.int32(): "Int32",
    pa.int64(): "int",
    **_UNSIGNED,
    pa.float16(): "Float32",
    pa.float32(): "Float32",
    pa.float64(): "float",
    pa.uuid(): "UUID",
    pa.json_(): "Json",
    pa.null(): "Json",
}
_KEYS: Final = {"bool", "int", "Int8", "Int16", "Int32", "str", "dt.date"}
"""Annotations of keys of a map."""
_USED: Final = (
    "Annotated",
    "Digits",
    "Float32",
    "Int8",
    "Int16",
    "Int32",
    "Json",
    "NaiveDatetime",
    "Pipeline",
    "Struct",
)
_TAKEN: Final = {*_USED, "Timestamp", "TimestampMicros", "Decimal", "UUID", "dt", "field", "pipeline", RECORD} | {
    *("bool", "bytes", "dict", "float", "int", "list", "str")
}
"""Names in the code that no field may have."""


_UNNAMED: Final = re.compile(r'[\\"\x00-\x1f]')
"""Characters of names that msgspec does not rename fields to."""


class RecordCode(NamedTuple):
    """Code of a record type."""

    classes: str
    event_time: str | None
    """Field of the event time; None where the data has no column for it."""
    left_out: list[str]
    """Columns that no field can have."""
    fields: dict[str, str]
    """Fields by their columns."""
    renamed: dict[str, str]
    """Columns by fields, where the code cannot name them, and the job's file does."""
    is_local: bool
    """Whether the event time has no zone."""


def texts_of(data: Data, code: RecordCode) -> dict[str, str]:
    """Return the texts of the project's templates."""
    renamed = {"rename": code.renamed} if code.renamed else {}
    settings = yaml.safe_dump({**data.settings, **renamed}, sort_keys=False, allow_unicode=True, width=1_000)
    place = "/".join(data.settings[key] for key in ("path", "files") if key in data.settings)
    return {
        "source": re.sub(r"\[(.)\]", r"\1", place),
        "told_by": f"its first {counted(FIRST_ROWS, 'row')}: later ones may have others"
        if data.from_rows
        else "its schema",
        "imports": imports_of(code.classes, () if data.key is None else ("DEBEZIUM",)),
        **_changes(None if data.key is None else code.fields[data.key]),
        "classes": code.classes,
        "about_time": _about_time(code),
        "event_time": code.event_time or NO_TIME,
        "doubts": "".join(f"\n    # {line}" for doubt in data.doubts for line in wrap(doubt, _COMMENT_WIDTH)),
        "settings": "\n".join(f"    {line}" for line in settings.splitlines()),
    }


def _changes(key: str | None) -> dict[str, str]:
    """Return the texts of a pipeline over a change feed, which keeps a table by a key; those of a copy of plain rows without one."""
    if key is None:
        return {"row_kind": "", "table": "", "mode": "append              # rows are only ever added"}
    return {
        "row_kind": "\n        row_kind=DEBEZIUM,",
        "table": f"\n    # The key is a guess: name the primary key of the table."
        f'\n    .normalize("latest", key=("{key}",))\n    .upsert_materialize("table", primary_key=("{key}",))',
        "mode": "merge               # one row for each row of the table, kept up to date",
    }


def _about_time(code: RecordCode) -> str:
    return _WITHOUT_TIME if code.event_time is None else _ABOUT_TIME + (_IN_UTC if code.is_local else "")


_ABOUT_TIME: Final = (
    "# The event time is the first column of timestamps without nulls. Choose another if it is not the rows' own."
)
_IN_UTC: Final = "\n# Its times have no zone, so they count as times in UTC."
_WITHOUT_TIME: Final = """\
# FILL IN the event time: the field of the record with the time of a row. No column has timestamps without nulls. Declare
# the field as a Timestamp (milliseconds), a TimestampMicros or a datetime, without `| None`. A day fits a Timestamp, too."""


class _NoFieldError(Exception):
    """No field can hold the values of a type."""


def record_code(schema: pa.Schema) -> RecordCode:
    """Return the code of a record type with these columns. Its event time is the first column of timestamps without nulls.

    Raises `ConfigError` where no field can have any of them.
    """
    classes = _Classes()
    times = [place for place, field in enumerate(schema) if pa.types.is_timestamp(field.type) and not field.nullable]
    event_time = next((place for place in times if schema.names.count(schema.names[place]) == 1), None)
    try:
        fields, left_out = classes.write(RECORD, schema, event_time)
    except _NoFieldError as error:
        columns = ", ".join(f"{column.name} ({_shown(column.type)})" for column in schema)
        msg = f"no field can have any of the columns: {columns}"
        raise ConfigError(msg) from error
    code = "\n\n\n".join(classes.texts)
    return RecordCode(
        code,
        None if event_time is None else fields[event_time],
        left_out,
        {schema.names[place]: name for place, name in fields.items()},
        classes.renamed,
        is_local=event_time is not None and schema.field(event_time).type.tz is None,
    )


class _Classes:
    """Classes of a record and of the structs in it; inner ones first."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.renamed: dict[str, str] = {}
        self._names: set[str] = {*_TAKEN}

    def write(
        self, name: str, fields: Iterable[pa.Field], event_time: int | None = None
    ) -> tuple[dict[int, str], list[str]]:
        """Write a class; return its fields by the places of their columns, and the columns that none can have."""
        columns, taken = [*fields], {*_TAKEN}
        counts = Counter(column.name for column in columns)
        names, lines, left_out = {}, [], []
        for place, column in enumerate(columns):
            can_be_named = bool(column.name) and counts[column.name] == 1
            try:
                annotation = self._annotation_of(column, can_be_named=can_be_named, is_time=place == event_time)
            except _NoFieldError:
                if name != RECORD:
                    raise
                left_out.append(column.name)
                lines.append(f"    # no field can have the column {_quoted(column.name)}: {_shown(column.type)}")
                continue
            names[place] = _unique(_identifier(column.name), taken)
            rename = self._rename(name, names[place], column.name)
            lines.append(f"    {names[place]}: {annotation}{rename}{_remark(column.type)}")
        if not names:
            raise _NoFieldError
        text = "One row of the input." if name == RECORD else "Part of a row."
        self.texts.append("\n".join([f"class {name}(Struct, frozen=True):", f'    """{text}"""', "", *lines]))
        return names, left_out

    def _rename(self, record: str, name: str, stored: str) -> str:
        """Return the code of a field's name in the data. The job's file says one that code cannot."""
        if name == stored:
            return ""
        is_path = record == RECORD and "." in stored  # which no column of a sink may be
        if not is_path and not _UNNAMED.search(stored):
            return f" = field(name={_quoted(stored)})"
        if record != RECORD:
            raise _NoFieldError
        self.renamed[name] = stored
        return ""

    def _annotation_of(self, column: pa.Field, *, can_be_named: bool, is_time: bool) -> str:
        if not can_be_named:
            raise _NoFieldError
        return self._time(column.type) if is_time else self._part(column.name, column)

    def _time(self, kind: pa.TimestampType) -> str:
        """Return the annotation of the event time. A time without a zone is taken as one of UTC."""
        return "Timestamp" if kind.unit in {"s", "ms"} else "dt.datetime" if kind.tz is not None else "TimestampMicros"

    def _annotation(self, name: str, kind: pa.DataType) -> str:
        """Return the annotation of a field that takes all values of a type. Raises `_NoFieldError` where there is none."""
        if kind in _SIMPLE:
            return _SIMPLE[kind]
        if pa.types.is_dictionary(kind):
            return self._annotation(name, kind.value_type)
        if pa.types.is_struct(kind):
            inner = _unique(_class_name(name), self._names)
            self.write(inner, kind)
            return inner
        if pa.types.is_map(kind):
            return self._map(name, kind)
        if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
            return f"list[{self._part(name, kind.value_field)}]"
        if pa.types.is_decimal(kind):
            return _decimal(kind)
        if pa.types.is_timestamp(kind):
            return "NaiveDatetime" if kind.tz is None else "Timestamp" if kind.unit in {"s", "ms"} else "dt.datetime"
        for is_kind, annotation in _FAMILIES:
            if is_kind(kind):
                return annotation
        raise _NoFieldError

    def _map(self, name: str, kind: pa.MapType) -> str:
        key = self._annotation(name, kind.key_type)
        if key not in _KEYS:
            raise _NoFieldError
        return f"dict[{key}, {self._part(name, kind.item_field)}]"

    def _part(self, name: str, part: pa.Field) -> str:
        annotation = self._annotation(name, part.type)
        return f"{annotation} | None" if part.nullable and annotation != "Json" else annotation


def _shown(kind: pa.DataType) -> str:
    return " ".join(str(kind).split())[:60]


def _decimal(kind: pa.DataType) -> str:
    if not 0 <= kind.scale <= kind.precision <= MOST_DIGITS:
        raise _NoFieldError
    return f"Annotated[Decimal, Digits({kind.precision}, {kind.scale})]"


_FAMILIES: Final[tuple[tuple[Callable[[pa.DataType], bool], str], ...]] = (
    (lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind), "str"),
    (lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind), "bytes"),
    (pa.types.is_fixed_size_binary, "bytes"),
    (pa.types.is_date, "dt.date"),
    (pa.types.is_time, "dt.time"),
    (pa.types.is_duration, "dt.timedelta"),
)


def _remark(kind: pa.DataType) -> str:
    has_nanoseconds = getattr(kind, "unit", None) == "ns"
    return "  # a file with parts of a microsecond cannot be read" if has_nanoseconds else ""


def _identifier(name: str) -> str:
    """Return the name of a field: that of the column where Python allows it."""
    is_plain = name.isidentifier() and not name.startswith("__") and unicodedata.normalize("NFKC", name) == name
    if not is_plain:
        name = re.sub(r"\W+", "_", unicodedata.normalize("NFKC", name)).strip("_").lower()
    if not name.isidentifier():
        name = f"field_{name}" if f"field_{name}".isidentifier() else "field_"
    return f"{name}_" if keyword.iskeyword(name) else name


def _class_name(name: str) -> str:
    text = "".join(part[:1].upper() + part[1:] for part in re.split(r"[\W_]+", unicodedata.normalize("NFKC", name)))
    text = text if text.isidentifier() and not keyword.iskeyword(text) else f"Part{text}"
    return text if text.isidentifier() else "Part"


def _unique(name: str, taken: set[str]) -> str:
    """Return a name that is not taken, and take it."""
    names = _numbered(name)
    free = next(other for other in names if other not in taken)
    taken.add(free)
    return free


def _numbered(name: str) -> Iterator[str]:
    yield name
    yield f"{name}_"
    number = 2
    while True:
        yield f"{name}_{number}"
        number += 1


def _quoted(text: str) -> str:
    """Return a text as the code has it."""
    return json.dumps(text, ensure_ascii=not text.isprintable())


def imports_of(code: str, more: Iterable[str] = ()) -> str:
    """Return the imports that the code of classes needs, and `more` names of headrace, in their order."""
    words = {*re.findall(r"\w+", code)}
    ours = sorted(
        words & {*_USED, "Timestamp", "TimestampMicros", "field"} - {"Annotated"} | {"Pipeline", "Struct", *more},
        key=_import_order,
    )
    lines = ["import datetime as dt"]
    lines += ["from decimal import Decimal"] if "Decimal" in words else []
    lines += ["from typing import Annotated"] if "Annotated" in words else []
    lines += ["from uuid import UUID"] if "UUID" in words else []
    return "\n".join([*lines, "", f"from headrace import {', '.join(ours)}"])


def _import_order(name: str) -> tuple[bool, str]:
    return name == "field", name
