"""TTL against a model in plain Python: kinds of state, update types, visibilities, clocks, cleanup, individual TTLs, gaps.

The job is split into micro-batches, runs on a drawn number of tasks, and is restored from rows, compacted and paused in between.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace import (
    AggregateFunction,
    AggregatingState,
    Cleanup,
    ExpiryClock,
    KeyedProcessFunction,
    ListState,
    MapState,
    OnGap,
    Process,
    ReducingState,
    StateTtl,
    Struct,
    TtlTime,
    UpdateType,
    ValueState,
    Visibility,
)
from headrace.execution.element import Element, ProcessingTime, Watermark
from headrace.execution.keyed_process import KeyedProcess
from headrace.log.checkpoint import Checkpoint, Kind
from headrace.log.facts import NO_DECLARATIONS, OperatorFacts, by_operator
from headrace.log.lineage import Lineage
from headrace.log.ttl import certain_expiries
from headrace.records.order import processing_time_order, record_order
from headrace.state.backend import named, unpacked
from headrace.state.cleanup import CLEANUP_DOMAINS, EntryGroup, group_of_timer, time_of
from headrace.state.codec import encode
from headrace.state.key_groups import key_group, key_group_range
from headrace.state.timers import timer_of
from headrace.state.ttl import LiveTtl, TtlHistory
from headrace.tables.changelog import Changelog
from headrace.tables.entries import rebuild
from headrace.tables.expiry import rebuild_expiries, unexpired
from headrace.tables.live_rows import last_rows
from headrace.tables.schemas import KEYED_STATE, STATE_TABLES, TIMERS
from tests.unit.support.arrow_tables import views_of
from tests.unit.support.fuzzing import examples
from tests.unit.support.micro_batches import no_rows

GROUPS = 4
NEVER = -(1 << 62)
"""Where the watermark stands before the first one."""

ANY = object()
"""What a read answers that may find what is dead, or not."""


def ms(number):
    return timedelta(milliseconds=number)


class Op(Struct, frozen=True):
    key: str
    kind: str
    sub: str = ""
    value: int = 0
    own: int = 0


class Seen(Struct, frozen=True):
    what: str


class Pages(AggregateFunction[int, tuple[int, int], str]):
    """Sum and number."""

    def create_accumulator(self):
        return (0, 0)

    def add(self, value, accumulator, /):
        return (accumulator[0] + value, accumulator[1] + 1)

    def get_result(self, accumulator, /):
        return f"{accumulator[0]} of {accumulator[1]}"

    def merge(self, one, other, /):
        return (one[0] + other[0], one[1] + other[1])


def states(ttl):
    return {
        "value": ValueState("value", int, ttl=ttl),
        "entries": MapState("entries", str, int, ttl=ttl),
        "elements": ListState("elements", int, ttl=ttl),
        "total": ReducingState("total", int, lambda one, other: one + other, ttl=ttl),
        "pages": AggregatingState("pages", Pages(), ttl=ttl),
    }


class Awaiting(KeyedProcessFunction[Op, Seen]):
    async def process(self, op, ctx, /):
        async def walked(entries):
            return [pair async for pair in entries]

        await run(self, op, ctx, lambda future: future, walked)


class Plain(KeyedProcessFunction[Op, Seen]):
    def process(self, op, ctx, /):
        call = run(self, op, ctx, Answer, lambda entries: Answer(list(entries)))
        with pytest.raises(StopIteration):
            call.send(None)


class Answer:
    """The answer of a call in a plain function, wrapped so that shared code can await it."""

    def __init__(self, value):
        self.value = value

    def __await__(self):
        return self.value
        yield


async def run(self, op, ctx, given, walked):
    own = ms(op.own) if op.own else None
    name, _, call = op.kind.partition(".")
    state = getattr(self, name)
    it = state.namespace(op.sub) if op.sub and name in _NS else state
    answer = None
    match call:
        case "value":
            answer = await given(it.value())
        case "update":
            await given(it.update(op.value, own))
        case "clear":
            await given(it.clear())
        case "add":
            await given(it.add(op.value, own))
        case "put":
            await given(it.put(op.sub, op.value, own))
        case "remove":
            await given(it.remove(op.sub))
        case "get":
            answer = await given(it.get(op.sub) if name == "entries" else it.get())
        case "all":
            answer = sorted(await walked(it.entries()))
    ctx.collect(Seen(repr(answer)))


def function(ttl, style=Awaiting):
    return type("Everything", (style,), states(ttl))()


# ------------------------------------------------------------------------------------------------------ model


@dataclasses.dataclass
class Entry:
    value: int
    stamp: int
    own: int = 0
    is_unsure: bool = False
    """Whether it may contain what was dead already."""


class Model:
    """The expected view of user code. An entry is named by state, key, namespace and user key."""

    def __init__(self, ttl):
        self.ttl = ttl
        self.entries: dict[tuple[str, str, str, str], Entry] = {}
        self.gaps: list[range] = []
        self.added = 0

    @property
    def shows_dead(self):
        return self.ttl.visibility is Visibility.RETURN_IF_NOT_CLEANED_UP and not self.ttl.cleanup.exact

    def clock(self, watermark, now):
        return watermark if self.ttl.expires_by_watermark else now

    def is_dead(self, entry, clock):
        """Decide by counting milliseconds, one by one."""
        if self.ttl.update is UpdateType.DISABLED:
            return False
        lived = sum(not any(at in gap for gap in self.gaps) for at in range(entry.stamp, max(clock, entry.stamp)))
        return clock >= entry.stamp and lived >= (entry.own or self.ttl.milliseconds)

    def pause(self, start, end, watermark):
        """The job was paused. Time does not count during a pause, except what the entries' clock had already passed before it."""
        before = set(self.alive(self.clock(watermark, start)))
        if self.ttl.on_gap is OnGap.PROLONG:
            has_run = watermark if self.ttl.expires_by_watermark else start
            self.gaps.append(range(max(start, has_run), end))
        assert set(self.alive(self.clock(watermark, start))) == before

    def alive(self, clock):
        return {name: entry for name, entry in self.entries.items() if not self.is_dead(entry, clock)}

    def run(self, op, at, watermark, now):
        clock = self.clock(watermark, now)
        stamp = at if self.ttl.time is TtlTime.EVENT or not self.ttl.is_active else now
        name, _, call = op.kind.partition(".")
        if call in {"value", "get", "all"}:
            return self._read(op, name, call, clock, stamp)
        if call == "clear":
            for operation in [
                entry
                for entry in self.entries
                if entry[:2] == (name, op.key) and (name not in _NS or entry[2] == op.sub)
            ]:
                del self.entries[operation]
        elif call == "remove":
            self.entries.pop((name, op.key, "", op.sub), None)
        else:
            self._write(op, name, clock, stamp)
        return None

    def _name(self, op, name):
        if name == "elements":
            self.added += 1
            return name, op.key, "", f"{self.added:06}"
        return (name, op.key, op.sub, "") if name in _NS else (name, op.key, "", op.sub)

    def _write(self, op, name, clock, stamp):
        which = self._name(op, name)
        before = self.entries.get(which)
        is_unsure = before is not None and before.is_unsure
        if before is not None and self.is_dead(before, clock):
            before, is_unsure = None, self.shows_dead
        is_unsure = is_unsure and name in {"total", "pages"}
        value = op.value
        if name == "total" and before is not None:
            value += before.value
        if name == "pages":
            value = Pages().add(op.value, Pages().create_accumulator() if before is None else before.value)
        if before is not None and self.ttl.is_active:
            stamp = before.stamp if self.ttl.update is UpdateType.ON_CREATE else max(before.stamp, stamp)
        self.entries[which] = Entry(value, stamp, op.own, is_unsure)

    def _read(self, op, name, call, clock, stamp):
        single = call == "value" or name in {"total", "pages"} or (name == "entries" and call == "get")
        if single:
            which = (name, op.key, op.sub, "") if name in _NS else (name, op.key, "", op.sub)
            result = [which] if which in self.entries else []
        else:
            result = sorted(entry for entry in self.entries if entry[:2] == (name, op.key))
        answer = []
        unsure = False
        for which in result:
            entry = self.entries[which]
            unsure = unsure or entry.is_unsure
            if self.is_dead(entry, clock):
                unsure = unsure or self.shows_dead
                del self.entries[which]  # the first reader removes the entry
                continue
            if self.ttl.update is UpdateType.ON_READ_AND_WRITE:
                entry.stamp = max(entry.stamp, stamp)
            answer.append((which[3], entry.value) if call == "all" else entry.value)
        if unsure:
            return ANY
        if single and answer and name == "pages":
            return Pages().get_result(answer[0])
        return (answer[0] if answer else None) if single else answer


