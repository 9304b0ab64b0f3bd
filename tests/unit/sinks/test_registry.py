"""Kinds of sinks, by their formats."""

from __future__ import annotations

import typing

from headrace.config._sink import SINK_FORMATS, SinkConfig
from headrace.sinks.registry import KINDS


def test_each_format_has_a_kind():
    names = typing.get_args(typing.get_type_hints(SinkConfig)["format"])
    assert {*names} == {*SINK_FORMATS} == {*KINDS}
