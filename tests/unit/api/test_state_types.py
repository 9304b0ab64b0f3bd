"""Types that states refuse when they are declared."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, Optional

import pytest

from headrace import BroadcastState, Lifetime, ListState, MapState, ReducingState, StateTtl, Struct, ValueState


class Noted(Struct, frozen=True):
    note: str | None = None


@pytest.mark.parametrize("values", [int | None, Optional[Noted], Annotated[int | None, "cents"], None])  # noqa: UP045 - the older spelling
@pytest.mark.parametrize("kind", [MapState, BroadcastState])
def test_maps_refuse_optional_values(kind, values):
    with pytest.raises(
        TypeError, match=rf"^{kind.__name__} 'm' has values of type .* None is not a value: .*remove\(\)"
    ):
        kind("m", str, values)


@pytest.mark.parametrize("values", [int, int | str, Noted, Any, list[int | None], dict[str, int | None]])
def test_maps_take_values_that_contain_none(values):
    assert MapState("m", str, values).type is values
    assert ValueState("v", int | None).type == int | None


KINDS = {
    "value": lambda **options: ValueState("s", int, **options),
    "list": lambda **options: ListState("s", int, **options),
    "map": lambda **options: MapState("s", str, int, **options),
    "reducing": lambda **options: ReducingState("s", int, max, **options),
}


@pytest.mark.parametrize("declare", KINDS.values(), ids=KINDS)
def test_durations_are_short_for_ttls(declare):
    assert declare(ttl=timedelta(days=1)).ttl == StateTtl(timedelta(days=1))
    assert declare(ttl=Lifetime.FOREVER).ttl is declare().ttl is declare(ttl=None).ttl is None


@pytest.mark.parametrize("wrong", ["1d", 86400, StateTtl])
@pytest.mark.parametrize("declare", KINDS.values(), ids=KINDS)
def test_states_refuse_other_ttls(declare, wrong):
    with pytest.raises(TypeError, match="^ttl must be a timedelta, a StateTtl or Lifetime.FOREVER, not "):
        declare(ttl=wrong)
