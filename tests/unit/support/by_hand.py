"""The naive model of keyed execution: one record after the other, in plain dicts, with all keys in one loop.

It runs the user function itself but shares no code with the engine: the engine's output, sorted by its order keys,
must equal the model's output in order.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from headrace import BroadcastState, RowKind, UpdateType, ValueState
from tests.unit.support.inputs import input_of, method_for

MOST_PAST = 200
"""No record and no timer is earlier than this before 1970 (ms)."""


class Chained:
    """The chained callbacks of the running record that have not run yet, in order: (awaited answers, callback)."""

    def __init__(self):
        self.waiting = []

    def run(self):
        """Run the callbacks one after the other, first those that wait for no other; callbacks that they chain come last."""
        while self.waiting:
            place = next(place for place, (answers, _) in enumerate(self.waiting) if all(a.there for a in answers))
            answers, callback = self.waiting.pop(place)
            callback(*[answer.value for answer in answers])


class Answer:
    """The result of a state call of the model. The answer is present, unless a callback has to produce it."""

    def __init__(self, chained, value=None, *, there=True):
        self.chained, self.value, self.there = chained, value, there
        self.followers = []

    def __await__(self):
        self.chained.run()
        return self.value
        yield

    def give(self, value):
        self.value, self.there = value, True
        for follower in self.followers:
            follower.give(value)

    def follow(self, other):
        if other.there:
            self.give(other.value)
        else:
            other.followers.append(self)

    def then(self, callback, *others):
        result = Answer(self.chained, there=False)
        self.chained.waiting.append(((self, *others), lambda *values: callback(result, *values)))
        return result

    def then_apply(self, function):
        return self.then(lambda result, value: result.give(function(value)))

    def then_accept(self, function):
        return self.then_apply(lambda value: function(value) and None)

    def then_compose(self, function):
        return self.then(lambda result, value: result.follow(function(value)))

    def then_combine(self, other, function):
        return self.then(lambda result, mine, theirs: result.give(function(mine, theirs)), other)

    def then_conditionally_compose(self, condition, if_true, if_false):
        def choose(value):
            holds = condition(value)
            return (if_true if holds else if_false)(value).then_apply(lambda answer: (holds, answer))

        return self.then_compose(choose)


class Value:
    """A value state: by key, the value and its stamp."""

    def __init__(self, declared, stage):
        self.ttl = declared.ttl.milliseconds if declared.ttl else None
        self.update_type = declared.ttl.update if declared.ttl else None
        self.stage = stage
        self.found = {}

    def live(self):
        value, stamp = self.found.get(self.stage.key, (None, 0))
        if value is not None and self.ttl is not None and stamp + self.ttl <= self.stage.expired_until:
            value = None
        return value, stamp

    def value(self):
        value, stamp = self.live()
        if value is None:
            self.found.pop(self.stage.key, None)
        elif self.update_type is UpdateType.ON_READ_AND_WRITE:
            self.found[self.stage.key] = value, max(stamp, self.stage.timestamp)
        return Answer(self.stage.chained, value)

    def update(self, value):
        old, stamp = self.live()
        if old is None or self.ttl is None:
            stamp = self.stage.timestamp
        elif self.update_type is not UpdateType.ON_CREATE:
            stamp = max(stamp, self.stage.timestamp)
        self.found[self.stage.key] = value, stamp
        return Answer(self.stage.chained)

    def clear(self):
        self.found.pop(self.stage.key, None)
        return Answer(self.stage.chained)


class Rules:
    """A broadcast state: by the JSON text of its keys, the value and its stamp."""

    def __init__(self, stage):
        self.stage = stage
        self.found = {}

    def items(self):
        return [(json.loads(key), self.found[key][0]) for key in sorted(self.found)]

    def put(self, key, value):
        self.found[json.dumps(key, ensure_ascii=False)] = value, self.stage.timestamp

    def remove(self, key):
        self.found.pop(json.dumps(key, ensure_ascii=False), None)

    def clear(self):
        self.found.clear()


@dataclass
class Stage:
    """One function with its states and timers, and its context; emits into `following`."""

    function: Any  # of one or two inputs, with timers or without
    following: Any  # a stage, or what keeps the results
    due: set = field(default_factory=set)
    sides: list = field(default_factory=list)
    watermark: int = -(1 << 62)
    expired_until: int = -(1 << 62)
    key: str = ""
    timestamp: int = 0
    row_kind: RowKind = RowKind.INSERT
    chained: Chained = field(default_factory=Chained)

    def __post_init__(self):
        attributes = {name: value for cls in reversed(type(self.function).__mro__) for name, value in vars(cls).items()}
        self.states = {name: Value(state, self) for name, state in attributes.items() if isinstance(state, ValueState)}
        self.rules = {name: Rules(self) for name, state in attributes.items() if isinstance(state, BroadcastState)}
        vars(self.function).update(self.states | self.rules)
        self.timers = self

    def take(self, record, timestamp):
        """Process one record; timers that it sets for past times fire right after it."""
        if input_of(self.function, record) and self.rules:
            self.timestamp = timestamp
            self.function.process_broadcast(record, self)
            return
        self.run(record.key, timestamp, method_for(self.function, record)(record, self))
        self.fire_up_to(self.watermark, self.key)

    def advance(self, watermark):
        """Let the watermark pass one millisecond after the other, each of them through the whole chain."""
        start = max(self.watermark, -MOST_PAST)
        for timestamp in range(start + 1, watermark + 1):
            self.pass_moment(timestamp)

    def pass_moment(self, timestamp):
        """Fire the timers of a timestamp, then expire what expires at it; a timer set for an earlier time fires next."""
        self.watermark, self.expired_until = timestamp, max(self.expired_until, timestamp - 1)
        while due := [timer for timer in self.due if timer[0] <= timestamp]:
            timestamp, key = min(due)
            self.fire(timestamp, key)
            self.fire_up_to(timestamp, key)
        self.expired_until = timestamp
        self.following.pass_moment(timestamp)

    def fire_up_to(self, timestamp, key):
        while due := [timer for timer in self.due if timer[0] <= timestamp and timer[1] == key]:
            self.fire(*min(due))

    def fire(self, timestamp, key):
        self.due.remove((timestamp, key))
        self.run(key, timestamp, self.function.on_timer(timestamp, self))

    def run(self, key, timestamp, call):
        self.key, self.timestamp = key, timestamp
        try:
            call.send(None)
        except StopIteration:
            self.chained.run()
            return
        raise AssertionError("the function awaits something else")

    def collect(self, record, kind=RowKind.INSERT):
        assert kind is RowKind.INSERT, "the model has no changelogs"
        self.following.take(record, self.timestamp)

    def output(self, name, record):
        self.sides.append((name, record))

    def register_event_time(self, timestamp):
        self.due.add((timestamp, self.key))

    def delete_event_time(self, timestamp):
        self.due.discard((timestamp, self.key))


class End:
    """The output at the end of the chain."""

    def __init__(self):
        self.records = []

    def take(self, record, timestamp):
        self.records.append((record, timestamp))

    def pass_moment(self, timestamp):
        """Do nothing: the end has no timers."""
