"""Entries that somebody sets, deletes or lets expire: the next run goes on with them, as if user code had done it."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Annotated

import pytest

from headrace import (
    BroadcastState,
    Cleanup,
    Digits,
    JoinType,
    KeyedBroadcastFunction,
    KeyedProcessFunction,
    ListState,
    MapState,
    NullKeys,
    Pipeline,
    ReducingState,
    StateTtl,
    Struct,
    Timestamp,
    TtlTime,
    ValueState,
)
from headrace.commit.verify import verify
from headrace.edits.edit import apply, preview
from headrace.edits.entries.changes import DeleteEntries, ExpireEntries, SetEntry
from headrace.edits.entries.edit import EntryName
from headrace.edits.restore import restore
from headrace.errors import ConfigError, FencedError
from headrace.log.checkpoint import Kind
from headrace.operators import Tumbling
from headrace.readers import state as keyed_state
from headrace.readers.history import key_history
from headrace.readers.job_at import JobAtCheckpoint
from headrace.readers.waiting import count_timers, list_timers
from headrace.readers.why import why
from headrace.testing import PipelineHarness
from tests.unit.support.crashes import Killed, dying_at

HOUR = 3_600_000


class Order(Struct, frozen=True):
    customer: str
    cents: int
    at: Timestamp


class Spent(Struct, frozen=True):
    orders: int
    cents: int
    note: str = ""


class Line(Struct, frozen=True):
    customer: str
    orders: int
    cents: int
    items: list[int]
    days: dict[str, int]
    total: int


class Totals(KeyedProcessFunction[Order, Line]):
    spent = ValueState("spent", Spent)
    items = ListState("items", int)
    days = MapState("days", int, int)
    total = ReducingState("total", int, lambda one, other: one + other)

    def process(self, order, ctx, /):
        before = self.spent.value() or Spent(0, 0)
        now = Spent(before.orders + 1, before.cents + order.cents)
        self.spent.update(now)
        self.items.add(order.cents)
        self.days.put(order.at // HOUR, order.cents)
        self.total.add(order.cents)
        days = {str(hour): cents for hour, cents in self.days.entries()}
        ctx.collect(Line(order.customer, now.orders, now.cents, self.items.get(), days, self.total.get()))


def fed(backend):
    stream = Pipeline("shop").source("orders", Order, event_time="at").key_by("customer")
    harness = PipelineHarness(stream.process("totals", Totals()).sink("lines"), backend=backend, now=0)
    harness.feed("orders", [Order("a", 1, HOUR), Order("b", 2, HOUR), Order("a", 3, 2 * HOUR)])
    harness.run()
    return harness


@pytest.fixture
def job():
    return fed("hashmap")


def edit(job, edit_, **options):
    with job.on_its_clock():
        return apply(job.config, edit_, "somebody", **options)


def next_line(job, customer="a"):
    before = job.sink("lines")
    job.feed("orders", [Order(customer, 10, 3 * HOUR)])
    job.run()
    (line,) = (line for line in job.sink("lines") if line not in before)
    return line


def name(state, key="a", **rest):
    return EntryName("totals", state, key, **rest)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["hashmap", "rocksdb", "delta"])
def test_next_run_goes_on_from_set_values(backend):
    job = fed(backend)
    edit(job, SetEntry(name("spent"), '{"orders": 70, "cents": 700}', why="counted"))
    edit(job, SetEntry(name("items"), "[5, 6]", why="counted"))
    edit(job, SetEntry(name("days", entry="1"), "99", why="counted"))
    edit(job, SetEntry(name("days", entry="9"), "11", creates=True, why="counted"))
    edit(job, SetEntry(name("total"), "1000", why="counted"))
    assert next_line(job) == Line("a", 71, 710, [5, 6, 10], {"1": 99, "2": 3, "3": 10, "9": 11}, 1010)
    assert next_line(job, "b") == Line("b", 2, 12, [2, 10], {"1": 2, "3": 10}, 12)
    assert [finding for finding in verify(job.config) if not finding.ok] == []


def entries(job, key="a", **rest):
    rows = keyed_state.get(JobAtCheckpoint(job.config), key, **rest).dicts()
    return {(row["state"], row["user_key"]): row["value"] for row in rows}


def test_fields_change_and_the_others_stay(job):
    edit(job, SetEntry(name("spent"), fields={"cents": "41", "note": "by hand"}, why="counted"))
    assert entries(job, state="spent") == {("spent", None): '{"orders":2,"cents":41,"note":"by hand"}'}
    effect = preview(job.config, SetEntry(name("spent"), fields={"note": "12"}))
    assert effect.differences[0].after == '{"orders":2,"cents":41,"note":"12"}'


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["hashmap", "rocksdb", "delta"])
def test_deleted_entries_are_gone_for_user_code(backend):
    job = fed(backend)
    edit(job, DeleteEntries(name("days", entry="1"), "wrong day"))
    assert next_line(job).days == {"2": 3, "3": 10}
    edit(job, DeleteEntries(name("spent"), "wrong"))
    edit(job, DeleteEntries(name("items"), "wrong"))
    assert next_line(job) == Line("a", 1, 10, [10], {"2": 3, "3": 10}, 24)


def test_preview_changes_nothing(job):
    before = entries(job), JobAtCheckpoint(job.config).checkpoint.checkpoint_id
    effect = preview(job.config, SetEntry(name("total"), "8"))
    (one,) = effect.differences
    assert (one.key, one.before, one.after) == ('"a"', "4", "8")
    assert [row.before for row in preview(job.config, DeleteEntries(name("days"))).differences] == ["1", "3"]
    assert (entries(job), JobAtCheckpoint(job.config).checkpoint.checkpoint_id) == before


def test_checkpoint_says_all_but_the_key(job):
    checkpoint = edit(job, SetEntry(name("total"), "8", why="counted"))
    assert checkpoint.kind is Kind.EDIT
    assert checkpoint.metrics == {"entries_edited": 1}
    assert checkpoint.note == "state set of 'totals.total': counted"
    assert checkpoint.work == JobAtCheckpoint(job.config, checkpoint.parent_id).checkpoint.work


@pytest.mark.slow
def test_restore_undoes_an_edit(job):
    before = entries(job)
    checkpoint = edit(job, DeleteEntries(name("days"), "wrong"))
    assert entries(job) != before
    with job.on_its_clock():
        restore(job.config, checkpoint.parent_id, "not wrong", "somebody")
    assert entries(job) == before
    assert next_line(job).orders == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (SetEntry(name("total"), '"eight"'), "must be int"),
        (SetEntry(name("total"), ""), "must be int"),
        (SetEntry(name("spent"), '{"orders": 1}'), "missing required field `cents`"),
        (SetEntry(name("spent"), fields={"cents": "many"}), "must be Spent, as JSON: Expected `int`"),
        (SetEntry(name("spent"), fields={"cent": "1"}), "no field cent .it has: cents, note, orders"),
        (SetEntry(name("items"), fields={"cents": "1"}), "a list has several"),
        (SetEntry(name("total"), fields={"cents": "1"}), "is no record with fields"),
        (SetEntry(name("total"), "4"), "has that value already"),
        (SetEntry(name("days"), "4"), "is a map: name the key within it"),
        (SetEntry(name("days", entry="noon"), "4"), "the key within state 'days' must be int"),
        (SetEntry(name("days", entry="7"), "4"), "has no live entry of key .*--create"),
        (SetEntry(name("total", entry="7"), "4"), "is no map"),
        (SetEntry(name("total", key="z"), "4"), "has no live entry of key"),
        (SetEntry(name("total", namespace="w"), "4"), "namespace w has no live entry"),
        (SetEntry(name("totals"), "4"), "declares no state 'totals' .it declares: days, items, spent, total"),
        (SetEntry(EntryName("total", "total", "a"), "4"), "no operator 'total' with keyed state .it has: totals"),
        (DeleteEntries(name("total", key="z")), "has no live entry of key z"),
        (DeleteEntries(name("days", entry="7")), "has no live entry"),
        (ExpireEntries(name("total")), "has no TTL"),
    ],
)
def test_edit_that_does_not_fit_changes_nothing(job, wrong, message):
    before = entries(job)
    with pytest.raises(ConfigError, match=message):
        edit(job, wrong)
    with pytest.raises(ConfigError, match=message):
        preview(job.config, wrong)
    assert entries(job) == before


@pytest.mark.parametrize("place", ["edit.staged", "prepare.half", "prepare.after", "commit.before", "commit.after"])
def test_crash_leaves_the_old_value_or_the_new(job, place):
    with dying_at(place), pytest.raises(Killed):
        edit(job, SetEntry(name("total"), "8", why="counted"))
    job.clock.advance(HOUR)  # until the lease ends
    assert next_line(job).total == (18 if place == "commit.after" else 14)


def test_held_job_is_left_alone(job):
    from headrace.commit.protocol import open_job

    with job.on_its_clock(), open_job(job.config, "run"), pytest.raises(FencedError):
        apply(job.config, SetEntry(name("total"), "8", why="counted"), "somebody")


# ------------------------------------------------------------------------------------------------------------- branches


@pytest.mark.slow
def test_edit_on_a_branch_leaves_the_job_alone(job):
    before, branch = entries(job), job.branch("what_if")
    edit(branch, SetEntry(name("total"), "50", why="what if"))
    assert entries(job) == before
    assert entries(branch)["total", None] == "50"
    job.feed("orders", [Order("a", 10, 3 * HOUR)])
    branch.run()
    assert [line.total for line in branch.sink("lines") if line.orders == 3] == [60]


@pytest.mark.slow
def test_promotion_loses_no_edit(job):
    branch = job.branch("late")
    edit(job, SetEntry(name("total"), "50", why="counted"))
    with pytest.raises(
        ConfigError, match=r"edit: state set of 'totals.total': counted.*same edit on the branch .--branch late"
    ):
        branch.promote()
    edit(branch, DeleteEntries(name("total"), "counted"))
    with pytest.raises(ConfigError, match="edit: state set of 'totals.total'"):
        branch.promote()
    edit(branch, SetEntry(name("total"), "51", creates=True, why="counted"))
    branch.promote()
    assert entries(job)["total", None] == "51"


# ------------------------------------------------------------------------------------------------------------ lifetimes


class Seen(Struct, frozen=True):
    customer: str
    hour: int
    before: int | None
    items: list[int]


class Remembers(KeyedProcessFunction[Order, Seen]):
    last = ValueState("last", int, ttl=StateTtl(timedelta(hours=5), time=TtlTime.PROCESSING))
    items = ListState("items", int, ttl=StateTtl(timedelta(hours=5), cleanup=Cleanup(exact=True)))

    async def process(self, order, ctx, /):
        seen = Seen(order.customer, order.at // HOUR, await self.last.value(), await self.items.get())
        await self.last.update(order.cents)
        await self.items.add(order.cents)
        ctx.collect(seen)


@pytest.fixture(params=["hashmap", "rocksdb", "delta"])
def remembering(request):
    stream = Pipeline("shop").source("orders", Order, event_time="at").key_by("customer")
    pipeline = stream.process("totals", Remembers()).sink("lines")
    harness = PipelineHarness(pipeline, backend=request.param, now=0, bucket=1)
    harness.feed("orders", [Order("a", 1, HOUR), Order("b", 2, HOUR)])
    harness.run()
    return harness


def later(job, hours, customer="a"):
    before = job.sink("lines")
    job.clock.advance(hours * HOUR - job.clock.now())
    job.feed("orders", [Order(customer, 10, hours * HOUR)])
    job.run()
    (line,) = (line for line in job.sink("lines") if line not in before)
    return line


@pytest.mark.slow
def test_set_values_live_as_long_as_written_ones(remembering):
    later(remembering, 4, "b")
    edit(remembering, SetEntry(name("last"), "7", why="counted"))
    edit(remembering, SetEntry(name("items"), "[7, 8]", why="counted"))
    assert later(remembering, 8) == Seen("a", 8, 7, [7, 8])  # written at 4, alive until 9


@pytest.mark.slow
def test_set_values_expire(remembering):
    edit(remembering, SetEntry(name("last"), "7", why="counted"))
    edit(remembering, SetEntry(name("items"), "[7, 8]", why="counted"))
    later(remembering, 7, "b")
    assert entries(remembering) == {}
    assert later(remembering, 8) == Seen("a", 8, None, [])


@pytest.mark.slow
def test_expired_entries_are_gone_at_once(remembering):
    edit(remembering, ExpireEntries(name("last"), "too old"))
    edit(remembering, ExpireEntries(name("items"), "too old"))
    assert entries(remembering) == {}
    with pytest.raises(ConfigError, match="it isn't there, or it has expired"):
        edit(remembering, DeleteEntries(name("last"), "too old"))
    assert later(remembering, 2) == Seen("a", 2, None, [])
    assert later(remembering, 3, "b") == Seen("b", 3, 2, [2])
    assert later(remembering, 4) == Seen("a", 4, 10, [10])


# ------------------------------------------------------------------------------------------------------ keys and types


Money = Annotated[Decimal, Digits(20, 2)]


class Bill(Struct, frozen=True):
    price: Money
    shop: str
    at: Timestamp


class Note(Struct, frozen=True):
    text: str


class Awkward(KeyedProcessFunction[Bill, Note]):
    state = ValueState("state", Money)
    process_ = MapState("process", int | str, Annotated[Decimal, Digits(4, 2)])

    def process(self, bill, ctx, /):
        ctx.collect(Note(f"{self.state.value()} {dict(self.process_.entries())}"))
        self.state.update(bill.price)
        self.process_.put(5, Decimal(1))
        self.process_.put("5", Decimal(2))


def awkward(key):
    stream = Pipeline("shop").source("bills", Bill, event_time="at").key_by(key)
    job = PipelineHarness(stream.process("notes", Awkward()).sink("out"), now=0)
    job.feed("bills", [Bill(Decimal("123456789012345678.91"), "10115", HOUR)])
    job.run()
    return job


def of_notes(state, key, **rest):
    return EntryName("notes", state, key, **rest)


def test_long_decimal_is_the_key_that_is_stored():
    job = awkward("price")
    for text in ("123456789012345678.91", '"123456789012345678.91"'):
        (one,) = preview(job.config, SetEntry(of_notes("state", text), "1.5")).differences
        assert (one.key, one.after) == ('"123456789012345678.91"', '"1.50"')


def test_state_may_be_called_as_a_method():
    job = awkward("shop")
    edit(job, SetEntry(of_notes("state", "10115"), "1.5", why="counted"))
    edit(job, SetEntry(of_notes("process", "10115", entry='"5"'), "7", why="counted"))
    job.feed("bills", [Bill(Decimal(1), "10115", HOUR)])
    job.run()
    (_, second) = sorted((note.text for note in job.sink("out")), key=len)
    assert second == "1.50 {'5': Decimal('7.00'), 5: Decimal('1')}"


def test_digits_hold_without_a_record():
    job = awkward("shop")
    for state, text, entry in (("state", "1.505", None), ("state", '"NaN"', None), ("process", "100.00", "5")):
        with pytest.raises(ConfigError, match="does not fit"):
            preview(job.config, SetEntry(of_notes(state, "10115", entry=entry), text))


def test_entries_that_several_texts_mean_are_not_guessed():
    job = awkward("shop")
    with pytest.raises(ConfigError, match='several are meant by entry 5: "5", 5. Write it as JSON'):
        preview(job.config, DeleteEntries(of_notes("process", "10115", entry="5")))
    (one,) = preview(job.config, DeleteEntries(of_notes("process", "10115", entry='"5"'))).differences
    assert one.user_key == '"5"'


class PerHour(KeyedProcessFunction[Order, Order]):
    seen = ValueState("seen", int)
    hours = MapState("hours", Timestamp, int)

    def process(self, order, ctx, /):
        self.seen.update((self.seen.value() or 0) + 1)
        self.hours.put(order.at, order.cents)
        ctx.timers.register_event_time(order.at + HOUR)


NEW_YEAR = 1_356_998_400_000
"""2013-01-01, in milliseconds."""
AT_SIX = NEW_YEAR + 6 * HOUR


@pytest.fixture
def per_hour():
    stream = Pipeline("shop").source("orders", Order, event_time="at").key_by("customer", "at")
    harness = PipelineHarness(stream.process("hours", PerHour()).sink("lines"), now=AT_SIX)
    harness.feed("orders", [Order("a", 1, AT_SIX), Order("b", 2, AT_SIX + HOUR)])
    harness.run()
    return harness


WRITTEN = (
    '["a", "2013-01-01 06:00"]',
    '["a","2013-01-01T06:00:00Z"]',
    '["a", "2013-01-01T11:30+05:30"]',
    f'["a",{AT_SIX}]',
)


@pytest.mark.slow
@pytest.mark.parametrize("key", WRITTEN)
def test_times_of_a_key_are_written_as_times(per_hour, key):
    stored = f'["a",{AT_SIX}]'
    job = JobAtCheckpoint(per_hour.config)
    assert {row["key"] for row in keyed_state.get(job, key).dicts()} == {stored}
    assert {row["key"] for row in key_history(job, key).dicts()} == {stored}
    assert {row["key"] for row in list_timers(job, key=key).dicts()} == {stored}
    assert count_timers(job, key=key) == 1
    with per_hour.on_its_clock():
        assert [change["state"] for change in why(job, key).causes[-1].changes] == ["hours", "seen"]
    edit(per_hour, SetEntry(EntryName("hours", "seen", key), "7", why="counted"))
    edit(per_hour, DeleteEntries(EntryName("hours", "hours", key, entry="2013-01-01 06:00"), why="counted"))
    edit(
        per_hour, SetEntry(EntryName("hours", "hours", key, entry="2013-01-01T06:30"), "9", creates=True, why="counted")
    )
    after = keyed_state.get(JobAtCheckpoint(per_hour.config), key).dicts()
    assert [(row["key"], row["user_key"], row["value"]) for row in after] == [
        (stored, str(AT_SIX + HOUR // 2), "9"),
        (stored, None, "7"),
    ]


def test_written_times_make_new_keys(per_hour):
    edit(per_hour, SetEntry(EntryName("hours", "seen", '["c", "2013-01-01 07:00"]'), "7", creates=True, why="counted"))
    assert entries(per_hour, f'["c",{AT_SIX + HOUR}]') == {("seen", None): "7"}


def test_time_finer_than_its_key_is_refused(per_hour):
    for name in (
        EntryName("hours", "seen", '["c", "2013-01-01T07:00:00.000001"]'),
        EntryName("hours", "hours", WRITTEN[0], entry="2013-01-01T06:00:00.000001"),
    ):
        with pytest.raises(ConfigError, match="finer than a millisecond"):
            edit(per_hour, SetEntry(name, "7", creates=True, why="counted"))


class Quote(Struct, frozen=True):
    price: Annotated[Decimal, Digits(22, 2)]
    at: Timestamp
    text: str


class CountsQuotes(KeyedProcessFunction[Quote, Quote]):
    seen = ValueState("seen", int)

    async def process(self, record, ctx, /):
        await self.seen.update(1)
        ctx.collect(record)


@pytest.mark.parametrize("time", [str(AT_SIX), '"2013-01-01 06:00"'])
@pytest.mark.parametrize("text", ["a", "a 5 (2013-01-05T00:00:00Z)"])
def test_parts_beside_a_time_stay_as_written(time, text):
    price = Decimal("12345678901234567890.12")
    stream = Pipeline("shop").source("prices", Quote, event_time="at").key_by("price", "at", "text")
    harness = PipelineHarness(stream.process("counts", CountsQuotes()).sink("lines"), now=AT_SIX)
    harness.feed("prices", [Quote(price, AT_SIX, text)])
    harness.run()
    (stored,) = {row["key"] for row in keyed_state.scan(JobAtCheckpoint(harness.config)).dicts()}
    edit(harness, SetEntry(EntryName("counts", "seen", f'[{price}, {time}, "{text}"]'), "7", why="counted"))
    assert entries(harness, stored) == {("seen", None): "7"}


def test_time_is_no_key_of_a_plain_number():
    stream = Pipeline("shop").source("orders", Order, event_time="at").key_by("cents")
    harness = PipelineHarness(stream.process("hours", PerHour()).sink("lines"), now=AT_SIX)
    harness.feed("orders", [Order("a", 1, AT_SIX)])
    harness.run()
    with pytest.raises(ConfigError, match="no key of operator 'hours'"):
        edit(harness, SetEntry(EntryName("hours", "seen", "2013-01-01"), "7", creates=True, why="counted"))


def test_undeclared_keys_are_those_that_are_there():
    job = awkward(lambda bill: bill.shop)
    (one,) = preview(job.config, SetEntry(of_notes("state", "10115"), "1")).differences
    assert one.key == '"10115"'
    with pytest.raises(ConfigError, match="nobody can tell whether '10116' is a text or a number"):
        preview(job.config, SetEntry(of_notes("state", "10116"), "1", creates=True))
    (one,) = preview(job.config, SetEntry(of_notes("state", '"10116"'), "1", creates=True)).differences
    assert one.key == '"10116"'


class Rules(KeyedBroadcastFunction[Order, Order, Note]):
    rules = BroadcastState("rules", str, int)
    seen = ValueState("seen", int)

    def process(self, order, ctx, /):
        ctx.collect(Note(str(self.seen.value())))
        self.seen.update(1)

    def process_broadcast(self, order, ctx, /):
        self.rules.put(order.customer, order.cents)


def test_keyed_state_beside_broadcast_state_is_set():
    shop = Pipeline("shop")
    orders, rules = (shop.source(name, Order, event_time="at") for name in ("orders", "rules"))
    job = PipelineHarness(
        orders.key_by("customer").connect(rules.broadcast()).process("totals", Rules()).sink("out"), now=0
    )
    job.feed("orders", [Order("a", 1, HOUR)])
    job.feed("rules", [Order("a", 1, HOUR)])
    job.run()
    edit(job, SetEntry(name("seen"), "9", why="counted"))
    job.feed("orders", [Order("a", 1, HOUR)])
    job.feed("rules", [Order("a", 1, HOUR)])
    job.run()
    assert sorted(note.text for note in job.sink("out")) == ["9", "None"]
    with pytest.raises(ConfigError, match="is broadcast"):
        preview(job.config, SetEntry(name("rules"), "9"))


class Price(Struct, frozen=True):
    item: str | None
    cents: int
    at: Timestamp


class Priced(Struct, frozen=True):
    item: str | None
    cents: int
    other: int | None


def priced(left, right) -> Priced:
    return Priced(left.item, left.cents, None if right is None else right.cents)


def join_of(null_keys):
    pipeline = Pipeline("shop")
    left, right = (
        pipeline.source(name, Price, event_time="at").key_by("item").window(Tumbling(timedelta(hours=1)))
        for name in ("left", "right")
    )
    joined = left.join("both", right, emit=priced, how=JoinType.LEFT, null_keys=null_keys)
    job = PipelineHarness(joined.sink("lines"), now=0, bucket=1)
    job.feed("left", [Price(None, 1, 0), Price("a", 2, 0)])
    job.feed("right", [Price("a", 3, 0)])
    job.run()
    return job


def test_null_key_of_a_join_is_set():
    job = join_of(NullKeys.KEEP)
    ((_, raw),) = [
        (row["state"], row["value"]) for row in keyed_state.get(JobAtCheckpoint(job.config), "[null]").dicts()
    ]
    assert raw == '{"item":null,"cents":1,"at":0}'
    value = '[{"item":null,"cents":7,"at":0},{"item":null,"cents":8,"at":0}]'
    edit(job, SetEntry(EntryName("both", "tumbling_1h_left", "[null]", "0"), value, why="counted"))
    for name in ("left", "right"):
        job.feed(name, [Price("z", 0, 3 * HOUR)])
    job.run()
    rows = [line for line in job.sink("lines") if line.item != "z"]
    assert sorted(rows, key=lambda line: line.cents) == [
        Priced("a", 2, 3),
        Priced(None, 7, None),
        Priced(None, 8, None),
    ]


@pytest.mark.parametrize("key", ["[null]", " [ null ]"])
def test_null_key_elsewhere_is_refused(job, key):
    for refused in (job, join_of(NullKeys.QUARANTINE)):
        operator, state = ("both", "tumbling_1h_left") if refused is not job else ("totals", "items")
        with pytest.raises(ConfigError, match="takes none: they go to the quarantine. A text is written as JSON"):
            preview(refused.config, SetEntry(EntryName(operator, state, key), "[]", creates=True))


def test_text_that_looks_like_a_null_key(job):
    edit(job, SetEntry(name("total", '"[null]"'), "5", creates=True, why="counted"))
    assert entries(job, '"[null]"') == {("total", None): "5"}
