"""A keyed function whose records are its program, so that random records make random programs.

It takes and emits `Step`s, so its instances can be chained.
"""

from __future__ import annotations

from datetime import timedelta

from hypothesis import strategies as st
from msgspec.structs import replace

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


class Step(Struct, frozen=True):
    """The action, its time (ms), and its key. Timers are set and deleted relative to `at`."""

    key: str
    at: Timestamp
    add: int = 1
    remind: int | None = None
    cancel: int | None = None
    forget: bool = False
    trace: str = ""


class OtherStep(Step, frozen=True):
    """A step of the second input, if there is one."""


class Thirds(Struct, frozen=True):
    """A record of the side output."""

    key: str
    count: int


class _Runs:
    """Counts down by timers, some of them in the past, and emits all that it reads of its state."""

    count = ValueState("count", int)
    recent = ValueState(
        "recent", tuple[int, ...], ttl=StateTtl(timedelta(milliseconds=9), update=UpdateType.ON_READ_AND_WRITE)
    )
    first = ValueState("first", int, ttl=StateTtl(timedelta(milliseconds=15), update=UpdateType.ON_CREATE))

    async def run(self, step, ctx):
        count = (await self.count.value() or 0) + step.add
        await self.count.update(count)
        recent = await self.recent.value() or ()
        await self.recent.update((*recent[-2:], step.at))
        first = await self.first.value()
        if first is None or count % 5 == 0:
            await self.first.update(step.at)
        if step.forget:
            await self.recent.clear()
        if step.remind is not None:
            ctx.timers.register_event_time(step.at + step.remind)
        if step.cancel is not None:
            ctx.timers.delete_event_time(step.at + step.cancel)
        self.tell(ctx, count, f"{step.trace}>{count} {recent} {first} at {ctx.watermark}{self.rules_now()}")

    async def on_timer(self, timestamp, ctx, /):
        count = await self.count.value() or 0
        recent = await self.recent.value()
        self.tell(ctx, count, f"!{timestamp} {count} {recent}{self.rules_now()}")
        if count > 0:
            await self.count.update(count - 1)
            ctx.timers.register_event_time(timestamp + (-3, 0, 6, 30)[count % 4])
        else:
            await self.count.clear()

    def rules_now(self):
        """Return the present broadcast state as text."""
        return ""

    def tell(self, ctx, count, trace):
        # Keyed anew, with orders for the next function in a chain.
        following = (OtherStep if count % 2 else Step)(
            "abc"[count % 3], ctx.timestamp, 1 + count % 2, (None, 3, -6, 12)[count % 4], trace=trace
        )
        ctx.collect(following)
        if count % 3 == 0:
            ctx.output("thirds", Thirds(str(ctx.key), count))
            ctx.collect(following)


class Steps(_Runs, KeyedProcessFunction[Step, Step]):
    """Takes steps through one input."""

    async def process(self, step, ctx, /):
        await self.run(step, ctx)


class CoSteps(_Runs, KeyedCoProcessFunction[Step, OtherStep, Step]):
    """Takes steps through two inputs; steps of the second input count in the opposite direction."""

    async def process1(self, step, ctx, /):
        assert type(step) is Step
        await self.run(step, ctx)

    async def process2(self, step, ctx, /):
        assert type(step) is OtherStep
        await self.run(replace(step, add=-step.add, trace=f"{step.trace}<"), ctx)


class RuledSteps(_Runs, KeyedBroadcastFunction[Step, OtherStep, Step]):
    """Takes steps through one input; steps of the broadcast input change the output of all steps."""

    rules = BroadcastState("rules", str, int)

    async def process(self, step, ctx, /):
        assert type(step) is Step
        await self.run(step, ctx)

    def process_broadcast(self, step, ctx, /):
        assert type(step) is OtherStep
        if step.forget:
            self.rules.remove(step.key)
        else:
            self.rules.put(step.key, step.add)

    def rules_now(self):
        return f" by {self.rules.items()}"


def steps_operator(name="steps", function=Steps):
    return Process(name, "key", function(), (SideOutput("thirds", Thirds, "thirds"),))


# Times are multiples of three, so that timers meet, and the ends of lives meet watermarks.
offsets = st.none() | st.sampled_from([-30, -9, -6, -3, 0, 3, 6, 9, 12, 39])


@st.composite
def step_lists(draw, max_size=20):
    """Draw records in arrival order whose times increase on average, with disorder."""
    drawn = draw(
        st.lists(
            st.builds(
                lambda kind, **fields: kind(**fields),
                st.sampled_from([Step, OtherStep]),
                key=st.sampled_from(["", "a", "b", "c", "dé", "eee"]),
                at=st.sampled_from([-24, -12, -6, -3, 0, 0, 0, 3]),
                add=st.integers(-1, 3),
                remind=offsets,
                cancel=offsets,
                forget=st.booleans(),
            ),
            max_size=max_size,
        )
    )
    return [replace(step, at=3 * place + step.at) for place, step in enumerate(drawn)]
