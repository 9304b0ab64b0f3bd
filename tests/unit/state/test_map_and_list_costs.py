"""The reads and writes of calls to lists and maps, the view of an iteration, and refused calls."""

from __future__ import annotations

from datetime import timedelta
from itertools import count

import pytest

from headrace import (
    AggregateFunction,
    AggregatingState,
    KeyedProcessFunction,
    ListState,
    MapState,
    ReducingState,
    StateTtl,
    Struct,
    UpdateType,
    ValueState,
)
from headrace.errors import StateSchemaError, UserFunctionError
from headrace.state.backend import EntryChange, entry_group, stored_value
from headrace.state.codec import encode
from headrace.state.cursor import PAGE
from headrace.testing import KeyedHarness

MANY = 12 * PAGE


class Go(Struct, frozen=True):
    what: str = ""


class Counting:
    """A backend that counts its calls."""

    def __init__(self, backend):
        self.backend = backend
        self.is_in_memory = backend.is_in_memory
        self.scans_keys = backend.scans_keys
        self.is_sorted = backend.is_sorted
        self.entries = self.scans = self.scanned = 0
        self.items, self.close = backend.items, backend.close
        self.write_batch, self.visit, self.may_have = backend.write_batch, backend.visit, backend.may_have
        self.may_have_kind = backend.may_have_kind

    def get_many(self, keys, /):
        self.entries += len(keys)
        return self.backend.get_many(keys)

    def scan(self, start, end, /):
        grouped = start[:1] == b"e"
        self.scans += grouped
        for entry in self.backend.scan(start, end):
            self.scanned += grouped
            yield entry

    def counted(self):
        """Return the entries read, groups or pages scanned, and entries found by scans, since the last call."""
        result = self.entries, self.scans, self.scanned
        self.entries = self.scans = self.scanned = 0
        return result


@pytest.fixture
def many(backend):
    """A backend with a map of many entries."""
    group = entry_group("numbers", b'"k"')
    backend.write_batch((group + encode(f"{n:05}"), stored_value(5, encode(n))) for n in range(MANY))
    return Counting(backend)


def changes_of(harness):
    """Return the rows that a task would write; reset the counters."""
    harness._store.counted()
    (store,) = [store for store in harness._process.stores if store.name == "numbers"]
    return list(store.changes())


def running(body, *, plain=False, ttl=None):
    """Return a function with a map, whose code is `body(map)`."""

    class Async(KeyedProcessFunction[Go, Go]):
        numbers = MapState("numbers", str, int, ttl=ttl)

        async def process(self, go, ctx, /):
            await body(self.numbers)

    class Plain(KeyedProcessFunction[Go, Go]):
        numbers = MapState("numbers", str, int, ttl=ttl)

        def process(self, go, ctx, /):
            body(self.numbers)

    return Plain() if plain else Async()


def run(function, backend):
    harness = KeyedHarness(function, key=lambda _: "k", backend=backend)
    backend.counted()
    harness.process(Go(), 7)
    return harness


def cells_of(harness):
    return sum(len(cells.by_name) for store in harness._process.stores for cells in store.groups())


def test_put_in_large_map_writes_one_entry(many):
    async def body(numbers):
        await numbers.put("new", 1)

    with run(running(body), many) as harness:
        assert many.counted() == (0, 0, 0)
        assert harness.statistics().requests == 0
        assert changes_of(harness) == [EntryChange(b'"k"', b"1", 7, 0, "", b'"new"')]
        assert many.counted() == (0, 0, 0)


def test_putting_many_entries_reads_nothing(many):
    async def body(numbers):
        await numbers.put_all({"00001": 10, "new": 11})
        await numbers.put("00002", 12)

    with run(running(body), many) as harness:
        assert [(change.user_key, change.raw) for change in changes_of(harness)] == [
            (b'"00001"', b"10"),
            (b'"new"', b"11"),
            (b'"00002"', b"12"),
        ]
        assert many.counted() == (0, 0, 0)


