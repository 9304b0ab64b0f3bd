"""Output of `headrace run` on stderr while it works: events and a progress bar on a terminal, else lines for a log."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from headrace import clock

if TYPE_CHECKING:
    from rich.console import Console

    from headrace.spark.options import Event

_SECONDS_BETWEEN_LINES = 60.0


@contextmanager
def shown_events() -> Iterator[Callable[[Event], None]]:
    """Yield the function that shows the events of a run, for the length of the block."""
    if not sys.stderr.isatty():
        yield EventLines(sys.stderr)
        return
    from rich.console import Console

    with shown_on(Console(stderr=True, highlight=False)) as on_event:
        yield on_event


class EventLines:
    """Writer of a line for each event, and of one line a minute for the progress within a micro-batch."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._next = clock.monotonic() + _SECONDS_BETWEEN_LINES

    def __call__(self, event: Event) -> None:
        """Write an event. Skip progress within a minute after the last."""
        if event.kind == "progress":
            now = clock.monotonic()
            if now < self._next:
                return
            self._next = now + _SECONDS_BETWEEN_LINES
        print(f"{_now()} {event.kind}: {event.message}", file=self._stream, flush=True)


@contextmanager
def shown_on(console: Console) -> Iterator[Callable[[Event], None]]:
    """Show events on a terminal, above a progress bar for the micro-batch."""
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(bar_width=20))
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def on_event(event: Event) -> None:
            if event.kind == "batch":
                bar.update(task, description=event.message, completed=0, total=None)
            elif event.kind == "progress":
                bar.update(
                    task, description=event.message, completed=event.fields["rows"], total=event.fields["of"] or None
                )
            else:
                console.print(f"{_now()}  {event.message}", markup=False)

        yield on_event


def _now() -> str:
    from headrace.cli._output import at_time, shown

    return shown(at_time(clock.now() // 1000 * 1000))
