"""Rows of a record from JSON objects: lines of a file, or messages of a topic."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final

import msgspec
import pyarrow as pa

from headrace.api.graph import SourceNode
from headrace.api.records import RowKind
from headrace.records.column_types import Column, near_misses, stored_name
from headrace.records.plain_values import MISSING
from headrace.records.value_rules import written_number
from headrace.sources.folder.format import typed_table, values_within

Text = bytes | str | Mapping[str, Any]
"""Object of JSON as text, or decoded."""


class JsonRows:
    """Decoder of objects to the columns that a source reads. Members that the record lacks are skipped."""

    def __init__(
        self,
        node: SourceNode,
        columns: Sequence[Column],
        *,
        of_file: bool = True,
        given: Mapping[str, Any] = MappingProxyType({}),
        are_decoded: bool = False,
        own_kinds: bool = False,
    ) -> None:
        """Make a decoder to these columns of the source's rows. Rows `of_file` may refuse their file as a whole.

        `given` has the values of members that an object may lack. Objects that `are_decoded` are dicts in place of texts.
        With `own_kinds`, the kind of a row that stands in its object is before one beside it, as all else of the row is.
        """
        self._given = given
        self._node, self._columns, self._of_file = node, columns, of_file
        self._kind = "" if node.row_kind is None else stored_name(columns, node.row_kind)
        self._has_kind_of_its_own = self._kind in {column.name for column in columns} - {*node.record.__struct_fields__}
        self._beside_first = None if own_kinds else self._kind
        # The first name of a path is decoded as well: an object has its value under the whole name, or else under the path.
        self._names = [*dict.fromkeys(name for column in columns for name in (column.stored, *column.path[:1]))]
        is_plain = not (are_decoded or any(map(_NO_NAMES.search, self._names)))
        row = _row_type(self._names) if is_plain else dict[str, Any]
        of_text = msgspec.json.Decoder(row, float_hook=written_number).decode
        self._decode: Callable[[Any], Any] = _object if are_decoded else of_text
        self._getters = _fields(len(self._names)) if is_plain else [_member(name) for name in self._names]

    def table(
        self,
        texts: Sequence[Text | None],
        problems: dict[int, str],
        place: Callable[[int], str],
        beside: Mapping[str, list[Any]] = MappingProxyType({}),
    ) -> pa.Table:
        """Return the rows of texts; None is a row without values. `problems` gets the reasons of rows that do not fit.

        `place` returns how a reason names the text of a row. `beside` has the values of columns that do not stand in the texts. Raises
        `DamagedFileError` as `typed_table` does.
        """
        fields = dict(zip(self._names, self._getters, strict=True))
        values: dict[str, list[Any]]
        if (good := self._all_rows(texts)) is not None:
            values = {name: [*map(field, good)] for name, field in fields.items()}
        else:
            rows = [None if text is None else self._row(text, problems, at, place) for at, text in enumerate(texts)]
            values = {name: [None if row is None else field(row) for row in rows] for name, field in fields.items()}
        paths = {column.stored for column in self._columns if column.path}
        self._fill_in(values, self._given.keys() - paths)
        within = {name: of_column for name, of_column in values.items() if name not in beside}
        self._refuse_near_names(texts, within, problems, place)
        for name, of_column in beside.items():  # a column of the row itself stands before what is beside it
            own = values[name] if name != self._beside_first else [MISSING] * len(of_column)
            values[name] = [
                other if value is MISSING or text is None else value
                for value, other, text in zip(own, of_column, texts, strict=True)
            ]
        self._take_from_paths(values, problems)
        self._fill_in(values, paths)
        self._fill_in_deletions(values)
        if self._has_kind_of_its_own:  # no field says its type
            values[self._kind] = [
                _as_text(value) if isinstance(value, bool | int) else value for value in values[self._kind]
            ]
        return typed_table(values, self._node, self._columns, len(texts), problems, of_file=self._of_file)

    def _fill_in(self, values: dict[str, list[Any]], names: Collection[str]) -> None:
        """Put the given values of these names in the places of missing ones."""
        for name in self._given.keys() & names & values.keys():
            values[name] = [self._given[name] if value is MISSING else value for value in values[name]]

    def _fill_in_deletions(self, values: dict[str, list[Any]]) -> None:
        """Put nulls in the places of missing members of deletions, which may have those of the key alone."""
        node = self._node
        if node.row_kind is None or node.needed_of_deletions is None:
            return
        deletions = {value for value, kind in node.kinds if kind is RowKind.DELETE}
        places = [place for place, value in enumerate(values.get(self._kind, ())) if _as_text(value) in deletions]
        for column in self._columns:
            if column.required and column.name not in node.needed_of_deletions:
                of_column = values[column.stored]
                for place in places:
                    of_column[place] = None if of_column[place] is MISSING else of_column[place]

    def _take_from_paths(self, values: dict[str, list[Any]], problems: dict[int, str]) -> None:
        """Fill in the values of fields that are named by a path, where objects have no member of the whole name."""
        for column in self._columns:
            if column.path and MISSING in values[column.stored]:
                root, wholes = column.path[0], values[column.stored]
                rows = [
                    {root: value} if whole is MISSING else {} for whole, value in zip(wholes, values[root], strict=True)
                ]
                within = values_within(rows, column.path, problems)
                values[column.stored] = [
                    value if whole is MISSING else whole for whole, value in zip(wholes, within, strict=True)
                ]

    def _refuse_near_names(
        self,
        texts: Sequence[Text | None],
        values: dict[str, list[Any]],
        problems: dict[int, str],
        place: Callable[[int], str],
    ) -> None:
        """Refuse objects that lack a field, and have a member whose name is almost the field's."""
        lacking = {name: of_column for name, of_column in values.items() if MISSING in of_column}
        for position, (text, *row) in enumerate(zip(texts, *lacking.values(), strict=True) if lacking else ()):
            missing = [name for name, value in zip(lacking, row, strict=True) if value is MISSING]
            for name, why in near_misses(missing, _names(text)) if missing else ():
                problems.setdefault(position, f"{place(position)}: {name} {why}")

    def _all_rows(self, texts: Sequence[Text | None]) -> list[Any] | None:
        """Return the rows of texts if each of them is one; else None."""
        try:
            if texts and isinstance(texts[0], bytes):
                b"\n".join(texts).decode()  # type: ignore[arg-type]  # texts of another type raise TypeError
            return [*map(self._decode, texts)]  # None raises TypeError
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TypeError):
            return None

    def _row(self, text: Text, problems: dict[int, str], position: int, place: Callable[[int], str]) -> Any:
        try:
            if isinstance(text, bytes):
                text.decode()  # msgspec does not check the bytes of fields that it skips
            row = self._decode(text)
        except UnicodeDecodeError as error:
            why = f"is not UTF-8 ({error.reason} at byte {error.start})"
        except msgspec.ValidationError as error:
            why = f"is not {'a JSON' if isinstance(text, bytes | str) else 'an'} object ({error})"
        except msgspec.DecodeError as error:
            why = f"is not JSON ({error})"
        except RecursionError:
            why = "is not read: its lists and objects are nested too deep"
        else:
            return row
        problems[position] = f"{place(position)} {why}"
        return None


