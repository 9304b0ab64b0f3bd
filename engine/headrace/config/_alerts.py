"""Conditions of alerts: `alerts: {lag: "> 2h", quarantined: "> 1 % of rows"}` in a job's file."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from headrace.config._values import parse_duration
from headrace.metrics import ALERT_METRICS, METRICS, Unit
from headrace.names import did_you_mean

_FORM: Final = re.compile(r"(?P<sign>>=|<=|>|<)\s*(?P<number>\d+(?:\.\d+)?)\s*(?P<rest>.*)")
_SIGNS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_BYTES: Final = {"": 1, "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_DAY: Final = 86_400_000
_PERIODS: Final = {"% a day": _DAY, "% a week": 7 * _DAY, "% a month": 30 * _DAY}
OF_ROWS: Final = "% of rows"


@dataclass(frozen=True, slots=True)
class Condition:
    """Condition on a metric: an alert is raised while it holds."""

    metric: str
    text: str
    """As the job's file has it."""
    sign: str
    number: float
    """In the unit of the metric; or a percentage."""
    is_of_rows: bool = False
    """The number is a percentage of the rows of the run."""
    period: int = 0
    """Of a metric that grows: the time over which it does (ms)."""

    def holds(self, value: float) -> bool:
        """Return whether a value of the metric raises the alert."""
        return _SIGNS[self.sign](value, self.number)


def parse_condition(metric: str, text: str) -> Condition:
    """Return the condition of an alert. Raises `ValueError` for an unknown metric, and for a text that is no condition on it."""
    known = ALERT_METRICS.get(metric)
    if known is None:
        raise ValueError(f"no such metric{did_you_mean(metric, ALERT_METRICS)}")
    form = _FORM.fullmatch(text.strip())
    if form is None:
        raise ValueError(f"'{text}' is no condition: write a sign and a number, such as '{_EXAMPLES[known.unit]}'")
    sign, number, rest = form["sign"], float(form["number"]), form["rest"].strip()
    rest = " ".join(rest.split())
    condition = _of_unit(Condition(metric, text, sign, number), known.unit, rest)
    if condition is None:
        raise ValueError(f"'{text}': '{rest}' does not fit {known.unit}: write it as '{_EXAMPLES[known.unit]}'")
    return condition


def _of_unit(plain: Condition, unit: Unit, rest: str) -> Condition | None:
    """Return a condition with its number in the unit of its metric; None if the words behind the number do not fit."""
    if unit is Unit.PERCENT:
        return None if rest not in _PERIODS else _changed(plain, plain.number, period=_PERIODS[rest])
    if unit is Unit.MILLISECONDS:
        try:
            span = parse_duration(f"{plain.number:.15g}{rest}".replace(" ", ""))
        except ValueError:
            return None
        return _changed(plain, span.total_seconds() * 1000)
    if unit is Unit.BYTES:
        return None if rest not in _BYTES else _changed(plain, plain.number * _BYTES[rest])
    if rest == OF_ROWS and plain.metric in METRICS:  # a job as a whole has no rows
        return _changed(plain, plain.number, is_of_rows=True)
    return None if rest else plain


def _changed(plain: Condition, number: float, *, is_of_rows: bool = False, period: int = 0) -> Condition:
    return Condition(plain.metric, plain.text, plain.sign, number, is_of_rows, period)


_COUNT: Final = "> 100"
_EXAMPLES: Final[Mapping[Unit, str]] = {
    **dict.fromkeys(Unit, _COUNT),
    Unit.PERCENT: "> 20 % a week",
    Unit.MILLISECONDS: "> 2h",
    Unit.BYTES: "> 5 GB",
    Unit.ROWS: "> 1 % of rows",
}
