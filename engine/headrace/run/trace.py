"""Trace of a run, as the run sees it: it says what begins and ends, and what its tasks report."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from headrace.log.checkpoint import Checkpoint
from headrace.run.messages import TaskReport

Attribute = str | int | float | None
"""Value of an attribute of a span; None: it has none."""


class Span(Protocol):
    """Part of a run that has begun."""

    def set(self, **attributes: Attribute) -> None:
        """Set attributes."""
        ...


class Trace(Protocol):
    """Observer of the parts of a run. No result depends on it, and it raises nothing."""

    @property
    def wants_tasks(self) -> bool:
        """Return whether tasks are to report their times."""
        ...

    def span(self, name: str, **attributes: Attribute) -> AbstractContextManager[Span]:
        """Observe a part for the length of a block, within the one whose block is open. An exception that leaves the block is its error."""
        ...

    def tasks(self, reports: Sequence[TaskReport], names: Sequence[str]) -> None:
        """Take the reports of tasks of the open part. `names` has the source or operator of each."""
        ...

    def committed(self, checkpoint: Checkpoint) -> None:
        """Take what a micro-batch has counted, after its commit."""
        ...


class _NoSpan:
    def set(self, **attributes: Attribute) -> None:
        """Forget them."""


NO_SPAN = _NoSpan()


class NoTrace:
    """Observer that does nothing."""

    wants_tasks = False

    def span(self, name: str, **attributes: Attribute) -> AbstractContextManager[Span]:  # noqa: ARG002
        """Do nothing around the block."""
        return nullcontext(NO_SPAN)

    def tasks(self, reports: Sequence[TaskReport], names: Sequence[str]) -> None:
        """Do nothing."""

    def committed(self, checkpoint: Checkpoint) -> None:
        """Do nothing."""


NO_TRACE = NoTrace()
