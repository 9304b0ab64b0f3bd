"""Records as JSON: held records and records between tasks can be read back, or are refused with their key."""

from __future__ import annotations

import msgspec
import pytest

from headrace import Struct
from headrace.errors import UserFunctionError
from headrace.execution.element import Element, RecordCodec
from headrace.records.order import record_order


class Bid(Struct):
    key: str
    cents: float


class Rate(Struct, frozen=True):
    currency: str


CODEC = RecordCodec("board", (Bid, Rate))


def element(record, **more):
    return Element(record_order(1), 5, 0, b'"a"', record, **more)


def test_each_input_has_its_own_type():
    held = CODEC.encode(element(Rate("EUR"), input=1))
    assert CODEC.decode(b'"a"', held, 1) == Rate("EUR")
    with pytest.raises(UserFunctionError, match="missing required field `key`"):
        CODEC.decode(b'"a"', held, 0)


def test_record_is_not_held_unless_it_reads_back():
    with pytest.raises(UserFunctionError, match="JSON has no NaN"):
        CODEC.encode(element(Bid("a", float("nan"))))


def test_record_beyond_json_is_refused_with_its_repr():
    with pytest.raises(UserFunctionError, match=r"record Bid\(key='a', cents=<object .*\n.*JSON cannot carry"):
        CODEC.encode(element(Bid("a", object())))


def test_record_shown_in_an_error_is_cut():
    with pytest.raises(UserFunctionError) as caught:
        CODEC.decode(b'"a"', msgspec.json.encode(["x" * 1000]))
    assert len(caught.value.record) == 500
