"""Invalid joins are refused when the pipeline is built, with advice."""

from __future__ import annotations

from datetime import timedelta
from typing import Self

import pytest

from headrace import JoinType, StateTtl, Struct, Visibility
from headrace.testing import KeyedHarness
from tests.unit.operators.join_jobs import Offer, Order, Row, function_of, joined, near, sources

DAY = timedelta(days=1)
NEAR = {"within": (timedelta(0), DAY)}
KEPT = {"state_ttl": DAY}


def join(emit=Row.of, row_kind=None, **options):
    _, orders, offers = sources(row_kind)
    return orders.join("j", offers, emit=emit, **options)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {},
            ValueError,
            r"join 'j': nothing bounds the state.*state_ttl=timedelta.*within=\(low, high\).*Lifetime.FOREVER",
        ),
        ({**NEAR, **KEPT}, ValueError, "join 'j': with within=... time frees the state: leave state_ttl out"),
        ({**KEPT, "how": "left"}, TypeError, "how must be a JoinType, such as JoinType.LEFT, not 'left'"),
        (
            {**KEPT, "null_keys": "keep"},
            TypeError,
            "null_keys must be NullKeys.KEEP or NullKeys.QUARANTINE, not 'keep'",
        ),
        ({"within": DAY}, TypeError, r"within must be two timedeltas, \(low, high\), not"),
        ({"within": (0, 5)}, TypeError, r"within must be two timedeltas, \(low, high\), not \(0, 5\)"),
        ({"within": (DAY, timedelta(0))}, ValueError, "must begin with the smaller bound"),
        ({"within": (timedelta(0), timedelta(microseconds=1))}, ValueError, "must have whole milliseconds"),
        ({"within": (-timedelta(days=36_501), DAY)}, ValueError, "at most 36,500 days"),
        ({"within": (timedelta.min, timedelta.max)}, ValueError, "at most 36,500 days"),
        ({"state_ttl": 5}, TypeError, "state_ttl must be a timedelta, a StateTtl or Lifetime.FOREVER, not 5"),
        ({"state_ttl": (DAY, DAY, DAY)}, ValueError, r"state_ttl takes one duration, or two \(left, right\), not 3"),
        ({"state_ttl": timedelta(0)}, ValueError, "a TTL must be at least 1 ms"),
        ({"state_ttl": StateTtl(DAY, visibility=Visibility.RETURN_IF_NOT_CLEANED_UP)}, ValueError, "`visibility` must"),
        (
            {**NEAR, "row_kind": "kind"},
            ValueError,
            r"'orders' may take records back \(-U, -D\), and an interval join cannot",
        ),
    ],
)
def test_invalid_join_options_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        join(**options)


def takes_one(order: Order) -> Row:
    return Row(order, None)


def swapped(offer: Offer, order: Order) -> Row:
    return Row(order, offer)


def strict(order: Order, offer: Offer) -> Row:
    return Row(order, offer)


def untyped(order, offer):
    return Row(order, offer)


def wrong_result(order: Order, offer: Offer) -> int:
    return 1


async def waiting(order: Order, offer: Offer) -> Row:
    return Row(order, offer)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"emit": untyped}, "untyped does not say that it returns a record: annotate it with '-> Row'"),
        ({"emit": wrong_result}, "wrong_result does not say that it returns a record"),
        ({"emit": untyped, "record": int}, "is not a type of records"),
        ({"emit": takes_one}, "takes_one must take two records, left and right: too many positional arguments"),
        ({"emit": swapped}, "parameter 'offer' of swapped is Offer, but the left side gives Order"),
        (
            {"emit": strict, "how": JoinType.LEFT},
            r"parameter 'offer' of strict is Offer, but it gets None where the right side has no",
        ),
        ({"emit": strict, "how": JoinType.RIGHT}, r"parameter 'order' of strict is Order.*write 'Order \| None'"),
        ({"emit": waiting}, "the function is 'async def'"),
        ({"emit": 5}, "takes a function, not 5"),
    ],
)
def test_emit_that_does_not_fit_is_refused(options, message):
    with pytest.raises(TypeError, match=message):
        join(**KEPT, **options)


