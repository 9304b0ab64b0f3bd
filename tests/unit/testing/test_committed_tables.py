"""`KeyedHarness(backend="delta")`: micro-batches are committed to Delta tables, and state is read from them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import Cleanup, KeyedProcessFunction, ListState, MapState, StateTtl, Struct, ValueState
from headrace.testing import KeyedHarness

EXACT = StateTtl(timedelta(milliseconds=20), cleanup=Cleanup(entries_per_record=0, exact=True))


class Visit(Struct, frozen=True):
    k: str
    n: int


class Seen(Struct, frozen=True):
    k: str
    what: str


class Everything(KeyedProcessFunction[Visit, Seen]):
    last = ValueState("last", int, ttl=EXACT)
    pages = MapState("pages", int, int)
    visits = ListState("visits", int)

    async def process(self, visit, ctx, /):
        seen = [await self.last.value(), await self.visits.get(), [pair async for pair in self.pages.entries()]]
        ctx.collect(Seen(visit.k, repr(seen)))
        await self.last.update(visit.n)
        await self.visits.add(visit.n)
        await (self.pages.remove(visit.n) if visit.n % 2 else self.pages.put(visit.n + 1, ctx.timestamp))
        ctx.timers.register_event_time(ctx.timestamp + visit.n)

    async def on_timer(self, timestamp, ctx, /):
        ctx.collect(Seen(str(ctx.key), f"timer at {timestamp}, {await self.last.value()}"))
        await self.visits.clear()


def harness(backend, snapshot=None):
    arguments = {"key": lambda visit: visit.k, "backend": backend, "max_parallelism": 4}
    if snapshot is None:
        return KeyedHarness(Everything(), **arguments)
    return KeyedHarness.restore(snapshot, Everything(), **arguments)


def rows(h, table, *columns):
    return sorted(h.table(table).select(columns).to_pylist(), key=repr)


def test_snapshot_commits_changed_entries():
    with harness("delta") as h:
        h.process(Visit("a", 4), timestamp=1)
        assert rows(h, "keyed_state", "key") == []
        h.snapshot()
        result = rows(h, "keyed_state", "operator", "state", "key", "user_key", "value")
        named = {(row["state"], row["key"], row["value"]) for row in result}
        assert named == {("last", '"a"', "4"), ("visits", '"a"', "4"), ("pages", '"a"', "1")}
        assert {row["operator"] for row in result} == {"function"}
        assert {row["domain"] for row in rows(h, "timers", "domain")} == {"event_time", "event_time_cleanup"}
        h.watermark(30)
        h.snapshot()
        assert {row["state"] for row in rows(h, "keyed_state", "state")} == {"pages"}
        assert rows(h, "timers", "key") == []


def test_committed_entries_are_looked_up():
    with harness("delta") as h:
        h.process(Visit("a", 4), timestamp=1)
        snapshot = h.snapshot()
        h._tables._cache = h._tables._cache.with_name("empty")  # a worker that has never seen the key
        h.snapshot()
        h.process(Visit("a", 6), timestamp=2)
        assert h._store.statistics().rows_read > 0
        assert h.output()[-1] == Seen("a", repr([4, [4], [(5, 1)]]))
    with harness("delta", snapshot) as other:
        assert len(rows(other, "keyed_state", "key")) == 3


def test_other_backends_have_no_tables():
    with harness("hashmap") as h, pytest.raises(ValueError, match="only backend 'delta' commits to tables"):
        h.table("keyed_state")


steps = st.lists(
    st.one_of(
        st.tuples(st.just("visit"), st.tuples(st.sampled_from("abé"), st.integers(1, 9))),
        st.tuples(st.just("watermark"), st.integers(0, 15)),
        st.tuples(st.just("snapshot"), st.none()),
        st.tuples(st.just("pause"), st.integers(1, 50)),
        st.tuples(st.just("restore"), st.sampled_from(["delta", "rocksdb"])),
    ),
    max_size=14,
)


def driven(backend, steps, *, switches):
    seen, time, watermark = [], 0, 0
    h = harness(backend)
    try:
        for kind, argument in [*steps, ("visit", ("a", 1)), ("watermark", 50)]:
            time += 2
            match kind:
                case "visit":
                    h.process(Visit(*argument), timestamp=time)
                case "watermark":
                    watermark = max(watermark, time + argument - 8)
                    h.watermark(watermark)
                case "snapshot":
                    h.snapshot()
                case "pause":
                    h.pause(argument)
                case _:
                    snapshot = h.snapshot()
                    seen += h.output()
                    h.close()
                    h = harness(argument if switches else backend, snapshot)
        return seen + h.output(), h.snapshot().entries
    finally:
        h.close()


@pytest.mark.slow
@settings(max_examples=5)
@given(steps=steps)
def test_results_are_those_of_any_backend(steps):
    wanted, entries = driven("hashmap", steps, switches=False)
    for switches in (False, True):
        result, left = driven("delta", steps, switches=switches)
        assert result == wanted
        # The tables do not have the cleanup timer of a group: it follows from the timers.
        assert [entry for entry in left if entry[0][:1] != b"x"] == [entry for entry in entries if entry[0][:1] != b"x"]
