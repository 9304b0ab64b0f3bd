"""Operators in the form of a pipeline, so that a harness refuses what `Pipeline` refuses, with the same errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, cast

import msgspec

from headrace.api import (
    KeyedBroadcastFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    Pipeline,
    Process,
    Stream,
)
from headrace.api.functions import KeyedFunction, function_types
from headrace.api.graph import Node, SourceNode
from headrace.api.stream_types import check_function, check_record

KeyFunction = Callable[[Any], Any]

_KEYED = (KeyedProcessFunction, KeyedCoProcessFunction, KeyedBroadcastFunction)


def described_stream(record: type[msgspec.Struct], pipeline: Pipeline | None = None) -> Stream[Any]:
    """Return a stream of records without a field of event time: a harness gets the event time with each record."""
    check_record("a harness", record)
    pipeline = Pipeline("harness") if pipeline is None else pipeline
    node = Node(SourceNode(f"input_{len(pipeline.nodes)}", record, "", (), None, timedelta(0)), ())
    pipeline.nodes.append(node)
    return Stream(pipeline, node, record)


def described_process(
    function: KeyedFunction, keys: tuple[KeyFunction, ...], side_outputs: Mapping[str, type[msgspec.Struct]]
) -> Process:
    """Return a keyed function in the form of a pipeline. `keys` has one for each keyed input.

    Raises `TypeError` and `ValueError` as `Stream.key_by`, `connect`, `process` and `side` do.
    """
    check_function("a harness", function, *_KEYED)
    pipeline = Pipeline("harness")
    first, *others = [described_stream(record, pipeline) for record in function_types(function)[0]]
    keyed = first.key_by(keys[0])
    if isinstance(function, KeyedProcessFunction):
        processed = keyed.process("function", function)
    elif isinstance(function, KeyedBroadcastFunction):
        processed = keyed.connect(others[0].broadcast()).process("function", function)
    else:
        assert isinstance(function, KeyedCoProcessFunction)  # noqa: S101 - the last kind
        processed = keyed.connect(others[0].key_by(keys[1])).process("function", function)
    for name, record in side_outputs.items():
        processed.side(name, record)
    return cast("Process", pipeline.operators[-1])
