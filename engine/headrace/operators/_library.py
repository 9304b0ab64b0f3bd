"""Functions behind the methods of streams; `headrace.stream.library` imports this module."""

from __future__ import annotations

from headrace.operators._as_of_join import as_of_join
from headrace.operators._first_records import first_by_time, last_by_time, top_n
from headrace.operators._group_aggregation import group_aggregation
from headrace.operators._interval_join import interval_join
from headrace.operators._normalize import normalize
from headrace.operators._regular_join import regular_join

__all__ = [
    "as_of_join",
    "first_by_time",
    "group_aggregation",
    "interval_join",
    "last_by_time",
    "normalize",
    "regular_join",
    "top_n",
]