_NS = {"value", "total", "pages"}

# -------------------------------------------------------------------------------------------------------- job


class Job:
    """Micro-batches on tasks, as the driver runs them; `tables` is what was committed."""

    def __init__(self, ttl, new_backend, style=Awaiting):
        self.ttl = ttl
        self.style = style
        self.new_backend = new_backend
        self.tables = no_rows()
        self.backends: dict[Any, Any] = {}
        self.checkpoint = 0
        self.ordinal = 1
        self.watermark: int | None = None
        self.committed: int | None = None
        self.history = TtlHistory()
        self.declared = {f"op.{name}": ttl for name in states(ttl)}

    def take(self, steps, now, parallelism=1, *, forget=False):
        """Run one micro-batch of (op, timestamp) and watermarks; return the values that its records saw, in order."""
        self.checkpoint += 1
        self.history = self.history.advanced(
            self.declared, paused_since=self.committed, watermark_of=lambda _: self.watermark, processing_time=now
        )
        if forget or len(self.backends) != parallelism:
            self.backends = {}
        order = processing_time_order(self.ordinal, self.checkpoint)
        elements, watermarks = [], []
        for step in steps:
            if isinstance(step, int):
                watermarks.append(Watermark(record_order(self.ordinal), step))
                continue
            op, at = step
            elements.append(Element(record_order(self.ordinal), at, 0, encode(op.key), op))
            self.ordinal += 1
        seen = []
        for task in range(parallelism):
            seen += self._task(
                key_group_range(task, GROUPS, parallelism), elements, watermarks, ProcessingTime(order, now)
            )
        self.watermark = watermarks[-1].timestamp if watermarks else self.watermark
        self.committed = now
        return [emitted.record.what for emitted in sorted(seen, key=lambda item: item.order)]

    def _task(self, groups, elements, watermarks, now):
        backend = self._backend(groups, now.timestamp)
        process = KeyedProcess(
            Process("op", "key", function(self.ttl, self.style), ()),
            backend,
            records=(Op,),
            watermark=self.watermark,
            last_watermark=watermarks[-1].timestamp if watermarks else None,
            processing_time=now,
            lifetimes=self.history.lifetimes("op"),
        )
        owned = [element for element in elements if key_group(element.key_json, GROUPS) in groups]
        process.run([owned], watermarks)
        rows = Changelog("op", self.checkpoint, GROUPS)
        for store, changes in process.changes():
            backend.write_batch(store.writes(changes))
            self.tables[KEYED_STATE].append(rows.values(store, changes))
        backend.write_batch(process.cleanup.writes())
        timers = process.timers.changes()
        backend.write_batch(process.timers.writes(timers))
        self.tables[TIMERS].append(rows.timers(timers))
        return process.emitted

    def _backend(self, groups, now):
        if groups not in self.backends:
            backend = self.backends[groups] = self.new_backend()
            declared = {name.removeprefix("op."): ttl for name, ttl in self.declared.items()}
            lifetimes = self.history.lifetimes("op")
            dead = rebuild_expiries("op", declared, lifetimes, watermark=self.watermark, processing_time=now)
            rebuild(backend, views_of(self.tables), "op", groups, expiries=dead)
        return self.backends[groups]

    def compact(self, now):
        last = Checkpoint(
            incarnation=1,
            checkpoint_id=1, kind=Kind.BATCH, run_id="", attempt_id="", max_parallelism=GROUPS, versions={},
            committed_at=now if self.committed is None else self.committed, watermark=self.watermark, pauses=self.history.gaps,
            operators={"op": OperatorFacts(ttl_since=by_operator(self.history.since).get("op", {}))},
            declared=NO_DECLARATIONS.with_ttls(self.history.declared),
        )  # fmt: skip
        paused_since = Lineage([last]).last_micro_batch()
        dead = certain_expiries(self.declared, last, processing_time=now, paused_since=paused_since)
        for name, expiries in ((KEYED_STATE, dead), (TIMERS, [])):
            live = last_rows(pa.concat_tables(self.tables[name]), STATE_TABLES[name])
            self.tables[name] = [unexpired(live, expiries)]
        self.backends = {}

    def stored(self):
        """Return all entries of keyed state in the backends, with stamp and own TTL."""
        result = {}
        for backend in self.backends.values():
            for entry, value in backend.items():
                if entry[:1] in {b"v", b"e"}:
                    state, key, namespace, user_key = named(entry)
                    stamp, own, _ = unpacked(value)
                    result[state, key.decode(), namespace, (user_key or b"").decode()] = (stamp, own)
        return result

    def timers(self):
        """The cleanup timers of each group."""
        result = Counter()
        times = {}
        for backend in self.backends.values():
            for entry in dict(backend.items()):
                if entry[:1] == b"t" and timer_of(entry).domain in CLEANUP_DOMAINS:
                    group = group_of_timer(timer_of(entry))
                    result[group] += 1
                    times[group] = timer_of(entry).timestamp
                    assert time_of(backend.get_many([group.entry])[0]) == times[group]
        assert all(count == 1 for count in result.values()), result
        return times


