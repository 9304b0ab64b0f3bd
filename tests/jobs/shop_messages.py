"""A job that sends lines to a topic, and a job that reads them from the topic."""

from __future__ import annotations

from headrace import Pipeline, Struct, Timestamp


class Line(Struct, frozen=True):
    """A line of a bill, with a value of each kind."""

    id: str
    at: Timestamp
    shop: str | None = None
    amount: float | None = None
    paid: bool = False
    notes: list[str] | None = None


sender = Pipeline("sender").source("lines", Line, event_time="at").sink("sent")
receiver = Pipeline("receiver").source("received", Line, event_time="at").sink("kept")
