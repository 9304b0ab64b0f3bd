"""What a job's checkpoints remember of its operators' keys: by which fields, or types, stored state is found.

    key_by("tail")              fields ("tail",), types ("str",)
    key_by(lambda e: e.tail)    function "<lambda>", types unknown
    key_by(tail_of)             function "tail_of", types ("str",), if tail_of says that it returns str

State is stored under the JSON text of its key. So two keys are the same if they are declared alike, and their types have the
same texts. What a function does is not compared.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from headrace.api.graph import KeyBy
from headrace.api.stream_types import key_types
from headrace.plan.stages import Plan
from headrace.state.type_schema import Shape, type_schema_of

UNKNOWN = "?"
"""The type of a part of a key whose annotation says nothing."""


class OperatorKey(msgspec.Struct, frozen=True, omit_defaults=True):
    """The key of one input of an operator: its fields, or the name of its function, and the types of its parts."""

    fields: tuple[str, ...] = ()
    function: str = ""
    types: tuple[str, ...] | None = None
    """For each part the kinds of JSON that it may be, as in `int | str`. None where a function has no annotation."""

    def __str__(self) -> str:
        """Return the key as people know it, with its types."""
        shown = f"the function {self.function}" if self.function else ", ".join(self.fields)
        return f"{shown} ({', '.join(self.types)})" if self.types else shown

    def differs(self, other: OperatorKey) -> bool:
        """Return whether state that is stored by this key is not found by the other one, as far as it can be told."""
        if self.fields and other.fields and self.fields != other.fields:
            return True
        if self.types is None or other.types is None:
            return False
        return len(self.types) != len(other.types) or not all(map(_fits, self.types, other.types))


OperatorKeys = dict[str, tuple[OperatorKey | None, ...]]
"""The keys by operator, one for each of its inputs; None for an input that has none: a broadcast."""


def declared_keys(plan: Plan) -> OperatorKeys:
    """Return the keys of a pipeline's keyed operators."""
    return {
        stage.name: tuple(_declared(record, key) for record, key in zip(stage.takes, stage.keys, strict=True))
        for stage in plan.keyed
    }


def remembered_keys(stored: OperatorKeys, declared: OperatorKeys) -> OperatorKeys:
    """Return what is to be remembered from now on: what the code declares, and the keys of operators that it has no more.

    Types that a function does not tell stay as they were known.
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
    return OperatorKey(key.fields, "" if key.function is None else str(key), types)


def _with_types(declared: OperatorKey | None, stored: OperatorKey | None) -> OperatorKey | None:
    if declared is None or stored is None or declared.types is not None:
        return declared
    return msgspec.structs.replace(declared, types=stored.types)


def _kinds(annotation: object) -> str:
    try:
        root = type_schema_of(annotation).root
    except (TypeError, KeyError):  # nothing that msgspec knows: an ellipsis, a type variable
        return UNKNOWN
    return " | ".join(sorted({*_texts([root])} - {"None"})) or UNKNOWN


def _texts(shapes: Iterable[Shape]) -> Iterable[str]:
    for shape in shapes:
        if shape.type == "union":
            yield from _texts(shape.items)
        elif shape.type in {"literal", "enum"}:
            yield from ("str" if isinstance(value, str) else "int" for value in shape.values)
        else:
            yield UNKNOWN if shape.type in {"Any", "custom"} else shape.type


def _fits(stored: str, declared: str) -> bool:
    """Return whether texts of the one type are texts of the other, too. Where only floats are, 5 is written as 5.0."""
    before, now = {*stored.split(" | ")}, {*declared.split(" | ")}
    if UNKNOWN in before | now or before == now:
        return True
    return before < now and "float" not in now