# ------------------------------------------------------------------------------------------------------- draws

KEYS = ("a", "b", "c")
KINDS = [
    "value.value",
    "value.update",
    "value.clear",
    "entries.put",
    "entries.get",
    "entries.remove",
    "entries.all",
    "entries.clear",
    "elements.add",
    "elements.get",
    "elements.clear",
    "total.add",
    "total.get",
    "total.clear",
    "pages.add",
    "pages.get",
    "pages.clear",
]
ops = st.builds(
    lambda key, kind, sub, value, own: Op(
        key,
        kind,
        "" if kind in {"entries.all", "entries.clear"} or kind.startswith("elements") else sub,
        value,
        own if kind.endswith(("update", "put", "add")) else 0,
    ),
    st.sampled_from(KEYS),
    st.sampled_from(KINDS),
    st.sampled_from(["", "x"]),
    st.integers(1, 9),
    st.sampled_from([0, 0, 0, 2, 25]),
)
records = st.tuples(ops, st.sampled_from([*range(-8, 5), 12]))
"""An operation, and how far its timestamp lies from the furthest so far."""

batches = st.fixed_dictionaries(
    {
        "steps": st.lists(records | st.just("watermark"), max_size=8),
        "pause": st.sampled_from([1, 3, 8, 30]),
        "parallelism": st.integers(1, 3),
        "forget": st.booleans(),
        "compact": st.sampled_from([False, False, True]),
    }
)
cleanups = st.builds(
    Cleanup,
    entries_per_record=st.sampled_from([0, 1, 100]),
    entries_per_access=st.sampled_from([0, 1]),
    at_compaction=st.booleans(),
    exact=st.booleans(),
)
clocks = st.sampled_from(
    [(TtlTime.EVENT, None), (TtlTime.EVENT, ExpiryClock.PROCESSING_TIME), (TtlTime.PROCESSING, None)]
)


