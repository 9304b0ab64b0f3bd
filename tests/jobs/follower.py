"""A job that reads the board of the job `purchases`: what is appended to it, or its changes."""

from __future__ import annotations

from typing import Final

from headrace import Context, KeyedProcessFunction, Pipeline, Struct
from tests.jobs.purchases import Line


class Seen(Struct, frozen=True):
    """What came of a line, and by which kind of change."""

    item: str
    cents: int
    kind: str


class Follow(KeyedProcessFunction[Line, Seen]):
    """Tells of each line."""

    async def process(self, line: Line, ctx: Context, /) -> None:
        """Tell of it."""
        ctx.collect(Seen(line.item, line.cents, ctx.row_kind.symbol))


def _pipeline(row_kind: str | None) -> Pipeline:
    lines = Pipeline("follower").source("lines", Line, event_time="bought", row_kind=row_kind)
    return lines.key_by("item").process("follow", Follow()).sink("seen")


appends: Final = _pipeline(None)
changes: Final = _pipeline("_change_type")
