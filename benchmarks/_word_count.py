"""Counting words in each way that `benchmarks.async` compares.

Each word was seen once before the clock starts. A turn is one micro-batch: a fresh task over the state of the
previous turns. The output and the final state are checked outside the measured time.
"""

import atexit
import random
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from itertools import accumulate, count
from pathlib import Path

from benchmarks._object_store import BUCKET
from benchmarks._slow_backend import SlowBackend
from headrace import Context, KeyedProcessFunction, Process, StateFuture, Struct, ValueState
from headrace.commit.job_tables import JobTables
from headrace.execution.element import Element, Watermark
from headrace.execution.keyed_process import KeyedProcess
from headrace.options import AsyncStateOptions
from headrace.records.order import record_order
from headrace.state.backend import EntryChange, HashMapBackend, stored_value, value_entry
from headrace.state.codec import encode
from headrace.state.key_groups import KeyGroupRange
from headrace.state.rocksdb import RocksDbBackend, StateCache
from headrace.state.values import ValueStore
from headrace.tables.changelog import Changelog, stage_state
from headrace.tables.delta_backend import DeltaBackend
from headrace.tables.folder import JobFolder
from headrace.tables.schemas import KEYED_STATE

FOLDER = Path("var/bench/async")
WATERMARK_DELAY = 5
_OPERATOR = "count_words"
_KEY_GROUPS = 128
_CHUNK = 20_000
_STAMP = len(stored_value(0, b""))


class Word(Struct, frozen=True):
    text: str


class Count(Struct, frozen=True):
    text: str
    count: int


class CountWords(KeyedProcessFunction[Word, Count]):
    seen = ValueState("seen", int)

    async def process(self, word: Word, ctx: Context, /) -> None:
        count = (await self.seen.value() or 0) + 1
        await self.seen.update(count)
        ctx.collect(Count(word.text, count))


class PlainCountWords(KeyedProcessFunction[Word, Count]):
    seen = ValueState("seen", int)

    def process(self, word: Word, ctx: Context, /) -> None:
        count = (self.seen.value() or 0) + 1
        self.seen.update(count)
        ctx.collect(Count(word.text, count))


@dataclass(frozen=True)
class Words:
    """Micro-batches of words, the same for every variant."""

    records: int
    keys: int
    zipf: bool = False
    watermark_every: int = 0

    def batches(self):
        """Without end."""
        chance = random.Random(42)
        weights = list(accumulate(1 / rank for rank in range(1, self.keys + 1))) if self.zipf else None
        for number in count():
            chosen = chance.choices(range(self.keys), cum_weights=weights, k=self.records)
            yield [self._element(number * self.records + i, key) for i, key in enumerate(chosen)]

    def watermarks(self, elements):
        """Return a watermark before every `watermark_every`-th element."""
        step = self.watermark_every
        return [Watermark(e.order, e.timestamp - WATERMARK_DELAY) for e in elements[step::step]] if step else []

    @staticmethod
    def _element(ordinal, key):
        return Element(record_order(ordinal), ordinal, 0, word(key), Word(f"word-{key:07d}"))


def word(key):
    """As JSON."""
    return b'"word-%07d"' % key


class Expected:
    """The counts of a plain loop over the same words."""

    def __init__(self):
        self._seen = Counter()

    def of(self, elements):
        """Return the expected count of each element, with the final counts of its words."""
        counts = []
        for element in elements:
            self._seen[element.key_json] += 1
            counts.append(1 + self._seen[element.key_json])
        return counts, {element.key_json: 1 + self._seen[element.key_json] for element in elements}


