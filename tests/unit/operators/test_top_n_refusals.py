"""Invalid rankings are refused when the pipeline is built."""

from __future__ import annotations

from typing import Annotated

import pytest

from headrace import Lifetime, Pipeline, Struct, Timestamp
from headrace.errors import UserFunctionError
from headrace.operators import Rank
from headrace.testing import PipelineHarness
from tests.unit.operators.ranked_jobs import Score, scores


class Odd(Struct, frozen=True):
    game: str
    at: Timestamp
    weight: float
    tags: list[str]


def odd():
    return Pipeline("p").source("odd", Odd, event_time="at").key_by("game")


KEPT = {"state_ttl": Lifetime.FOREVER}


def result_of(**fields):
    return type("Result", (Struct,), {"__annotations__": fields, "__module__": __name__}, frozen=True)


def unannotated(score):
    return score.points


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"n": 0}, ValueError, "top 'best': the number of records must be a whole number of at least 1, not 0"),
        ({"by": "point"}, ValueError, "top 'best': Score has no field 'point'"),
        ({"by": unannotated}, TypeError, "annotate what the function unannotated returns, or give a field"),
        ({"result": dict}, TypeError, "top 'best': <class 'dict'> is not a type of records"),
        (
            {"result": result_of(place=int)},
            TypeError,
            r"field 'place' of Result does not say how it is made: annotate it, as in Annotated\[int, Rank\(\)\]",
        ),
        (
            {"result": result_of(rank=Annotated[str, Rank()])},
            TypeError,
            r"'rank' of Result is str, but Rank\(\) gives int",
        ),
        ({"result": result_of(points=int)}, TypeError, r"is int, but field 'points' gives int \| None"),
        ({"result": result_of(window_start=int)}, TypeError, "fields without an annotation are those of Score"),
    ],
)
def test_invalid_ranking_is_refused(options, error, message):
    options = {"n": 2, "by": "points", **KEPT} | options
    with pytest.raises(error, match=message):
        scores().top("best", options.pop("n"), **options)


def test_ordering_by_a_list_is_refused():
    with pytest.raises(
        TypeError,
        match=r"'tags' is list\[str\], and only int, float, Decimal, str, bool, bytes, date, datetime, time, timedelta and UUID, and tuples",
    ):
        odd().top("best", 1, by="tags", **KEPT)


def test_top_n_needs_a_key():
    with pytest.raises(ValueError, match=r"top 'best': 'odd' needs a key: call key_by\(\) before it"):
        Pipeline("p").source("odd", Odd, event_time="at").top("best", 1, by="weight")


def test_top_n_has_one_side_output():
    stream = scores(row_kind="kind").top("best", 2, by="points", **KEPT)
    with pytest.raises(ValueError, match="top 'best' has no side output 'late': it has one, 'unmatched'"):
        stream.side("late", Score)
    with pytest.raises(ValueError, match="top 'best' has no side output 'late': it has none"):
        scores().top("best", 2, by="points", **KEPT).side("late", Score)


def test_infinite_value_fails():
    def weight(odd: Odd) -> float:
        return odd.weight * 1e308

    stream = odd().top("best", 1, by=weight, **KEPT)
    harness = PipelineHarness(stream.upsert_materialize("all", primary_key=("game",)).sink("best"))
    harness.feed("odd", [Odd("a", 1, 1e308, [])])
    with pytest.raises(UserFunctionError, match="weight is inf, which can be neither compared nor stored"):
        harness.run()
