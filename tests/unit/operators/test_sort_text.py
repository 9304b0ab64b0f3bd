"""Texts sort like the values that they encode, single values and tuples, in both directions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.operators._ranking import sort_text
from headrace.operators._value_types import annotated_type

INTEGERS = st.integers(-(1 << 63), (1 << 63) - 1)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
TYPES = {
    int: INTEGERS,
    float: FLOATS,
    str: st.text(st.characters(codec="utf-8"), max_size=4),
    bytes: st.binary(max_size=4),
    bool: st.booleans(),
    tuple[int | None, str]: st.tuples(st.none() | st.integers(-2, 2), st.sampled_from(["", "a", "ab", "b", "é"])),
}


def nulls_first(value):
    return tuple((part is not None, part) for part in (value if isinstance(value, tuple) else (value,)))


@pytest.mark.parametrize("held", TYPES)
@pytest.mark.parametrize("descending", [False, True])
def test_encoded_sort_texts_order_like_values(held, descending):
    text = sort_text("it", annotated_type(held | None), descending=descending)

    @given(one=st.none() | TYPES[held], other=st.none() | TYPES[held])
    def compares(one, other):
        texts = (text(one), text(other))
        assert all(part.isascii() for part in texts)
        if one is None or other is None:
            less, equal = one is None and other is not None, one is other
        else:
            less, equal = nulls_first(one) < nulls_first(other), one == other
        if equal:
            assert texts[0] == texts[1]
        else:
            assert (texts[0] < texts[1]) is (less is not descending)
            assert not texts[1].startswith(texts[0])

    compares()


def test_number_of_more_than_64_bits_fails():
    text = sort_text("cents", annotated_type(int), descending=True)
    with pytest.raises(ValueError, match="cents is 9223372036854775808, more than 64 bits can hold"):
        text(1 << 63)


@pytest.mark.parametrize(
    ("held", "value"),
    [(int, 2.5), (str, 3), (tuple[int, str], (1,)), (tuple[int, str], 4), (tuple[int, str], ("a", 1))],
)
def test_value_of_another_type_fails(held, value):
    text = sort_text("weight", annotated_type(held), descending=False)
    with pytest.raises(TypeError, match="weight is annotated as .*, but gave "):
        text(value)
