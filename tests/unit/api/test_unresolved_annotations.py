"""Pipelines whose annotations only type checkers can resolve: Python 3.14 looks names up late, as the import of annotations does."""

from __future__ import annotations

import sys

import pytest

from headrace import Lifetime, Pipeline, Struct, keyed_function

FUNCTIONS = """
def is_early(event: Missing) -> bool:
    return True

def named(event: Missing) -> Event:
    return event

def with_result(event: Event) -> Missing:
    return event

def without_result(event: Missing):
    return event

def paired(left: Missing, right: Event):
    return left

def of_one(left: Missing):
    return left
"""
LATE = pytest.mark.skipif(sys.version_info < (3, 14), reason="the definition of the functions looks the names up")


class Event(Struct, frozen=True):
    key: str
    at: int


@pytest.fixture(params=["from __future__ import annotations", pytest.param("", marks=LATE)], ids=["import", "late"])
def functions(request):
    """Return a module with annotations that are texts, and one with those that Python 3.14 looks up late."""
    names = {"Event": Event}
    exec(compile(request.param + FUNCTIONS, "functions.py", "exec", dont_inherit=True), names)  # noqa: S102
    return names


@pytest.fixture
def sides():
    pipeline = Pipeline("demo")
    return [pipeline.source(name, Event, event_time="at") for name in ("left", "right")]


def test_steps_take_functions_with_unresolved_parameters(functions, sides):
    left, right = sides
    left = left.filter(functions["is_early"]).map(functions["named"], record=Event)
    joined = left.key_by("key").join_as_of(
        "pairs", right.key_by("key"), emit=functions["paired"], record=Event, state_ttl=Lifetime.FOREVER
    )
    assert joined._record is Event


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("with_result", r"map\(with_result\): .* cannot be resolved .*: give record="),
        ("named", r"map\(named\): .* cannot be resolved .*: give record="),
        ("without_result", r"map\(without_result\) needs the type of its records"),
    ],
)
def test_unresolved_and_missing_results_differ(functions, sides, name, message):
    with pytest.raises(TypeError, match=message):
        sides[0].map(functions[name])


def test_join_counts_parameters_of_any_annotation(functions, sides):
    left, right = sides
    with pytest.raises(TypeError, match="of_one must take two records"):
        left.key_by("key").join_as_of("pairs", right.key_by("key"), emit=functions["of_one"], record=Event)


def test_keyed_function_names_its_unresolved_parameter(functions):
    with pytest.raises(TypeError, match="keyed_function with_result: parameter 'event' needs the type of the record"):
        keyed_function(functions["with_result"])
