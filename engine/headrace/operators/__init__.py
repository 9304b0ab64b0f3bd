"""Ready-made operators. They use only the public state API, so your own functions can do the same."""

from headrace.operators._aggregates import ArgMax, ArgMin, Avg, Count, CountDistinct, First, Last, Max, Min, Sum
from headrace.operators._calendar import CalendarUnit
from headrace.operators._change_events import ValidFrom, ValidTo
from headrace.operators._count_windows import CountWindow
from headrace.operators._group_aggregation import running_aggregate
from headrace.operators._ranking import Rank
from headrace.operators._row_functions import Lag, Lead, RowNumber
from headrace.operators._triggers import after_rows, every
from headrace.operators._windows import Calendar, Cumulative, Hopping, Session, Tumbling

__all__ = [
    "ArgMax",
    "ArgMin",
    "Avg",
    "Calendar",
    "CalendarUnit",
    "Count",
    "CountDistinct",
    "CountWindow",
    "Cumulative",
    "First",
    "Hopping",
    "Lag",
    "Last",
    "Lead",
    "Max",
    "Min",
    "Rank",
    "RowNumber",
    "Session",
    "Sum",
    "Tumbling",
    "ValidFrom",
    "ValidTo",
    "after_rows",
    "every",
    "running_aggregate",
]
