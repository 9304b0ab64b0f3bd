"""Pieces of large parts: a micro-batch writes the values that it changes, and not all values of a window.

A part of a window (`WindowResult`) is a row of a state, in a namespace. When it has many different values, as of
`CountDistinct`, they move to a piece, which is a row in a namespace beside it. So only the last values are written with each change.
Pieces of *level* n have the values of 2 to the power of n moves, and there is at most one of each level: a move merges the pieces that
are as large as what it moves, as a binary counter carries. So a value is written again once for each level, and a window that
fires reads few rows.

Parts of sessions that merge are merged piece by piece, as one adds two binary numbers.

Values move at a change, by the number of changes before it alone: so pieces do not depend on bundles and micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from copy import copy
from itertools import chain
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

from headrace.api.batches import Bundle, BundledRecord
from headrace.api.states import AggregatingState
from headrace.operators._accumulators import BundledChanges, Change
from headrace.operators._window_results import PartPieces, PartUpdate, WindowResult

PartState = AggregatingState[Change, Any, Any]
"""State that holds parts."""
Pieces = Mapping[str, Any]
"""Pieces of one part by their namespaces, the earliest first."""
NO_PIECES: Final[Pieces] = MappingProxyType({})

CHANGES: Final = 512
"""Values of a large row move to a piece when its part has a multiple of so many changes, and one more comes."""


def stays(row: Any, records: int, *, retracts: bool = False) -> bool:
    """Return whether so many records neither move values of a row (None: there is none), nor read its pieces. Mostly they do neither."""
    if row is None:
        return records <= CHANGES
    may_move = row.changes and row.changes % CHANGES == 0
    return not (may_move or (retracts and row.moved)) and records <= _until_due(row)


def _is_due(pieces: PartPieces, row: Any) -> bool:
    """Return whether the values of a row move at the next change."""
    return row.changes % CHANGES == 0 and row.changes > 0 and pieces.is_full(row)


def _is_due_merged(pieces: PartPieces, row: Any, merged: Sequence[int]) -> bool:
    """Return whether the values of a row move that parts with so many changes have merged into: together they reach a further multiple."""
    return sum(merged) // CHANGES > sum(changes // CHANGES for changes in merged) and pieces.is_full(row)


def _until_due(row: Any) -> int:
    """Return how many changes come before values of this row may move again, or for the first time."""
    changes: int = row.changes
    return CHANGES - changes % CHANGES


class DividedParts:
    """Divides the parts of a state, for the key whose code runs. `name` is the namespace of a part's row."""

    def __init__(self, result: WindowResult, pieces: PartPieces) -> None:
        """Take the result, and how its parts are divided."""
        self._merge = result.merge
        self._pieces = pieces

    async def wholes(self, state: PartState, rows: dict[str, Any]) -> dict[str, Any]:
        """Return the whole parts of some rows."""
        divided = {name: row for name, row in rows.items() if row.moved}
        wholes = {
            name: self._pieces.whole_of(row, (await self._pieces_of(state, name, row)).values())
            for name, row in divided.items()
        }
        return {**rows, **wholes} if wholes else rows

    async def prepare(self, state: PartState, name: str, row: Any, *, retracts: bool) -> tuple[Any, Pieces]:
        """Move the values of a row if the next record is the one for it; return the row, and its pieces if records are taken back."""
        if _is_due(self._pieces, row):
            await self._move(state, name, row)
            row = await state.namespace(name).get()  # a full cache may have dropped the given one before it was changed
        return row, await self._pieces_of(state, name, row) if retracts and row.moved else {}

    async def add_all(
        self, state: PartState, name: str, bundle: Bundle, records: Sequence[BundledRecord], *, retracts: bool = False
    ) -> None:
        """Add records of a bundle to a part, and move its values between them where they have to. `retracts` says that some are taken back."""
        part, pieces, done = state.namespace(name), NO_PIECES, 0
        while done < len(records):
            bundle.work_on(records[done])
            row = await part.get()
            if row is not None:
                row, pieces = await self.prepare(state, name, row, retracts=retracts)
            chunk = records[done : done + (CHANGES if row is None else _until_due(row))]
            await part.add_all(BundledChanges(bundle, chunk, pieces.values()))
            await self.end(state, name, pieces)
            done += len(chunk)

    async def merge(self, state: PartState, name: str, others: Sequence[str]) -> None:
        """Merge other parts into the part `name`, and move its values if they have become too many."""
        rows = await state.get_namespaces((name, *others))
        changes = [row.changes for row in rows.values()]
        await merge_parts(state, name, others, rows)
        row = await state.namespace(name).get()
        if row is not None and _is_due_merged(self._pieces, row, changes):
            await self._move(state, name, row)

    async def _pieces_of(self, state: PartState, name: str, row: Any) -> Pieces:
        """Return the pieces of a row, the earliest first."""
        return await state.get_namespaces(piece_names(name, row.moved))

    async def end(self, state: PartState, name: str, pieces: Pieces) -> None:
        """Remove the pieces that `prepare` has returned, if the part has lost them: with its last record."""
        row = await state.namespace(name).get() if pieces else None
        for piece in pieces if row is not None and not row.moved else ():
            await state.namespace(piece).clear()

    async def _move(self, state: PartState, name: str, row: Any) -> None:
        """Move the values of a row to a piece."""
        target, merged = _target(name, row.moved)
        piece = self._pieces.piece_of(row)
        await state.namespace(target).clear()  # a piece whose row was deleted by hand is none of this part
        if merged:
            await state.merge_namespaces(target, merged)
        await state.namespace(target).add_all(PartUpdate(lambda pieces: self._merge(pieces, piece)))
        await state.namespace(name).add_all(PartUpdate(self._pieces.rest_of))

    @staticmethod
    async def clear_pieces(state: PartState, name: str, moved: int) -> None:
        """Remove the pieces of a part with so many moves."""
        for piece in piece_names(name, moved):
            await state.namespace(piece).clear()