def test_ttl_from_creation_reads_only_its_entry(many):
    async def body(numbers):
        await numbers.put_all({"00001": 10, "new": 11})

    ttl = StateTtl(timedelta(hours=1), update=UpdateType.ON_CREATE)
    with run(running(body, ttl=ttl), many) as harness:
        assert many.counted() == (2, 0, 0)
        assert [(change.user_key, change.stamp) for change in changes_of(harness)] == [(b'"00001"', 5), (b'"new"', 7)]


def test_entry_put_in_task_keeps_its_lifetime(backend):
    async def body(numbers):
        await numbers.put_all({"a": 1, "b": 2})

    ttl = StateTtl(timedelta(hours=1), update=UpdateType.ON_CREATE)
    with run(running(body, ttl=ttl), Counting(backend)) as harness:
        harness.process(Go(), 9)
        assert [change.stamp for change in changes_of(harness)] == [7, 7]


def test_entry_evicted_while_call_waits_is_reread(many):
    seen = []

    async def body(numbers):
        known, unknown = ["00001"], ["00002", "00001"]
        asked = [numbers.get(name) for name in (unknown if seen else known)]
        seen.extend([await answer for answer in asked])

    with KeyedHarness(running(body), key=lambda _: "k", backend=many, automatic=False) as harness:
        harness.process(Go(), 7)
        harness.drain()
        harness.process(Go(), 8)
        for store in harness._process.stores:
            store.trim()
        harness.drain()
        assert seen == [1, 2, 1]


def test_removal_reads_entry_at_end_of_task(many):
    """The removal writes a row if the entry existed."""

    async def body(numbers):
        await numbers.remove("00001")
        await numbers.remove("never")

    with run(running(body), many) as harness:
        assert many.counted() == (0, 0, 0)
        assert [(change.user_key, change.raw) for change in changes_of(harness)] == [(b'"00001"', None)]
        assert many.counted() == (2, 0, 0)


def test_list_add_writes_one_entry_per_element(backend):
    class Collect(KeyedProcessFunction[Go, Go]):
        numbers = ListState("numbers", int)

        async def process(self, go, ctx, /):
            await self.numbers.add(1)
            await self.numbers.namespace("w").add_all([2, 3])

    with run(Collect(), Counting(backend)) as harness:
        assert harness._store.counted() == (0, 0, 0)
        result = changes_of(harness)
        assert [(change.namespace, change.raw) for change in result] == [("", b"1"), ("w", b"2"), ("w", b"3")]
        assert [change.user_key for change in result] == [b'"%016x%08x"' % (1, place) for place in range(3)]


def collecting(seen, namespaces):
    """Return a function that reads lists concurrently, then adds to the first and clears the last, all of it twice."""

    class Collect(KeyedProcessFunction[Go, Go]):
        numbers = ListState("numbers", int)

        async def process(self, go, ctx, /):
            for _ in range(2):
                asked = [self.numbers.namespace(name).get() for name in namespaces]
                seen.append([await answer for answer in asked])
                await self.numbers.namespace(namespaces[0]).add(9)
                await self.numbers.namespace(namespaces[-1]).clear()

    return Collect()


def stored_lists(backend, sizes):
    for namespace, size in sizes.items():
        group = entry_group("numbers", b'"k"', namespace)
        backend.write_batch((group + encode(f"{n:05}"), stored_value(5, encode(n))) for n in range(size))
    return Counting(backend)


def test_read_list_is_asked_for_once(backend):
    seen, counting = [], stored_lists(backend, {"b": 2, "c": 1})
    with run(collecting(seen, ["a", "b", "c"]), counting) as harness:
        assert seen == [[[], [0, 1], [0]], [[9], [0, 1], []]]
        assert counting.counted() == (0, 1 if backend.scans_keys else 3, 3)
        assert sorted((change.namespace, change.raw) for change in changes_of(harness)) == [
            ("a", b"9"),
            ("a", b"9"),
            ("c", None),
        ]
        assert counting.counted() == (0, 0, 0)


