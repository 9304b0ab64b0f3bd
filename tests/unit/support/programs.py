"""A keyed function whose records are small programs of state calls, written in each style of the API.

A program gives the same output by `awaiting` one call after the other, by `chaining` callbacks without a single
await, and by `hastily` making calls of several states at once. `heedless` code continues behind callbacks that change
the same states, and emits.
"""

from __future__ import annotations

import functools
from datetime import timedelta

import msgspec
from hypothesis import strategies as st

from headrace import (
    BroadcastState,
    KeyedBroadcastFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    Process,
    SideOutput,
    StateTtl,
    Struct,
    Timestamp,
    UpdateType,
    ValueState,
)

STATES = ("plain", "read", "born")
PLAIN_CALLS = ("value", "update", "clear")
CALLS = (*PLAIN_CALLS, "add", "choose")
PATIENT_WAYS = ("awaiting", "chaining", "mixing", "hastily")
WAYS = (*PATIENT_WAYS, "heedless")
LATEST = 60
"""Timers beyond it are not set again, so that programs end."""


class Do(Struct, frozen=True):
    """A program: `calls` are (state, call, number); `timers` are set and `cancelled` timers deleted relative to `at` (ms)."""

    key: str
    at: Timestamp
    way: str = "awaiting"
    calls: tuple[tuple[str, str, int], ...] = ()
    timers: tuple[int, ...] = ()
    cancelled: tuple[int, ...] = ()


class Other(Do, frozen=True):
    """A program for the second input, if there is one."""


class Told(Struct, frozen=True):
    """The output of a program or timer."""

    key: str
    by: str
    saw: tuple[int | None, ...]
    watermark: int


class _Runs:
    """Runs programs. A timer is a program, too: its time determines its calls."""

    plain = ValueState("plain", int)
    read = ValueState("read", int, ttl=StateTtl(timedelta(milliseconds=9), update=UpdateType.ON_READ_AND_WRITE))
    born = ValueState("born", int, ttl=StateTtl(timedelta(milliseconds=15), update=UpdateType.ON_CREATE))

    async def on_timer(self, timestamp, ctx, /):
        again = (3,) if timestamp % 2 and timestamp < LATEST else (-6,) if timestamp % 5 == 0 else ()
        again = again if timestamp > 0 else ()
        calls = tuple((state, CALLS[(timestamp + place) % len(CALLS)], timestamp) for place, state in enumerate(STATES))
        await self.run(Do(ctx.key, timestamp, WAYS[timestamp % len(WAYS)], calls, again), ctx, "timer")

    async def run(self, program, ctx, by):
        def end(saw):
            for offset in program.timers:
                ctx.timers.register_event_time(program.at + offset)
            for offset in program.cancelled:
                ctx.timers.delete_event_time(program.at + offset)
            ctx.collect(Told(ctx.key, f"{by}{program.at}{self.rules_now()}", tuple(saw), ctx.watermark))
            if len(saw) % 2:
                ctx.output("odd", Told(ctx.key, by, tuple(saw[:1]), ctx.watermark))

        await getattr(self, program.way)(program.calls, end)

    def rules_now(self):
        """Return the present broadcast state as text."""
        return ""

    async def awaiting(self, calls, end):
        end([await self.call(*call) for call in calls])

    async def chaining(self, calls, end):
        # If the first value is not cached, the code ends before its first callback runs.
        if calls:
            self.chain(calls).then_accept(end)
        else:
            end([])

    async def mixing(self, calls, end):
        first = [await self.call(*call) for call in calls[:1]]
        await self.chaining(calls[1:], lambda saw: end(first + saw))

    async def hastily(self, calls, end):
        # Calls of one state run in order; calls of different states do not wait for each other.
        chains = [
            (place, self.chain([call for call in calls if call[0] == state], hasty=True))
            for place, state in enumerate(STATES)
            if any(call[0] == state for call in calls)
        ]
        end([saw for _, chain in chains for saw in await chain])

    async def heedless(self, calls, end):
        # Chained calls and other calls use the same states, in turns; the code awaits every third call.
        for place, call in enumerate(calls):
            output = self.call(*call).then_compose(functools.partial(self.following, (call[0], "add", 1)))
            output.then_accept(end)
            if place % 3 == 2:
                end([await self.call(*call)])
            else:
                self.call(*calls[-1 - place]).then_apply(lambda saw: [saw]).then_accept(end)
        end([])

    def chain(self, calls, *, hasty=False):
        """Return the answers to all calls. A hasty program makes them at once, up to the first that depends on an answer."""
        hasty = hasty and calls[0][1] in PLAIN_CALLS
        result = self.call(*calls[0]).then_apply(lambda saw: [saw])
        for call in calls[1:]:
            hasty = hasty and call[1] in PLAIN_CALLS
            result = (
                self.joined(result, call) if hasty else result.then_compose(functools.partial(self.following, call))
            )
        return result

    def joined(self, results, call):
        return results.then_combine(self.call(*call), lambda seen, saw: [*seen, saw])

    def following(self, call, seen):
        seen = seen if isinstance(seen, list) else [seen]
        return self.call(*call).then_apply(lambda saw: [*seen, saw])

    def call(self, name, call, number):
        """Make one call, or two calls of which the second depends on the result of the first."""
        state = getattr(self, name)
        if call == "value":
            return state.value()
        if call == "update":
            return state.update(number)
        if call == "clear":
            return state.clear()
        if call == "add":
            return state.value().then_compose(lambda old: state.update((old or 0) + number))
        chosen = state.value().then_conditionally_compose(
            is_even, lambda _: state.update(number), lambda _: state.clear()
        )
        return chosen.then_apply(lambda answer: int(answer[0]))


