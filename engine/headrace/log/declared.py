"""Records that checkpoints keep of the code: types of states, keys of operators, columns of sinks.

A row of a state table stays as it was written until its entry changes, or a migration rewrites the state. So the
declared type must fit all types that stored values may still have, not only the last one:

    version 1   Leg(at: int)                   stored: Leg(at: int)
    version 2   Leg(at: int, gate: str = "")   stored: both of them; fits, since `gate` has a default
    version 3   Leg(at: int, gate: str)        refused: what version 1 has written has no `gate`

The key of an operator has the fields, or the function, and the types under which state is stored:

    key_by("tail")              fields ("tail",), types ("str",)
    key_by(lambda e: e.tail)    function "<lambda>", types unknown
    key_by(tail_of)             function "tail_of", types ("str",), if tail_of says that it returns str

State is stored under the JSON text of its key. So two keys are equal if they have the same fields or function name, and
their types have the same JSON texts. The bodies of functions are not compared.

A checkpoint stores the tables of its sinks, so that publishing it needs no user code.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import pyarrow as pa

from headrace.api.graph import KeyBy
from headrace.api.records import digits_of, unit_of
from headrace.api.types import key_types
from headrace.plan.stages import Plan
from headrace.state.type_schema import Shape, TypeSchema, type_schema_of
from headrace.storage.delta_schema import from_logged, to_logged

HISTORY_STATE = "history"
"""Kind of a materializer's history, and its name among the states of the operator."""


