"""Reading of kept answers: those to some requests of one operator, not more of the table than that needs.

Answers are sorted by the place of arrival, and a slice's elements are near each other. So most answers are in a window around the
slice. A request without an answer there, or with one that might not be the nearest, is looked for in all answers of the operator,
a batch of rows at a time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace import clock
from headrace.async_io.kept_answers import KeptAnswer, Wanted
from headrace.tables.files import Storage
from headrace.tables.last_rows import last_rows
from headrace.tables.predicate import BetweenTimes, OneOf, Within, rows_that_meet
from headrace.tables.schemas import ANSWERS
from headrace.tables.store import storage_errors
from headrace.tables.stored_rows import typed_rows
from headrace.tables.stores import state_view
from headrace.tables.view import TableView, in_milliseconds

MARGIN: Final = 10_000
"""Default margin of a window: corrected input has its rows at other ordinals, but seldom by more than this."""

_MOST_WINDOWS: Final = 8
"""Number of windows above which all answers of the operator are read instead."""

_COLUMNS: Final = KeptAnswer.__struct_fields__

Window = tuple[int, int]
"""First and last arrival ordinal."""


def read_answers(
    job_folder: str, version: int, operator: str, wanted: Wanted, *, storage: Storage = None, margin: int = MARGIN
) -> list[KeptAnswer]:
    """Return the answers to requests that have not expired; of a request that the job got often, at least the nearest ones.

    A window is `margin` ordinals larger than the elements in it, on each side.
    """
    answers = state_view(job_folder, ANSWERS, version, storage).of(operator)
    windows = windows_around([ordinal for ordinals in wanted.values() for ordinal in ordinals], margin)
    near = [_rows(answers.where(Within("ordinal", *window)).live(), wanted) for window in windows]
    near_answers = [KeptAnswer(**row) for rows in near for row in rows]
    far = {*wanted} - _settled(near_answers, wanted, windows)
    return [answer for answer in near_answers if answer.digest not in far] + (_anywhere(answers, far) if far else [])


def windows_around(ordinals: Sequence[int], margin: int) -> list[Window]:
    """Return the windows around ordinals, in order; none if there would be too many."""
    windows: list[Window] = []
    for ordinal in sorted(set(ordinals)):
        first, last = max(0, ordinal - margin), ordinal + margin
        if windows and first <= windows[-1][1]:
            windows[-1] = windows[-1][0], last
        else:
            windows.append((first, last))
    return windows if len(windows) <= _MOST_WINDOWS else []


def _settled(near_answers: Iterable[KeptAnswer], wanted: Wanted, windows: Sequence[Window]) -> set[str]:
    """Return the requests for which no answer outside of the windows can be nearer."""
    places: dict[str, list[int]] = {}
    for answer in near_answers:
        places.setdefault(answer.digest, []).append(answer.ordinal)
    return {
        digest
        for digest, ordinals in wanted.items()
        if (near := sorted(places.get(digest, ()))) and all(_is_nearest(near, at, windows) for at in {*ordinals})
    }


def _is_nearest(near: Sequence[int], ordinal: int, windows: Sequence[Window]) -> bool:
    first, last = next(window for window in windows if window[0] <= ordinal <= window[1])
    behind = bisect_left(near, ordinal)
    distance = min(abs(ordinal - place) for place in near[max(0, behind - 1) : behind + 1])
    return ordinal + distance <= last and (ordinal - distance >= first or first == 0)


def _anywhere(answers: TableView, digests: Iterable[str]) -> list[KeptAnswer]:
    """Return the answers to requests, wherever they arrived."""
    condition, schema, uri = OneOf("digest", tuple(sorted(digests))), answers.table.schema, answers.snapshot.uri
    matching = [schema.empty_table()]
    with storage_errors(f"to read {uri}"):
        for batch in pa.RecordBatchReader.from_stream(answers.stream()):
            rows = typed_rows(uri, pa.Table.from_batches([batch]), schema)
            matching.append(rows.filter(condition.mask(rows)))
    return [KeptAnswer(**row) for row in _rows(last_rows(pa.concat_tables(matching), answers.table), digests)]


def _rows(rows: pa.Table, digests: Iterable[str]) -> list[dict[str, Any]]:
    conditions = (OneOf("digest", tuple(digests)), BetweenTimes("expires_at", after=clock.now()))
    plain: list[dict[str, Any]] = in_milliseconds(rows_that_meet(conditions, rows).select(_COLUMNS)).to_pylist()
    return plain


def unexpired_answers(rows: pa.Table, now: int) -> pa.Table:
    """Return the answers that have not expired at `now` (ms)."""
    return rows.filter(BetweenTimes("expires_at", after=now).mask(rows))


def answer_columns(rows: Sequence[KeptAnswer]) -> dict[str, list[str | int | None]]:
    """Return the own columns of `answers`, without the key."""
    return {name: [getattr(row, name) for row in rows] for name in _COLUMNS if name != "key"}


def count_by_checkpoint(chunks: Iterable[pa.Table]) -> Counter[int]:
    """Return the number of answers that have not expired, by the checkpoint that committed them. `chunks` are live rows."""
    now, counts = clock.now(), Counter[int]()
    for rows in chunks:
        ids = unexpired_answers(rows, now)["checkpoint_id"]
        counts.update({count["values"]: count["counts"] for count in pc.value_counts(ids).to_pylist()})
    return counts
