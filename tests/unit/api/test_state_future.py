from __future__ import annotations

from collections import deque

import pytest

from headrace import StateFuture
from headrace.execution.record_context import RecordContext


@pytest.fixture
def task():
    return Task()


class Task:
    """A task that runs the callbacks of its one record when the test says so."""

    def __init__(self):
        self.context = RecordContext(b"key", "record")
        self.context.callbacks = deque()

    def register(self, continuation, /):
        assert all(future.belongs_to(self.context) for future in continuation.futures)
        self.context.callbacks.append(continuation)

    def run(self):
        while (continuation := self.context.next_callback()) is not None:
            continuation.run()


@pytest.fixture
def pending(task):
    return StateFuture.pending(task)


def even(number):
    return number % 2 == 0


def twice(number):
    return 2 * number


def half_later(number):
    return StateFuture(number // 2)


FORMS = [
    (lambda f: f.then_apply(twice), 8, 10),
    (lambda f: f.then_accept(twice), None, None),
    (lambda f: f.then_compose(half_later), 2, 2),
    (lambda f: f.then_combine(StateFuture(3), max), 4, 5),
    (lambda f: f.then_conditionally_apply(even, twice), (True, 8), (False, None)),
    (lambda f: f.then_conditionally_apply(even, twice, str), (True, 8), (False, "5")),
    (lambda f: f.then_conditionally_accept(even, twice), True, False),
    (lambda f: f.then_conditionally_compose(even, half_later), (True, 2), (False, None)),
    (lambda f: f.then_conditionally_compose(even, half_later, StateFuture), (True, 2), (False, 5)),
]
forms = pytest.mark.parametrize(("form", "of_4", "of_5"), FORMS)


@forms
def test_callback_of_user_made_future_runs_at_once(form, of_4, of_5):
    assert [answer(form(StateFuture(4))), answer(form(StateFuture(5)))] == [of_4, of_5]


@forms
@pytest.mark.parametrize("number", [4, 5])
@pytest.mark.parametrize("at_hand", [True, False])
def test_callback_waits_even_if_answer_is_present(task, form, of_4, of_5, number, at_hand):
    """The callback waits for its turn, even if the answer is present."""
    future = StateFuture(number, task) if at_hand else StateFuture.pending(task)
    result = form(future)
    if not at_hand:
        task.run()
        future.complete(number)
    assert (result.done, len(task.context.callbacks) > 0) == (False, True)
    task.run()
    assert (answer(result), len(task.context.callbacks)) == (of_4 if number == 4 else of_5, 0)


def test_callbacks_run_in_chaining_order(task, pending):
    log = []
    for name in ("first", "second", "third"):
        pending.then_accept(lambda _, name=name: log.append(name))
    pending.complete(0)
    task.run()
    assert log == ["first", "second", "third"]


#    slow: ....................x          first waits for it, and second for first
#    fast: x


def test_later_answered_callback_waits_for_earlier_one(task, pending):
    log = []
    pending.then_accept(lambda _: log.append("first"))
    StateFuture(0, task).then_accept(lambda _: log.append("second"))
    task.run()
    assert log == []
    pending.complete(0)
    task.run()
    assert log == ["first", "second"]


@pytest.mark.parametrize("at_hand", [True, False])
def test_waiting_callback_lets_later_callback_run(task, at_hand):
    """A callback that waits for a later callback lets it run first."""
    log = []

    def fetch():
        return StateFuture(0, task) if at_hand else StateFuture.pending(task)

    asked = [fetch() for _ in range(3)]
    events = []
    asked[0].then_compose(lambda _: events[0]).then_accept(lambda _: log.append("after told"))
    events.append(asked[1].then_apply(lambda _: log.append("told")))
    asked[2].then_accept(lambda _: log.append("last"))
    for future in reversed(asked):
        task.run()
        if not at_hand:
            future.complete(0)
    task.run()
    assert log == ["told", "after told", "last"]


def test_callbacks_chained_in_callbacks_run_last(task):
    """A callback's own chain runs after all callbacks chained earlier."""
    log = []
    StateFuture(0, task).then_compose(lambda _: StateFuture(1, task).then_accept(log.append)).then_accept(log.append)
    StateFuture(2, task).then_accept(log.append)
    task.run()
    assert log == [2, 1, None]


def test_callback_may_return_unfinished_future(task, pending):
    inner = StateFuture.pending(task)
    outer = pending.then_compose(lambda _: inner)
    pending.complete(1)
    task.run()
    assert not outer.done
    inner.complete("inner")
    assert answer(outer) == "inner"


def test_future_composed_with_state_delays_its_callbacks(task, pending):
    """A user future composed with state delays its callbacks, too."""
    log = []
    StateFuture(1).then_compose(lambda _: StateFuture(2, task)).then_accept(log.append)
    StateFuture(1).then_compose(lambda _: pending).then_accept(log.append)
    assert log == []
    pending.complete(3)
    task.run()
    assert log == [2, 3]


@pytest.mark.parametrize("length", [1, 2])
def test_circular_futures_are_refused(task, length):
    created = []
    for place in range(length):
        created.append(StateFuture(0, task).then_compose(lambda _, place=place: created[(place + 1) % length]))
    with pytest.raises(RuntimeError, match="waits for that callback"):
        task.run()


def test_compose_function_must_return_a_future(task):
    StateFuture(0, task).then_compose(lambda _: None)
    with pytest.raises(TypeError, match="must return a StateFuture, not NoneType"):
        task.run()


def test_composed_futures_nest(task, pending):
    futures = [StateFuture.pending(task) for _ in range(3)]
    output = pending.then_compose(
        lambda a: futures[0].then_compose(
            lambda b: futures[1].then_compose(lambda c: futures[2].then_apply(lambda d: a + b + c + d))
        )
    )
    for future in (*reversed(futures), pending):
        future.complete(1)
        task.run()
    assert answer(output) == 4


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_combined_answers_may_arrive_in_any_order(task, order):
    both = [StateFuture.pending(task), StateFuture.pending(task)]
    output = both[0].then_combine(both[1], lambda mine, theirs: (mine, theirs))
    for number in order:
        both[number].complete(number)
        task.run()
    assert answer(output) == (0, 1)


def test_awaiting_suspends_until_the_answer_arrives(pending):
    async def code():
        return await pending

    call = code()
    assert call.send(None) is pending
    pending.complete(7)
    with pytest.raises(StopIteration) as stopped:
        call.send(None)
    assert stopped.value.value == 7


def test_awaiting_suspends_while_callbacks_wait_for_their_turn(task):
    async def code():
        future = StateFuture(7, task)
        future.then_accept(print)
        return await future

    call = code()
    assert call.send(None).done
    task.run()
    with pytest.raises(StopIteration) as stopped:
        call.send(None)
    assert stopped.value.value == 7


def answer(future):
    """Return the answer of a future, which must be done."""
    assert future.done
    return future.answer
