"""Windows of a calendar begin at the local midnights of a zone, and tile time."""

from __future__ import annotations

import calendar
import random
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo, available_timezones

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.names import is_name
from headrace.operators import Calendar, CalendarUnit, Tumbling
from headrace.operators._calendar import Periods
from headrace.operators._slice_times import SliceTimes
from tests.unit.operators.calendar_by_hand import CalendarByHand
from tests.unit.support.fuzzing import examples

DAY, WEEK, MONTH, QUARTER, YEAR = CalendarUnit
ZONES = sorted(available_timezones())
BERLIN = Calendar(DAY, zone="Europe/Berlin")


def ms(text):
    """Return a UTC time, as `2018-11-04T03:00`, in ms."""
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def window(windows, at):
    end = windows.ends_of(windows.slice_of(at))[-1]
    return windows.start_of(end), end


# ------------------------------------------------------------------------------------------------------- boundaries


@pytest.mark.parametrize(
    ("windows", "at", "start", "end"),
    [
        (BERLIN, "2025-03-30T12:00", "2025-03-29T23:00", "2025-03-30T22:00"),  # 23 hours
        (BERLIN, "2025-10-26T12:00", "2025-10-25T22:00", "2025-10-26T23:00"),  # 25 hours
        (Calendar(DAY, zone="America/Sao_Paulo"), "2018-11-04T12:00", "2018-11-04T03:00", "2018-11-05T02:00"),  # no 00:00
        (Calendar(DAY, zone="America/Havana"), "2024-11-03T12:00", "2024-11-03T04:00", "2024-11-04T05:00"),  # 00:00 twice
        (Calendar(DAY, zone="Asia/Beirut"), "2022-03-27T12:00", "2022-03-26T22:00", "2022-03-27T21:00"),
        (Calendar(DAY, zone="America/Toronto"), "1919-03-31T12:00", "1919-03-31T04:30", "1919-04-01T04:00"),  # 23:30 to 00:30
        (Calendar(DAY, zone="Pacific/Apia"), "2011-12-30T09:59", "2011-12-29T10:00", "2011-12-30T10:00"),
        (Calendar(DAY, zone="Pacific/Apia"), "2011-12-30T10:00", "2011-12-30T10:00", "2011-12-31T10:00"),  # no 30th
        (Calendar(WEEK, zone="Pacific/Apia"), "2011-12-30T12:00", "2011-12-26T10:00", "2012-01-01T10:00"),  # six days
        (Calendar(DAY, zone="America/St_Johns"), "2010-11-07T02:45", "2010-11-07T02:30", "2010-11-08T03:30"),  # 23:15 again
        (Calendar(WEEK, zone="Europe/Berlin"), "2025-11-02T22:59", "2025-10-26T23:00", "2025-11-02T23:00"),
        (Calendar(WEEK, zone="UTC", first_weekday=calendar.SUNDAY), "2025-11-02T00:00", "2025-11-02", "2025-11-09"),
        (Calendar(MONTH, zone="Europe/Berlin"), "2025-03-31T21:59", "2025-02-28T23:00", "2025-03-31T22:00"),
        (Calendar(MONTH, zone="UTC"), "2024-02-29T23:59", "2024-02-01", "2024-03-01"),
        (Calendar(QUARTER, zone="Asia/Tokyo"), "2024-12-31T15:00", "2024-12-31T15:00", "2025-03-31T15:00"),
        (Calendar(YEAR, zone="America/New_York"), "1969-12-31T12:00", "1969-01-01T05:00", "1970-01-01T05:00"),
        (Calendar(YEAR, zone="UTC"), "0001-06-01", "0001-01-01", "0002-01-01"),
    ],
)  # fmt: skip
def test_windows_begin_at_local_midnights(windows, at, start, end):
    assert window(windows, ms(at)) == (ms(start), ms(end))
    assert windows.start_of(ms(end)) == ms(start)


zones = st.sampled_from(ZONES)
units = st.sampled_from(CalendarUnit)
anytime = st.integers(ms("0001-01-01"), ms("9990-01-01")) | st.integers(ms("1860-01-01"), ms("2040-01-01"))


@st.composite
def any_calendars(draw, zones=zones):
    unit = draw(units)
    return Calendar(unit, zone=draw(zones), first_weekday=draw(st.integers(0, 6)) if unit is WEEK else 0)


@examples(60)
@given(any_calendars(), anytime)
def test_windows_tile_time(windows, at):
    times = SliceTimes(windows)
    bounds = []
    for _ in range(5):
        slice_ = times.slice_of(at)
        [end] = times.ends_of(slice_)
        start = times.start_of(end)
        bounds.append((start, end))
        assert start <= at < end
        assert windows.slice_of(at) == windows.slice_of(start) == windows.slice_of(end - 1) == slice_
        assert times.names_of(end) == times.last_names_of(end) == (str(slice_),)
        at = end
    assert all(end == start for (_, end), (start, _) in pairwise(bounds))


