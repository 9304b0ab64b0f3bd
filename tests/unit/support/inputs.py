"""The input of a function that takes a record: models and jobs of one or two inputs share this rule."""

from __future__ import annotations

from headrace import KeyedBroadcastFunction
from headrace.api.functions import function_types, input_methods
from headrace.execution.element import Element
from headrace.state.backend import GROUPED_PREFIX, named, unpacked
from headrace.state.broadcast import BROADCAST_KEY, BroadcastRow
from headrace.state.codec import encode
from headrace.state.key_groups import key_group


def input_of(function, record):
    """Return the number of the input: the second for records of its type, if the function has two."""
    types, _ = function_types(function)
    return len(types) - 1 if type(record) is types[-1] else 0


def method_for(function, record):
    """Return the bound method that processes a record."""
    return getattr(function, input_methods(function)[input_of(function, record)])


def element_for(function, order, timestamp, record):
    """Return a record as an element for the function's input."""
    number = input_of(function, record)
    is_broadcast = number and isinstance(function, KeyedBroadcastFunction)
    return Element(order, timestamp, 0, BROADCAST_KEY if is_broadcast else encode(record.key), record, number)


def owned_by(groups, all_groups, elements):
    """Return the elements or held requests of one task: broadcast ones go to all tasks."""
    return [
        element
        for element in elements
        if element.key_json == BROADCAST_KEY or key_group(element.key_json, all_groups) in groups
    ]


def broadcast_apart(elements):
    """Return the keyed elements, and the broadcast elements."""
    keyed = [element for element in elements if element.key_json != BROADCAST_KEY]
    return keyed, [element for element in elements if element.key_json == BROADCAST_KEY]


def stored_broadcast(entries):
    """Return the rows of broadcast state among a backend's entries."""
    result = [(named(entry), unpacked(value)) for entry, value in entries if entry[:1] == GROUPED_PREFIX]
    return [BroadcastRow(name.state, name.user_key, value.raw, value.stamp) for name, value in result]
