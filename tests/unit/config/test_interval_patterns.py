"""Patterns of file names: the interval that a name gives, against `strftime` and the calendar of Python."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import available_timezones

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from headrace.config._interval_pattern import interval_pattern

DIRECTIVES = [f"%{letter}" for letter in "YymbBdjUWGVaAwuHIpMSfz"]
ZONES = sorted(available_timezones())
MINUTE, DAY = 60_000, 86_400_000


def ms(text):
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def name_of(pattern, timestamp):
    """Return the name that `strftime` gives a timestamp (ms)."""
    return (
        (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=timestamp))
        .astimezone(pattern.zone)
        .strftime(pattern.text)
    )


def compiled(text, zone="UTC"):
    try:
        return interval_pattern(text, zone)
    except ValueError:
        return None


WHOLE = [
    "%Y",
    "%y",
    "%Y-%m",
    "%Y-%j",
    "%Y-%m-%d",
    "%G-W%V",
    "%Y-%U",
    "%Y-%W",
    "%Y%m%dT%H%M%S%z",
    "%Y-%m-%dT%I%p%z",
    "%Y-%b-%d",
]
patterns = st.one_of(
    st.sampled_from(WHOLE),
    st.lists(st.sampled_from(DIRECTIVES), min_size=1, max_size=7, unique=True).map("-".join),
    st.tuples(st.sampled_from(WHOLE), st.sampled_from(DIRECTIVES)).map("_".join),
)
# Before 2012 the clocks of St. John's went back over midnight, so that two days took turns.
timestamps = st.integers(ms("2012-01-02"), ms("2036-12-30"))


@given(patterns, st.sampled_from(ZONES), timestamps, st.floats(0, 1))
@example("%Y-%m-%d", "America/New_York", ms("2026-03-08T12:00"), 0.5)
@example("%Y-%m-%dT%H%z", "America/New_York", ms("2026-11-01T06:30"), 0.5)
@example("%Y-%m-%dT%H%z", "Australia/Lord_Howe", ms("2026-10-03T15:30"), 0.99)
@example("%Y-%m-%dT%H%z", "Pacific/Chatham", ms("2026-09-26T14:10"), 0.01)
@example("%Y-%m-%d", "America/Havana", ms("2026-11-01T04:30"), 0.01)
@example("%Y-%W", "Asia/Tokyo", ms("2026-12-31T15:00"), 0.0)
@example("%Y-%U-%W-%a", "UTC", ms("2027-01-01T00:00"), 0.0)
def test_interval_is_all_moments_of_its_name(text, zone, timestamp, share):
    pattern = compiled(text, zone)
    assume(pattern is not None)
    name = name_of(pattern, timestamp)
    start, end = pattern.interval_of(name)
    assert (start, end) == pattern.period_at(timestamp)
    assert start <= timestamp < end
    within = start + int((end - 1 - start) * share)
    assert {name_of(pattern, at) for at in (start, within, end - 1)} == {name}
    assert pattern.period_at(start - 1)[1] == start
    assert pattern.period_at(end)[0] == end
    assert name not in {name_of(pattern, start - 1), name_of(pattern, end)}


@given(st.lists(st.sampled_from(DIRECTIVES), min_size=1, max_size=7, unique=True))
def test_refused_pattern_comes_with_advice(directives):
    assume(compiled("-".join(directives)) is None)
    with pytest.raises(ValueError, match=r"(write|add) .*%"):
        interval_pattern("-".join(directives), "UTC")


@given(st.sampled_from(["%Y-%m-%d", "%G-W%V", "%Y-%m", "%Y"]), st.sampled_from(ZONES))
def test_years_are_tiled(text, zone):
    pattern = interval_pattern(text, zone)
    start = pattern.period_at(ms("2019-12-25"))[0]
    names = []
    while start < ms("2021-01-08"):
        begin, end = pattern.period_at(start)
        assert begin == start < end
        names.append(name_of(pattern, start))
        start = end
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("text", "zone", "name", "start", "end"),
    [
        ("%Y-%m-%d", "America/New_York", "2026-03-02", "2026-03-02T05:00", "2026-03-03T05:00"),
        ("%Y-%m-%d", "America/New_York", "2026-03-08", "2026-03-08T05:00", "2026-03-09T04:00"),
        ("%Y-%m-%d", "Europe/Berlin", "2026-10-25", "2026-10-24T22:00", "2026-10-25T23:00"),
        ("%Y-%m-%d", "America/Sao_Paulo", "2018-11-04", "2018-11-04T03:00", "2018-11-05T02:00"),  # midnight does not exist
        ("%Y-%m", "Europe/Berlin", "2026-03", "2026-02-28T23:00", "2026-03-31T22:00"),
        ("%Y-%W", "UTC", "2026-05", "2026-02-02", "2026-02-09"),
        ("%Y-%U", "UTC", "2026-05", "2026-02-01", "2026-02-08"),
        ("%Y-%W", "UTC", "2026-00", "2026-01-01", "2026-01-05"),
        ("%Y-%W", "UTC", "2026-52", "2026-12-28", "2027-01-01"),
        ("%G-W%V", "UTC", "2026-W53", "2026-12-28", "2027-01-04"),
        ("%Y-%W-%a", "UTC", "2026-05-Tue", "2026-02-03", "2026-02-04"),
        ("%y%m%d", "UTC", "260302", "2026-03-02", "2026-03-03"),
        ("%Y-%m-%d %I%p", "UTC", "2026-03-02 12AM", "2026-03-02T00:00", "2026-03-02T01:00"),
        ("%Y-%m-%d %I%p", "UTC", "2026-03-02 1pm", "2026-03-02T13:00", "2026-03-02T14:00"),
        ("%Y-%m-%dT%H%z", "America/New_York", "2026-11-01T01-0500", "2026-11-01T06:00", "2026-11-01T07:00"),
        ("%Y-%m-%dT%H%z", "Asia/Kolkata", "2026-11-01T01+05:30", "2026-10-31T19:30", "2026-10-31T20:30"),
        ("%Y-%m-%dT%H", "Asia/Tokyo", "2026-11-01T01", "2026-10-31T16:00", "2026-10-31T17:00"),
        ("%B %Y", "UTC", "march 2026", "2026-03-01", "2026-04-01"),
        ("%Y-%m-%d", "UTC", "2026-3-2", "2026-03-02", "2026-03-03"),
        ("%Y-%m-%dT%H%M%S.%f", "UTC", "2026-03-02T000000.5", "2026-03-02T00:00:00.500", "2026-03-02T00:00:00.501"),
        ("100%%-%j-%Y", "UTC", "100%-061-2026", "2026-03-02", "2026-03-03"),
    ],
)  # fmt: skip
def test_name_gives_its_interval(text, zone, name, start, end):
    assert interval_pattern(text, zone).interval_of(name) == (ms(start), ms(end))


@pytest.mark.parametrize(
    ("text", "zone", "name"),
    [
        ("%Y-%m-%d", "UTC", "2026-02-30"),
        ("%Y-%W", "UTC", "2026-53"),
        ("%G-W%V", "UTC", "2025-W53"),
        ("%Y-%j", "UTC", "2026-366"),
        ("%Y-%m-%d-%a", "UTC", "2026-03-02-Tue"),
        ("%Y%m%d", "UTC", "2026111"),  # 1 November, or 11 January
        ("%Y-%m-%dT%H%z", "UTC", "2026-03-02T05+0100"),
        ("%Y-%m-%dT%H%z", "America/New_York", "2026-03-08T02-0500"),  # clocks go forward
        ("%Y-%m-%d", "Pacific/Apia", "2011-12-30"),  # Samoa went from the 29th to the 31st
        ("%Y-%m-%dT%H", "Asia/Shanghai", "1988-09-11T01"),  # clocks went back, before 2000
        ("%Y", "UTC", "0000"),
        ("%Y-%m-%d", "UTC", "\u0662\u0660\u0662\u0666-03-02"),
    ],
)  # fmt: skip
def test_name_of_no_moment_does_not_fit(text, zone, name):
    assert interval_pattern(text, zone).interval_of(name) is None


@pytest.mark.parametrize(
    ("text", "zone", "advice"),
    [
        ("%m-%d", "UTC", "add %Y"),
        ("%H", "UTC", "add %Y"),
        ("%V", "UTC", "add %G"),
        ("%Y-%V", "UTC", "%G-W%V"),
        ("%G", "UTC", "%G-W%V"),
        ("%Y-%d", "UTC", "%Y-%m-%d"),
        ("%Y-%m-%a", "UTC", "%Y-%m-%d"),
        ("%Y-%G-%V", "UTC", "%G-W%V"),
        ("%Y-%m-%d-%I", "UTC", "add %p"),
        ("%Y-%m-%d-%p", "UTC", "write %H"),
        ("%Y-%m-%d-%M", "UTC", "needs the hour"),
        ("%Y-%m %H", "UTC", "write %Y-%m-%d"),
        ("%Y-%m-%d%z", "UTC", "write %H"),
        ("%Y-%m-%d %Z", "UTC", "write %z"),
        ("%c", "UTC", "write %Y-%m-%dT%H%M%S"),
        ("%x", "UTC", "write %Y-%m-%d"),
        ("%Y%Y", "UTC", "twice"),
        ("%Y-%m-%d%", "UTC", "write %%"),
        ("%Q", "UTC", "write one such as %Y-%m-%d"),
        ("%Y-%-m", "UTC", "write one such as"),
        ("%Y-%m-%dT%H", "America/New_York", "add %z"),
        ("%Y-%m-%dT%H", "Australia/Lord_Howe", "add %z"),
    ],
)  # fmt: skip
def test_pattern_without_periods_is_refused(text, zone, advice):
    with pytest.raises(ValueError, match="write|add") as error:
        interval_pattern(text, zone)
    assert advice in str(error.value)


def test_last_year_ends_behind_all_moments():
    assert interval_pattern("%Y-%m-%d").interval_of("9999-12-30") is not None
    with pytest.raises(OverflowError):
        interval_pattern("%Y-%m-%d").interval_of("9999-12-31")
