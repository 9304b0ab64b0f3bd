"""Unbounded state is refused unless requested or freed otherwise; windows free their state by the watermark alone."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import pytest

from headrace import Lifetime, Pipeline, StateTtl, Struct, UpdateType, Visibility
from headrace.execution.bound_function import declared_states
from headrace.operators import Cumulative, Hopping, RowNumber, Session, Tumbling
from tests.unit.operators.priced_jobs import Order, Priced, Rate
from tests.unit.operators.window_jobs import Totals, window_pipeline

HOUR = timedelta(hours=1)


def keyed():
    pipeline = Pipeline("shop")
    orders = pipeline.source("orders", Order, event_time="at").key_by("currency")
    return orders, pipeline.source("rates", Rate, event_time="at").key_by("currency")


def top(**options):
    return keyed()[0].top("best", 3, by="cents", **options)


def first(**options):
    return keyed()[0].first_by_time("first", **options)


def last(**options):
    return keyed()[0].last_by_time("last", **options)


def as_of(**options):
    orders, rates = keyed()
    return orders.join_as_of("priced", rates, emit=Priced.of, **options)


class Numbered(Struct, frozen=True):
    cents: int
    number: Annotated[int, RowNumber()]


def over(**options):
    return keyed()[0].over("numbered", Numbered, **options)


OPERATORS = {
    "top 'best'": top,
    "first_by_time 'first'": first,
    "last_by_time 'last'": last,
    "join_as_of 'priced'": as_of,
    "over 'numbered'": over,
}


def function_of(stream):
    return stream.operators[-1].function


@pytest.mark.parametrize("taker", OPERATORS)
@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({}, ValueError, r"nothing bounds the state, so .* would be kept for good: give state_ttl=timedelta.*FOREVER"),
        ({"state_ttl": 5}, TypeError, "state_ttl must be a timedelta, a StateTtl or Lifetime.FOREVER, not 5"),
        ({"state_ttl": (HOUR, HOUR)}, TypeError, "state_ttl must be a timedelta, a StateTtl or Lifetime.FOREVER"),
        ({"state_ttl": timedelta(0)}, ValueError, "a TTL must be at least 1 ms"),
        (
            {"state_ttl": StateTtl(HOUR, visibility=Visibility.RETURN_IF_NOT_CLEANED_UP)},
            ValueError,
            "state_ttl: nothing uses a record that has expired, so `visibility` must be NEVER_RETURN_EXPIRED",
        ),
    ],
)
def test_invalid_state_bound_is_refused(taker, given, error, message):
    with pytest.raises(error, match=f"{taker}: {message}"):
        OPERATORS[taker](**given)


@pytest.mark.parametrize("taker", OPERATORS)
@pytest.mark.parametrize(
    ("state_ttl", "freed"),
    [
        (HOUR, "when its state_ttl of 1h is over"),
        (StateTtl(timedelta(days=2)), "when its state_ttl of 2d is over"),
        (StateTtl(HOUR, update=UpdateType.DISABLED), "never (Lifetime.FOREVER)"),
        (Lifetime.FOREVER, "never (Lifetime.FOREVER)"),
    ],
)
def test_explain_shows_when_the_bound_frees_state(taker, state_ttl, freed):
    assert function_of(OPERATORS[taker](state_ttl=state_ttl)).described()["state_freed"].endswith(freed)


def test_duration_is_a_ttl_of_all_states():
    states = declared_states(function_of(top(state_ttl=HOUR, retracting=True)))
    assert {name: state.ttl for name, state in states.items()} == {"top": StateTtl(HOUR), "rest": StateTtl(HOUR)}


@pytest.mark.parametrize("early", [None, 5])
@pytest.mark.parametrize(
    "windows", [Tumbling(HOUR), Hopping(2 * HOUR, HOUR), Cumulative(2 * HOUR, HOUR), Session(HOUR)]
)
def test_no_ttl_frees_a_window(windows, early):
    pipeline = window_pipeline(windows, Totals, early=early)
    function = next(operator for operator in pipeline.operators if operator.name == "summary").function
    assert {state.ttl for state in declared_states(function).values()} == {None}
