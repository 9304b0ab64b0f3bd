"""Types that states refuse when they are declared."""

from __future__ import annotations

from typing import Annotated, Any, Optional

import pytest

from headrace import BroadcastState, MapState, Struct, ValueState


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