@dataclass(frozen=True)
class Framework:
    """The engine's execution: a step that processes, and a step that writes the changes back.

    `backend` is "hashmap", "rocksdb", "delta", "delta, cached" or the latency of a remote backend (seconds).
    `prefetch` reads the values of the next records ahead, as tasks do; without it, every access that misses the
    task's cache is a request of its record. `cached` fills that cache before the clock starts. `plain` uses the
    function written with `def`.
    """

    words: Words
    backend: str | float
    options: dict = field(default_factory=dict)
    plain: bool = False
    prefetch: bool = True
    cached: bool = False
    storage: dict | None = None

    def __call__(self):
        """See `turns`."""
        backend = populated(self.backend, self.words.keys, self.storage)
        batches, expected = self.words.batches(), Expected()

        def turn():
            elements = next(batches)
            counts, after = expected.of(elements)
            watermarks = self.words.watermarks(elements)
            process = self._process(backend, watermarks)
            (store,) = process.stores
            if self.cached:
                store.prefetch(after)

            def run():
                process.run([elements[at : at + _CHUNK] for at in range(0, len(elements), _CHUNK)], watermarks)

            def write_back():
                backend.write_batch(store.writes(list(store.changes())))

            def check():
                assert [emitted.record.count for emitted in process.emitted] == counts, "wrong output"
                stored = backend.get_many([value_entry(store.name, key) for key in after])
                assert [value[_STAMP:] for value in stored] == list(map(encode, after.values())), "wrong state"

            return len(elements), (run, write_back), check

        return turn

    def _process(self, backend, watermarks):
        function = PlainCountWords() if self.plain else CountWords()
        return (KeyedProcess if self.prefetch else _OnDemand)(
            Process(_OPERATOR, "text", function),
            backend,
            records=(Word,),
            watermark=None,
            last_watermark=watermarks[-1].timestamp if watermarks else None,
            options=AsyncStateOptions(**self.options),
        )


class _OnDemand(KeyedProcess):
    """Never reads ahead."""

    def _prefetch(self, chunk):
        pass


@dataclass(frozen=True)
class Bare:
    """The same coroutine function with no framework: handles over a dict of values, and `send`."""

    words: Words

    def __call__(self):
        """See `turns`."""
        seen = {word(key): 1 for key in range(self.words.keys)}
        batches, expected = self.words.batches(), Expected()
        function = CountWords()
        function.seen = handle = _DictHandle(seen)

        def turn():
            elements = next(batches)
            counts, after = expected.of(elements)
            context = _ListContext()

            def run():
                process = function.process
                for element in elements:
                    handle.key = element.key_json
                    try:  # noqa: SIM105 - suppress() would be timed, too
                        process(element.record, context).send(None)
                    except StopIteration:
                        pass

            def check():
                assert [record.count for record in context.records] == counts, "wrong output"
                assert {key: seen[key] for key in after} == after, "wrong state"

            return len(elements), (run,), check

        return turn


class _Task:
    """A record without waiting callbacks."""

    callbacks = ()

    def __init__(self):
        self.context = self


_TASK = _Task()
_DONE = StateFuture(None, _TASK)


class _DictHandle:
    def __init__(self, values):
        self.values, self.key = values, b""

    def value(self):
        return StateFuture(self.values.get(self.key), _TASK)

    def update(self, value, /):
        self.values[self.key] = value
        return _DONE


class _ListContext:
    def __init__(self):
        self.records = []

    def collect(self, record, /):
        self.records.append(record)


def populated(kind, keys, storage=None):
    """Return a backend in which each word has been seen once; see `Framework`."""
    if kind == "rocksdb":
        return _rocksdb(keys)
    if kind in {"delta", "delta, cached"}:
        return _delta(keys, storage, cached=kind == "delta, cached")
    backend = HashMapBackend() if kind == "hashmap" else SlowBackend(kind)
    backend.write_batch(_seen_once(keys))
    return backend


def _rocksdb(keys):
    # Opened again after writing, so that reads come from files, as in a run after the first.
    folder = _folder() / "state"
    backend = RocksDbBackend(folder)
    backend.write_batch(_seen_once(keys))
    backend.close()
    return RocksDbBackend(folder, create=False)


def _delta(keys, storage, *, cached):
    folder = _folder()
    job = JobFolder(str(folder / "job")) if storage is None else JobFolder(f"{BUCKET}/{folder.name}", storage)
    tables = JobTables(job, "run", "attempt")
    versions = tables.create()
    changes = [EntryChange(word(key), b"1", 0) for key in range(keys)]
    rows = Changelog(_OPERATOR, 1, _KEY_GROUPS).values(ValueStore(CountWords.seen, _OPERATOR, None, None), changes)
    versions = tables.prepare({KEYED_STATE: [stage_state(job, KEYED_STATE, "0.parquet", rows)]}, versions)
    cache = StateCache(RocksDbBackend(folder / "cache"), bound=1 << 40)
    if cached:
        cache.put(_seen_once(keys))
    everything = KeyGroupRange(0, _KEY_GROUPS - 1)
    return DeltaBackend(job, versions, _OPERATOR, everything, cache, max_parallelism=_KEY_GROUPS)


def _folder():
    FOLDER.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=FOLDER))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _seen_once(keys):
    return ((value_entry(CountWords.seen.name, word(key)), stored_value(0, b"1")) for key in range(keys))
