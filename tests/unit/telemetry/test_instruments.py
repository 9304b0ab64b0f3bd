"""Instruments: one of each registered metric, with units by UCUM."""

from __future__ import annotations

import re

from headrace.metrics import ALERT_METRICS, METRICS, Total
from headrace.telemetry.instruments import INSTRUMENTS


def test_each_metric_has_one_instrument():
    assert INSTRUMENTS.keys() == {*METRICS, *ALERT_METRICS}
    assert len({own.name for own in INSTRUMENTS.values()}) == len(INSTRUMENTS)


def test_units_are_those_of_ucum():
    for own in INSTRUMENTS.values():
        assert re.fullmatch(r"By|ms|%|\{[a-z]+\}", own.unit), own
    assert {INSTRUMENTS[name].unit for name in ("expired", "state_batches", "calls")} == {
        "{entry}",
        "{batch}",
        "{call}",
    }


def test_sums_of_tasks_are_counters():
    for name, own in INSTRUMENTS.items():
        is_sum = name in METRICS and METRICS[name].total is Total.SUM
        assert (own.kind == "counter") == is_sum
