"""Materializers in the output of `explain`: the layout of their histories, or that no history is needed."""

from __future__ import annotations

from datetime import timedelta
from unittest.mock import Mock

import pytest

from headrace import Emit, OnConflict, Pipeline, StateTtl, Strategy, Struct, Timestamp
from headrace.cli.describe import _DETAILS
from headrace.options import MaterializerOptions


class Row(Struct, frozen=True):
    key: str
    part: int
    at: Timestamp


def explained(mode="merge", **options):
    source = Pipeline("board").source("rows", Row, event_time="at")
    operator = source.upsert_materialize("m", primary_key=("key",), **options).operators[-1]
    config = Mock(upsert_materialize=lambda _: MaterializerOptions(), sinks={"board": Mock(mode=mode)})
    config.state.backend = "rocksdb"
    return _DETAILS[type(operator)](config, operator, "board")


def test_explain_shows_an_unneeded_history():
    output = explained(upsert_key=("key",))
    assert output["history"].startswith("not needed: the upsert key is the primary key")
    assert output["strategy"] is None


def test_forced_materializer_is_shown_as_forced():
    assert explained(upsert_key=("key",), force=True)["history"].startswith("kept because of force=True")


@pytest.mark.parametrize(
    "more", [{"emit": Emit.EVERY_CHANGE}, {"on_conflict": OnConflict.ERROR}, {"upsert_key": ("key", "part")}]
)
def test_needed_materializer_is_shown_as_kept(more):
    assert explained(**more)["history"] == "kept"


def test_merge_sink_always_gets_net_change():
    assert explained(emit=Emit.EVERY_CHANGE)["emit"] == "net_change"
    assert explained("append", emit=Emit.EVERY_CHANGE)["emit"] == "every_change"


def test_explain_shows_strategy_thresholds_ttl_and_policy():
    output = explained(strategy=Strategy.ADAPTIVE, ttl=StateTtl(timedelta(hours=2)), on_conflict=OnConflict.DO_NOTHING)
    assert (output["strategy"], output["thresholds"], output["ttl"], output["on_conflict"]) == (
        "adaptive",
        {"high": 50, "low": 40},
        "2h",
        "do_nothing",
    )
