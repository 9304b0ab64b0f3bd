from __future__ import annotations

import enum
import json
import math
from datetime import UTC, date, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import Struct
from headrace.cli.output import shown_key
from headrace.errors import StateSchemaError
from headrace.state.codec import Codec, decode_key, encode, key_texts, written_keys


class Leg(Struct, frozen=True):
    origin: str
    minutes: float
    seats: int | None = None


class Colour(enum.Enum):
    RED = "red"


def codec(kind):
    return Codec(kind, "state 'legs' of operator 'delay'")


legs = st.builds(
    Leg,
    origin=st.text(),
    minutes=st.floats(allow_nan=False, allow_infinity=False),
    seats=st.none() | st.integers(-(2**63), 2**63 - 1),
)


@given(leg=legs)
def test_value_survives_its_json(leg):
    assert codec(Leg).decode(codec(Leg).encode(leg)) == leg


@given(key=st.text() | st.integers(-(2**63), 2**63 - 1) | st.tuples(st.text(), st.integers(0, 9)))
def test_key_survives_json_without_raw_zero_bytes(key):
    raw = encode(key)
    assert b"\x00" not in raw
    result = decode_key(raw)
    assert (tuple(result) if isinstance(key, tuple) else result) == key


def test_field_may_be_added_with_a_default():
    class LegBefore(Struct, frozen=True):
        origin: str
        minutes: float

    stored = codec(LegBefore).encode(LegBefore("EWR", 3.0))
    assert codec(Leg).decode(stored) == Leg("EWR", 3.0, None)


@pytest.mark.parametrize(
    ("stored", "kind", "words"),
    [
        (b'{"origin":"EWR","minutes":"3"}', Leg, ["Leg", "Expected `float`, got `str`", "$.minutes"]),
        (b'{"origin":"EWR"}', Leg, ["missing required field `minutes`"]),
        (b'"text"', int, ["int", "Expected `int`, got `str`"]),
        (b"[1,null]", list[int], ["list[int]", "got `null`", "$[1]"]),
        (b"{not json", Leg, ["JSON is malformed"]),
    ],
)
def test_state_misfit_names_state_field_and_types(stored, kind, words):
    with pytest.raises(StateSchemaError) as raised:
        codec(kind).decode(stored)
    for word in ["state 'legs' of operator 'delay'", stored.decode(), "restore an older checkpoint", *words]:
        assert word in str(raised.value)


def test_long_value_is_cut_in_the_message():
    with pytest.raises(StateSchemaError) as raised:
        codec(int).decode(b'"' + "ü".encode() * 10_000 + b'"')
    assert len(str(raised.value)) < 700


# If these values were committed, nobody could read them again: every later run would fail.
@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("text", int),
        (math.nan, float),
        (math.inf, float),
        (Leg("EWR", "three"), Leg),
        (Leg("EWR", math.nan), Leg),
        (object(), int),
        ({"a": 1}, list[int]),
        (date(2013, 1, 1), Colour),
        ("\ud800", str),
    ],
)
def test_unreadable_value_is_refused_before_storing(value, kind):
    """An unreadable value is refused before it is stored."""
    with pytest.raises(StateSchemaError, match=r"state 'legs' of operator 'delay' was given .* does not fit"):
        codec(kind).encode(value)


def test_enums_and_nested_types_are_kept():
    kind = dict[str, tuple[Colour, ...]]
    value = {"a": (Colour.RED, Colour.RED)}
    assert codec(kind).decode(codec(kind).encode(value)) == value


@pytest.mark.parametrize(("value", "names_nan"), [("a", False), (float("nan"), True)])
def test_refused_value_has_consequence_and_advice(value, names_nan):
    with pytest.raises(StateSchemaError, match=r"Nothing was committed\. Correct the function") as refusal:
        Codec(float, "state 's'").encode(value)
    assert ("JSON has no NaN" in str(refusal.value)) is names_nan


STORED_AS = {
    "milliseconds": lambda time: (time - EPOCH) // timedelta(milliseconds=1),
    "microseconds": lambda time: (time - EPOCH) // timedelta(microseconds=1),
    "with a zone": lambda time: time,
    "without a zone": lambda time: time.replace(tzinfo=None),
}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
WRITTEN_AS = (
    lambda time: time.replace(tzinfo=None).isoformat(),
    lambda time: time.replace(tzinfo=None).isoformat(" "),
    lambda time: time.astimezone(timezone(timedelta(hours=5, minutes=30))).isoformat(),
)
TIMES = st.datetimes(timezones=st.just(UTC), min_value=datetime(1900, 1, 1), max_value=datetime(2200, 1, 1))  # noqa: DTZ001 - as st.datetimes wants them


@given(TIMES, st.sampled_from([*STORED_AS]), st.sampled_from(WRITTEN_AS), st.sampled_from(["UA", 15, None]))
def test_written_time_means_each_stored_form(time, form, written, beside):
    time = time.replace(microsecond=time.microsecond // 1000 * 1000)
    if form == "without a zone":
        written = WRITTEN_AS[0]
    stored, text = STORED_AS[form](time), written(time)
    if beside is None:
        assert encode(stored).decode() in written_keys(text)
    else:
        assert encode([beside, stored]).decode() in written_keys(json.dumps([beside, text]))


@given(TIMES, st.sampled_from(WRITTEN_AS))
def test_written_time_means_no_other_time(time, written):
    numbers = [json.loads(text) for text in written_keys(written(time)) if text.lstrip("-").isdigit()]
    micros = (time - EPOCH) // timedelta(microseconds=1)
    assert {*numbers} <= {micros, micros / 1000}


@given(st.text() | st.integers().map(str) | st.lists(st.text(max_size=5), max_size=12).map(json.dumps))
def test_keys_without_times_stay_as_written(key):
    assert [*dict.fromkeys(key_texts(key))] == written_keys(key)


@given(st.integers(946_684_800_000, 2_524_607_999_999), st.sampled_from(["{}", '["UA",{}]', "[{},{}]"]))
def test_printed_key_means_itself(time, form):
    stored = form.format(time, time)
    assert stored in written_keys(shown_key(stored))
    assert "Z)" in shown_key(stored)


def test_quoted_time_is_a_text():
    assert written_keys('"2013-01-05"') == ['"2013-01-05"', r'"\"2013-01-05\""']


def test_lists_of_many_times_are_texts():
    key = json.dumps(["2013-01-05"] * 12)
    assert written_keys(key) == key_texts(key)


@pytest.mark.parametrize("text", ["9999-12-31T23:59:59-05:00", "0001-01-01T00:00:00+05:00"])
def test_time_out_of_range_is_a_text(text):
    assert written_keys(text) == key_texts(text)
    assert f'["{text}",1]' in written_keys(f'["{text}", 1]')


def test_quoted_text_keeps_its_own_time():
    printed = '["a 5 (2013-01-05T00:00:00Z)", 5 (2013-01-05T00:00:00Z)]'
    assert '["a 5 (2013-01-05T00:00:00Z)",5]' in written_keys(printed)
