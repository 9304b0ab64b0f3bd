"""The same visits, counted in each kind of state: the input of `benchmarks.state`."""

import atexit
import shutil
import tempfile
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

from headrace import (
    AggregateFunction,
    AggregatingState,
    Cleanup,
    KeyedProcessFunction,
    ListState,
    MapState,
    Pipeline,
    Process,
    ReducingState,
    StateTtl,
    Struct,
    Timestamp,
    ValueState,
)
from headrace.execution.bound_function import store_for
from headrace.execution.element import Element, Watermark
from headrace.execution.keyed_process import KeyedProcess
from headrace.records.order import record_order
from headrace.state.backend import HashMapBackend
from headrace.state.cleanup import TtlCleanup
from headrace.state.rocksdb import RocksDbBackend

FOLDER = Path("var/bench/state")
OPERATOR = "visits"
PAGES = 20
LONG = StateTtl(timedelta(days=365), cleanup=Cleanup(entries_per_record=0))
TTLS = {
    "no TTL": None,
    "TTL, cleaned up on access": LONG,
    "TTL, default cleanup": replace(LONG, cleanup=Cleanup()),
    "TTL, 5 entries an access": replace(LONG, cleanup=Cleanup(entries_per_record=0, entries_per_access=5)),
}
_CHUNK = 20_000


class Visit(Struct, frozen=True):
    user: str
    page: int
    at: Timestamp = 0


class Pages(AggregateFunction[int, tuple[int, int], float]):
    """The mean of the pages."""

    def create_accumulator(self):
        return (0, 0)

    def add(self, value, accumulator, /):
        return (accumulator[0] + value, accumulator[1] + 1)

    def get_result(self, accumulator, /):
        return accumulator[0] / accumulator[1]

    def merge(self, one, other, /):
        return (one[0] + other[0], one[1] + other[1])


def plus(so_far, added):
    return so_far + added


class ByValue(KeyedProcessFunction[Visit, Visit]):
    state = ValueState("state", int)

    async def process(self, _visit, _ctx, /):
        await self.state.update((await self.state.value() or 0) + 1)


class ByList(KeyedProcessFunction[Visit, Visit]):
    state = ListState("state", int)

    async def process(self, visit, _ctx, /):
        await self.state.add(visit.page)


class ByMap(KeyedProcessFunction[Visit, Visit]):
    state = MapState("state", int, int)

    async def process(self, visit, _ctx, /):
        await self.state.put(visit.page, (await self.state.get(visit.page) or 0) + 1)


class ByReducing(KeyedProcessFunction[Visit, Visit]):
    state = ReducingState("state", int, plus)

    async def process(self, visit, _ctx, /):
        await self.state.add(visit.page)


class ByAggregating(KeyedProcessFunction[Visit, Visit]):
    state = AggregatingState("state", Pages())

    async def process(self, visit, _ctx, /):
        await self.state.add(visit.page)


KINDS: dict[str, type[Any]] = {
    "value": ByValue,
    "list": ByList,
    "map": ByMap,
    "reducing": ByReducing,
    "aggregating": ByAggregating,
}
SEEN = {
    "value": len,
    "list": list,
    "map": lambda pages: dict(Counter(pages)),
    "reducing": sum,
    "aggregating": lambda pages: (sum(pages), len(pages)),
}
"""What each kind holds of the pages that a user has visited."""


@dataclass(frozen=True)
class Visits:
    """Visits in micro-batches. Each user has one visit before the clock starts. See `turns`."""

    kind: str
    backend: str
    ttl: StateTtl | None
    records: int
    users: int

    def __call__(self):
        self._declare()
        backend = backend_of(self.backend)
        random = Random(42)
        pages = defaultdict(list)
        taken = 0

        def take(users):
            nonlocal taken
            elements = []
            for user in users:
                page = random.randrange(PAGES)
                pages[user].append(page)
                elements.append(visit(taken, user, page))
                taken += 1
            return elements

        for step in self._run(backend, take(range(self.users))):
            step()
        return self._turns(backend, take, pages, random)

    def _turns(self, backend, take, pages, random):
        def turn():
            users = [random.randrange(self.users) for _ in range(self.records)]
            elements = take(users)

            def check():
                for user in set(users[:1000]):
                    assert self._stored(backend, user) == SEEN[self.kind](pages[user]), "wrong state"

            return len(elements), self._run(backend, elements), check

        return turn

    def _run(self, backend, elements):
        """Run the processing, and a task's work on the changes."""
        watermarks = [Watermark(e.order, e.timestamp - 5) for e in elements[1000::1000]]
        declared = KINDS[self.kind].state
        process = KeyedProcess(
            Process(OPERATOR, "user", KINDS[self.kind]()),
            backend,
            records=(Visit,),
            watermark=None,
            last_watermark=watermarks[-1].timestamp if watermarks else None,
        )
        cleanup = TtlCleanup({declared.name: declared.ttl}, process.stores, backend, process.timers)

        def run():
            process.run([elements[at : at + _CHUNK] for at in range(0, len(elements), _CHUNK)], watermarks)

        def write_back():
            for store, changes in cleanup.changes(_Moment(watermarks), len(elements)):
                backend.write_batch(store.writes(changes))
            backend.write_batch(cleanup.writes())

        return run, write_back

    def _declare(self):
        KINDS[self.kind].state.ttl = self.ttl

    def _stored(self, backend, user):
        store = store_for(KINDS[self.kind].state, OPERATOR, backend, None, blocking=True)
        return store.peek(key_of(user))


class _Moment:
    """The end of a micro-batch."""

    timestamp = processing_time = 0

    def __init__(self, watermarks):
        self.watermark = watermarks[-1].timestamp if watermarks else 0


def key_of(user):
    return b'"user-%07d"' % user


def visit(ordinal, user, page):
    return Element(record_order(ordinal), ordinal, 0, key_of(user), Visit(f"user-{user:07d}", page))


def backend_of(kind):
    """Return an empty backend."""
    return HashMapBackend() if kind == "hashmap" else RocksDbBackend(folder() / "state")


def folder():
    """Return a new folder, removed at exit."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    result = Path(tempfile.mkdtemp(dir=FOLDER))
    atexit.register(shutil.rmtree, result, ignore_errors=True)
    return result


class Latest(KeyedProcessFunction[Visit, Visit]):
    latest = ValueState("latest", int, ttl=StateTtl(timedelta(hours=1)))

    async def process(self, visit, _ctx, /):
        await self.latest.update(visit.page)


pipeline = (
    Pipeline("visits")
    .source("page_views", Visit, event_time="at")
    .key_by("user")
    .process(OPERATOR, Latest())
    .sink("nothing")
)
