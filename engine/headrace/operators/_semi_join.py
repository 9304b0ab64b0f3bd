"""Semi and anti join: left records whose key has right ones, and those whose key has none (SQL: `EXISTS`, `NOT EXISTS`).

They are joins that show no pairs (Flink: `StreamingSemiAntiJoinOperator`). The state is that of a left join: left records with the
number of their matches, and right records.
"""

from __future__ import annotations

from typing import Any, TypeVar

from headrace.api.changelog import StreamChanges
from headrace.api.functions import Context
from headrace.api.options import JoinFunction, JoinType
from headrace.api.records import RowKind, Struct
from headrace.api.ttl import StateTtl
from headrace.operators._joined_rows import RowForm, Side, sides_of
from headrace.operators._regular_join import Condition, RegularJoin

Left = TypeVar("Left", bound=Struct)
Right = TypeVar("Right", bound=Struct)
Out = TypeVar("Out", bound=Struct)


class AntiJoin(RegularJoin[Left, Right, Out]):
    """Emits left records that have no match, as a left join does, but no pairs. A later match takes them back."""

    TAKER = "anti_join"

    def __init__(self, sides: tuple[Side, Side], *, on: Condition | None, retracting: bool) -> None:
        """Take both sides, and the condition beside the key."""
        super().__init__(_left, JoinType.LEFT, sides, on=on, retracting=retracting)
        # A first match takes a record back, unless it is what shows the record.
        self.retracts = retracting or not self._shows(1)

    def _show_pairs(self, ctx: Context, kind: RowKind, side: Side, taken: tuple[Struct, int], partner: Any) -> None:
        """Emit nothing: the result has no pairs."""

    def unique_keys(self, _: tuple[str, ...], taken: StreamChanges, /) -> tuple[tuple[str, ...], ...]:
        """Return those of the left records."""
        return taken.unique

    def described(self) -> dict[str, Any]:
        """Return the kind of join, the lifetime of each side, and when state is freed."""
        emits = "+I and -D" if self.retracts else "+I"
        return {**super().described(), "join": self.TAKER.replace("_", " "), "emits": emits}


class SemiJoin(AntiJoin[Left, Right, Out]):
    """Emits left records that have a match instead: once, however many matches there are."""

    TAKER = "semi_join"

    @property
    def takes_bundles(self) -> bool:
        """Return False: each record may change the number of matches of stored ones."""
        return False

    def _shows(self, matches: int) -> bool:
        return matches > 0

    def _show_first_match(self, ctx: Context, side: Side, kept: Any, copies: int) -> None:
        self._show(ctx, RowKind.INSERT, side, kept, copies)

    def _show_no_match(self, ctx: Context, side: Side, kept: Any, copies: int) -> None:
        self._show(ctx, RowKind.DELETE, side, kept, copies)


def _left(left: Any, _right: Any) -> Any:
    return left


def semi_join(
    records: tuple[type[Left], type[Right]],
    /,
    *,
    is_anti: bool,
    forms: tuple[RowForm, RowForm],
    lifetimes: tuple[StateTtl | None, StateTtl | None],
    on: Condition | None,
    retracting: bool,
) -> JoinFunction[Left, Right, Left]:
    """Return the function of `Stream.semi_join`, or of `anti_join`."""
    takes1, takes2 = records
    sides = sides_of(records, forms, lifetimes, JoinType.LEFT)
    base: Any = AntiJoin if is_anti else SemiJoin
    # The name says what the stored numbers of matches have been shown as.
    left_name = f"left_{'anti' if is_anti else 'semi'}{'' if on is None else '_on'}"

    class Join(base[takes1, takes2, takes1]):  # type: ignore[misc]  # known when it is called
        left = sides[0].state(left_name)
        right = sides[1].state("right")

    return Join(sides, on=on, retracting=retracting)
