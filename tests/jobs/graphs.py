"""Random small graphs, and the results of a plain loop over their records.

`graph_17` of this module is the pipeline of `Program(17)`: tasks of Spark load it by that name. A program draws
sources with disorder, stateless steps, keyed functions of one input and of two, side outputs, unions (also of a
stream with itself) and timers. The output of a function depends on all earlier records of its key, so a wrong order
shows in the values. A program with waits also asks a service in arrival order, which may be down: it answers with the record.
"""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import timedelta

from headrace import (
    AsyncFunction,
    BroadcastState,
    Context,
    FixedDelay,
    KeyedBroadcastFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    OutputMode,
    Pipeline,
    Struct,
    Timestamp,
    ValueState,
)

START = 1_577_836_800_000
MASK = (1 << 40) - 1
NEVER = -(1 << 62)


class Event(Struct, frozen=True):
    id: str
    key: int
    at: Timestamp
    value: int


class Seen(Struct, frozen=True):
    value: int
    key: int


def mapped(constant):
    def step(event: Event) -> Event:
        return Event(event.id, (event.key + constant) % 5, event.at, (event.value * 31 + constant) & MASK)

    return step


def kept(constant):
    return lambda event: (event.value + constant) % 4 != 0


def copied(constant):
    def step(event):
        for number in range((event.value + constant) % 3):
            yield Event(event.id, event.key, event.at, (event.value + 7 * number) & MASK)

    return step


def mixed(before, event, factor):
    """Return the new state of a key after a record."""
    return Seen(((before.value if before else 1) * factor + event.value) & MASK, event.key)


def reaction(seen, event, delay):
    """Return the reaction to a record: the emitted value, its side output, and the timer."""
    out = Event(event.id, event.key, event.at, seen.value)
    return out, seen.value % 3 == 0, event.at + delay if seen.value % 2 == 0 else None


def fired(seen, time):
    """Return the new state after a timer."""
    after = Seen((seen.value * 17 + time) & MASK, seen.key)
    return after, Event("timer", seen.key, time, after.value)


class _Mixes:
    """The common part of the keyed functions: a state, changed by records and timers."""

    seen = ValueState("seen", Seen)

    def __init__(self, delay, has_side):
        self._delay, self._has_side = delay, has_side

    async def mix(self, event, ctx: Context, factor):
        after = mixed(await self.seen.value(), event, factor)
        await self.seen.update(after)
        react(ctx, reaction(after, event, self._delay), has_side=self._has_side)

    async def on_timer(self, timestamp, ctx: Context, /):
        after, out = fired(await self.seen.value(), timestamp)
        await self.seen.update(after)
        ctx.collect(out)


class Mixer(_Mixes, KeyedProcessFunction[Event, Event]):
    async def process(self, event, ctx: Context, /):
        await self.mix(event, ctx, 31)


class CoMixer(_Mixes, KeyedCoProcessFunction[Event, Event, Event]):
    async def process1(self, event, ctx: Context, /):
        await self.mix(event, ctx, 31)

    async def process2(self, event, ctx: Context, /):
        await self.mix(event, ctx, 37)


class RuledMixer(_Mixes, KeyedBroadcastFunction[Event, Event, Event]):
    rules = BroadcastState("rules", int, int)

    async def process(self, event, ctx: Context, /):
        await self.mix(event, ctx, 31 + (self.rules.get(event.key) or 0))

    def process_broadcast(self, event, ctx, /):
        self.rules.put(event.key, ruled(self.rules.get(event.key), event))


def ruled(before, event):
    """Return the new rule after a broadcast record."""
    return ((before or 1) * 3 + event.value) & 0xFFFF


class Unavailable(Exception):  # noqa: N818 - a test's own
    """The service is down."""


class Ask(AsyncFunction[Event, Event]):
    """Answers with the record, except for those of four values in `down`, while the service is."""

    down = frozenset()

    async def invoke(self, event, /):
        if event.value % 4 in Ask.down:
            raise Unavailable(event.id)
        return [event]


RETRY = FixedDelay(max_retries=1_000, delay=timedelta(minutes=1), exceptions=(Unavailable,))


