"""How the state of a job grew: charts of live entries at some checkpoints, or where that takes long, of stored rows.

Live entries are read from the tables. What is stored is in the logs of the tables, which have the number of rows of each file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.cli.charts import Series, chart
from headrace.cli.page import Markup, number
from headrace.names import counted

if TYPE_CHECKING:
    from headrace.cli.job_facts import JobFacts
    from headrace.log.checkpoint import Checkpoint
    from headrace.readers.job_at import JobAtCheckpoint

_MOST_READ: Final = 12
"""Checkpoints whose state is read."""
_SECONDS_OF_READING: Final = 2.0
_FEWEST: Final = 3
"""Points of a line: two do not tell much."""

Sizes = dict[str, tuple[int, int]]
"""Numbers and bytes by operator."""


class _Way(NamedTuple):
    """A way to tell how much there is at a checkpoint: what reads it, what it is, and what it leaves out."""

    read: Callable[[Checkpoint], Sizes | None]
    source: str
    remark: str
    charts: tuple[tuple[str, str], tuple[str, str]]
    """Titles and units of both charts."""


def growth(about: JobFacts, job: JobAtCheckpoint, seconds: float) -> Sequence[Markup | str]:
    """Return charts of the state at some checkpoints: as many as can be read in a few seconds. To list the last one took `seconds`."""
    past = [checkpoint for checkpoint in about.live if checkpoint.has_state]
    if len(past) < 2:  # noqa: PLR2004 - a point makes no line
        return []
    live, stored = _live(job), _stored(job)
    if seconds < 2 * _SECONDS_OF_READING / _FEWEST:  # half of it may be the start of DuckDB, which comes once
        seconds = _seconds_of(live, past[-1])
    if (most := _affordable(seconds)) >= _FEWEST:
        return _lines(about, past, most, live)
    slow = f"Reading the state of one checkpoint takes {number(seconds)} s, so how it grew is that of what is stored."
    if (most := _affordable(_seconds_of(stored, past[-1]))) >= _FEWEST:
        return [slow, *_lines(about, past, most, stored)]
    return [f"How it grew is not shown: reading the state of one checkpoint takes {number(seconds)} s."]


def _live(job: JobAtCheckpoint) -> _Way:
    return _Way(
        partial(_sizes, job),
        "from the tables in the same way",
        "Bytes are those of the values as JSON. Entries that were deleted or had expired by then, and what files add, do not count.",
        (("Live entries by operator", "entries"), ("Bytes of live values by operator", "bytes")),
    )


def _stored(job: JobAtCheckpoint) -> _Way:
    return _Way(
        partial(_stored_sizes, job),
        "from the logs of the tables",
        "Rows are changes of entries, of which a compaction keeps the last one of each. Bytes are those of compressed files.",
        (("Stored rows by operator", "rows"), ("Bytes of files by operator", "bytes")),
    )


def _seconds_of(way: _Way, checkpoint: Checkpoint) -> float:
    from headrace import clock

    began = clock.monotonic()
    way.read(checkpoint)
    return clock.monotonic() - began


def _affordable(seconds: float) -> int:
    return min(_MOST_READ, int(_SECONDS_OF_READING / max(seconds, 0.001)))


def _lines(about: JobFacts, past: Sequence[Checkpoint], most: int, way: _Way) -> list[Markup | str]:
    sizes = read_some(past, most, way.read)
    operators = sorted({operator for size in sizes.values() if size is not None for operator in size})
    labels = [str(checkpoint_id) for checkpoint_id in sizes]

    def series(place: int) -> Series:
        values = {
            operator: [None if size is None else size.get(operator, (0, 0))[place] for size in sizes.values()]
            for operator in operators
        }
        return Series(labels, values)

    return [
        f"How it grew, read {way.source}, at {len(sizes)} of {counted(len(past), 'checkpoint')}.",
        way.remark,
        *_unread(about, [checkpoint_id for checkpoint_id, size in sizes.items() if size is None]),
        *(chart(title, unit, series(place)) for place, (title, unit) in enumerate(way.charts)),
    ]


def read_some(
    past: Sequence[Checkpoint], most: int, read: Callable[[Checkpoint], Sizes | None]
) -> dict[int, Sizes | None]:
    """Return what some of the checkpoints have, by id: the first, the last, and others at even distances.

    Where most of those cannot be read (None), it reads others that lie behind the last such one.
    """
    sizes: dict[int, Sizes | None] = {}
    while True:
        count = min(most, len(past))
        places = [at * (len(past) - 1) // max(1, count - 1) for at in range(count)]
        for at in places:
            if past[at].checkpoint_id not in sizes:
                sizes[past[at].checkpoint_id] = read(past[at])
        unread = [at for at in places if sizes[past[at].checkpoint_id] is None]
        if 2 * len(unread) <= count or not unread[-1]:
            return dict(sorted(sizes.items()))
        past = past[unread[-1] :]


def _sizes(job: JobAtCheckpoint, checkpoint: Checkpoint) -> Sizes | None:
    """Return the state at a checkpoint; None if it cannot be read any more."""
    from headrace.errors import HeadraceError
    from headrace.readers.state import list_states

    try:
        return by_operator(list_states(job.moved_to(checkpoint)).dicts())
    except HeadraceError:
        return None


def _stored_sizes(job: JobAtCheckpoint, checkpoint: Checkpoint) -> Sizes | None:
    """Return what is stored at a checkpoint; None if the logs do not tell it."""
    from headrace.errors import HeadraceError
    from headrace.readers.stored_sizes import stored_sizes

    try:
        return stored_sizes(job.moved_to(checkpoint))
    except HeadraceError:
        return None


def by_operator(states: Sequence[Mapping[str, Any]]) -> Sizes:
    """Return live entries and their bytes by operator."""
    sizes: Sizes = {}
    for row in states:
        entries, size = sizes.get(row["operator"], (0, 0))
        sizes[row["operator"]] = (entries + row["entries"], size + row["bytes"])
    return sizes


def _unread(about: JobFacts, ids: Sequence[int]) -> Iterator[str]:
    """Yield a sentence on checkpoints whose state could not be read."""
    if not ids:
        return
    vacuums = [c.checkpoint_id for c in about.all if c.kind.value == "vacuum" and c.checkpoint_id > ids[-1]]
    why = (
        f"vacuum {vacuums[-1]} came after them, which removes files that the retention does not keep"
        if vacuums
        else f"no vacuum came after them, so 'headrace verify {about.config.job} --full' may say why"
    )
    yield f"It cannot be read any more at {counted(len(ids), 'of these checkpoints', 'of these checkpoints')} ({', '.join(map(str, ids))}): {why}."
