"""Keyed functions that come with the package: the methods that the graph, `explain` and side outputs call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, cast

import msgspec

from headrace.api.changelog_mode import ChangelogMode, StreamChanges
from headrace.api.functions import function_types


class OperatorFunction:
    """A keyed function of `headrace.operators`: a base class beside `KeyedProcessFunction` or `KeyedCoProcessFunction`.

    `retracts` says that the function may retract records that it emitted: it then emits `-U` and `+U`, or `-D`.
    `declared` holds the names of the side outputs that the pipeline takes; records for other side outputs are dropped.
    """

    KIND: ClassVar[str]
    """Name of the function in `headrace explain`."""
    TAKER: ClassVar[str]
    """Method of the stream that makes the function, for errors."""

    retracts: bool = False
    declared: frozenset[str] = frozenset()
    takes_upserts: ClassVar[tuple[int, ...]] = ()
    """Numbers of the inputs whose updates may come without their old rows."""
    needs_keys_of_deletions: ClassVar[bool] = False
    """Whether the function reads nothing of a `-D` but its key."""
    has_row_of_each_key: bool = False
    """True: the result has one row for each key of the stream, whose fields hold the key under their names."""

    def changes(self, _name: str, keys: Sequence[Any], taken: Sequence[StreamChanges], /) -> StreamChanges:
        """Return the changes of the output of the operator `_name`, by the keys (`KeyBy`) and the changes of its inputs.

        Raises `ValueError` where the result could not be right.
        """
        mode = ChangelogMode.RETRACT if self.retracts else ChangelogMode.INSERT
        return StreamChanges(mode, unique=self.unique_keys(keys[0].fields, taken[0]))

    def unique_keys(self, fields: tuple[str, ...], _taken: StreamChanges, /) -> tuple[tuple[str, ...], ...]:
        """Return the unique keys of the result, by the fields of the stream's key and the changes of the first input."""
        key = self.key_of_rows(fields) if self.has_row_of_each_key else ()
        return (key,) if key else ()

    def key_of_rows(self, fields: tuple[str, ...]) -> tuple[str, ...]:
        """Return the fields of the stream's key, if the result has all of them; else none."""
        gives = function_types(cast("Any", self))[1]
        return fields if {*fields} <= {*gives.__struct_fields__} else ()

    def late_sides(self) -> dict[str, int]:
        """Return the side outputs of late records, with the number of the input that they come from."""
        return {side: int(side.endswith("_right")) for side in self.side_types() if side.startswith("late")}

    def set_aside_late(self, record: msgspec.Struct, ctx: Any, side: str = "late") -> None:
        """Send a record that is too late to the side output `side`, if the pipeline takes it, else drop it; count it in any case."""
        is_taken = side in self.declared
        if is_taken:
            ctx.output(side, record, kind=ctx.row_kind)
        ctx.count_too_late(dropped=not is_taken)

    def described(self) -> dict[str, Any]:
        """Return the properties that `headrace explain` shows: texts, lists of texts, and durations.

        Raises `NotImplementedError` unless overridden.
        """
        raise NotImplementedError

    def side_types(self) -> dict[str, type[msgspec.Struct]]:
        """Return the function's side outputs, and the types of their records."""
        return {}

    def declare_side(self, operator: str, name: str, record: object) -> None:
        """Emit records to the side output `name` from now on. `operator` is the name of the operator, for errors.

        Raises `ValueError` for a side output that the function does not have, `TypeError` for another type of records.
        """
        sides = self.side_types()
        if name not in sides:
            shown = " and ".join(f"'{side}'" for side in sides) or "none"
            has = f"one, {shown}" if len(sides) == 1 else shown
            msg = f"{self.TAKER} '{operator}' has no side output '{name}': it has {has}"
            raise ValueError(msg)
        if record is not sides[name]:
            msg = f"side output '{name}' of '{operator}' has records of type {sides[name].__name__}, not {record!r:.60}"
            raise TypeError(msg)
        self.declared |= {name}