class Pair(Struct, frozen=True):
    order: Order
    offer: Offer | None

    @classmethod
    def of_pair(cls, order: Order, offer: Offer | None) -> Self:
        return cls(order, offer)


def any_pair(*both) -> Pair:
    return Pair(*both)


@pytest.mark.parametrize("emit", [Pair, Pair.of_pair, any_pair])
def test_emit_may_be_class_or_method(emit):
    stream = join(emit, how=JoinType.LEFT, **KEPT)
    assert stream.record_type() is Pair
    with KeyedHarness(function_of(stream), key=(lambda item: item.item, lambda element: element.item)) as harness:
        harness.process1(Order("a", 1), timestamp=1)
        assert harness.output() == [Pair(Order("a", 1), None)]


def test_emitting_another_type_is_a_user_error():
    stream = join(lambda left, _: left, record=Row, **KEPT)
    with KeyedHarness(function_of(stream), key=(lambda item: item.item, lambda element: element.item)) as harness:
        harness.process1(Order("a", 1), timestamp=1)
        with pytest.raises(Exception, match="the output takes Row, not Order"):
            harness.process2(Offer("a", 1), timestamp=1)


# ---------------------------------------------------------------------------------------------------------- streams


def test_both_sides_need_a_key():
    pipeline, orders, offers = sources()
    plain = pipeline.source("plain", Offer, event_time="at")
    with pytest.raises(ValueError, match="join 'j': 'plain' needs a key: call key_by"):
        orders.join("j", plain, emit=Row.of, **KEPT)
    with pytest.raises(ValueError, match="join 'j': 'plain' needs a key: call key_by"):
        plain.join("j", offers, emit=Row.of, **KEPT)
    with pytest.raises(ValueError, match=r"'plain' is a broadcast\(\), which connect\(\) takes"):
        orders.join("j", plain.broadcast(), emit=Row.of, **KEPT)


def test_keys_have_one_type():
    pipeline, orders, _ = sources()
    by_time = pipeline.source("others", Offer, event_time="at").key_by("at")
    with pytest.raises(TypeError, match=r"join 'j': 'orders' is keyed by item \(str\), and 'others' by at \(int\)"):
        orders.join("j", by_time, emit=Row.of, **KEPT)


def test_streams_of_two_pipelines_are_refused():
    with pytest.raises(ValueError, match="join 'j': 'orders' is of pipeline 'one', and 'offers' of pipeline 'two'"):
        sources(name="one")[1].join("j", sources(name="two")[2], emit=Row.of, **KEPT)


def test_join_takes_a_stream():
    with pytest.raises(TypeError, match="join 'j' takes a stream, not 5"):
        sources()[1].join("j", 5, emit=Row.of, **KEPT)


def test_stream_joins_itself():
    _, orders, _ = sources()
    stream = orders.join("j", orders, emit=lambda left, _: Row(left, None), record=Row, **KEPT)
    assert stream.record_type() is Row


@pytest.mark.parametrize(
    ("stream", "may_retract"),
    [
        (joined(row_kind=None), False),
        (joined(), True),
        (joined(JoinType.LEFT, row_kind=None), True),
        (joined(JoinType.RIGHT, row_kind=None), True),
        (near(0, 5), False),
    ],
)
def test_later_operators_know_that_a_join_retracts(stream, may_retract):
    keyed = stream.key_by(lambda row: row.order.item)
    if may_retract:
        with pytest.raises(ValueError, match="may take records back"):
            keyed.join("again", keyed, emit=lambda left, _: left, record=Row, **NEAR)
    else:
        keyed.join("again", keyed, emit=lambda left, _: left, record=Row, **NEAR)


@pytest.mark.parametrize(
    ("name", "record", "error", "message"),
    [
        ("late", Order, ValueError, "join 'near' has no side output 'late': it has 'late_left' and 'late_right'"),
        ("late_left", Offer, TypeError, "side output 'late_left' of 'near' has records of type Order, not"),
    ],
)
def test_other_side_outputs_are_refused(name, record, error, message):
    with pytest.raises(error, match=message):
        near(0, 5).side(name, record)


def test_regular_join_has_no_side_outputs():
    with pytest.raises(ValueError, match="join 'joined' has no side output 'late_left': it has none"):
        joined().side("late_left", Order)
