"""The rules of DelayPropagation, tested on one aircraft at a time. Clock times are minutes: 600 is ten o'clock."""

from __future__ import annotations

import pytest

from headrace import RowKind

#   A departs 600, block 120: lands 720, is back and ready 720 + 120 + 60 = 900 plus its delay.
READY = 900


@pytest.fixture
def two_legs(scenario):
    scenario.scheduled("A", departs=600, block=120)
    scenario.scheduled("B", departs=READY, block=90)
    scenario.emitted()
    return scenario


def test_scheduled_leg_enters_board_without_expectation(scenario):
    scenario.scheduled("A", departs=600, block=120)
    assert scenario.emitted() == [("+I", "A", "scheduled", None)]


def test_departure_is_forecast_to_the_next_leg(two_legs):
    two_legs.departed("A", late=25)
    assert two_legs.emitted() == [
        ("-U", "A", "scheduled", None),
        ("+U", "A", "departed", None),
        ("-U", "B", "scheduled", None),
        ("+U", "B", "scheduled", 25),
    ]


def test_arrival_corrects_the_forecast(two_legs):
    two_legs.departed("A", late=25)
    two_legs.arrived("A", late=10)
    assert two_legs.emitted()[-2:] == [("-U", "B", "scheduled", 25), ("+U", "B", "scheduled", 10)]


def test_unchanged_forecast_is_not_repeated(two_legs):
    two_legs.departed("A", late=25)
    two_legs.emitted()
    two_legs.arrived("A", late=25)
    assert two_legs.emitted() == [("-U", "A", "departed", None), ("+U", "A", "arrived", None)]


def test_spare_time_means_zero_expected_delay(two_legs):
    two_legs.departed("A", late=-20)
    assert two_legs.expected("B") == 0


def test_leg_scheduled_after_departure_expects_at_once(scenario):
    scenario.scheduled("A", departs=600, block=120)
    scenario.departed("A", late=30)
    scenario.emitted()
    scenario.scheduled("B", departs=READY + 90, block=60)
    assert scenario.emitted() == [("+I", "B", "scheduled", 0)]


def test_only_the_first_upcoming_leg_expects_anything(two_legs):
    two_legs.scheduled("C", departs=READY + 60, block=60)
    two_legs.departed("A", late=30)
    assert (two_legs.expected("B"), two_legs.expected("C")) == (30, None)


def test_departed_leg_keeps_its_expectation(two_legs):
    two_legs.departed("A", late=25)
    two_legs.arrived("A", late=10)
    two_legs.departed("B", late=40)
    two_legs.arrived("B", late=5)
    assert two_legs.expected("B") == 10


def test_leg_departing_out_of_order_expects_nothing(two_legs):
    two_legs.scheduled("C", departs=READY + 10, block=60)
    two_legs.departed("A", late=30)
    two_legs.departed("C")
    assert two_legs.expected("C") is None


def test_cancelled_leg_lets_next_leg_take_over(two_legs):
    """The cancelled leg leaves the board."""
    two_legs.scheduled("C", departs=READY + 60, block=60)
    two_legs.departed("A", late=90)
    two_legs.emitted()
    two_legs.cancelled("B")
    assert two_legs.emitted() == [
        ("-D", "B", "scheduled", 90),
        ("-U", "C", "scheduled", None),
        ("+U", "C", "scheduled", 30),
    ]


def test_displaced_leg_still_arrives_but_forecasts_nothing(two_legs):
    two_legs.scheduled("C", departs=READY + 300, block=60)
    two_legs.departed("A")
    two_legs.departed("B", late=10)
    before = two_legs.expected("C")
    two_legs.emitted()
    two_legs.arrived("A", late=300)
    assert two_legs.emitted() == [("-U", "A", "departed", None), ("+U", "A", "arrived", None)]
    assert two_legs.expected("C") == before


def test_rows_of_kind_update_before_are_ignored(two_legs):
    event, _ = two_legs.last
    two_legs.simulation.process(event, RowKind.UPDATE_BEFORE)
    assert two_legs.emitted() == []


@pytest.mark.parametrize("step", ["departed", "arrived", "cancelled"])
def test_second_delivery_changes_nothing(two_legs, step):
    if step == "arrived":
        two_legs.departed("A")
    getattr(two_legs, step)("A")
    two_legs.emitted()
    written = two_legs.simulation.legs.writes
    two_legs.delivered_again()
    assert two_legs.emitted() == []
    assert two_legs.simulation.legs.writes == written


def test_aircraft_is_unknown_after_twelve_hours_without_events(scenario):
    scenario.scheduled("A", departs=600, block=120)
    scenario.departed("A")
    scenario.arrived("A")
    scenario.scheduled("B", departs=720 + 12 * 60 + 360, block=90)  # its event comes at 720 + 12 h
    assert scenario.expected("B") is None


def test_minute_less_than_twelve_hours_is_remembered(scenario):
    scenario.scheduled("A", departs=600, block=120)
    scenario.departed("A")
    scenario.arrived("A")
    scenario.scheduled("B", departs=720 + 12 * 60 + 359, block=90)
    assert scenario.expected("B") == 0


def test_forgotten_leg_departs_without_a_retraction(scenario):
    scenario.scheduled("A", departs=600, block=120)
    scenario.emitted()
    scenario.departed("A", late=360)
    assert scenario.emitted() == [("+U", "A", "departed", None)]


#   A departs 600, deadline 600 + 120 + 60 = 780.


def test_flight_arriving_at_its_deadline_gets_no_alert(two_legs):
    two_legs.departed("A")
    two_legs.arrived("A", late=60)
    two_legs.advance(2_000)
    assert two_legs.alerts() == []


def test_watermark_at_the_deadline_makes_an_alert(two_legs):
    two_legs.departed("A")
    two_legs.advance(779)
    assert two_legs.alerts() == []
    two_legs.advance(780)
    assert two_legs.alerts() == ["A"]


def test_late_arrival_alerts_even_before_the_watermark(two_legs):
    two_legs.departed("A")
    two_legs.arrived("A", late=61)
    assert two_legs.alerts() == ["A"]


def test_each_flight_gets_one_alert_at_most(two_legs):
    """Each flight gets one alert at most, whether it arrives later or not."""
    two_legs.departed("A")
    two_legs.advance(785)
    two_legs.arrived("A", late=500)
    two_legs.advance(3_000)
    assert two_legs.alerts() == ["A"]


def test_alert_fires_after_aircraft_state_expired(scenario):
    #  New York to Honolulu: the deadline is 12 h 40 min after the departure
    scenario.scheduled("A", departs=600, block=700)
    scenario.departed("A")
    scenario.advance(600 + 700 + 60)
    assert scenario.alerts() == ["A"]


def test_two_legs_with_one_deadline_share_a_timer(two_legs):
    two_legs.scheduled("C", departs=590, block=130)
    two_legs.departed("A")
    two_legs.departed("C")
    two_legs.arrived("C")
    two_legs.advance(780)
    assert two_legs.alerts() == ["A"]


def test_displaced_leg_is_watched_as_well(two_legs):
    two_legs.departed("A")
    two_legs.departed("B", late=-200)
    two_legs.advance(780)
    assert two_legs.alerts() == ["A"]


def test_finished_flights_leave_no_state(two_legs):
    two_legs.departed("A")
    two_legs.arrived("A")
    assert two_legs.simulation.watches.values == {}
    assert two_legs.simulation.contexts["N1"].timers.due == set()
