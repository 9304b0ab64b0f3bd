"""The keys that `key_by` makes from records."""

from __future__ import annotations

from typing import Annotated

import msgspec
import pytest

from headrace import Struct
from headrace.api.graph import KeyBy
from headrace.records.keys import key_reader, stage_key
from headrace.state.codec import encode


class Line(Struct, frozen=True):
    flight: str
    leg: int | None


def test_key_is_null_if_any_part_is():
    """A key is a field, or a tuple of fields."""
    assert stage_key(Line("UA1", None), ("flight",)) == "UA1"
    assert stage_key(Line("UA1", 2), ("flight", "leg")) == ("UA1", 2)
    assert stage_key(Line("UA1", None), ("flight", "leg")) is None
    assert stage_key(Line("UA1", None), ("leg",)) is None
    assert stage_key(Line("", 0), ("flight", "leg")) == ("", 0)


class Fare(Struct):
    price: float
    discount: float | None = None
    either: int | float = 0
    limited: Annotated[float, msgspec.Meta(ge=0)] | None = None


@pytest.mark.parametrize("price", [5, 5.0, -0.5])
def test_key_is_unchanged_by_storing(price):
    fields = ("price", "discount", "either", "limited")
    emitted = Fare(price, 3, 2, 4)
    stored = msgspec.json.decode(encode(emitted), type=Fare)
    assert encode(stage_key(emitted, fields)) == encode(stage_key(stored, fields))
    assert encode(stage_key(emitted, ("price",))) == encode(stage_key(stored, ("price",)))
    assert stage_key(Fare(1), fields) is None


def test_zeros_of_both_signs_are_one_key():
    # For SQL, -0.0 equals 0.0: a merge with a row of each would find two rows for one key.
    assert encode(stage_key(Fare(-0.0), ("price",))) == encode(stage_key(Fare(0), ("price",))) == b"0.0"


@pytest.mark.parametrize(
    ("created", "key"),
    [("a", "a"), (0, 0), (-0.0, 0.0), (False, False), (None, None), (("a", 1), ("a", 1)), (("a", None), None)],
)
def test_function_may_make_the_key(created, key):
    assert encode(key_reader(KeyBy(function=lambda _: created))(Line("UA1", 2))) == encode(key)


@pytest.mark.parametrize("created", [["a"], {"a": 1}, Line("UA1", 2), ("a", ["b"])])
def test_key_of_another_type_is_refused(created):
    with pytest.raises(
        TypeError, match="a key is text, a number, a truth value, a UUID, a time or a tuple of them, not "
    ):
        key_reader(KeyBy(function=lambda _: created))(Line("UA1", 2))
