from __future__ import annotations

import pytest

from engine.api import StateFuture


class Owner:
    """A record whose callbacks run when the test says so."""

    def __init__(self):
        self.references = 1
        self.mails = []
        self.woken = []

    def retain(self):
        self.references += 1

    def post(self, callback, value, /):
        self.mails.append((callback, value))

    def wake(self, waiting, /):
        self.woken.append(waiting)

    def run(self):
        while self.mails:
            callback, value = self.mails.pop(0)
            callback(value)
            self.references -= 1


@pytest.fixture
def owner():
    return Owner()


@pytest.fixture
def pending(owner):
    return StateFuture.pending(owner)


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
def test_of_an_answer_that_is_there_the_callback_runs_at_once(form, of_4, of_5):
    assert [answer(form(StateFuture(4))), answer(form(StateFuture(5)))] == [of_4, of_5]


@forms
@pytest.mark.parametrize("number", [4, 5])
def test_of_an_answer_to_come_the_callback_runs_as_a_mail_of_the_owner(owner, pending, form, of_4, of_5, number):
    result = form(pending)
    assert not result.done
    assert owner.references > 1
    pending.complete(number)
    assert not result.done
    owner.run()
    assert (answer(result), owner.references) == (of_4 if number == 4 else of_5, 1)


def test_callbacks_run_in_the_order_in_which_they_were_chained(owner, pending):
    log = []
    for name in ("first", "second", "third"):
        pending.then_accept(lambda _, name=name: log.append(name))
    pending.complete(0)
    owner.run()
    assert log == ["first", "second", "third"]


def test_a_callback_may_answer_with_a_future_that_is_not_there_yet(owner, pending):
    inner = StateFuture.pending(owner)
    outer = pending.then_compose(lambda _: inner)
    pending.complete(1)
    owner.run()
    assert not outer.done
    inner.complete("inner")
    owner.run()
    assert (answer(outer), owner.references) == ("inner", 1)


def test_composed_futures_nest(owner, pending):
    futures = [StateFuture.pending(owner) for _ in range(3)]
    told = pending.then_compose(
        lambda a: futures[0].then_compose(
            lambda b: futures[1].then_compose(lambda c: futures[2].then_apply(lambda d: a + b + c + d))
        )
    )
    for future in (*reversed(futures), pending):
        future.complete(1)
        owner.run()
    assert (answer(told), owner.references) == (4, 1)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_answers_are_combined_whichever_comes_first(owner, order):
    both = [StateFuture.pending(owner), StateFuture.pending(owner)]
    told = both[0].then_combine(both[1], lambda mine, theirs: (mine, theirs))
    for number in order:
        both[number].complete(number)
        owner.run()
    assert (answer(told), owner.references) == ((0, 1), 1)


def test_awaiting_suspends_until_the_answer_is_there(owner, pending):
    async def code():
        return await pending

    call = code()
    assert call.send(None) is pending
    pending.wake_up(call)
    pending.complete(7)
    assert owner.woken == [call]
    with pytest.raises(StopIteration) as stopped:
        call.send(None)
    assert stopped.value.value == 7


def test_callbacks_come_before_what_awaits(owner, pending):
    pending.wake_up("waiting")
    pending.then_accept(print)
    pending.complete(7)
    assert (len(owner.mails), owner.woken) == (1, ["waiting"])


def test_two_may_not_await_one_future_at_a_time(pending):
    pending.wake_up("one")
    with pytest.raises(RuntimeError, match="awaited twice; chain it with then_apply"):
        pending.wake_up("another")


def answer(future):
    """What the future answers; it has to be done."""
    with pytest.raises(StopIteration) as stopped:
        next(future.__await__())
    return stopped.value.value
