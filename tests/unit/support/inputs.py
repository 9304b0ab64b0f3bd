"""Which input of a function takes a record: models and jobs of one or two inputs agree on it."""

from __future__ import annotations

from headrace.api._functions import function_types, input_methods


def input_of(function, record):
    """Return the number of the input: the second one for records of its type, where the function has two."""
    types, _ = function_types(function)
    return len(types) - 1 if type(record) is types[-1] else 0


def method_for(function, record):
    """Return the bound method that takes a record in."""
    return getattr(function, input_methods(function)[input_of(function, record)])