@st.composite
def ttls(draw, clocks=clocks, prolongs=st.booleans()):  # noqa: B008 - a strategy is no state
    time, expiry = draw(clocks)
    prolong = draw(prolongs)
    return StateTtl(
        ms(draw(st.sampled_from([5, 12]))),
        update=draw(st.sampled_from(UpdateType)),
        visibility=draw(st.sampled_from(Visibility)),
        time=time,
        expiry=expiry,
        cleanup=draw(cleanups),
        on_gap=OnGap.PROLONG if prolong else OnGap.EXPIRE,
        gap_threshold=ms(7) if prolong else None,
    )


@pytest.mark.parametrize("style", [Awaiting, Plain])
@given(ttls(), st.lists(batches, min_size=1, max_size=6), st.sampled_from([0, 12, 40]))
@examples(20)
def test_ttl_behaves_like_the_model(backends, style, ttl, drawn, ahead):
    with backends.lent() as new_backend:
        check(ttl, drawn, ahead, new_backend, style)


def batch(pause, *steps):
    return {"steps": list(steps), "pause": pause, "parallelism": 1, "forget": False, "compact": False}


@given(
    ttls(st.just((TtlTime.EVENT, None)), st.just(True)),
    st.lists(batches, min_size=2, max_size=6),
    st.sampled_from([0, 12, 40]),
)
@example(
    # a is stamped with 112 and dead at 117; the watermark is at 120 when the job stops, at 101 of its clock, until 131.
    StateTtl(ms(5), cleanup=Cleanup(entries_per_record=0), on_gap=OnGap.PROLONG, gap_threshold=ms(7)),
    [
        batch(1, (Op("a", "value.update", value=1), 0), (Op("b", "value.update", value=1), 12), "watermark"),
        batch(30, (Op("a", "value.value"), 0)),
    ],
    12,
)
@examples(20)
def test_pause_never_revives_entries_ended_by_watermark(backends, ttl, drawn, ahead):
    with backends.lent() as new_backend:
        check(ttl, drawn, ahead, new_backend, Awaiting)