def react(ctx, results, *, has_side):
    out, aside, timer = results
    ctx.collect(out)
    if aside and has_side:
        ctx.output("aside", out)
    if timer is not None:
        ctx.timers.register_event_time(timer)


KEYS = {
    "field": (("key",), lambda event: event.key),
    "fields": (("key", "id"), lambda event: [event.key, event.id]),
    "function": ((lambda event: event.value % 3,), lambda event: event.value % 3),
}


@dataclass
class Op:
    """One operator of a program: `inputs` are names of streams, `key` one of `KEYS`."""

    name: str
    kind: str
    inputs: list[str]
    constant: int = 0
    key: str = ""
    has_side: bool = False


@dataclass
class Input:
    """A source: its rows in arrival order, cut into files.

    A silent source has no rows, and other sources do not wait for it.
    """

    name: str
    lag: int
    files: list[list[Event]]

    @property
    def is_silent(self):
        return not self.files

    @property
    def settings(self):
        """Return the settings of the job's file."""
        return {"idle_after": "0s"} if self.is_silent else {}

    @property
    def rows(self):
        return [row for file in self.files for row in file]


@dataclass
class Program:
    """A random graph with its input. The same seed always gives the same program."""

    seed: int
    has_waits: bool = False
    inputs: list[Input] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)

    def __post_init__(self):
        chance = random.Random(self.seed)
        self.bucket = chance.choice([2, 3, 7])
        self.inputs = [self._input(chance, number) for number in range(chance.choice([1, 1, 2, 2, 3]))]
        streams = [source.name for source in self.inputs]
        for number in range(chance.randint(1, 6)):
            op = self._op(chance, number, streams)
            self.ops.append(op)
            streams.append(op.name)
            if op.has_side:
                streams.append(f"{op.name}.aside")
        if self.has_waits:
            self._add_waits(random.Random(f"waits {self.seed}"))

    def _add_waits(self, chance):
        """Add waits behind streams of one source, and let some readers of these streams read the responses."""
        reached = [source.name for source in self.inputs]
        for name in reached:
            place = next((number for number, op in enumerate(self.ops, 1) if op.name == name), 0)
            following = self.ops[place:]
            steps = [op.name for op in following if op.inputs == [name] and op.kind in {"map", "filter", "flat_map"}]
            reached += [step for step in steps if step not in reached]
            if chance.random() < 0.7:
                wait = Op(f"wait_{name}", "wait", [name])
                for op in following:
                    op.inputs = [wait.name if i == name and chance.random() < 0.5 else i for i in op.inputs]
                self.ops.insert(place, wait)
                if len(reached) < 4 and chance.random() < 0.3:
                    reached.append(wait.name)

    @staticmethod
    def _input(chance, number):
        lag, time, files = chance.choice([0, 20, 60]), START + chance.randint(0, 50), []
        for _ in range(chance.randint(1, 4)):
            file = []
            for _ in range(chance.randint(0, 6)):
                time += chance.choice([0, 5, 20, 50])
                late = chance.choice([0, 0, 0, 10, 40, 100])
                file.append(Event(chance.choice("ab"), chance.randint(0, 4), time - late, chance.randint(0, 999)))
            files.append(file)
        # Silence is drawn separately, so the rest of a program is the same with and without it.
        is_silent = number > 0 and random.Random(f"{time} {number}").random() < 0.3
        return Input(f"program_source{number}", lag, [] if is_silent else files)

    @staticmethod
    def _op(chance, number, streams):
        kind = chance.choice(
            ["map", "filter", "flat_map", "union", "process", "process", "connect", "connect", "broadcast"]
        )
        count = {"union": chance.choice([2, 2, 3]), "connect": 2, "broadcast": 2}.get(kind, 1)
        # The streams added last are drawn more often: that makes deep graphs, and diamonds.
        inputs = [streams[max(chance.randrange(len(streams)), chance.randrange(len(streams)))] for _ in range(count)]
        key = chance.choice([*KEYS]) if kind in {"process", "connect", "broadcast"} else ""
        has_side = bool(key) and chance.random() < 0.4
        return Op(f"{kind}_{number}", kind, inputs, chance.choice([0, 3, 30, 80]), key, has_side)

    # ------------------------------------------------------------------------------------------------- as a pipeline

    def pipeline(self):
        p = Pipeline("graph")
        streams = {
            source.name: p.source(
                source.name, Event, event_time="at", out_of_orderness=timedelta(milliseconds=source.lag)
            )
            for source in self.inputs
        }
        for op in self.ops:
            result = self._added(op, [streams[name] for name in op.inputs])
            streams[op.name] = result
            if op.has_side:
                streams[f"{op.name}.aside"] = result.side("aside", Event)
        for stream, sink in self.sinks.items():
            streams[stream].sink(sink)
        return p

    @staticmethod
    def _added(op, inputs):
        first = inputs[0]
        match op.kind:
            case "map":
                return first.map(mapped(op.constant))
            case "filter":
                return first.filter(kept(op.constant))
            case "flat_map":
                return first.flat_map(copied(op.constant), record=Event)
            case "union":
                return first.union(*inputs[1:])
            case "wait":
                return first.async_wait(
                    op.name,
                    Ask(),
                    mode=OutputMode.ORDERED,
                    timeout=timedelta(hours=1),
                    retry=RETRY,
                    park_after=timedelta(0),
                )
        keys, _ = KEYS[op.key]
        if op.kind == "broadcast":
            return (
                first.key_by(*keys)
                .connect(inputs[1].broadcast())
                .process(op.name, RuledMixer(op.constant, op.has_side))
            )
        keyed = [stream.key_by(*keys) for stream in inputs]
        if op.kind == "process":
            return keyed[0].process(op.name, Mixer(op.constant, op.has_side))
        return keyed[0].connect(keyed[1]).process(op.name, CoMixer(op.constant, op.has_side))

    @property
    def sinks(self):
        """Return the sinks by stream: every stream that no operator reads, and the last stream."""
        read = {name for op in self.ops for name in op.inputs}
        streams = [source.name for source in self.inputs]
        for op in self.ops:
            streams += [op.name, f"{op.name}.aside"] if op.has_side else [op.name]
        return {name: f"out_{number}" for number, name in enumerate(streams) if name not in read or number % 3 == 0}

    # ------------------------------------------------------------------------------------------------------ by hand

    @property
    def groups(self):
        """Return the groups of sources that meet in a keyed operator."""
        reach = {source.name: {source.name} for source in self.inputs}
        groups = [{source.name} for source in self.inputs]
        for op in self.ops:
            reach[op.name] = reach[f"{op.name}.aside"] = set().union(*(reach[name] for name in op.inputs))
            if op.key:
                meeting = [group for group in groups if group & reach[op.name]]
                groups = [group for group in groups if group not in meeting] + [set().union(*meeting)]
        return groups

    def expected(self, *, end=False):
        """Return the rows of each sink after all input; with `end`, after the end of the input as well."""
        loop = _Loop(self)
        for group in self.groups:
            inputs = [source for source in self.inputs if source.name in group]
            watermark, latest = NEVER, NEVER
            lag = max(source.lag for source in inputs)
            for place, (key, name, event) in enumerate(_merged(inputs, end=end), 1):
                loop.push(name, event, event.at)
                latest = max(latest, key)
                if place % self.bucket == 0 and latest - lag - 1 > watermark:
                    watermark = latest - lag - 1
                    loop.advance(group, watermark)
            if end:
                for last in sorted({max(latest, watermark), 1 << 62}):
                    loop.advance(group, last)
        return {sink: Counter(loop.out[stream]) for stream, sink in self.sinks.items()}


