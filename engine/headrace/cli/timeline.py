"""Timeline of a job's checkpoints for its page: a drawing along time, and tables that say the same.

A long job has one bar for many checkpoints, and one mark for changes that stand close together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from headrace.cli.charts import Lane, Span, along_time, arrows, bars, figure, folded, marks, ways
from headrace.cli.page import Markup, section, table
from headrace.names import counted
from headrace.report import Time

if TYPE_CHECKING:
    from headrace.cli.job_facts import JobFacts
    from headrace.log.branches import Branch
    from headrace.log.checkpoint import Checkpoint

_MOST_ROWS: Final = 200
_BARS, _MARKS = 120, 60
"""Parts of the width: a bar stands for the checkpoints of one, a mark for the changes of one."""
_MOST_ARROWS: Final = 40
_MOST_LABELS: Final = 6
_MOST_NAMES: Final = 3
_LONGEST_LABEL: Final = 24
_CHANGES: Final = {
    "Savepoints": ("savepoint", "savepoint_drop"),
    "Edits, erasures, migrations and requeues": ("edit", "erasure", "migration", "requeue"),
    "Compactions, vacuums and the like": ("compaction", "vacuum", "acknowledgement", "fork"),
}
_DAY: Final = 86_400_000
_LONG: Final = 4 * _DAY


def timeline(about: JobFacts) -> Markup:
    """Return the part of the page: the drawing, its tables, and the changes, newest first."""
    if not about.all:
        return section("Timeline", "There is no checkpoint since that time.")
    kinds = [checkpoint.kind.value for checkpoint in about.all]
    counts = [(kind, kinds.count(kind)) for kind in dict.fromkeys(kinds)]
    events = [checkpoint for checkpoint in reversed(about.all) if checkpoint.kind.value != "batch"]
    rows = [_event(checkpoint, about.undone) for checkpoint in events[:_MOST_ROWS]]
    title = "Restores, savepoints, edits, branches and other changes"
    branches, why_not = _open_branches(about)
    return section(
        "Timeline",
        _drawn(about, branches),
        why_not,
        _branch_table(branches),
        table("Checkpoints by kind", ("kind", "checkpoints"), counts),
        _cut(events, "change"),
        table(title, [*rows[0]], [[*row.values()] for row in rows]) if rows else None,
    )


def _cut(rows: Sequence[Any], noun: str) -> str | None:
    return f"The table has the last {_MOST_ROWS} of {counted(len(rows), noun)}." if len(rows) > _MOST_ROWS else None


def _event(checkpoint: Checkpoint, undone: Mapping[int, Checkpoint]) -> dict[str, Any]:
    """Return a row of the table of changes, by headings."""
    return {
        "checkpoint": str(checkpoint.checkpoint_id),
        "kind": checkpoint.kind.value,
        "name": checkpoint.name,
        "committed (UTC)": Time(checkpoint.committed_at),
        "from": None if checkpoint.restored_from is None else str(checkpoint.restored_from),
        "run": checkpoint.run_id,
        "note": checkpoint.note,
        "undone": _undone(checkpoint, undone),
    }


def _undone(checkpoint: Checkpoint, undone: Mapping[int, Checkpoint]) -> str | None:
    by = undone.get(checkpoint.checkpoint_id)
    return None if by is None else f"by {by.kind.value} {by.checkpoint_id}"


def _open_branches(about: JobFacts) -> tuple[Sequence[Branch], str | None]:
    """Return the open branches that there were at the checkpoint, and why they are not known."""
    from headrace.errors import HeadraceError
    from headrace.log.branches import Branches

    if about.config.branch is not None:
        return (), None
    try:
        known = Branches(about.config).open
    except HeadraceError as error:
        return (), f"The branches cannot be read: {error}"
    return [branch for branch in known if branch.fork_id <= about.checkpoint.checkpoint_id], None


def _branch_table(branches: Sequence[Branch]) -> Markup | None:
    rows = [(branch.name, str(branch.fork_id), Time(branch.created_at), f"{branch.note or ''}") for branch in branches]
    return table("Open branches", ("branch", "from", "made (UTC)", "note"), rows) if rows else None


@dataclass(frozen=True, slots=True)
class _Axis:
    """Time from the first to the last commit that is shown."""

    start: int
    end: int

    def share(self, time: int) -> float:
        """Return the place of a time, from 0 to 1."""
        return min(1.0, max(0.0, (time - self.start) / max(1, self.end - self.start)))

    def slot(self, time: int, slots: int) -> int:
        return min(slots - 1, int(self.share(time) * slots))

    @property
    def ticks(self) -> tuple[str, str, str]:
        """Return the beginning, the middle and the end: days of a long time, minutes of a short one."""
        first, middle, last = (
            _text(time, self.end - self.start) for time in (self.start, (self.start + self.end) // 2, self.end)
        )
        return (first, middle, last) if self.end > self.start else (first, "", "")


def _text(time: int, length: int) -> str:
    text = str(Time(time - time % 1000))
    if length >= _LONG:
        return text[:10]
    return text[5:16].replace("T", " ") if length >= _DAY // 24 else text[11:19]


def _drawn(about: JobFacts, branches: Sequence[Branch]) -> Markup:
    """Return the drawing, with the table of runs."""
    times = [checkpoint.committed_at for checkpoint in about.all]
    axis = _Axis(min(times), max(times))
    restores = [checkpoint for checkpoint in about.all if checkpoint.kind.value == "restore"]
    lanes = [_checkpoints(about, axis), _restores(about, axis, restores)]
    lanes += [_changes(about, axis, label, kinds, at + 2) for at, (label, kinds) in enumerate(_CHANGES.items())]
    lanes.append(_branches(about, axis, branches))
    title = "Checkpoints along time"
    described = (
        f"{counted(len(about.all), 'checkpoint')} from {Time(axis.start)} to {Time(axis.end)}: {counted(len(about.undone), 'checkpoint')} undone, "
        f"{counted(len(restores), 'restore')}. The tables below have them."
    )
    runs = _runs(about)
    names = ("run", "checkpoints", "first", "last", "from (UTC)", "to (UTC)", "undone")
    cut = f"The last {_MOST_ARROWS} restores are drawn." if len(restores) > _MOST_ARROWS else None
    return figure(
        f"{title} (UTC)",
        along_time(title, described, [lane for lane in lanes if lane is not None], axis.ticks),
        cut,
        _cut(runs, "run"),
        folded("Runs", table("Runs, the last one first", names, runs[:_MOST_ROWS])),
    )


def _runs(about: JobFacts) -> list[tuple[Any, ...]]:
    """Return a row for each run, the last one first."""
    rows = []
    for run, group in groupby(about.all, key=lambda checkpoint: checkpoint.run_id):
        own = [*group]
        ids = [str(checkpoint.checkpoint_id) for checkpoint in own]
        times = [checkpoint.committed_at for checkpoint in own]
        undone = sum(checkpoint.checkpoint_id in about.undone for checkpoint in own)
        rows.append((run, len(own), ids[0], ids[-1], Time(min(times)), Time(max(times)), undone or None))
    return rows[::-1]


def _checkpoints(about: JobFacts, axis: _Axis) -> Lane:
    """Return bars of checkpoints; those that are undone stand on those that count."""
    slots: dict[int, list[Checkpoint]] = defaultdict(list)
    for checkpoint in about.all:
        slots[axis.slot(checkpoint.committed_at, _BARS)].append(checkpoint)
    parts = []
    for slot, own in sorted(slots.items()):
        undone = sum(checkpoint.checkpoint_id in about.undone for checkpoint in own)
        span = Span((slot + 0.1) / _BARS, (slot + 0.9) / _BARS, _bar_title(own, undone))
        parts.append((span, len(own) - undone, undone))
    is_many = len(about.all) > len(parts)
    notes = [note for note, holds in (("a bar for several", is_many), ("grey: undone", about.undone)) if holds]
    label = f"Checkpoints ({'; '.join(notes)})" if notes else "Checkpoints"
    return bars(label, parts, [*_stretches(about, axis)])


def _bar_title(own: Sequence[Checkpoint], undone: int) -> str:
    """Return what a bar stands for."""
    runs = [*dict.fromkeys(checkpoint.run_id for checkpoint in own)]
    named = ", ".join(runs) if len(runs) <= _MOST_NAMES else counted(len(runs), "run")
    first, last = own[0], own[-1]
    which = (
        f"checkpoint {first.checkpoint_id}, {first.kind.value}"
        if first is last
        else f"{counted(len(own), 'checkpoint')}, {first.checkpoint_id} to {last.checkpoint_id}"
    )
    return f"{which}, from {Time(first.committed_at)}, {named}{f'; {undone} undone' if undone else ''}"


def _stretches(about: JobFacts, axis: _Axis) -> Iterator[Span]:
    """Yield the stretches of time whose checkpoints restores and promotions left behind; those that meet as one."""
    stretches = sorted(
        (axis.share(_origin_time(about, by)), axis.share(by.committed_at), by.checkpoint_id)
        for by in {by.checkpoint_id: by for by in about.undone.values()}.values()
    )
    start = end = 0.0
    ids: list[int] = []
    for first, last, number in stretches:
        if ids and first > end:
            yield _stretch(start, end, ids)
            ids = []
        start, end = (start, max(end, last)) if ids else (first, last)
        ids.append(number)
    if ids:
        yield _stretch(start, end, ids)


def _stretch(start: float, end: float, ids: Sequence[int]) -> Span:
    return Span(start, end, f"has checkpoints that were undone by {_listed(ids)}")


def _listed(ids: Iterable[int]) -> str:
    known = [*map(str, ids)]
    more = f" and {len(known) - _MOST_NAMES} more" if len(known) > _MOST_NAMES else ""
    return f"{', '.join(known[:_MOST_NAMES])}{more}"


def _origin_time(about: JobFacts, checkpoint: Checkpoint) -> int:
    """Return when the checkpoint was committed that a restore went back to, or a branch began at."""
    origin = None if checkpoint.restored_from is None else about.lineage.get(checkpoint.restored_from)
    return checkpoint.committed_at if origin is None else origin.committed_at


def _restores(about: JobFacts, axis: _Axis, restores: Sequence[Checkpoint]) -> Lane | None:
    spans = [
        Span(
            axis.share(_origin_time(about, checkpoint)),
            axis.share(checkpoint.committed_at),
            f"back to checkpoint {checkpoint.restored_from}: {_change(checkpoint)}",
        )
        for checkpoint in restores[-_MOST_ARROWS:]
    ]
    return arrows("Restores, back to the checkpoint that was restored", spans, 1) if spans else None


def _changes(about: JobFacts, axis: _Axis, label: str, kinds: Sequence[str], colour: int) -> Lane | None:
    """Return a lane of marks; None where there is no such change."""
    slots: dict[int, list[Checkpoint]] = defaultdict(list)
    for checkpoint in about.all:
        if checkpoint.kind.value in kinds:
            slots[axis.slot(checkpoint.committed_at, _MARKS)].append(checkpoint)
    parts = [(Span(axis.share(own[0].committed_at), 0, _named(own)), len(own)) for _, own in sorted(slots.items())]
    return marks(label, parts, colour % 4) if parts else None


def _named(own: Sequence[Checkpoint]) -> str:
    """Return what a mark stands for."""
    more = f" and {len(own) - _MOST_NAMES} more" if len(own) > _MOST_NAMES else ""
    return f"{'; '.join(map(_change, own[:_MOST_NAMES]))}{more}"


def _change(checkpoint: Checkpoint) -> str:
    """Return a checkpoint in words: kind, id, name, time and reason, as far as it has them."""
    name = f" {checkpoint.name}" if checkpoint.name else ""
    words = f"{checkpoint.kind.value} {checkpoint.checkpoint_id}{name}, {Time(checkpoint.committed_at)}: {checkpoint.note or ''}"
    return words.removesuffix(": ")


def _branches(about: JobFacts, axis: _Axis, open_branches: Sequence[Branch]) -> Lane | None:
    """Return a lane of branches, from the checkpoint that they began at to their promotion; None without one."""
    spans = [
        Span(
            axis.share(_origin_time(about, checkpoint)),
            axis.share(checkpoint.committed_at),
            f"branch {checkpoint.name}, from checkpoint {checkpoint.restored_from}, promoted as {checkpoint.checkpoint_id}, {Time(checkpoint.committed_at)}",
            f"{_short(checkpoint.name or '')}, promoted",
        )
        for checkpoint in about.all
        if checkpoint.kind.value == "promotion"
    ]
    for branch in open_branches:
        origin = about.lineage.get(branch.fork_id)
        start = branch.created_at if origin is None else origin.committed_at
        title = f"branch {branch.name}, from checkpoint {branch.fork_id}, open"
        spans.append(Span(axis.share(start), 1.0, title, f"{_short(branch.name)}, open", is_open=True))
    shown = spans[-_MOST_ARROWS:]
    if len(shown) > _MOST_LABELS:
        shown = [Span(span.start, span.end, span.title, is_open=span.is_open) for span in shown]
    return ways("Branches, from their fork to their promotion", shown, 0) if shown else None


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_LABEL else f"{name[: _LONGEST_LABEL - 1]}…"