def _object(decoded: Any) -> Mapping[str, Any]:
    """Return an object that is decoded. Raises `msgspec.ValidationError` for another value."""
    if not isinstance(decoded, Mapping):
        msg = f"it is {decoded!r:.60}"
        raise msgspec.ValidationError(msg)
    return decoded


def _as_text(value: Any) -> str:
    """Return the text of a value, as the pipeline names values of row kinds: `true` for a truth value, `1` for an integer."""
    return value if isinstance(value, str) else str(value).lower()


def names_in(texts: Iterable[bytes]) -> list[str]:
    """Return the names of all members of objects, in the order of their first rows. Texts that are no objects are passed over."""
    names: dict[str, None] = {}
    for text in texts:
        with contextlib.suppress(msgspec.MsgspecError, RecursionError):
            names |= dict.fromkeys(_names(text))
    return [*names]


_decode_names = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def _names(text: Text | None) -> Collection[str]:
    if isinstance(text, Mapping):
        return text.keys()
    return () if text is None else _decode_names(text)


_NO_NAMES: Final = re.compile(r'["\\\x00-\x1f]')
"""Characters with which msgspec decodes no fields."""


def _row_type(names: Sequence[str]) -> type[msgspec.Struct]:
    """Return a type with which msgspec decodes only these fields of an object, of any value."""
    return msgspec.defstruct(
        "Row",
        [(f"f{number}", Any, MISSING) for number in range(len(names))],
        rename={f"f{number}": name for number, name in enumerate(names)},
    )


def _fields(count: int) -> list[Callable[[Any], Any]]:
    """Return getters of the fields of `_row_type`."""
    return [attrgetter(f"f{number}") for number in range(count)]


def _member(name: str) -> Callable[[Mapping[str, Any]], Any]:
    return lambda row: row.get(name, MISSING)
