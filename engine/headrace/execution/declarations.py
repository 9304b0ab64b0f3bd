"""Declarations of a process function: its states, and its code blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, TypeVar

from headrace.api.blocks import Block
from headrace.api.functions import KeyedBroadcastFunction, KeyedFunction
from headrace.api.states import BroadcastState, State

D = TypeVar("D")


def declared_states(function: KeyedFunction) -> dict[str, State]:
    """Return the states that a function declares, by attribute, base classes first.

    Raises `TypeError` when two of them share a stored name, and for broadcast state that the function cannot change.
    """
    states: dict[str, State] = _declared(function, State)
    _check_unique(function, "states named", (state.name for state in states.values()))
    if not isinstance(function, KeyedBroadcastFunction):
        _check_no_broadcast(function, states.values())
    return states


def declared_blocks(function: KeyedFunction) -> dict[str, Block[Any]]:
    """Return the code blocks that a function declares, by attribute, base classes first.

    Raises `TypeError` when two of them share an id.
    """
    blocks: dict[str, Block[Any]] = _declared(function, Block)
    _check_unique(function, "blocks with the id", (block.block_id for block in blocks.values()))
    return blocks


def _declared(function: object, kind: type[D]) -> dict[str, D]:
    attributes: dict[str, Any] = {}
    for cls in reversed(type(function).__mro__):
        attributes |= vars(cls)
    return {name: value for name, value in attributes.items() if isinstance(value, kind)}


def _check_no_broadcast(function: KeyedFunction, states: Iterable[State]) -> None:
    for state in states:
        if isinstance(state, BroadcastState):
            msg = (
                f"{type(function).__name__} declares broadcast state '{state.name}', which only a KeyedBroadcastFunction can "
                "change: derive from that, or declare a MapState"
            )
            raise TypeError(msg)


def _check_unique(function: object, what: str, names: Iterable[str]) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            msg = f"{type(function).__name__} declares two {what} '{name}'"
            raise TypeError(msg)