def test_large_key_reads_each_list_alone(backend):
    seen, counting = [], stored_lists(backend, {"b": PAGE, "c": 1})
    with run(collecting(seen, ["a", "c"]), counting):
        assert seen == [[[], [0]], [[9], []]]
        _, scans, scanned = counting.counted()
        assert (scans, scanned) == ((3, PAGE + 1) if backend.scans_keys else (2, 1))


@pytest.mark.parametrize("size", [PAGE - 1, PAGE])
def test_list_of_a_page_stays_out_of_memory(backend, size):
    seen, counting = [], stored_lists(backend, {"": size})
    with run(collecting(seen, [""]), counting) as harness:
        assert seen == [[[*range(size)]], [[]]]
        assert (cells_of(harness) > 2) is (size < PAGE)


def test_emptiness_check_of_map_reads_a_page(many):
    seen = []

    async def body(numbers):
        seen.append(await numbers.is_empty())

    with run(running(body), many):
        assert seen == [False]
        assert many.counted() == (0, 1, PAGE)


def test_several_requests_of_a_record_join_one_batch(many):
    seen = []

    async def body(numbers):
        asked = [numbers.get(name) for name in ("00001", "00002", "00001", "never")]
        seen.extend([await answer for answer in asked])

    with KeyedHarness(running(body), key=lambda _: "k", backend=many, automatic=False) as harness:
        harness.process(Go(), 7)
        many.counted()
        assert harness.statistics().requests == 3
        harness.step()
        harness.drain()
        assert (seen, harness.statistics().batches, many.counted()) == ([1, 2, 1, None], 1, (3, 0, 0))


@pytest.mark.parametrize("plain", [False, True])
def test_iterating_large_map_keeps_nothing_in_memory(many, plain):
    seen, largest = count(), []

    async def walk(numbers):
        async for name, number in numbers.entries():
            note(name, number)

    def walk_plainly(numbers):
        for name, number in numbers.entries():
            note(name, number)

    def note(name, number):
        assert (name, number) == (f"{next(seen):05}", number)
        largest.append(cells_of(harness))

    harness = KeyedHarness(running(walk_plainly if plain else walk, plain=plain), key=lambda _: "k", backend=many)
    with harness:
        many.counted()
        harness.process(Go(), 7)
        assert (len(largest), max(largest)) == (MANY, 0)
        entries, scans, scanned = many.counted()
        assert (entries, scanned) == (0, MANY)
        assert scans == MANY // PAGE + 1
        assert changes_of(harness) == []


def test_iterating_with_callbacks_goes_through_all_pages(many):
    seen = []

    async def body(numbers):
        numbers.values().on_next(seen.append).then_accept(lambda _: seen.append("end"))

    with run(running(body), many):
        assert seen == [*range(MANY), "end"]


def test_stopped_iteration_reads_no_further_page(many):
    async def body(numbers):
        async for name in numbers.keys():
            if name == "00005":
                break

    with run(running(body), many):
        assert many.counted() == (0, 1, PAGE)


def test_iteration_shows_map_at_its_start(many):
    seen = []

    async def body(numbers):
        await numbers.put("00001", -1)
        await numbers.remove("00002")
        await numbers.put("zz", -2)
        walk = numbers.entries()
        await numbers.put("00003", -3)
        async for name, number in walk:
            seen.append((name, number))
            await numbers.remove(name)
            await numbers.put("zzz", 1)
            if name == f"{PAGE + 5:05}":
                await numbers.clear()

    with run(running(body), many) as harness:
        expected = {f"{n:05}": n for n in range(MANY)} | {"00001": -1, "zz": -2}
        del expected["00002"]
        assert seen == sorted(expected.items())
        assert harness.state("numbers", "k") == {"zzz": 1}


def test_cleared_map_keeps_only_later_entries(many):
    async def body(numbers):
        await numbers.put("00001", 0)
        await numbers.clear()
        await numbers.put("00002", 5)

    with run(running(body), many) as harness:
        assert many.counted() == (0, 0, 0)
        harness.snapshot()
        assert harness.state("numbers", "k") == {"00002": 5}
        assert len(dict(many.items())) == 1


