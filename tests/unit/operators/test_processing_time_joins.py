"""Interval joins, as-of joins and deduplication by processing time: what counts is when, and in which order, records arrive."""

from __future__ import annotations

from datetime import timedelta
from operator import attrgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import JoinType, Keep, Lifetime, NullKeys, Pipeline, RowKind, StateTtl, TimeDomain, TtlTime
from headrace.errors import StateSchemaError, UserFunctionError
from headrace.testing import KeyedHarness, PipelineHarness
from tests.unit.operators.join_jobs import Offer, Order, Row, function_of, sources, text
from tests.unit.operators.priced_jobs import Order as Sale
from tests.unit.operators.priced_jobs import Priced, Rate
from tests.unit.support.fuzzing import examples

INSERT, BEFORE, AFTER, DELETE = RowKind
EVENT, PROCESSING = TimeDomain
FOREVER = {"state_ttl": Lifetime.FOREVER}
KEYS = (attrgetter("item"), attrgetter("item"))
FAR = 1000


def ms(number):
    return timedelta(milliseconds=number)


def near(low, high, how=JoinType.INNER, *, time=PROCESSING, row_kind=None, **options):
    _, orders, offers = sources(row_kind)
    return orders.join("near", offers, emit=Row.of, how=how, within=(ms(low), ms(high)), time=time, **options)


def near_by_hand(bounds, arrived, how):
    """Return the result of a double loop over records with their times of arrival, sorted."""
    low, high = bounds
    orders = [(at, record) for at, record in arrived if isinstance(record, Order)]
    offers = [(at, record) for at, record in arrived if isinstance(record, Offer)]
    pairs = [
        (order, offer)
        for order in orders
        for offer in offers
        if order[1].item == offer[1].item is not None and low <= offer[0] - order[0] <= high
    ]
    rows = [Row(order[1], offer[1]) for order, offer in pairs]
    matched = {id(side) for pair in pairs for side in pair}
    if how.keeps_left:
        rows += [Row(order[1], None) for order in orders if id(order) not in matched]
    if how.keeps_right:
        rows += [Row(None, offer[1]) for offer in offers if id(offer) not in matched]
    return sorted(map(text, rows))


