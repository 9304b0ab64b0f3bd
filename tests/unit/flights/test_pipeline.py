"""The job as the engine sees it."""

from __future__ import annotations

import msgspec

from headrace.plan.planner import plan_stages
from pipelines.flights import pipeline
from pipelines.flights.delay_propagation import Legs, Watches
from pipelines.flights.records import BoardRow, HourlyDepartures, OverdueAlert


def test_operators_are_in_order_of_the_flow():
    names = [operator.name for operator in pipeline.operators]
    assert names == [
        "flight_events",
        "drop_update_before",
        "weather",
        "delay_propagation",
        "overdue_alerts",
        "board",
        "flight_board",
        "filter has_departed",
        "count_departures",
        "departures",
        "hourly_departures",
    ]


def test_each_sink_gets_its_records():
    sinks = plan_stages(pipeline).sinks
    assert {name: sink.record for name, sink in sinks.items()} == {
        "overdue_alerts": OverdueAlert,
        "flight_board": BoardRow,
        "hourly_departures": HourlyDepartures,
    }


def test_call_has_time_for_all_its_retries():
    (weather,) = (operator for operator in pipeline.operators if operator.name == "weather")
    waits = [weather.retry.backoff(number) for number in range(weather.retry.max_retries)]
    assert sum(waits[1:], waits[0]) < weather.timeout


def test_state_survives_its_encoding(scenario):
    scenario.scheduled("A", departs=600, block=120)
    scenario.scheduled("B", departs=900, block=90)
    scenario.departed("A", late=5)
    scenario.departed("B", late=-60)
    for values, kind in ((scenario.simulation.legs.values, Legs), (scenario.simulation.watches.values, Watches)):
        assert msgspec.json.decode(msgspec.json.encode(values["N1"]), type=kind) == values["N1"]