# ------------------------------------------------------------------------------------------------ refused


def failing(body, kind="async"):
    return KeyedHarness(running(body, plain=kind == "plain"), key=lambda _: "k")


async def _iterate_plainly(numbers):
    for _ in numbers.entries():
        pass


def _iterate_with_async(numbers):
    numbers.entries().__aiter__()


async def _of_its_own_life(numbers):
    await numbers.put("a", 1, ttl=timedelta(hours=1))


async def _zero_in_namespace(numbers):
    await numbers.namespace("a\x00b").get("a")


@pytest.mark.parametrize(
    ("body", "kind", "why"),
    [
        (_iterate_plainly, "async", "TypeError.*'async def': iterate with 'async for'"),
        (_iterate_with_async, "plain", "TypeError.*'def': iterate with 'for'"),
        (_of_its_own_life, "async", "ValueError.*state 'numbers' of operator 'function' has no TTL"),
        (_zero_in_namespace, "async", "ValueError.*zero character"),
    ],
)
def test_invalid_calls_fail_with_a_reason(body, kind, why):
    with failing(body, kind) as harness, pytest.raises(UserFunctionError, match=f"(?s){why}"):
        harness.process(Go(), 1)


@pytest.mark.parametrize("name", [1, None, "\ud800"])
def test_key_of_another_type_is_refused(name):
    async def body(numbers):
        await numbers.put(name, 1)

    with failing(body) as harness, pytest.raises(StateSchemaError, match="a key of state 'numbers'"):
        harness.process(Go(), 1)


def test_value_of_other_type_is_refused_before_storing():
    async def body(numbers):
        await numbers.put("a", "text")

    with failing(body) as harness:
        harness.process(Go(), 1)
        with pytest.raises(StateSchemaError, match="state 'numbers' of operator 'function' was given 'text'"):
            harness.snapshot()


def test_equal_keys_share_an_entry():
    class Shares(KeyedProcessFunction[Go, Go]):
        shares = MapState("shares", float, int)

        async def process(self, go, ctx, /):
            await self.shares.put(1, 1)
            await self.shares.put(1.0, 2)

    with KeyedHarness(Shares(), key=lambda _: "k") as harness:
        harness.process(Go(), 1)
        assert harness.state("shares", "k") == {1.0: 2}


def test_lists_and_accumulators_refuse_none():
    class Adds(KeyedProcessFunction[Go, Go]):
        numbers = ListState("numbers", int)
        most = ReducingState("most", int, max)

        async def process(self, go, ctx, /):
            await getattr(self, go.what).add(None)

    for what in ("numbers", "most"):
        with KeyedHarness(Adds(), key=lambda _: "k") as harness, pytest.raises(UserFunctionError, match="given None"):
            harness.process(Go(what), 1)


def test_aggregate_function_must_name_its_accumulator():
    class Untyped(AggregateFunction):
        def create_accumulator(self):
            return 0

        def add(self, value, accumulator, /):
            return accumulator + value

        def get_result(self, accumulator, /):
            return accumulator

        def merge(self, one, other, /):
            return one + other

    with pytest.raises(TypeError, match=r"Untyped must name its types, as in AggregateFunction\[Sale, Sum, int\]"):
        AggregatingState("sum", Untyped())


@pytest.mark.parametrize(
    "declared",
    [
        ListState("s", int),
        MapState("s", str, int),
        ReducingState("s", int, max),
        ValueState("s", int),
    ],
)
def test_unbound_declaration_raises_runtime_error(declared):
    calls = [name for name in vars(type(declared)) if not name.startswith("_")] + ["clear"]
    arguments = {"put": ("a", 1), "merge_namespaces": ("", [])}
    for name in calls:
        with pytest.raises(RuntimeError, match="state 's' was used outside"):
            call_without_key(getattr(declared, name), arguments.get(name, (1,)))


def call_without_key(call, arguments):
    try:
        return call()
    except TypeError:
        return call(*arguments)