async def merge_parts(state: PartState, name: str, others: Sequence[str], rows: Mapping[str, Any]) -> None:
    """Merge other parts into the part `name`: their rows, which are given, and their pieces."""
    moved = moves_of(rows.get(name))
    for other in others:
        more = moves_of(rows.get(other))
        for target, merged in united(name, moved, other, more) if more else ():
            await state.namespace(target).clear()  # as in `_move`
            await state.merge_namespaces(target, merged)
        moved += more
    await state.merge_namespaces(name, others)


Owner = TypeVar("Owner", bound=Hashable)
"""What has a part: a namespace of it belongs to no other."""
Places = Sequence[tuple[Owner, str]]
"""Namespaces of parts."""


class ColumnPieces(Generic[Owner]):
    """Divides the parts of records as columns, as `DividedParts` does. What is stored does not change: `changed` has all changes of pieces."""

    def __init__(self, pieces: PartPieces | None, stored: Callable[[Places[Owner]], Sequence[Any]]) -> None:
        """Take how parts are divided (None: they never are), and the function that reads stored pieces."""
        self._pieces = pieces
        self._stored = stored
        self.changed: dict[tuple[Owner, str], tuple[Any, int]] = {}
        """The changed pieces, None for those that are removed, and the event time of the last record that changed each (ms)."""

    def read(self, places: Places[Owner]) -> list[Any]:
        """Return the pieces in some places; None where there is none."""
        both = zip(places, self._stored(places), strict=True)
        return [self.changed[place][0] if place in self.changed else piece for place, piece in both]

    def chunks(
        self, owner: Owner, name: str, row: Any, records: Sequence[BundledRecord]
    ) -> Iterator[Sequence[BundledRecord]]:
        """Yield the records of a part, and move values of its row between them. The caller adds their values to the row in place."""
        done = 0
        while done < len(records):
            if self._pieces is not None and _is_due(self._pieces, row):
                self._move(self._pieces, owner, name, row, records[done].timestamp)
            chunk = records[done : done + _until_due(row)]
            yield chunk
            row.rows += len(chunk)
            done += len(chunk)

    def move_merged(self, owner: Owner, name: str, row: Any, merged: Sequence[int], at: int) -> None:
        """Move the values of a row, at the time of a record (ms), if parts with so many changes have merged into one that has to."""
        if self._pieces is not None and _is_due_merged(self._pieces, row, merged):
            self._move(self._pieces, owner, name, row, at)

    def _move(self, pieces: PartPieces, owner: Owner, name: str, row: Any, at: int) -> None:
        target, merged = _target(name, row.moved)
        *earlier, _ = self.read([(owner, piece) for piece in (*merged, target)])  # the target only so as to be set
        self.changed.update(((owner, piece), (None, at)) for piece in merged)
        self.changed[owner, target] = pieces.piece_of(pieces.whole_of(row, earlier)), at
        pieces.rest_of(row)


def copied(row: Any) -> Any:
    """Return a row whose aggregates may be replaced."""
    other = copy(row)
    other.aggregates = copy(row.aggregates)
    return other


def moves_of(row: Any) -> int:
    """Return how often values of a row (None: there is none) have moved."""
    return getattr(row, "moved", 0)


def united(name: str, moved: int, other: str, more: int) -> list[tuple[str, list[str]]]:
    """Return the changed pieces of a part with another one merged in, the largest first: each with the pieces that it is made of. All are namespaces.

    `moved` and `more` are the numbers of moves. Two pieces of one level are merged to one of the next level, as one adds binary numbers.
    """
    pieces: list[tuple[str, list[str]]] = []
    carried: list[list[str]] = []
    for level in range((moved + more).bit_length()):
        parts = ((name, moved), (other, more))
        here = carried + [[_piece_name(part, level)] for part, moves in parts if moves >> level & 1]
        if len(here) % 2:
            pieces.append((_piece_name(name, level), here.pop()))
        carried = [[*chain(*here)]] if here else []
    return [(target, merged) for target, merged in reversed(pieces) if merged != [target]]


def piece_names(name: str, moved: int) -> list[str]:
    """Return the namespaces of the pieces of a part with so many moves, the largest first."""
    return [_piece_name(name, level) for level in reversed(range(moved.bit_length())) if moved >> level & 1]


def _target(name: str, moved: int) -> tuple[str, list[str]]:
    """Return the namespace of the piece of the next move, and those of the pieces that it takes in, the largest first."""
    level = (~moved & (moved + 1)).bit_length() - 1  # the first one without a piece
    return _piece_name(name, level), piece_names(name, moved % (1 << level))


def _piece_name(name: str, level: int) -> str:
    return f"{name} {level}"
