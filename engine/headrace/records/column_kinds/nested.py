"""Kinds of columns: lists, maps and structs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import pyarrow as pa

from headrace.records.column_kinds.kind import ColumnKind
from headrace.records.value_rules import parsed_json


class NestedKind(ColumnKind):
    """Kind of values that consist of others."""

    parse = staticmethod(parsed_json)

    def __init__(self, make: Callable[[Callable[[ColumnKind], pa.DataType]], pa.DataType]) -> None:
        """Take the function that makes a type from a function for the types of the parts."""
        self.type = make(lambda part: part.type)
        self.sink_type = make(lambda part: part.sink_type)
        self.through = make(lambda part: part.through)
        self._read_type = make(lambda part: part.read_type)

    @property
    def read_type(self) -> pa.DataType:
        """Return the type of a column of plain values."""
        return self._read_type

    @abstractmethod
    def children(self, array: pa.Array) -> Mapping[str, pa.Array]:
        """Return foreign values of the parts by their names, without those below nulls."""


class List(NestedKind):
    """Lists of any length."""

    def __init__(self, item: ColumnKind) -> None:
        """Take the kind of the items."""
        super().__init__(lambda type_of: pa.list_(pa.field("element", type_of(item))))
        self._item = item

    def takes(self, kind: pa.DataType) -> bool:
        """Return whether a foreign type holds lists."""
        return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))

    def plain(self, array: pa.Array) -> list[Any]:
        """Return lists of plain values."""
        offsets = self.offsets(array)
        items = self._item.plain(array.values[offsets[0] : offsets[-1]])
        return _cut(items, offsets, array)

    def children(self, array: pa.Array) -> Mapping[str, pa.Array]:
        """Return the items."""
        return {"element": array.flatten()}

    @staticmethod
    def offsets(array: pa.Array) -> list[int]:
        """Return where the items of each list begin among the values, and where the last list ends.

        A cast to one type of list would give the offsets, too. But pyarrow 26 truncates the values of a list of nulls when
        it casts it to a list of nulls: to as many as there are lists.
        """
        if pa.types.is_fixed_size_list(array.type):
            size = array.type.list_size
            return [(array.offset + row) * size for row in range(len(array) + 1)]
        offsets: list[int] = array.offsets.to_pylist()
        return offsets


class Map(NestedKind):
    """Maps."""

    def __init__(self, key: ColumnKind, value: ColumnKind) -> None:
        """Take the kinds of the keys and of the values."""
        super().__init__(lambda type_of: pa.map_(type_of(key), type_of(value)))
        self._key, self._value = key, value

    def takes(self, kind: pa.DataType) -> bool:
        """Return whether a foreign type holds maps."""
        return bool(pa.types.is_map(kind))

    def plain(self, array: pa.Array) -> list[Any]:
        """Return dicts of plain values."""
        parts = self.children(array)
        entries = [*zip(self._key.plain(parts["key"]), self._value.plain(parts["value"]), strict=True)]
        return [None if pairs is None else dict(pairs) for pairs in _cut(entries, array.offsets.to_pylist(), array)]

    def children(self, array: pa.Array) -> Mapping[str, pa.Array]:
        """Return the keys and the values."""
        entries = slice(array.offsets[0].as_py(), array.offsets[-1].as_py())
        return {"key": array.keys[entries], "value": array.items[entries]}


class Struct(NestedKind):
    """Structs with one field for each field of a record."""

    def __init__(self, parts: Mapping[str, ColumnKind]) -> None:
        """Take the kinds of the fields by their names."""
        super().__init__(lambda type_of: pa.struct([pa.field(name, type_of(part)) for name, part in parts.items()]))
        self._parts = parts

    def takes(self, kind: pa.DataType) -> bool:
        """Return whether a foreign type holds structs."""
        return bool(pa.types.is_struct(kind))

    def plain(self, array: pa.Array) -> list[Any]:
        """Return dicts of plain values, without fields that the array lacks."""
        children = self.children(array)
        columns = [self._parts[name].plain(values) for name, values in children.items()]
        rows = zip(*columns, strict=True) if columns else iter([()] * len(array))
        is_null = array.is_null().to_pylist() if array.null_count else [False] * len(array)
        return [
            None if null else dict(zip(children, row, strict=True)) for row, null in zip(rows, is_null, strict=True)
        ]

    def children(self, array: pa.Array) -> Mapping[str, pa.Array]:
        """Return the fields that there are."""
        return dict(zip([field.name for field in array.type], array.flatten(), strict=True))


def _cut(items: list[Any], offsets: list[int], array: pa.Array) -> list[Any]:
    """Return the items of each row of an array of lists or maps, which begin at `offsets` among all; None for a null."""
    first = offsets[0]
    rows: list[Any] = [items[start - first : end - first] for start, end in pairwise(offsets)]
    if array.null_count:
        return [row if is_valid else None for row, is_valid in zip(rows, array.is_valid().to_pylist(), strict=True)]
    return rows
