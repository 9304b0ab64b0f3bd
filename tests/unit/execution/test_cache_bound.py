"""A task keeps only a few cached entries, within a chunk of records and between chunks."""

from __future__ import annotations

from datetime import timedelta

import pytest

from headrace import (
    KeyedProcessFunction,
    ListState,
    MapState,
    Process,
    ReducingState,
    StateTtl,
    Struct,
    UpdateType,
    ValueState,
)
from headrace.execution.element import Element
from headrace.execution.keyed_process import KeyedProcess
from headrace.options import AsyncStateOptions
from headrace.records.order import record_order
from headrace.state.backend import entry_group, stored_value, value_entry
from headrace.state.codec import encode
from headrace.testing import KeyedHarness

NAMESPACES = [str(number) for number in range(6)]
LIMIT = 8


class Go(Struct, frozen=True):
    key: str


class Reads(KeyedProcessFunction[Go, Go]):
    """Reads all namespaces of a state, and writes nothing."""

    values = ValueState("values", int)
    lists = ListState("lists", int)
    maps = MapState("maps", str, int)
    sums = ReducingState("sums", int, lambda one, other: one + other)

    def __init__(self, read, cached):
        self.read = read
        self.answers = []
        self.cached = cached

    async def process(self, go, ctx, /):
        for name in NAMESPACES:
            self.answers.append(await self.read(self, name))
            self.cached()


READS = {
    "values": lambda code, name: code.values.namespace(name).value(),
    "lists": lambda code, name: code.lists.namespace(name).get(),
    "maps": lambda code, name: code.maps.namespace(name).get("x"),
    "sums": lambda code, name: code.sums.namespace(name).get(),
}
RESPONSES = {"values": 7, "lists": [7, 7], "maps": 7, "sums": 7}
AT_ONCE = {"values": 1, "lists": 2 * len(NAMESPACES), "maps": 1, "sums": 1}
"""Entries that one read may add: RocksDB reads a list of all namespaces."""


def stored(key):
    for name in NAMESPACES:
        for state in ("values", "sums"):
            yield value_entry(state, key, name), stored_value(5, b"7")
        for element in (b'"1"', b'"2"'):
            yield entry_group("lists", key, name) + element, stored_value(5, b"7")
        yield entry_group("maps", key, name) + b'"x"', stored_value(5, b"7")


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("kind", READS)
def test_entries_are_bounded_within_a_chunk(backend, kind, enabled):
    elements = [Element(record_order(n), n, 0, encode(f"k{n}"), Go(f"k{n}")) for n in range(40)]
    for element in elements:
        backend.write_batch(stored(element.key_json))
    sizes = []
    reads = Reads(READS[kind], lambda: sizes.append(store.statistics().cached))
    options = AsyncStateOptions(enabled=enabled, cache_entries=LIMIT, in_flight_records_limit=20, buffer_size=3)
    process = KeyedProcess(
        Process("reads", "key", reads), backend, records=(Go,), watermark=None, last_watermark=None, options=options
    )
    (store,) = [store for store in process.stores if store.name == kind]
    process.run([elements], [])
    assert reads.answers == [RESPONSES[kind]] * len(NAMESPACES) * len(elements)
    assert 0 < max(sizes) < LIMIT + 20 * AT_ONCE[kind]
    if backend.is_in_memory or not enabled:
        assert max(sizes) < LIMIT + AT_ONCE[kind]
    assert len(list(store.groups())) <= 20 * len(NAMESPACES)  # the entries of the last chunk


def test_iteration_renews_entries_that_were_evicted_meanwhile(backend):
    ttl = StateTtl(timedelta(milliseconds=10), update=UpdateType.ON_READ_AND_WRITE)
    group = entry_group("numbers", b'"k"')
    backend.write_batch((group + encode(name), stored_value(5, b"7")) for name in "abc")

    class Iterates(KeyedProcessFunction[Go, Go]):
        numbers = MapState("numbers", str, int, ttl=ttl)

        async def process(self, go, ctx, /):
            await self.numbers.is_empty()  # caches the map
            async for _ in self.numbers.keys():
                store.trim()

    with KeyedHarness(Iterates(), key=lambda go: go.key, backend=backend) as harness:
        (store,) = harness._process.stores
        harness.process(Go("k"), 9)
        assert [(change.user_key, change.stamp) for change in store.changes()] == [(encode(name), 9) for name in "abc"]


def test_merging_reads_evicted_entries_again(backend):
    backend.write_batch((value_entry("sums", b'"k"', name), stored_value(5, b"7")) for name in NAMESPACES)

    class Merges(KeyedProcessFunction[Go, Go]):
        sums = ReducingState("sums", int, lambda one, other: one + other)

        async def process(self, go, ctx, /):
            await self.sums.namespace("1").get()
            await self.sums.namespace("1").merge_namespaces("0", NAMESPACES[1:3])

    with KeyedHarness(Merges(), key=lambda go: go.key, backend=backend, automatic=False) as harness:
        (store,) = harness._process.stores
        harness.process(Go("k"), 9)
        more = True
        while more:
            store.trim()
            more = harness.step()
        assert harness.state("sums", "k", namespace="0") == 21