class Programs(_Runs, KeyedProcessFunction[Do, Told]):
    """Runs programs of one input."""

    async def process(self, record, ctx, /):
        await self.run(record, ctx, "")


class CoPrograms(_Runs, KeyedCoProcessFunction[Do, Other, Told]):
    """Runs programs of two inputs; programs of the second input run backwards."""

    async def process1(self, record, ctx, /):
        assert type(record) is Do
        await self.run(record, ctx, "first ")

    async def process2(self, record, ctx, /):
        assert type(record) is Other
        await self.run(msgspec.structs.replace(record, calls=record.calls[::-1]), ctx, "second ")


class RuledPrograms(_Runs, KeyedBroadcastFunction[Do, Other, Told]):
    """Runs programs of one input; programs of the broadcast input change the output of all programs."""

    rules = BroadcastState("rules", str, int)

    async def process(self, record, ctx, /):
        assert type(record) is Do
        await self.run(record, ctx, "")

    def process_broadcast(self, record, ctx, /):
        assert type(record) is Other
        for _, call, number in record.calls:
            if call == "clear":
                self.rules.remove(record.key)
            elif call == "choose":
                self.rules.clear()
            else:
                self.rules.put(record.key, number)

    def rules_now(self):
        return f" by {self.rules.items()}"


def is_even(number):
    return (number or 0) % 2 == 0


def programs_operator(function=Programs):
    return Process("programs", "key", function(), (SideOutput("odd", Told, "odd"),))


# Times are multiples of three, so that timers meet, and the ends of lives meet watermarks.
offsets = st.sampled_from([-30, -9, -6, -3, 0, 3, 6, 9, 12, 39])
calls = st.tuples(st.sampled_from(STATES), st.sampled_from(CALLS), st.integers(0, 3))


@st.composite
def event_lists(draw, *, ways=WAYS, least_calls=0, max_size=20):
    """Programs in arrival order, with rising watermarks (plain numbers) among them. Few keys, one far ahead of the others."""
    drawn = draw(
        st.lists(
            st.builds(
                lambda kind, **fields: kind(**fields),
                st.sampled_from([Do, Other]),
                key=st.sampled_from(["a", "a", "a", "b", "c", "dd"]),
                at=st.sampled_from([-24, -12, -6, -3, 0, 0, 0, 3]),
                way=st.sampled_from(ways),
                calls=st.lists(calls, min_size=least_calls, max_size=5).map(tuple),
                timers=st.lists(offsets, max_size=2).map(tuple),
                cancelled=st.lists(offsets, max_size=1).map(tuple),
            )
            | st.sampled_from([0, 3, 9]),
            max_size=max_size,
        )
    )
    events, watermark = [], -100
    for place, event in enumerate(drawn):
        if isinstance(event, Do):
            events.append(msgspec.structs.replace(event, at=3 * place + event.at))
        elif 3 * place - event > watermark:
            watermark = 3 * place - event
            events.append(watermark)
    return events
