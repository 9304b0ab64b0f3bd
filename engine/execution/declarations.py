"""What a process function declares: its states, and its code blocks."""

from __future__ import annotations

from collections import Counter
from typing import Any

from engine.api import KeyedProcessFunction, ValueState
from engine.api._blocks import Block


def declared_states(function: KeyedProcessFunction[Any, Any]) -> dict[str, ValueState[Any]]:
    """The states that a function declares, by attribute, base classes first.

    Raises `TypeError` when two of them share a stored name.
    """
    found: dict[str, ValueState[Any]] = {}
    for cls in reversed(type(function).__mro__):
        found |= {name: value for name, value in vars(cls).items() if isinstance(value, ValueState)}
    names = Counter(state.name for state in found.values())
    for name, count in names.items():
        if count > 1:
            msg = f"{type(function).__name__} declares two states named '{name}'"
            raise TypeError(msg)
    return found


def declared_blocks(function: KeyedProcessFunction[Any, Any]) -> dict[str, Block[Any]]:
    """The code blocks that a function declares, by attribute, base classes first.

    Raises `TypeError` when two of them share an id.
    """
    found: dict[str, Block[Any]] = {}
    for cls in reversed(type(function).__mro__):
        found |= {name: value for name, value in vars(cls).items() if isinstance(value, Block)}
    for block_id, count in Counter(block.block_id for block in found.values()).items():
        if count > 1:
            msg = f"{type(function).__name__} declares two blocks '{block_id}'"
            raise TypeError(msg)
    return found
