"""Comparison of types: can values stored as one type be read as another, with the same meaning?

They can where fields were added with defaults, fields were removed, numbers were widened (`int` to `float` or
`Decimal`), and alternatives were added (`int` to `int | None`, `Literal["a"]` to `Literal["a", "b"]` or `str`).
Everything else is a difference, even if JSON would accept it, such as a list that becomes a set.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from headrace.state.type_schema import REFERENCE, Shape, StructField, StructSchema, TypeSchema


class Difference(NamedTuple):
    """Place where stored values do not fit: its path (empty for the whole), and the reason."""

    path: str
    why: str

    def __str__(self) -> str:
        """Return the difference as part of a sentence about the state."""
        return f"field '{self.path}' {self.why}" if self.path else f"it {self.why}"


def differences(stored: TypeSchema, declared: TypeSchema) -> list[Difference]:
    """Return why values of type `stored` cannot be read as `declared`; an empty list if they can."""
    comparison = _Comparison(stored.structs, declared.structs)
    comparison.shapes(stored.root, declared.root, "")
    return comparison.differences


_Structs = Mapping[str, StructSchema]


class _Comparison:
    def __init__(self, old: _Structs, new: _Structs, assumed: Iterable[tuple[str, str]] = ()) -> None:
        self.differences: list[Difference] = []
        self._old = old
        self._new = new
        self._assumed = {*assumed}
        """Structs that contain themselves fit if everything else does."""

    def shapes(self, old: Shape, new: Shape, path: str) -> None:
        if "union" in {old.type, new.type}:
            self._alternatives(old, new, path)
        elif old.type == new.type == REFERENCE:
            self._structs(old.name, new.name, path)
        elif old.type in {"literal", "enum"}:
            self._values(old, new, path)
        elif old.type == new.type and old.name == new.name and len(old.items) == len(new.items):
            self._items(old, new, path)
        elif (old.type, new.type) not in _WIDENED or not _only_loosened(old, new):
            self._differ(path, old, new)

    def _items(self, old: Shape, new: Shape, path: str) -> None:
        if not _only_loosened(old, new):
            self._differ(path, old, new)
        elif old.type == "dict":
            # Only the text of a key is stored: it does not say which number or date it was.
            if old.items[0] != new.items[0]:
                self._differ(path, old, new)
            self.shapes(old.items[1], new.items[1], f"{path}{{}}")
        else:
            for one, other in zip(old.items, new.items, strict=True):
                self.shapes(one, other, f"{path}[]")

    def _values(self, old: Shape, new: Shape, path: str) -> None:
        if new.type == old.type:
            missing = [value for value in old.values if value not in new.values]
            if missing:
                self._add(path, f"may be {', '.join(map(repr, missing))} as stored, which {new} does not have")
        elif old.type != "literal" or new.type not in _plain_of(old) or new.constraints:
            self._differ(path, old, new)

    def _alternatives(self, old: Shape, new: Shape, path: str) -> None:
        """Check that each alternative of the old type has one in the new type that JSON would choose for it."""
        choices = new.items if new.type == "union" else (new,)
        for alternative in old.items if old.type == "union" else (old,):
            alike = [choice for choice in choices if choice.type == alternative.type]
            if len(alike) == 1 and (alternative.items or alternative.type == REFERENCE):
                self.shapes(alternative, alike[0], path)  # names the exact field
            elif not any(self._fits(alternative, choice) for choice in _of_same_class(alternative, choices)):
                self._differ(path, old, new, alternative)

    def _fits(self, old: Shape, new: Shape) -> bool:
        attempt = _Comparison(self._old, self._new, self._assumed)
        attempt.shapes(old, new, "")
        return not attempt.differences

    def _structs(self, old_name: str, new_name: str, path: str) -> None:
        if (old_name, new_name) in self._assumed:
            return
        self._assumed.add((old_name, new_name))
        old, new = self._old[old_name], self._new[new_name]
        if _form(old) != _form(new):
            self._add(path, f"is stored as {old_name}, {_form(old)}, and declared as {new_name}, {_form(new)}")
        elif old.array_like:
            self._places(old, new, path)
        else:
            self._fields(old, new, path)

    def _fields(self, old: StructSchema, new: StructSchema, path: str) -> None:
        before = {field.name: field for field in old.fields}
        for field in new.fields:
            self._field(before.pop(field.name, None), field, _within(path, field.name))
        for name in before if new.forbids_unknown else ():
            self._add(_within(path, name), "is stored, and not declared any more, and the type forbids unknown fields")

    def _places(self, old: StructSchema, new: StructSchema, path: str) -> None:
        """Compare fields that are identified by position: the new type may have more or fewer only at the end."""
        for place, field in enumerate(new.fields):
            before = old.fields[place] if place < len(old.fields) else None
            if before is not None and before.name != field.name:
                self._add(_within(path, field.name), f"has the place where '{before.name}' is stored")
                return
            self._field(before, field, _within(path, field.name))
        if len(old.fields) > len(new.fields) and new.forbids_unknown:
            name = old.fields[len(new.fields)].name
            self._add(_within(path, name), "is stored, and not declared any more, and the type forbids unknown fields")

    def _field(self, old: StructField | None, new: StructField, path: str) -> None:
        if old is None:
            if new.required:
                self._add(path, f"is new ({new.shape}) and has no default")
            return
        if old.may_lack and not _same_default(old.default, new.default):
            now = new.default or "none"
            self._add(path, f"is not stored where it has its default {old.default}, and has another one now: {now}")
        self.shapes(old.shape, new.shape, path)

    def _differ(self, path: str, old: Shape, new: Shape, part: Shape | None = None) -> None:
        among = "" if part is None or part == old else f" (where it is {part})"
        self._add(path, f"is stored as {old}{among}, and declared as {new}")

    def _add(self, path: str, why: str) -> None:
        self.differences.append(Difference(path, why))


_WIDENED = {("int", "float"), ("int", "Decimal")}
_LIKE_INTEGERS = {"int", "literal of numbers", "enum of numbers"}


def _only_loosened(old: Shape, new: Shape) -> bool:
    """Return whether every limit of the new type was one of the old type."""
    return new.constraints.items() <= old.constraints.items()


def _class(shape: Shape) -> str:
    if shape.type in {"literal", "enum"}:
        return f"{shape.type} of {'texts' if isinstance(shape.values[0], str) else 'numbers'}"
    return shape.type


def _plain_of(literal: Shape) -> set[str]:
    return {"str"} if isinstance(literal.values[0], str) else {"int", "float", "Decimal"}


def _of_same_class(old: Shape, choices: tuple[Shape, ...]) -> list[Shape]:
    """Return the alternatives among which a value of the old type is searched: an integer is no float where integers are one."""
    if _class(old) in _LIKE_INTEGERS:
        integers = [choice for choice in choices if _class(choice) in _LIKE_INTEGERS]
        return integers or list(choices)
    return list(choices)


def _same_default(old: str, new: str) -> bool:
    """Return whether defaults in JSON mean the same, as 1 and 1.0 do."""
    if old == new or StructField.UNSET in {old, new} or not (old and new):
        return old == new
    return bool(msgspec.json.decode(old) == msgspec.json.decode(new))


def _form(struct: StructSchema) -> str:
    """Return the parts of a struct that must not change, for a message."""
    tag = f", tagged {struct.tag_field}={struct.tag!r}" if struct.tag is not None else ""
    return f"a {struct.kind.replace('_', ' ')}{' stored as a list' if struct.array_like else ''}{tag}"


def _within(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
