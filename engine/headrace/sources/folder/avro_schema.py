"""Schema of an Avro file, or of messages in Avro: its named types, columns that no table can have, and the reader of its values."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from headrace.records.column_types import Column
from headrace.sources.avro_values import register_readers
from headrace.sources.folder.format import DamagedFileError

_VALUE: Final = "value"
_WEIGHTLESS: Final = 100_000
_SHALLOW: Final = 500
"""Bytes in which nothing is nested so deep that fastavro's reader in C has no stack for it, which ends the process. That in Python raises an error."""


class AvroSchema(NamedTuple):
    """Schema of a file, with full names, and the named types in it."""

    root: Any
    named: Mapping[str, Any]
    around: Any = None
    """Record with a value as its one field, where the root is no record: fastavro finds the types of references in records alone."""

    @classmethod
    def of(cls, schema: Any, references: Sequence[Any] = ()) -> AvroSchema:
        """Read a schema, with named types of the `references`, of which each may use those before it. Raises `DamagedFileError` where it is none."""
        import fastavro

        named: dict[str, Any] = {}
        try:
            for reference in references:
                fastavro.parse_schema(reference, named)
            if isinstance(schema, dict) and schema.get("type") == "record":
                return cls(fastavro.parse_schema(schema, named), named)
            own = {"type": "record", "name": "headrace.Value", "fields": [{"name": _VALUE, "type": schema}]}
            around: Any = fastavro.parse_schema(own, named)
            root = around["fields"][0]["type"]
            return cls(named.get(root, root) if isinstance(root, str) else root, named, around)
        except Exception as error:  # fastavro raises errors of any type for damaged schemas
            msg = f"its schema cannot be read: {type(error).__name__}: {error!s:.200}"
            raise DamagedFileError(msg) from error

    @property
    def contains_itself(self) -> bool:
        """Return whether a type contains itself, so that values may be nested without an end."""
        return self._has_cycle(_inner)

    @property
    def is_endless(self) -> bool:
        """Return whether a record contains itself without a choice, so that no value of it ends, and each takes no byte."""
        return self._has_cycle(_always_inner)

    @property
    def has_weightless_items(self) -> bool:
        """Return whether a list may have items that take no bytes, so that a few bytes may say that there are any number of them."""
        arrays = (part for kind in (self.root, *self.named.values()) for part in _arrays_within(kind))
        return any(self._is_weightless(array["items"], frozenset()) for array in arrays)

    def _is_weightless(self, kind: Any, within: frozenset[str]) -> bool:
        if isinstance(kind, str):
            if kind not in self.named or kind in within:
                return kind == "null" or kind in within
            return self._is_weightless(self.named[kind], within)
        if not isinstance(kind, dict):
            return False
        if "fields" in kind:
            inside = within | {kind["name"]}
            return all(self._is_weightless(field["type"], inside) for field in kind["fields"])
        return kind.get("size") == 0 or ("size" not in kind and self._is_weightless(kind.get("type"), within))

    def _has_cycle(self, inner: Callable[[Any], list[Any]]) -> bool:
        return any(name in self._named_within(kind, set(), inner) for name, kind in self.named.items())

    def _named_within(self, kind: Any, known: set[str], inner: Callable[[Any], list[Any]]) -> set[str]:
        """Return the names of the types within a type, added to those that are `known`."""
        for part in inner(kind):
            name = part if isinstance(part, str) else part.get("name") if isinstance(part, dict) else None
            if not isinstance(name, str) or name not in self.named:
                self._named_within(part, known, inner)
            elif name not in known:
                known.add(name)
                self._named_within(self.named[name], known, inner)
        return known

    def reader(self) -> Callable[[io.BytesIO, int], Any]:
        """Return a reader of the next value of a content of so many bytes, with logical types as `headrace.sources.avro_values` makes them.

        It raises errors of any type for damaged bytes, and `RecursionError` for values that are nested too deep.
        """
        import fastavro
        from fastavro import _read_py

        register_readers()
        whole: Any = self.root if self.around is None else self.around
        named, errors = {"writer": dict(self.named), "reader": {}}, "surrogateescape"
        in_python: Any = _read_py
        in_c = -1 if self.is_endless or self.has_weightless_items else _SHALLOW if self.contains_itself else math.inf

        def read(content: io.BytesIO, size: int) -> Any:
            value: Any
            if size <= in_c:
                value = fastavro.schemaless_reader(content, whole, None, handle_unicode_errors=errors)
            else:
                value = in_python.read_data(
                    _bounded_decoder(content, size), whole, named, None, {"handle_unicode_errors": errors}
                )
            return value if self.around is None else value[_VALUE]

        return read

    def refuse_recursion(self, column: Column) -> None:
        """Refuse a column of the record whose type in the file contains itself, as far as the record asks for its parts."""
        kind = self._type_at((column.stored,)) or self._type_at(column.path)
        self._refuse_within(kind, column, column.stored, (self.root["name"],))

    def _type_at(self, path: Sequence[str]) -> Any:
        """Return the type of a field within records; None where there is no such field."""
        kind = self.root
        for name in path:
            branches = [self.named.get(part, part) if isinstance(part, str) else part for part in _branches(kind)]
            fields = [field for part in branches if isinstance(part, dict) for field in part.get("fields", ())]
            kind = next((field["type"] for field in fields if field["name"] == name), None)
        return kind

    def _refuse_within(self, kind: Any, column: Column, path: str, within: tuple[str, ...]) -> None:
        for branch in _branches(kind):
            named = self.named.get(branch, branch) if isinstance(branch, str) else branch
            if not isinstance(named, dict):
                continue
            if (name := named.get("name")) in within:
                msg = (
                    f"{path} is of the type {name}, which contains itself, and a column has a limited depth: leave the field out of the "
                    "record, or write the values as JSON text"
                )
                raise DamagedFileError(msg)
            inner = within if name is None else (*within, name)
            for part_kind, part, part_path in _parts(named, column, path):
                self._refuse_within(part_kind, part, part_path, inner)