ITEMS = st.sampled_from(["", "a"])
TIMES = st.integers(-30, 30)
RECORDS = st.builds(Order, ITEMS, TIMES) | st.builds(Offer, ITEMS, TIMES)
BOUNDS = st.tuples(st.integers(-15, 15), st.integers(0, 20)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@examples(100)
@given(bounds=BOUNDS, how=st.sampled_from(JoinType), events=st.lists(RECORDS | st.integers(0, 9), max_size=30))
def test_pairs_are_near_in_arrival(bounds, how, events):
    arrived = []
    with KeyedHarness(function_of(near(*bounds, how)), key=KEYS) as harness:
        for event in events:
            if isinstance(event, int):
                harness.clock.advance(event)
                continue
            arrived.append((harness.clock.now(), event))
            give = harness.process1 if isinstance(event, Order) else harness.process2
            give(event, timestamp=event.at)
        harness.clock.advance(FAR)
        assert sorted(map(text, harness.output())) == near_by_hand(bounds, arrived, how)
        assert harness.snapshot().entries == ()


@pytest.mark.slow
@examples(6)
@given(
    how=st.sampled_from(JoinType),
    batches=st.lists(st.tuples(st.integers(0, 9), st.lists(RECORDS, max_size=5)), max_size=4),
    parallelism=st.sampled_from([1, 3]),
    crash_at=st.sampled_from([None, "task.half:1", "commit.after", "publish.half"]),
)
def test_crash_and_parallelism_change_no_pair(how, batches, parallelism, crash_at):
    def emitted(parallelism, crash_at):
        harness = PipelineHarness(near(-3, 8, how).sink("rows"), now=100, parallelism=parallelism)
        for step, records in batches:
            harness.clock.advance(step)
            harness.feed("orders", [record for record in records if isinstance(record, Order)])
            harness.feed("offers", [record for record in records if isinstance(record, Offer)])
            harness.run(crash_at=crash_at)
            harness.run()
        harness.run(end_of_input=True)
        harness.clock.advance(FAR)
        harness.run()
        return sorted(map(text, harness.sink("rows")))

    assert emitted(parallelism, crash_at) == emitted(1, None)


def test_unmatched_record_waits_for_the_last_micro_batch():
    """A micro-batch at the end of the interval may still have a partner; the next one emits the record alone."""
    with KeyedHarness(function_of(near(0, 5, JoinType.LEFT)), key=KEYS) as harness:
        harness.process1(Order("a", 0), timestamp=0)
        harness.clock.advance(5)
        assert harness.output() == []
        harness.clock.advance(1)
        assert harness.output() == [Row(Order("a", 0), None)]


def test_null_keys_match_nothing():
    with KeyedHarness(function_of(near(0, 5, JoinType.LEFT)), key=KEYS) as harness:
        harness.process1(Order(None, 0), timestamp=0)
        harness.clock.advance(FAR)
        assert harness.output() == [Row(Order(None, 0), None)]


# ------------------------------------------------------------------------------------------------------ as of now


def priced(how=JoinType.INNER, *, time=PROCESSING, row_kind=None, **options):
    pipeline = Pipeline("shop")
    sales = pipeline.source("orders", Sale, event_time="at", row_kind=row_kind).key_by("currency")
    rates = pipeline.source("rates", Rate, event_time="at").key_by("currency")
    return sales.join_as_of("priced", rates, emit=Priced.of, how=how, time=time, **(FOREVER | options))


CURRENCIES = (attrgetter("currency"), attrgetter("currency"))
SALES = st.builds(Sale, st.sampled_from("ab") | st.none(), TIMES, st.integers(1, 3))
RATES = st.tuples(st.builds(Rate, st.sampled_from("ab"), TIMES, st.integers(1, 5)), st.sampled_from(RowKind))
SIDES = st.sampled_from([JoinType.INNER, JoinType.LEFT])


@pytest.mark.slow
@examples(100)
@given(how=SIDES, events=st.lists(SALES | RATES, max_size=30))
def test_records_join_the_latest_version(how, events):
    """The result is there at once, and no later version changes it."""
    latest, expected = {}, []
    with KeyedHarness(function_of(priced(how)), key=CURRENCIES) as harness:
        for event in events:
            if isinstance(event, Sale):
                if event.currency is None and how is JoinType.INNER:
                    continue  # such a record goes to the quarantine
                harness.process1(event, timestamp=event.at)
                rate = latest.get(event.currency)
                if rate is not None or how is JoinType.LEFT:
                    expected.append(Priced.of(event, rate))
            else:
                rate, kind = event
                harness.process2(rate, timestamp=rate.at, kind=kind)
                if kind is not BEFORE:
                    latest[rate.currency] = None if kind is DELETE else rate
            assert harness.output() == expected
            expected.clear()


def test_result_keeps_the_event_time_of_its_record():
    with KeyedHarness(function_of(priced(JoinType.LEFT)), key=CURRENCIES) as harness:
        harness.process1(Sale("a", 7, 1), timestamp=7)
        assert [emitted_record.timestamp for emitted_record in harness._process.emitted] == [7]


def test_version_expires_by_processing_time():
    """A duration counts the time of the operator, whatever the watermark is."""
    with KeyedHarness(function_of(priced(JoinType.LEFT, state_ttl=ms(10))), key=CURRENCIES) as harness:
        harness.process2(Rate("a", 0, 3), timestamp=0)
        for step in (9, 1):
            harness.clock.advance(step)
            harness.process1(Sale("a", FAR, 1), timestamp=FAR)
        assert [row.rate for row in harness.output()] == [3, None]


@pytest.mark.slow
@examples(6)
@given(
    how=SIDES,
    sales=st.lists(SALES, max_size=6),
    rates=st.lists(st.builds(Rate, st.sampled_from("ab"), TIMES, st.integers(1, 5)), max_size=6),
    split=st.integers(0, 6),
    crash_at=st.sampled_from([None, "task.half:1", "commit.after"]),
)
def test_any_split_joins_the_same_versions(how, sales, rates, split, crash_at):
    """Sources that meet arrive in the order of their event times, in one micro-batch or in several."""
    sales, rates = sorted(sales, key=attrgetter("at")), sorted(rates, key=attrgetter("at"))

    def emitted(split, crash_at):
        harness = PipelineHarness(priced(how).sink("priced"), bucket=1)
        for part in (slice(0, split), slice(split, None)):
            harness.feed("orders", sales[part])
            harness.feed("rates", rates[part])
            harness.run(crash_at=crash_at)
            harness.run()
        harness.run(end_of_input=True)
        return sorted(map(repr, harness.sink("priced")))

    assert emitted(split, crash_at) == emitted(0, None)


# -------------------------------------------------------------------------------------------------- deduplication


def offers():
    return Pipeline("offers").source("offers", Offer, event_time="at").key_by("item")


OFFERS = st.lists(
    st.builds(Offer, st.sampled_from("ab"), TIMES, st.integers(1, 9).map(float)) | st.integers(0, 9), max_size=25
)


@examples(100)
@given(ttl=st.none() | st.integers(1, 15), events=OFFERS)
def test_first_to_arrive_stays_for_its_lifetime(ttl, events):
    first = offers().first_by_time("first", time=PROCESSING, state_ttl=Lifetime.FOREVER if ttl is None else ms(ttl))
    begun, expected = {}, []
    with KeyedHarness(function_of(first), key=KEYS[0]) as harness:
        for event in events:
            if isinstance(event, int):
                harness.clock.advance(event)
                continue
            harness.process(event, timestamp=event.at)
            now = harness.clock.now()
            if event.item not in begun or (ttl is not None and begun[event.item] + ttl <= now):
                begun[event.item] = now
                expected.append((INSERT, event))
        assert harness.kinds() == expected


@examples(50)
@given(events=OFFERS)
def test_last_to_arrive_replaces_the_one_before(events):
    last = offers().last_by_time("last", time=PROCESSING, **FOREVER)
    latest, expected = {}, []
    with KeyedHarness(function_of(last), key=KEYS[0]) as harness:
        for event in events:
            if isinstance(event, int):
                harness.clock.advance(event)
                continue
            harness.process(event, timestamp=event.at)
            before = latest.get(event.item)
            expected += [(INSERT, event)] if before is None else [(BEFORE, before), (AFTER, event)]
            latest[event.item] = event
        assert harness.kinds() == expected


def test_deduplicate_takes_a_lifetime_of_processing_time():
    """A row is shown again when the lifetime of the one before it is over."""
    ttl = StateTtl(ms(10), time=TtlTime.PROCESSING)
    pipeline = Pipeline("offers").source("offers", Offer, event_time="at")
    harness = PipelineHarness(pipeline.deduplicate("once", key="item", ttl=ttl, keep=Keep.FIRST).sink("once"), now=100)
    shown = []
    for step, cents in ((0, 1.0), (9, 2.0), (10, 3.0)):
        harness.clock.advance(step)
        harness.feed("offers", [Offer("a", 1, cents)])
        harness.run()
        shown += [offer.cents for offer in harness.sink("once")]
    assert shown == [1.0, 1.0, 3.0]


def test_streams_of_first_records_are_inserts():
    def changes(state_ttl):
        return offers().first_by_time("first", time=PROCESSING, state_ttl=state_ttl)._use().node.changes

    assert (changes(Lifetime.FOREVER).may_retract, changes(Lifetime.FOREVER).unique) == (False, (("item",),))
    assert (changes(ms(5)).may_retract, changes(ms(5)).unique) == (False, ())


# ------------------------------------------------------------------------------------------------------- bad input


def regular(**options):
    _, orders, others = sources()
    return orders.join("near", others, emit=Row.of, **FOREVER, **options)


REFUSED = [
    (
        lambda: regular(time=PROCESSING),
        ValueError,
        "join 'near': a regular join has no interval of time: leave time out",
    ),
    (lambda: near(0, 5, time="now"), TypeError, "join 'near': time must be TimeDomain.EVENT_TIME or"),
    (lambda: near(0, 5, row_kind="kind"), ValueError, "join 'near': 'orders' may take records back"),
    (lambda: priced(time=3), TypeError, "join_as_of 'priced': time must be TimeDomain"),
    (
        lambda: priced(row_kind="op"),
        ValueError,
        "join_as_of 'priced': processing time needs records that are never taken",
    ),
    (lambda: priced(state_ttl=None), ValueError, "join_as_of 'priced': nothing bounds the state"),
    (
        lambda: offers().first_by_time("f", time=None, **FOREVER),
        TypeError,
        "first_by_time 'f': time must be TimeDomain",
    ),
    (lambda: offers().last_by_time("l", time=PROCESSING), ValueError, "last_by_time 'l': nothing bounds the state"),
    (
        lambda: offers().first_by_time("f", time=PROCESSING, at_watermark=True, **FOREVER),
        ValueError,
        "first_by_time 'f': by processing time the first record is final at once: leave at_watermark out",
    ),
    (
        lambda: near(0, 5).side("late_left", Order),
        ValueError,
        "join 'near' has no side output 'late_left': it has none",
    ),
    (lambda: priced().side("late", Sale), ValueError, "join_as_of 'priced' has no side output 'late': it has none"),
]


@pytest.mark.parametrize(("declared", "error", "message"), REFUSED)
def test_plan_refuses_by_name(declared, error, message):
    with pytest.raises(error, match=message):
        declared()


@pytest.mark.parametrize(
    ("stream", "key", "record"),
    [
        (near(0, 5), KEYS, Order("a", 1)),
        (priced(), CURRENCIES, Sale("a", 1, 1)),
        (offers().first_by_time("first", time=PROCESSING, **FOREVER), KEYS[0], Offer("a", 1)),
        (offers().last_by_time("last", time=PROCESSING, **FOREVER), KEYS[0], Offer("a", 1)),
    ],
)
def test_undeclared_retraction_fails_by_name(stream, key, record):
    with KeyedHarness(function_of(stream), key=key) as harness:
        give = harness.process1 if isinstance(key, tuple) else harness.process
        with pytest.raises(UserFunctionError, match="cannot take a record back, and this one is -U"):
            give(record, timestamp=1, kind=BEFORE)


STREAMS = [
    (lambda time: near(0, 5, time=time), "orders", Order("a", 1)),
    (lambda time: priced(time=time), "rates", Rate("a", 1, 1)),
    (lambda time: offers().first_by_time("first", time=time, **FOREVER), "offers", Offer("a", 1)),
    (lambda time: offers().last_by_time("last", time=time, **FOREVER), "offers", Offer("a", 1)),
]


@pytest.mark.parametrize("times", [(EVENT, PROCESSING), (PROCESSING, EVENT)])
@pytest.mark.parametrize(("stream", "source", "record"), STREAMS)
def test_clock_of_stored_records_cannot_change(stream, source, record, times):
    before, after = times
    harness = PipelineHarness(stream(before).sink("rows"))
    harness.feed(source, [record])
    harness.run(end_of_input=before is EVENT and source == "rates")
    harness.run(end_of_input=True)
    harness.change(pipeline=stream(after).sink("rows"))
    with pytest.raises(StateSchemaError, match="has stored state and is not declared"):
        harness.run()


def test_quarantined_null_keys_need_no_clock():
    stream = priced(JoinType.LEFT, null_keys=NullKeys.QUARANTINE)
    assert function_of(stream).takes_null_keys == ()


def test_explain_names_the_clock():
    shown = function_of(near(0, 5, JoinType.LEFT)).described()
    assert shown["time"] == "processing time of the micro-batch"
    assert "event time" not in shown["state_kept"]
    assert "watermark" not in shown["state_freed"]
    assert function_of(priced()).described()["time"] == "processing time: the latest version in arrival order"