def _merged(inputs, *, end):
    """Merge key, source and row of all releasable rows, in arrival order."""
    rows, frontiers = [], []
    for number, program_source in enumerate(inputs):
        key = NEVER
        for place, row in enumerate(program_source.rows):
            key = max(key, row.at)
            rows.append((key, number, place, program_source.name, row))
        if not program_source.is_silent:
            frontiers.append((key, number))

    def is_released(key, number):
        others = ((f, n) for f, n in frontiers if n != number)
        return end or all(key < f or (key == f and number < n) for f, n in others)

    return [
        (key, name, row) for key, number, _, name, row in sorted(rows, key=lambda r: r[:3]) if is_released(key, number)
    ]


class _Loop:
    """A loop over records: each goes through the whole graph before the next one comes."""

    def __init__(self, program):
        self.program = program
        self.out = defaultdict(list)
        self.states, self.rules, self.clocks = {}, {}, defaultdict(lambda: NEVER)
        self.timers = defaultdict(set)
        self.readers = defaultdict(list)
        for op in program.ops:
            for number, name in enumerate(op.inputs):
                self.readers[name].append((op, number))
        self.sources = {source.name: {source.name} for source in program.inputs}
        depth = defaultdict(int)
        for op in program.ops:
            self.sources[op.name] = self.sources[f"{op.name}.aside"] = set().union(
                *(self.sources[n] for n in op.inputs)
            )
            depth[op.name] = depth[f"{op.name}.aside"] = max(depth[n] for n in op.inputs) + bool(op.key)
        keyed = [op for op in program.ops if op.key]
        self.keyed = sorted(keyed, key=lambda op: depth[op.name])

    def push(self, stream, event, timestamp):
        self.out[stream].append((event.id, event.key, event.at, event.value))
        for op, number in self.readers[stream]:
            match op.kind:
                case "map":
                    self.push(op.name, mapped(op.constant)(event), timestamp)
                case "filter" if kept(op.constant)(event):
                    self.push(op.name, event, timestamp)
                case "flat_map":
                    for copied_event in copied(op.constant)(event):
                        self.push(op.name, copied_event, timestamp)
                case "union" | "wait":
                    self.push(op.name, event, timestamp)
                case "broadcast" if number:
                    self.rules[op.name, event.key] = ruled(self.rules.get((op.name, event.key)), event)
                case "broadcast":
                    self.process(op, 31 + self.rules.get((op.name, event.key), 0), event)
                case "process" | "connect":
                    self.process(op, 37 if number else 31, event)

    def process(self, op, factor, event):
        key = json.dumps(KEYS[op.key][1](event), separators=(",", ":"))
        after = self.states[op.name, key] = mixed(self.states.get((op.name, key)), event, factor)
        out, aside, timer = reaction(after, event, op.constant)
        result = [(op.name, out)]
        if aside and op.has_side:
            result.append((f"{op.name}.aside", out))
        if timer is not None and timer <= self.clocks[op.name]:
            result.append((op.name, self.fire(op, timer, key)))
        elif timer is not None:
            self.timers[op.name].add((timer, key))
        for stream, record in result:
            self.push(stream, record, record.at)

    def fire(self, op, time, key):
        self.states[op.name, key], out = fired(self.states[op.name, key], time)
        return out

    def advance(self, group, watermark):
        """Fire due timers timestamp by timestamp, and those of a timestamp operator by operator: an upstream operator comes first."""
        ops = [op for op in self.keyed if self.sources[op.name] & group]
        while due := [time for op in ops for time, _ in self.timers[op.name] if time <= watermark]:
            timestamp = min(due)
            self.clocks.update({op.name: timestamp - 1 for op in ops})
            for op in ops:
                self.clocks[op.name] = timestamp
                for time, key in sorted(timer for timer in self.timers[op.name] if timer[0] == timestamp):
                    self.timers[op.name].discard((time, key))
                    out = self.fire(op, time, key)
                    self.push(op.name, out, time)
        self.clocks.update({op.name: watermark for op in ops})


def __getattr__(name):
    """Return the pipeline of `Program(17)` for the name `graph_17`."""
    prefix, _, seed = name.rpartition("_")
    if prefix != "graph" or not seed.isdigit():
        raise AttributeError(name)
    return Program(int(seed)).pipeline()


def job_of(program):
    """Return the configuration of a job that runs the graph of a program."""
    return {
        "job": "graph",
        "pipeline": f"tests.jobs.graphs:graph_{program.seed}",
        "state": {"root": "state", "local": "local"},
        "watermark": {"bucket": program.bucket},
        "sources": {source.name: {"path": f"input/{source.name}", **source.settings} for source in program.inputs},
        "sinks": {sink: {"path": f"lake/{sink}", "mode": "append"} for sink in program.sinks.values()},
    }