class StateSchema(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Schema of one state of an operator."""

    kind: str
    """One of value, list, map, reducing, aggregating; history for a materializer."""

    types: tuple[TypeSchema, ...] = ()
    """All types that stored values, elements or accumulators may have, the newest last. None if unknown."""

    key_type: TypeSchema | None = None
    """Type of a map's keys."""

    version: int = 0
    """Number of the last applied migration."""

    removed: bool = False
    """True if the code no longer declares the state. Its stored values stay."""

    kept: bool = True
    """False for the history of a materializer that stored none, at least for a time: it misses rows that its sink has."""

    def __str__(self) -> str:
        """Return the newest type, as `state list` shows it."""
        type_ = str(self.types[-1]) if self.types else "?"
        return type_ if self.key_type is None else f"{self.key_type} -> {type_}"


StateSchemas = dict[str, dict[str, StateSchema]]
"""Schemas, by operator and state."""


UNKNOWN = "?"
"""Type of a part of a key without a useful annotation."""


class OperatorKey(msgspec.Struct, frozen=True, omit_defaults=True):
    """Key of one input of an operator: its fields, or the name of its function, and the types of its parts."""

    fields: tuple[str, ...] = ()
    function: str = ""
    types: tuple[str, ...] | None = None
    """JSON types of each part, as in `int | str`. None if a function has no annotation."""

    is_converted: bool = False
    """Whether the keys that a function made have got these types. Records of checkpoints from before that was so lack it."""

    def __str__(self) -> str:
        """Return the key as text for people, with its types."""
        shown = f"the function {self.function}" if self.function else ", ".join(self.fields)
        return f"{shown} ({', '.join(self.types)})" if self.types else shown

    def differs(self, other: OperatorKey) -> bool:
        """Return whether look-ups with the other key miss state stored under this key, as far as both are known."""
        if self.fields and other.fields and self.fields != other.fields:
            return True
        if self.types is None or other.types is None:
            return False
        now = tuple(map(_plain, other.types)) if self.may_be_unlike(other) else other.types  # then the texts tell
        return len(self.types) != len(now) or not all(map(_fits, self.types, now))

    def may_be_unlike(self, other: OperatorKey) -> bool:
        """Return whether texts stored under this key may lack the form that the other key gives to all of them."""
        return bool(self.function) and not self.is_converted and (other.is_converted or not other.function)


OperatorKeys = dict[str, tuple[OperatorKey | None, ...]]
"""Keys by operator, one for each input; None for a broadcast input, which has no key."""


def declared_keys(plan: Plan) -> OperatorKeys:
    """Return the keys of a pipeline's keyed operators."""
    return {
        stage.name: tuple(_declared(record, key) for record, key in zip(stage.takes, stage.keys, strict=True))
        for stage in plan.keyed
    }


def remembered_keys(stored: OperatorKeys, declared: OperatorKeys) -> OperatorKeys:
    """Return the keys to record from now on: those that the code declares, and those of operators that it no longer has.

    Where a function has no annotation, the types recorded before stay.
    """
    known = {
        name: tuple(map(_with_types, keys, (*stored.get(name, ()), *[None] * len(keys))))
        for name, keys in declared.items()
    }
    return {**stored, **known}


def _declared(record: type[msgspec.Struct], key: KeyBy | None) -> OperatorKey | None:
    if key is None:
        return None
    parts = key_types(record, key)
    types = None if parts is None else tuple(map(_kinds, parts))
    function = "" if key.function is None else str(key)
    return OperatorKey(key.fields, function, types, is_converted=bool(function) and types is not None)


def _with_types(declared: OperatorKey | None, stored: OperatorKey | None) -> OperatorKey | None:
    if declared is None or stored is None or declared.types is not None:
        return declared
    return msgspec.structs.replace(declared, types=stored.types)


def _kinds(annotation: object) -> str:
    try:
        root = type_schema_of(annotation).root
    except (TypeError, KeyError):  # msgspec does not know the type: an ellipsis, a type variable
        return UNKNOWN
    texts = {*_texts([root])} - {"None"}
    digits = digits_of(annotation)
    if digits is not None:  # the text of a field has as many digits behind the point
        texts = {f"Decimal({digits[1]})" if text == "Decimal" else text for text in texts}
    if unit_of(annotation) == "us":
        texts = {"microseconds" if text == "int" else text for text in texts}
    return " | ".join(sorted(texts)) or UNKNOWN


def _texts(shapes: Iterable[Shape]) -> Iterable[str]:
    for shape in shapes:
        if shape.type == "union":
            yield from _texts(shape.items)
        elif shape.type in {"literal", "enum"}:
            yield from ("str" if isinstance(value, str) else "int" for value in shape.values)
        elif shape.constraints.get("tz") is False:
            yield f"{shape.type} without a zone"
        else:
            yield UNKNOWN if shape.type in {"Any", "custom"} else shape.type


def _plain(kinds: str) -> str:
    """Return types without the digits, zones and units which checkpoints did not record of functions while results were stored as they were."""
    return _DETAILS.sub("", kinds).replace("microseconds", "int")


_DETAILS = re.compile(r"\(\d+\)| without a zone")


def _fits(stored: str, declared: str) -> bool:
    """Return whether JSON texts of the stored type are also texts of the declared type. A float writes 5 as 5.0."""
    before, now = {*stored.split(" | ")}, {*declared.split(" | ")}
    if UNKNOWN in before | now or before == now:
        return True
    return before < now and "float" not in now


SinkSchemas = dict[str, tuple[pa.Schema, tuple[str, ...]]]
"""Arrow schema and primary key of each sink's table, by sink. The key of an append sink is empty."""


class SinkTable(msgspec.Struct, frozen=True):
    """Columns of a sink's table as in Delta's log, and its primary key."""

    schema: dict[str, Any]
    key: tuple[str, ...] = ()


SinkTables = dict[str, SinkTable]
"""By sink."""


def to_stored(schemas: SinkSchemas) -> SinkTables:
    """Return the tables of sinks in the form that checkpoints store."""
    return {name: SinkTable(to_logged(schema), key) for name, (schema, key) in schemas.items()}


def to_schemas(tables: Mapping[str, SinkTable]) -> SinkSchemas:
    """Return the tables of sinks in the form that writers use."""
    return {name: (from_logged(table.schema), table.key) for name, table in tables.items()}