def _arrays_within(kind: Any) -> Iterator[dict[str, Any]]:
    """Yield the lists in a type, without those of types that it only names."""
    if isinstance(kind, dict) and kind.get("type") == "array":
        yield kind
    for part in _inner(kind):
        yield from _arrays_within(part)


def _bounded_decoder(content: io.BytesIO, size: int) -> Any:
    """Return fastavro's decoder in Python, which gives up at more items of lists than a content of so many bytes sensibly has."""
    from fastavro.io.binary_decoder import BinaryDecoder

    decoder: Any = BinaryDecoder(content)  # type: ignore[no-untyped-call]
    items, left = decoder.iter_array, iter(range(size + _WEIGHTLESS))

    def bounded() -> Iterator[None]:
        for item in items():
            if next(left, None) is None:
                msg = f"its lists have more than {_WEIGHTLESS:,} items that take no bytes"
                raise ValueError(msg)
            yield item

    decoder.iter_array = bounded
    return decoder


def _inner(kind: Any) -> list[Any]:
    """Return the types of the parts of a type: branches, fields, items or values."""
    if isinstance(kind, list):
        return kind
    if not isinstance(kind, dict):
        return []
    inner = [kind.get("items"), kind.get("values"), *(field["type"] for field in kind.get("fields", ()))]
    return [*(part for part in inner if part is not None), *_nested(kind)]


def _always_inner(kind: Any) -> list[Any]:
    """Return the types of the parts that each value of a type has: fields, but not branches, items or values."""
    if not isinstance(kind, dict):
        return []
    return [*(field["type"] for field in kind.get("fields", ())), *_nested(kind)]


def _nested(kind: dict[str, Any]) -> list[Any]:
    return [kind["type"]] if isinstance(kind.get("type"), dict | list) else []


def _branches(kind: Any) -> list[Any]:
    return kind if isinstance(kind, list) else [kind]


def _parts(kind: dict[str, Any], column: Column, path: str) -> Iterator[tuple[Any, Column, str]]:
    """Yield the types of a type's parts for which the record has columns, with these and their paths."""
    if "fields" in kind:
        parts = {part.stored: part for part in column.parts} if column.record is not None else {}
        for field in kind["fields"]:
            if field["name"] in parts:
                yield field["type"], parts[field["name"]], f"{path}.{field['name']}"
    elif column.parts and column.record is None and (item := kind.get("items", kind.get("values"))) is not None:
        yield item, column.parts[-1], f"{path}[]"
    elif isinstance(kind.get("type"), dict | list):
        yield kind["type"], column, path