def check(ttl, drawn, ahead, new_backend, style):
    """Event time starts as far `ahead` of the clock that pauses are measured on."""
    model, job = Model(ttl), Job(ttl, new_backend, style)
    now, furthest, watermark = 100, 100 + ahead, None
    for batch in drawn:
        pause = batch["pause"]
        if batch["compact"] and job.checkpoint:
            job.compact(now + pause // 2)
        if job.committed is not None and pause > 7:
            model.pause(now, now + pause, NEVER if watermark is None else watermark)
        now += pause
        steps: list[Any] = []
        expected = []
        for step in batch["steps"]:
            if step == "watermark":
                if watermark is None or furthest - 4 > watermark:
                    watermark = furthest - 4
                    steps.append(watermark)
                continue
            op, late = step
            at = furthest + late
            furthest = max(furthest, at)
            steps.append((op, at))
            expected.append(model.run(op, at, NEVER if watermark is None else watermark, now))
        seen = job.take(steps, now, batch["parallelism"], forget=batch["forget"])
        for want, actual in zip(expected, seen, strict=True):
            assert want is ANY or actual == repr(want), (ttl, seen, expected)
        look(ttl, model, job, now)


def look(ttl, model, job, now):
    """Check that no live entry was removed, and that the promised cleanup happened."""
    clock = model.clock(NEVER if job.watermark is None else job.watermark, now)
    alive = {name: (entry.stamp, entry.own) for name, entry in model.alive(clock).items()}
    live = LiveTtl.of(ttl, job.history.gaps)
    stored = job.stored()
    living = {name: ages for name, ages in stored.items() if live is None or not live.is_dead_at(clock, *ages)}
    assert sorted(shape(living)) == sorted(shape(alive))
    if live is None:
        return
    if ttl.cleanup.exact:
        assert stored == living
        assert views_of(job.tables)(KEYED_STATE).live().num_rows == len(stored)
        timers = job.timers()
        deaths: dict[EntryGroup, int] = {}
        for (state, key, namespace, _), ages in stored.items():
            group = EntryGroup(state, key.encode(), namespace)
            deaths[group] = min(deaths.get(group, 1 << 62), live.expires_at(*ages))
        assert all(clock < timers[group] <= death for group, death in deaths.items())


def shape(entries):
    """Return the entries without the names of list elements, which only the engine knows."""
    for (state, key, namespace, user_key), ages in entries.items():
        yield state, key.strip('"'), namespace, "" if state == "elements" else user_key.strip('"'), ages


@pytest.mark.parametrize("exact", [False, True])
def test_entry_renewed_in_its_sweep_stays(backends, exact):
    ttl = StateTtl(ms(5), cleanup=Cleanup(entries_per_record=100, exact=exact))
    with backends.lent() as new_backend:
        job = Job(ttl, new_backend)
        job.take([(Op("a", "value.update", value=1), 100), (Op("b", "value.update", value=1), 100)], 1)
        job.take([200, (Op("a", "value.update", value=2), 201)], 2)
        expected = {("value", '"a"', "", ""): (201, 0)}
        if not exact and backends.kind == "delta":
            expected["value", '"b"', "", ""] = (100, 0)  # left to compaction
        assert job.stored() == expected


def test_cleanup_sweep_starts_over_after_last_key(backend, backends):
    written = [(b'vs\x00"%d"' % number, bytes(16)) for number in range(5)] + [(b'es\x00"k"\x00\x00"u"', bytes(16))]
    backend.write_batch([*written, (b"t" + bytes(12), b"")])
    if backends.kind == "delta":
        assert list(backend.visit(100)) == []
        return
    for _ in range(2):
        seen = [entry for _ in range(4) for entry, _ in backend.visit(2)]
        assert sorted(seen) == sorted(entry for entry, _ in written)
    assert len(list(backend.items())) == 7


@pytest.mark.parametrize(("stops", "left"), [(True, ['"b"']), (False, [])])
def test_stopped_task_keeps_entries_for_held_records(backends, stops, left):
    ttl = StateTtl(ms(20), cleanup=Cleanup(entries_per_record=100, exact=True))
    with backends.lent() as new_backend:
        job = Job(ttl, new_backend)
        job.take([(Op("b", "value.update", value=1), 50)], 1)
        (backend,) = job.backends.values()
        process = KeyedProcess(
            Process("op", "key", function(ttl), ()), backend, records=(Op,), watermark=None, last_watermark=100
        )
        elements = [
            Element(record_order(place), 110, 0, encode(key), Op(key, "total.get"))
            for place, key in ((8, "a"), (9, "c"))
        ]
        held = process.run([[element] for element in elements], [Watermark(record_order(8), 100)], stop=lambda: stops)
        assert len(held.requests) == stops
        removed = {
            change.key_json.decode() for _, changes in process.changes() for change in changes if change.raw is None
        }
        assert [*left, *removed] == ['"b"']


def test_group_timer_waits_for_next_expiring_entry(backends):
    ttl = StateTtl(ms(20), cleanup=Cleanup(entries_per_record=0, exact=True))
    with backends.lent() as new_backend:
        job = Job(ttl, new_backend)
        group = EntryGroup("entries", b'"a"')
        job.take([(Op("a", "entries.put", "x", 1), 100)], 1)
        assert job.timers() == {group: 120}
        job.take([(Op("a", "entries.put", "y", 1, own=2), 101)], 2)
        assert job.timers() == {group: 103}
        job.take([(Op("a", "entries.put", "z", 1), 105)], 3, forget=True)
        assert job.timers() == {group: 103}
        job.take([110], 4)
        assert (sorted(name[3] for name in job.stored()), job.timers()) == (['"x"', '"z"'], {group: 120})
        job.take([(Op("a", "entries.put", "x", 2), 111), 121], 5)
        assert (len(job.stored()), job.timers()) == (2, {group: 125})
        job.take([200], 6)
        assert (job.stored(), job.timers()) == ({}, {})
