"""A job that reads the board of the job `purchases`: appended rows, or its changes."""

from __future__ import annotations

from typing import Final

from headrace import Context, KeyedProcessFunction, Pipeline, Struct, Timestamp


class Line(Struct, frozen=True):
    """What this job reads of a line: the board has the time of purchase as milliseconds."""

    item: str
    bought: Timestamp
    cents: int


class Seen(Struct, frozen=True):
    """A change of a line, with its row kind."""

    item: str
    cents: int
    kind: str


class Follow(KeyedProcessFunction[Line, Seen]):
    """Emits each change of a line."""

    async def process(self, line: Line, ctx: Context, /) -> None:
        """Emit the change."""
        ctx.collect(Seen(line.item, line.cents, ctx.row_kind.symbol))


def _pipeline(row_kind: str | None) -> Pipeline:
    lines = Pipeline("follower").source("lines", Line, event_time="bought", row_kind=row_kind)
    return lines.key_by("item").process("follow", Follow()).sink("seen")


appends: Final = _pipeline(None)
changes: Final = _pipeline("_change_type")