@examples(25)
@given(any_calendars(), st.integers(ms("1973-01-01"), ms("2040-01-01")))
def test_windows_equal_a_search_by_minutes(windows, at):
    assert {window(windows, at)} == CalendarByHand(windows).windows_at(at)


@examples(25)
@given(any_calendars(), st.integers(ms("1900-01-01"), ms("2040-01-01")))
def test_first_timestamp_shows_the_first_date(windows, at):
    start, _ = window(windows, at)
    zone = ZoneInfo(windows.zone)
    label = datetime.fromtimestamp(windows.slice_of(at) / 1000, UTC).date()
    before, first = (datetime.fromtimestamp(second, zone).date() for second in (start // 1000 - 1, start // 1000))
    assert before < label <= first


@pytest.mark.parametrize("unit", CalendarUnit)
def test_windows_equal_those_of_duckdb(unit):
    """Zones whose clocks never go back over a midnight that they have shown: `date_trunc` would divide the hour."""
    chance = random.Random(7)
    names = ["Europe/Berlin", "America/New_York", "America/Sao_Paulo", "America/Havana", "Asia/Kolkata", "Pacific/Apia",
             "Australia/Lord_Howe", "Asia/Beirut", "Africa/Casablanca", "UTC"]  # fmt: skip
    times = [chance.randrange(ms("1975-01-01"), ms("2020-01-01")) for _ in range(300)]
    with duckdb.connect() as connection:
        connection.execute("create table times as select unnest(?::bigint[]) as ms", [times])
        for zone in names:
            trunc = f"date_trunc('{unit.value}', make_timestamptz(ms * 1000) at time zone '{zone}')"
            labels = connection.execute(f"select ms, epoch_ms({trunc}) from times").fetchall()
            windows = Calendar(unit, zone=zone)
            assert [(at, windows.slice_of(at)) for at, _ in labels] == labels


@given(any_calendars(), st.lists(anytime, max_size=20))
def test_order_of_requests_changes_no_window(windows, times):
    def periods():
        return Periods(windows.unit, ZoneInfo(windows.zone), windows.first_weekday)

    one = periods()
    assert [one.at(at) for at in times] == [periods().at(at) for at in times]


# ---------------------------------------------------------------------------------------------------------- options


def test_equal_calendars_are_equal():
    assert Calendar(DAY, zone="Europe/Berlin") == BERLIN
    assert hash(Calendar(DAY, zone="Europe/Berlin")) == hash(BERLIN)
    others = [Calendar(WEEK, zone="Europe/Berlin"), Calendar(DAY, zone="Europe/Paris"), Tumbling(timedelta(days=1))]
    assert BERLIN not in others


def test_calendars_are_shown():
    weeks = Calendar(WEEK, zone="America/New_York", first_weekday=calendar.SUNDAY)
    assert str(BERLIN) == "calendar, days of Europe/Berlin"
    assert str(weeks) == "calendar, weeks of America/New_York, from Sunday"
    assert BERLIN.name == "day_europe_berlin"
    assert weeks.name == "week_from_sun_america_new_york"


def test_states_of_zones_have_different_names():
    names = [Calendar(WEEK, zone=zone, first_weekday=weekday).name for zone in ZONES for weekday in (0, 2)]
    assert len({*names}) == 2 * len(ZONES)
    assert all(is_name(f"{name}_early_emitted") for name in names)


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda: Calendar("day", zone="UTC"), TypeError, r"unit must be a CalendarUnit \(DAY, WEEK, .*\), not 'day'"),
        (lambda: Calendar(DAY, zone=None), TypeError, "zone must be the name of a time zone, such as .*, not None"),
        (lambda: Calendar(DAY, zone="Europe/Berln"), ValueError, "no time zone 'Europe/Berln'; did you mean 'Europe/Berlin'?"),
        (lambda: Calendar(DAY, zone="Europe"), ValueError, "this machine knows no time zone 'Europe'"),
        (lambda: Calendar(DAY, zone="../etc/passwd"), ValueError, "this machine knows no time zone"),
        (lambda: Calendar(DAY, zone=""), ValueError, "this machine knows no time zone ''"),
        (lambda: Calendar(WEEK, zone="UTC", first_weekday=7), ValueError, "first_weekday must be from 0"),
        (lambda: Calendar(WEEK, zone="UTC", first_weekday=True), ValueError, "first_weekday must be from 0"),
        (lambda: Calendar(DAY, zone="UTC", first_weekday=6), ValueError, "an option of weeks, and the unit is DAY"),
    ],
)  # fmt: skip
def test_invalid_options_are_refused(make, kind, message):
    with pytest.raises(kind, match=message):
        make()
