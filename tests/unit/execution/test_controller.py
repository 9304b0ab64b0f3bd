"""The controller alone, one step at a time, with requests to a fake executor.

A machine's record is named by its key and a number, as in `a1`; its code makes reads, which the next `step` answers.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from headrace import StateFuture
from headrace.execution.controller import AsyncExecutionController
from headrace.execution.keyed_operator import ForeignAwaitError
from headrace.execution.record_context import RecordContext
from headrace.options import AsyncStateOptions, EventOrder, KeyOrder


class HandExecutor:
    """Keeps submitted requests until the test answers them, or until the task can only wait."""

    def __init__(self, answer, room=8):
        self.answer = answer
        self.room = room
        self.batches = []
        self.closed = False
        self._under_way = []
        self._done = []

    @property
    def in_flight(self):
        return len(self._under_way) + bool(self._done)

    @property
    def has_completed(self):
        return bool(self._done)

    @property
    def has_room(self):
        return len(self._under_way) < self.room

    def submit(self, batch, /):
        self.batches.append([request.action for request in batch])
        self._under_way.append(list(batch))

    def finish(self, number=0):
        """Answer one of the submitted batches."""
        for request in self._under_way.pop(number):
            request.answer = self.answer(request.action)
            self._done.append(request)

    def completed(self, *, wait):
        if wait and not self._done and self._under_way:
            self.finish()
        done, self._done = self._done, []
        return done

    def close(self):
        self.closed = True


STATE_ORDERED = KeyOrder.STATE_ORDERED
STRICT = EventOrder.STRICTLY_ORDERED


class FailedError(Exception):
    """The user code of a record failed."""


class Record(RecordContext):
    """A record that is its own code."""

    def __init__(self, machine, name, code, due=(), overdue=()):
        super().__init__(name[:1].encode(), name)
        self.code, self.due, self.overdue = code, list(due), list(overdue)


class Machine:
    """A controller over an executor that is moved by hand."""

    def __init__(self, **options):
        self.log = []
        self.executor = HandExecutor(lambda action: f"answer to {action}")
        self.controller = AsyncExecutionController(self, self.executor, AsyncStateOptions(**options))

    def take(self, name, code=None, **due):
        """Process a record; by default it reads once."""
        record = Record(self, name, code or reads(1), **due)
        self.controller.process(record)
        return record

    def run(self, name, code):
        """Process a record and run to quiescence."""
        self.take(name, code)
        self.controller.drain()

    def timer(self, name, code=None):
        """Create a record that another record starts."""
        return Record(self, name, code or reads(1))

    def watermark(self, name):
        """End an epoch; the log shows when the watermark is emitted."""
        self.controller.on_non_record(lambda _: None, lambda: self.log.append(name))

    def read(self, action="x"):
        """Make a request of the running code."""
        context = self.controller.context
        future = StateFuture.pending(self.controller)
        self.controller.request(context, action, future.complete)
        return future

    def tell(self, what):
        """Log an act of the running record."""
        self.log.append(f"{self.controller.context.record} {what}")

    def step(self):
        """Answer one batch of requests and run the code that became ready."""
        self.controller.batches.fire()
        self.executor.finish()
        self.controller.poll()

    def new_events(self):
        """Return the log since the last call."""
        log, self.log = self.log, []
        return log

    @property
    def counts(self):
        """Records in flight, active requests, blocked records, occupied keys."""
        now = self.controller.statistics()
        return now.in_flight, now.active, now.blocking, now.occupied_keys

    # what the controller asks

    due = ("something",)

    def call(self, record):
        return record.code(self)

    def before(self, record):
        return record.due.pop(0) if record.due else None

    def after(self, record):
        return record.overdue.pop(0) if record.overdue else None

    def failed(self, record, error):
        return FailedError(record.record, error)


def reads(times):
    """Code that reads so often."""

    async def code(m):
        m.tell("starts")
        for _ in range(times):
            await m.read()
        m.tell("ends")

    return code


@pytest.fixture
def new(clock):
    return Machine


@pytest.fixture
def machine(new):
    return new()


# ------------------------------------------------------------------------------------------------- order of a key


def test_key_belongs_to_one_record_throughout(machine):
    machine.take("a1")
    machine.take("a2")
    assert (machine.new_events(), machine.counts) == (["a1 starts"], (2, 1, 1, 1))
    machine.step()
    assert (machine.new_events(), machine.counts) == (["a1 ends", "a2 starts"], (1, 1, 0, 1))
    machine.step()
    assert (machine.new_events(), machine.counts) == (["a2 ends"], (0, 0, 0, 0))


def test_key_belongs_to_record_until_last_callback(machine):
    def chained(m):
        m.read().then_compose(lambda _: m.read()).then_accept(lambda _: m.tell("calls back"))

    machine.take("a1", chained)
    machine.take("a2")
    machine.step()
    assert (machine.new_events(), machine.counts) == ([], (2, 1, 1, 1))
    machine.step()
    assert (machine.new_events(), machine.counts) == (["a1 calls back", "a2 starts"], (1, 1, 0, 1))


def test_finished_record_releases_only_keys_next(machine):
    for name in ("a1", "a2", "a3", "b1", "b2"):
        machine.take(name, reads(1 if name < "b" else 2))
    assert (machine.new_events(), machine.counts) == (["a1 starts", "b1 starts"], (5, 2, 3, 2))
    machine.step()
    assert (machine.new_events(), machine.counts) == (["a1 ends", "a2 starts"], (4, 2, 2, 2))


#    a1 ====x====x====x===|              a1 reads three times, b1 once, c1 not at all
#        b1 ====x==|
#           c1 |


def test_other_keys_overtake(machine):
    machine.take("a1", reads(3))
    machine.take("b1", reads(1))
    machine.take("c1", reads(0))
    machine.controller.drain()
    assert machine.new_events() == ["a1 starts", "b1 starts", "c1 starts", "c1 ends", "b1 ends", "a1 ends"]


def test_record_without_requests_waits_for_its_key(machine):
    machine.take("a1")
    machine.take("a2", reads(0))
    assert machine.new_events() == ["a1 starts"]
    machine.step()
    assert machine.new_events() == ["a1 ends", "a2 starts", "a2 ends"]


def test_thousands_of_records_of_key_do_not_nest(machine):
    machine.take("a0")
    for number in range(5_000):
        machine.take(f"a{number}", lambda m: m.log.append(1))
    assert machine.counts == (5_001, 1, 5_000, 1)
    machine.step()
    assert (machine.log.count(1), machine.counts) == (5_000, (0, 0, 0, 0))


# ---------------------------------------------------------------------------------------------------- references

#    count   1 its own code | 2 a request | 3 then() | own code ends 2 | called back 1 | request answered 0


def test_own_code_requests_and_callbacks_are_counted(machine):
    counts = []

    def code(m):
        counts.append(record.references)
        answer = m.read()
        counts.append(record.references)
        answer.then_accept(lambda _: counts.append(record.references))
        counts.append(record.references)

    record = Record(machine, "a1", code)
    machine.controller.process(record)
    counts.append(record.references)
    machine.step()
    assert [*counts, record.references] == [1, 2, 3, 2, 1, 0]


def test_unawaited_request_is_counted(machine):
    record = machine.take("a1", lambda m: (m.read(), None)[1])
    machine.take("a2")
    assert (record.references, machine.counts) == (1, (2, 1, 1, 1))
    machine.step()
    assert (record.references, machine.new_events()) == (0, ["a2 starts"])


def test_chained_callbacks_count_until_they_run(machine):
    def code(m):
        chain = m.read()
        for _ in range(3):
            chain = chain.then_accept(lambda _: m.tell("calls back"))

    record = machine.take("a1", code)
    assert record.references == 4
    machine.step()
    assert (record.references, machine.new_events()) == (0, ["a1 calls back"] * 3)


def test_composed_requests_follow_each_other(machine):
    def code(m):
        m.read("x").then_compose(lambda _: m.read("y").then_compose(lambda _: m.read("z"))).then_accept(m.tell)

    machine.take("a1", code)
    for _ in range(3):
        assert machine.counts == (1, 1, 0, 1)
        machine.step()
    assert (machine.executor.batches, machine.new_events()) == ([["x"], ["y"], ["z"]], ["a1 answer to z"])
    assert machine.counts == (0, 0, 0, 0)


def test_combined_requests_share_a_batch(machine):
    machine.take(
        "a1", lambda m: (m.read("x").then_combine(m.read("y"), "{} and {}".format).then_accept(m.tell), None)[1]
    )
    machine.step()
    assert (machine.executor.batches, machine.new_events()) == ([["x", "y"]], ["a1 answer to x and answer to y"])
    assert machine.counts == (0, 0, 0, 0)


@pytest.mark.parametrize("holds", [True, False])
def test_condition_chooses_the_next_request(machine, holds):
    def code(m):
        chosen = m.read().then_conditionally_compose(lambda _: holds, lambda _: m.read("yes"), lambda _: m.read("no"))
        chosen.then_accept(m.tell)

    machine.take("a1", code)
    machine.controller.drain()
    assert machine.new_events() == [f"a1 {(holds, 'answer to yes' if holds else 'answer to no')}"]


def test_awaiting_and_chaining_can_be_mixed(machine):
    async def code(m):
        left = m.read("x").then_accept(lambda _: m.tell("calls back"))
        m.tell(await m.read("y"))
        await left
        m.read("z").then_accept(m.tell)
        m.tell("ends")

    machine.take("a1", code)
    machine.step()
    assert (machine.new_events(), machine.counts) == (["a1 calls back", "a1 answer to y", "a1 ends"], (1, 1, 0, 1))
    machine.step()
    assert (machine.new_events(), machine.counts) == (["a1 answer to z"], (0, 0, 0, 0))


def test_code_resumes_as_its_own_record(machine):
    """After each wait, code resumes as its own record."""

    async def code(m):
        for action in ("x", "y"):
            m.tell(await m.read(action))

    machine.take("a1", code)
    machine.take("b1", code)
    machine.controller.drain()
    assert machine.new_events() == ["a1 answer to x", "b1 answer to x", "a1 answer to y", "b1 answer to y"]


def test_answer_is_handled_as_its_records_code(machine):
    def code(m):
        m.controller.request(m.controller.context, "x", m.tell)

    machine.take("a1", code)
    machine.take("b1", code)
    machine.controller.drain()
    assert machine.new_events() == ["a1 answer to x", "b1 answer to x"]


# --------------------------------------------------------------------------------------- batches and back-pressure


def test_batch_starts_when_it_is_full(new):
    machine = new(buffer_size=2)
    machine.take("a1")
    assert (machine.executor.batches, machine.counts) == ([], (1, 1, 0, 1))
    machine.take("b1")
    assert (machine.executor.batches, machine.counts) == ([["x", "x"]], (2, 0, 0, 2))


#    a1 at 0, b1 at 600; c1 at 999 comes too early to start their batch, d1 at 1000 does


def test_batch_starts_when_oldest_request_times_out(new, clock):
    machine = new(buffer_timeout=timedelta(seconds=1))
    for name, wait in (("a1", 600), ("b1", 399), ("c1", 1)):
        machine.take(name)
        clock.advance(wait)
    assert machine.executor.batches == []
    machine.take("d1")
    assert (machine.executor.batches, machine.counts) == ([["x"] * 3], (4, 1, 0, 4))


def test_zero_timeout_starts_batch_at_next_record(new):
    machine = new(buffer_timeout=timedelta(0))
    machine.take("a1")
    machine.take("b1")
    assert machine.executor.batches == [["x"]]


def test_draining_starts_waiting_requests(machine):
    machine.take("a1")
    machine.take("a2")
    machine.controller.drain()
    assert (machine.executor.batches, machine.counts) == ([["x"], ["x"]], (0, 0, 0, 0))


def test_full_batch_waits_for_room(new):
    machine = new(buffer_size=1)
    machine.executor.room = 1
    for name in ("a1", "b1", "c1"):
        machine.take(name)
    assert (machine.executor.batches, machine.counts) == ([["x"]], (3, 2, 0, 3))
    machine.executor.finish()
    machine.controller.poll()
    assert (machine.executor.batches, machine.counts) == ([["x"], ["x"]], (2, 1, 0, 2))


def test_requests_waiting_for_room_start_equal_batches(new):
    machine = new(buffer_size=2)
    machine.executor.room = 0
    for name in "abcde":
        machine.take(name)
    assert (machine.executor.batches, machine.counts) == ([], (5, 5, 0, 5))
    machine.executor.room = 8
    machine.controller.poll()
    assert (machine.executor.batches, machine.counts) == ([["x", "x"]] * 2, (5, 1, 0, 5))


def test_record_limit_delays_input_and_runs_callbacks(new):
    machine = new(in_flight_records_limit=2)
    machine.take("a1")
    machine.take("b1")
    assert machine.counts == (2, 2, 0, 2)
    machine.take("c1")
    assert machine.new_events() == ["a1 starts", "b1 starts", "a1 ends", "b1 ends", "c1 starts"]
    assert machine.counts == (1, 1, 0, 1)


def test_blocked_records_are_in_flight_too(new):
    machine = new(in_flight_records_limit=2)
    for name in ("a1", "a2", "a3"):
        machine.take(name)
    assert machine.new_events() == ["a1 starts", "a1 ends", "a2 starts"]
    assert machine.counts == (2, 1, 1, 1)


def test_limit_of_one_record_is_synchronous_execution(new):
    machine = new(in_flight_records_limit=1)
    for name in ("a1", "b1", "a2"):
        machine.take(name, reads(2))
    machine.controller.drain()
    assert machine.new_events() == ["a1 starts", "a1 ends", "b1 starts", "b1 ends", "a2 starts", "a2 ends"]


def test_started_records_requests_are_never_delayed(new):
    machine = new(in_flight_records_limit=1, buffer_size=2)

    async def many(m):
        for future in [m.read(number) for number in range(5)]:
            await future

    machine.take("a1", many)
    machine.controller.drain()
    assert machine.executor.batches == [[0, 1], [2, 3], [4]]


def test_callbacks_come_before_input(machine):
    machine.take("a1")
    machine.controller.batches.fire()
    machine.executor.finish()
    machine.take("b1")
    assert machine.new_events() == ["a1 starts", "a1 ends", "b1 starts"]


def test_batches_may_be_answered_in_any_order(new):
    machine = new(buffer_size=1)
    for name in ("a1", "b1", "c1"):
        machine.take(name)
    for number in (2, 0, 0):
        machine.executor.finish(number)
        machine.controller.poll()
    assert machine.new_events()[3:] == ["c1 ends", "a1 ends", "b1 ends"]


def test_batches_start_only_on_demand_if_configured(new):
    machine = new(buffer_size=1)
    machine.controller.batches.fires_by_itself = False
    machine.take("a1")
    machine.controller.poll()
    assert (machine.executor.batches, machine.counts) == ([], (1, 1, 0, 1))


# --------------------------------------------------------------------------------------------------- watermarks

#    a1 | w1 | b1 | w2            b1 is done before a1: w2 waits all the same


def test_watermark_follows_all_records_before_it(machine):
    machine.take("a1", reads(3))
    machine.watermark("w1")
    machine.take("b1", reads(1))
    machine.watermark("w2")
    machine.controller.drain()
    assert machine.new_events() == ["a1 starts", "b1 starts", "b1 ends", "a1 ends", "w1", "w2"]


def test_records_may_overtake_an_earlier_watermark(machine):
    """Records behind a watermark overtake it, and records before it."""
    machine.take("a1")
    machine.watermark("w1")
    machine.take("b1", reads(0))
    assert (machine.new_events(), len(machine.controller.epochs)) == (["a1 starts", "b1 starts", "b1 ends"], 2)


def test_watermark_without_earlier_records_is_emitted_immediately(machine):
    machine.watermark("w1")
    assert machine.new_events() == ["w1"]


def test_strictly_ordered_watermark_precedes_next_record(new):
    machine = new(event_order_watermark=STRICT)
    machine.take("a1", reads(2))
    machine.watermark("w1")
    machine.take("b1", reads(0))
    assert machine.new_events() == ["a1 starts", "a1 ends", "w1", "b1 starts", "b1 ends"]


def test_other_events_keep_strict_order_by_default(machine):
    machine.take("a1")
    machine.controller.on_event(lambda _: machine.log.append("trigger"), lambda: machine.log.append("final"))
    assert machine.new_events() == ["a1 starts", "a1 ends", "trigger", "final"]


@pytest.mark.parametrize("order", EventOrder)
def test_watermark_follows_work_of_timers_it_fires(new, order):
    machine = new(event_order_watermark=order)
    timer = machine.timer("a!", reads(2))
    machine.controller.on_non_record(
        lambda epoch: machine.controller.process(timer, epoch), lambda: machine.log.append("w1")
    )
    machine.watermark("w2")
    machine.take("b1", reads(0))
    machine.controller.drain()
    ended = ["a! ends", "w1", "w2"]
    behind = ["b1 starts", "b1 ends"]
    assert machine.new_events() == ["a! starts", *(ended + behind if order is STRICT else behind + ended)]


def test_timers_of_a_watermark_wait_for_room(new):
    machine = new(in_flight_records_limit=1)
    timers = [machine.timer(name) for name in ("a!", "b!", "c!")]
    machine.controller.on_non_record(
        lambda epoch: [machine.controller.process(timer, epoch) for timer in timers], lambda: machine.log.append("w1")
    )
    machine.controller.drain()
    assert machine.new_events() == ["a! starts", "a! ends", "b! starts", "b! ends", "c! starts", "c! ends", "w1"]


# -------------------------------------------------------------------------------------- what comes before and after


def test_due_work_runs_singly_before_its_record(machine):
    machine.take("a1", due=[machine.timer("a!"), machine.timer("a?")])
    assert (machine.new_events(), machine.counts) == (["a! starts"], (2, 1, 1, 1))
    machine.step()
    assert (machine.new_events(), machine.counts) == (["a! ends", "a? starts"], (2, 1, 1, 1))
    machine.step()
    assert machine.new_events() == ["a? ends", "a1 starts"]


def test_due_work_waits_for_the_running_record(machine):
    machine.take("a1")
    machine.take("a2", due=[machine.timer("a!")])
    machine.take("a3")
    machine.controller.drain()
    assert machine.new_events() == [
        f"{name} {does}" for name in ("a1", "a!", "a2", "a3") for does in ("starts", "ends")
    ]


def test_derived_work_runs_right_after_its_record(machine):
    machine.take("a1", overdue=[machine.timer("a!")])
    machine.take("a2")
    assert machine.counts == (2, 1, 1, 1)
    machine.controller.drain()
    assert machine.new_events() == [f"{name} {does}" for name in ("a1", "a!", "a2") for does in ("starts", "ends")]


def test_derived_work_belongs_to_its_records_epoch(machine):
    machine.take("a1", overdue=[machine.timer("a!")])
    machine.watermark("w1")
    machine.controller.drain()
    assert machine.new_events() == ["a1 starts", "a1 ends", "a! starts", "a! ends", "w1"]


# --------------------------------------------------------------------------------------------------- state-ordered


async def thinks_first(m):
    m.tell("thinks")
    await m.read()
    m.tell("reads")


def test_state_ordered_code_before_the_first_access_overtakes(new):
    machine = new(order_with_same_key=STATE_ORDERED)
    machine.take("a1", thinks_first)
    machine.take("a2", thinks_first)
    assert (machine.new_events(), machine.counts) == (["a1 thinks", "a2 thinks"], (2, 1, 1, 1))
    machine.step()
    assert (machine.new_events(), machine.counts) == (["a1 reads"], (1, 1, 0, 1))
    machine.step()
    assert (machine.new_events(), machine.counts) == (["a2 reads"], (0, 0, 0, 0))


def test_state_ordered_record_without_access_never_waits(new):
    machine = new(order_with_same_key=STATE_ORDERED)
    machine.take("a1")
    machine.take("a2", reads(0))
    assert (machine.new_events(), machine.counts) == (["a1 starts", "a2 starts", "a2 ends"], (1, 1, 0, 1))


def test_state_ordered_accesses_follow_the_first_ones(new):
    machine = new(order_with_same_key=STATE_ORDERED)

    async def code(m):
        await m.read()
        m.tell("reads")
        await m.read()
        m.tell("reads again")

    for name in ("a1", "a2", "a3"):
        machine.take(name, code)
    machine.controller.drain()
    assert machine.new_events() == [
        f"{name} {does}" for name in ("a1", "a2", "a3") for does in ("reads", "reads again")
    ]


#    a1 ==x==|
#      a2 ==xy           both requests of a2 wait for a1, and so does a3 for a2
#        a3 ==x


def test_state_ordered_waiting_record_may_make_more_requests(new):
    """In state order, a record that waits for its key may continue and make more requests."""
    machine = new(order_with_same_key=STATE_ORDERED)

    async def both(m):
        x, y = m.read("x"), m.read("y")
        m.tell(f"{await x}, {await y}")

    for name in ("a1", "a2", "a3"):
        machine.take(name, both)
    assert machine.counts == (3, 2, 2, 1)
    for name in ("a1", "a2", "a3"):
        machine.step()
        assert machine.new_events() == [f"{name} answer to x, answer to y"]
    assert machine.counts == (0, 0, 0, 0)


def test_state_ordered_due_work_precedes_first_access(new):
    machine = new(order_with_same_key=STATE_ORDERED)
    machine.take("a1", thinks_first, due=[machine.timer("a!")])
    machine.controller.drain()
    assert machine.new_events() == ["a1 thinks", "a! starts", "a! ends", "a1 reads"]


def test_state_ordered_code_stays_its_own_records(new):
    """In state order, code belongs to its own record, also while due work runs."""
    machine = new(order_with_same_key=STATE_ORDERED)

    async def code(m):
        x = m.read()
        m.tell("goes on")
        await m.read()
        await x
        m.tell("ends")

    machine.take("a1", code, due=[machine.timer("a!", reads(0)), machine.timer("a?")])
    machine.controller.drain()
    assert machine.new_events() == ["a1 goes on", "a! starts", "a! ends", "a? starts", "a? ends", "a1 ends"]


def test_state_ordered_derived_work_waits_for_key(new):
    machine = new(order_with_same_key=STATE_ORDERED)
    machine.take("a1")
    machine.take("a2", reads(0), overdue=[machine.timer("a!")])
    machine.take("a3", thinks_first)
    machine.controller.drain()
    assert machine.new_events() == [
        *("a1 starts", "a2 starts", "a2 ends", "a3 thinks"),
        *("a1 ends", "a! starts", "a! ends", "a3 reads"),
    ]


def test_state_ordered_derived_work_waits_for_earlier_requests(new):
    machine = new(order_with_same_key=STATE_ORDERED)
    machine.take("a1")
    machine.take("a2", thinks_first)
    machine.take("a3", reads(0), overdue=[machine.timer("a!")])
    machine.take("a4", thinks_first)
    machine.controller.drain()
    assert machine.new_events() == [
        *("a1 starts", "a2 thinks", "a3 starts", "a3 ends", "a4 thinks"),
        *("a1 ends", "a2 reads", "a! starts", "a! ends", "a4 reads"),
    ]


# -------------------------------------------------------------------------------------------------------- errors


def zero(*_):
    return 1 / 0


async def fails_at_once(m):
    zero()


async def fails_later(m):
    await m.read()
    zero()


def fails_in_a_callback(m):
    m.read().then_accept(zero)


def fails_in_a_plain_function(m):
    zero()


@pytest.mark.parametrize("code", [fails_at_once, fails_later, fails_in_a_callback, fails_in_a_plain_function])
def test_user_code_failure_names_its_record(machine, code):
    machine.take("a1")
    with pytest.raises(FailedError) as raised:
        machine.run("b1", code)
    assert raised.value.args[0] == "b1"
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


def test_blocked_records_failure_is_its_own(machine):
    machine.take("a1")
    machine.take("a2", fails_at_once)
    with pytest.raises(FailedError) as raised:
        machine.step()
    assert raised.value.args[0] == "a2"


def test_failed_request_fails_task_with_its_error(machine):
    def submit(batch, /):
        for request in batch:
            request.error = OSError("the disk is gone")
        machine.executor._done += batch

    machine.executor.submit = submit
    machine.take("a1")
    with pytest.raises(OSError, match="the disk is gone"):
        machine.controller.drain()


def test_awaiting_a_foreign_object_fails_the_record(machine):
    async def sleeps(m):
        await asyncio.sleep(0)

    with pytest.raises(FailedError) as raised:
        machine.take("a1", sleeps)
    name, error = raised.value.args
    assert name == "a1"
    assert isinstance(error, ForeignAwaitError)
    assert "sleeps awaited something other than its own state in line" in str(error)


async def awaits_in_the_end(m):
    await m.read()


async def raises_in_the_end(_):
    zero()


@pytest.mark.parametrize("end", [awaits_in_the_end, raises_in_the_end])
def test_unstoppable_code_reports_its_first_act(machine, end):
    """An error about code that does not stop names the first act of the code."""

    async def sleeps(m):
        try:
            await asyncio.sleep(0)
        finally:
            await end(m)

    with pytest.raises(FailedError, match="sleeps awaited something other"):
        machine.take("a1", sleeps)


def test_awaiting_foreign_request_fails_the_record(machine):
    asked = []

    async def borrows(m):
        await asked[0]

    machine.take("a1", lambda m: asked.append(m.read()))
    with pytest.raises(FailedError) as raised:
        machine.take("b1", borrows)
    name, error = raised.value.args
    assert name == "b1"
    assert isinstance(error, ForeignAwaitError)


def test_chaining_foreign_request_fails_the_record(machine):
    asked = []
    machine.take("a1", lambda m: asked.append(m.read()))
    with pytest.raises(FailedError, match="another record") as raised:
        machine.take("b1", lambda _: asked[0].then_accept(print))
    assert raised.value.args[0] == "b1"


def test_present_answer_may_be_awaited_repeatedly(machine):
    """Any record may await a present answer, even several times."""
    asked = []

    async def asks(m):
        asked.append(m.read())
        m.tell(await asked[0])
        m.tell(await asked[0])

    async def borrows(m):
        m.tell(await asked[0])

    machine.take("a1", asks)
    machine.controller.drain()
    machine.take("b1", borrows)
    assert machine.new_events() == ["a1 answer to x"] * 2 + ["b1 answer to x"]


def test_record_waiting_forever_is_reported(machine):
    async def waits_for_ever(m):
        await StateFuture.pending(m.controller)

    with pytest.raises(FailedError, match="nothing will complete") as raised:
        machine.take("a1", waits_for_ever)
    assert raised.value.args[0] == "a1"


def test_thousands_of_waits_behind_callbacks_do_not_nest(machine):
    async def code(m):
        for number in range(5_000):
            StateFuture(number, m.controller).then_accept(m.log.append)
            await StateFuture(number, m.controller)

    machine.take("a1", code)
    assert (machine.new_events(), machine.counts) == (list(range(5_000)), (0, 0, 0, 0))


@pytest.mark.parametrize("at_hand", [True, False])
def test_await_continues_after_all_callbacks(machine, at_hand):
    async def code(m):
        slow = m.read("x")
        fast = StateFuture("fast", m.controller) if at_hand else m.read("y")
        slow.then_accept(lambda _: m.tell("first")).then_accept(lambda _: m.tell("second"))
        fast.then_accept(lambda _: m.tell("third"))
        m.tell("goes on")
        await fast
        m.tell("ends")

    machine.run("a1", code)
    assert machine.new_events() == [f"a1 {what}" for what in ("goes on", "first", "second", "third", "ends")]


def test_record_waiting_for_foreign_work_is_reported(machine):
    """An error names a record that waits for more than its requests."""

    async def waits_for_ever(m):
        await m.read()
        await StateFuture.pending(m.controller)

    machine.take("a1", waits_for_ever)
    with pytest.raises(FailedError, match="nothing will complete") as raised:
        machine.controller.drain()
    assert raised.value.args[0] == "a1"


def test_closing_releases_the_executor(machine):
    machine.controller.close()
    assert machine.executor.closed
