"""Reads a YAML tree into a frozen struct; checks every key and value against the struct's fields.

msgspec's own conversion stops at the first problem and knows no lines; this reader reports all problems with their
lines.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar, Union, get_args, get_origin

import msgspec
import yaml

from headrace.config._cluster import is_secret
from headrace.config._document import Problems, line_number, node_kind, read_document, tag_of
from headrace.config._scalars import Place, is_only_a_reference, located, read_scalar, unwrap
from headrace.config._settings import put_settings
from headrace.config._types import LOCATION, NONE_WORD
from headrace.names import NAME_RULE, did_you_mean, is_name

T = TypeVar("T", bound=msgspec.Struct)
# `Annotated[...] | None` is a typing.Union, plain types make a types.UnionType.
_UNIONS = (Union, types.UnionType)

Pairs = dict[str, tuple[yaml.Node, yaml.Node]]

MISSING: Any = object()
"""Result of the reader for a value with a problem."""


def read_struct(
    file: Path, kind: type[T], place: Place, settings: Mapping[str, str] | None = None
) -> tuple[T, dict[str, int]]:
    """Read `file` as a `kind`, with other values for the keys in `settings`; also return the line of each key, by its dotted path.

    Raises `ConfigError` that lists all problems of the file and of the settings.
    """
    root = read_document(file)
    put_settings(root, kind, settings or {})
    reader = _Reader(Problems(file), place)
    value = reader.struct(root, kind, "")
    reader.problems.raise_any()
    return value, reader.lines


class _Reader:
    """Reader of one file."""

    def __init__(self, problems: Problems, place: Place) -> None:
        self.problems = problems
        self.lines: dict[str, int] = {}
        self._place = place

    def struct(self, node: yaml.Node, kind: type[msgspec.Struct], key: str) -> Any:
        """Read a mapping whose keys are the fields of `kind`, by their names in files."""
        pairs = self._pairs(node, key)
        if pairs is None:
            return MISSING
        fields = {field.encode_name: field for field in _fields(kind)}
        values = {}
        for name, (key_node, value_node) in pairs.items():
            if name in fields:
                values[fields[name].name] = self._value(value_node, fields[name].type, _dotted(key, name))
            else:
                self._unknown(key_node, _dotted(key, name), name, fields)
        self._require(node, key, fields, pairs)
        return _build(kind, values, self._place.home)

    def _require(self, node: yaml.Node, key: str, fields: dict[str, msgspec.structs.FieldInfo], pairs: Pairs) -> None:
        for name, field in fields.items():
            if field.required and name not in pairs:
                self.problems.add(node, _dotted(key, name), "this key is missing")

    def _unknown(self, node: yaml.Node, key: str, name: str, fields: dict[str, msgspec.structs.FieldInfo]) -> None:
        hint = did_you_mean(name, fields)
        self.problems.add(node, key, f"unknown key{hint} (allowed: {', '.join(fields)})")

    def _pairs(self, node: yaml.Node, key: str) -> Pairs | None:
        """Return the entries of a mapping; report duplicates, invalid keys and literal secrets."""
        if not isinstance(node, yaml.MappingNode):
            self.problems.add(node, key, f"expected a mapping of keys to values, got {node_kind(node)}")
            return None
        pairs: Pairs = {}
        for key_node, value_node in node.value:
            if isinstance(key_node, yaml.ScalarNode) and tag_of(key_node) == "str":
                self._pair(pairs, key, key_node, value_node)
            else:
                self.problems.add(key_node, key or "(top)", f"a key must be text, got {node_kind(key_node)}")
        return pairs

    def _pair(self, pairs: Pairs, key: str, key_node: yaml.ScalarNode, value: yaml.Node) -> None:
        name = key_node.value
        dotted = _dotted(key, name)
        if name in pairs:
            first = line_number(pairs[name][0])
            self.problems.add(key_node, dotted, f"this key was already given on line {first}")
            return
        self.lines[dotted] = line_number(key_node)
        if is_secret(name) and _is_written_down(value) and not key.endswith(_OF_FIELDS):
            self.problems.add(key_node, dotted, _secret_advice(name))
            return
        pairs[name] = (key_node, value)

    def _value(self, node: yaml.Node, kind: Any, key: str) -> Any:
        if get_origin(kind) in _UNIONS:
            if tag_of(node) == "null" or _is_none_word(node, get_args(kind)[0]):
                return None
            kind = _of_union(get_args(kind), node)
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            return self.struct(node, kind, key)
        if get_origin(kind) is dict:
            return self._mapping(node, get_args(kind), key)
        if get_origin(kind) is tuple:
            return self._sequence(node, get_args(kind)[0], key)
        return self._scalar(node, kind, key)

    def _mapping(self, node: yaml.Node, kinds: tuple[Any, ...], key: str) -> Any:
        name_kind, kind = kinds
        pairs = self._pairs(node, key)
        if pairs is None:
            return MISSING
        for name, (key_node, _) in pairs.items():
            if name_kind is not str and not is_name(name):
                self.problems.add(key_node, _dotted(key, name), f"not a valid name: {NAME_RULE}")
        values = {name: self._value(node, kind, _dotted(key, name)) for name, (_, node) in pairs.items()}
        return MISSING if MISSING in values.values() else values

    def _sequence(self, node: yaml.Node, kind: Any, key: str) -> Any:
        if not isinstance(node, yaml.SequenceNode):
            self.problems.add(node, key, f"expected a list, got {node_kind(node)}")
            return MISSING
        items = tuple(self._value(item, kind, f"{key}.{at}") for at, item in enumerate(node.value))
        return MISSING if MISSING in items else items

    def _scalar(self, node: yaml.Node, kind: Any, key: str) -> Any:
        try:
            return read_scalar(node, kind, self._place)
        except ValueError as error:
            self.problems.add(node, key, str(error))
            return MISSING


@cache
def _fields(kind: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    """Return the fields of a struct; msgspec evaluates their annotations anew in each call."""
    return msgspec.structs.fields(kind)


def _build(kind: type[msgspec.Struct], values: dict[str, Any], home: Path) -> Any:
    required = {field.name for field in _fields(kind) if field.required}
    if MISSING in values.values() or not required <= values.keys():
        return MISSING
    return _with_located_defaults(kind(**values), values, home)


def _with_located_defaults(config: msgspec.Struct, given: Mapping[str, Any], home: Path) -> Any:
    """Resolve default paths from the home folder, like paths in the file."""
    changes: dict[str, Any] = {}
    for field in _fields(type(config)):
        value = getattr(config, field.name)
        if field.name in given:
            continue
        if isinstance(value, msgspec.Struct):
            changes[field.name] = _with_located_defaults(value, {}, home)
        elif unwrap(field.type)[1] == LOCATION and value:
            changes[field.name] = located(value, home)
    return msgspec.structs.replace(config, **changes) if changes else config


def _of_union(kinds: tuple[Any, ...], node: yaml.Node) -> Any:
    """Return the kind of a value: that of mappings for a mapping, where the union has one, else the first."""
    structs = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, msgspec.Struct)]
    return structs[0] if structs and isinstance(node, yaml.MappingNode) else kinds[0]


def _is_none_word(node: yaml.Node, kind: Any) -> bool:
    """Return whether a value is the word `none`, of a kind that allows it."""
    return unwrap(kind)[1] == NONE_WORD and isinstance(node, yaml.ScalarNode) and node.value == "none"


def _dotted(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name


_OF_FIELDS: Final = ".rename"
"""End of the keys whose entries are fields of records, and names of their columns: a field may be called `token`."""


def _is_written_down(node: yaml.Node) -> bool:
    if not isinstance(node, yaml.ScalarNode) or tag_of(node) in {"null", "bool"} or not node.value:
        return False
    return not is_only_a_reference(node.value)


def _secret_advice(name: str) -> str:
    variable = "".join(c if c.isalnum() else "_" for c in name).upper()
    return (
        "secrets are never written into configuration files; put it into the environment "
        f'and refer to it, without a default: {name}: "${{{variable}}}"'
    )
