"""The sink upsert materializer: FLIP-544's question, all strategies, and the goals against LEGACY and against Flink's operators.

    make bench-materializer                        some five minutes on a quiet machine
    python -m benchmarks.materializer --quick      a smoke test: two delays, one turn

*One hot key*: 10,000 rows of 250 bytes are inserted under one key, and each is retracted DELAY rows later, the oldest
row first, as in `peers/flink`. One operation is one change, insertion or retraction. A turn is one micro-batch on an
empty backend: `take` is the changes themselves, `keep` is writing the history to the backend. Flink writes with every
change, or keeps objects on its heap, so its figures are compared with the sum of both. The additional work of a
checkpoint (rows for the Delta table, records for the sink) is a separate figure.

*One change a micro-batch* is what LEGACY does in Flink: each change reads the state and writes it. Here the key has DELAY
rows before, and each change is a micro-batch.

*Short histories*: 100,000 keys, each inserted, updated out of order, and half of them updated again.

The objects of a turn stay alive until those of the next turn exist. So memory is mapped already, as in a worker that
has kept its state, and in a JVM that has warmed up; else each turn would map it anew, which costs 0.1 microseconds a
change.

Every turn checks the numbers of emitted and of remaining rows.
"""

import argparse
import itertools
import random
import shutil
import statistics
import string
from dataclasses import dataclass
from pathlib import Path

import msgspec

from benchmarks._report import figure, report
from benchmarks._turns import turns
from headrace import Emit, RowKind, Strategy, Struct, UpsertMaterialize
from headrace.execution.element import Element
from headrace.materializer.upsert_materializer import UpsertMaterializer
from headrace.options import MaterializerOptions
from headrace.records.order import record_order
from headrace.state.backend import HashMapBackend
from headrace.state.codec import encode
from headrace.state.rocksdb import RocksDbBackend

FOLDER = Path("var/bench/materializer")
ROWS, PAYLOAD = 10_000, 250
DELAYS = (2, 10, 50, 100, 1000, 5000)
BATCH = 20_000

# Flink 2.3.0's ADAPTIVE on two such cores, operations a millisecond by delay: (without upsert key, with it).
FLINK = {
    "rocksdb": {2: (321, 311), 10: (156, 158), 100: (88, 86), 1000: (110, 88), 5000: (124, 139)},
    "hashmap": {2: (6528, 4300), 10: (6356, 3880), 100: (4162, 2358), 1000: (1172, 1070), 5000: (1214, 1107)},
}


class Row(Struct, frozen=True):
    id: int
    pk: int
    payload: str


def hot_rows():
    chance = random.Random(544)
    return [Row(number, 1, "".join(chance.choices(string.ascii_lowercase, k=PAYLOAD))) for number in range(ROWS)]


def elements(changes):
    """Rows from outside are new objects: a cached hash would distort the result."""
    return [
        Element(record_order(n), n, int(kind), bytes(bytearray(key)), msgspec.structs.replace(row))
        for n, (kind, key, row) in enumerate(changes)
    ]


def hot_changes(rows, delay):
    for number, row in enumerate(rows):
        yield RowKind.INSERT, b"1", row
        if number >= delay:
            yield RowKind.DELETE, b"1", rows[number - delay]


@dataclass(frozen=True)
class Setting:
    """A strategy on a backend. `place` is a separate folder."""

    strategy: Strategy
    backend: str
    upsert_key: bool
    place: str

    def open(self, number=0):
        if self.backend == "hashmap":
            return HashMapBackend()
        folder = FOLDER / self.place / str(number)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return RocksDbBackend(folder)

    def task(self, backend):
        operator = UpsertMaterialize(
            "board", ("pk",), ("id",) if self.upsert_key else None, self.strategy, Emit.EVERY_CHANGE
        )
        layouts = MaterializerOptions().layouts(self.strategy, self.backend)
        return UpsertMaterializer(
            operator, backend, record=Row, layouts=layouts, from_columns=True
        )  # as in a micro-batch


@dataclass(frozen=True)
class HotKey:
    """Steps: take, keep, and the work of the checkpoint."""

    setting: Setting
    delay: int

    def __call__(self):
        rows, numbers, before = hot_rows(), itertools.count(), []

        def prepare():
            taken = elements(hot_changes(rows, self.delay))
            backend = self.setting.open(next(numbers))
            task = self.setting.task(backend)
            events = []
            before[:] = [taken, backend, task, events]

            def keep():
                backend.write_batch(task.writes())

            def checkpoint():
                events.extend((task.changes(), task.outputs()))

            def check():
                changes, outputs = events
                assert len(outputs) == ROWS, f"{len(outputs)} rows were emitted"
                assert len(changes) == self.delay, f"{len(changes)} rows are left"
                assert task.metrics == {"records": len(taken)}, task.metrics
                backend.close()

            return len(taken), [lambda: task.run([taken]), keep, checkpoint], check

        return prepare


@dataclass(frozen=True)
class ChangeByChange:
    """One change a micro-batch, on a key that has `delay` rows."""

    setting: Setting
    delay: int
    count: int

    def __call__(self):
        rows = hot_rows()
        numbers = itertools.count()

        def prepare():
            filled, more = rows[: self.delay], rows[self.delay : self.delay + self.count]
            backend = self.setting.open(next(numbers))
            before = self.setting.task(backend)
            before.run([elements((RowKind.INSERT, b"1", row) for row in filled)])
            backend.write_batch(before.writes())
            pairs = zip(more, [*filled, *more], strict=False)
            taken = elements(
                itertools.chain(*(((RowKind.INSERT, b"1", a), (RowKind.DELETE, b"1", b)) for a, b in pairs))
            )
            emitted = []

            def changes():
                for element in taken:
                    task = self.setting.task(backend)
                    task.run([[element]])
                    backend.write_batch(task.writes())
                    emitted.append(len(task.outputs()))

            def check():
                assert sum(emitted) == len(more)
                assert len(self.setting.task(backend).rows_of(b"1")) == self.delay
                backend.close()

            return len(taken), [changes], check

        return prepare


@dataclass(frozen=True)
class ShortHistories:
    """Steps: take and keep, for many keys."""

    setting: Setting
    keys: int

    def __call__(self):
        chance = random.Random(7)
        texts = ["".join(chance.choices(string.ascii_lowercase, k=PAYLOAD)) for _ in range(100)]
        order = list(range(self.keys))
        chance.shuffle(order)
        numbers = itertools.count()

        def row(key, version):
            return Row(version, key, texts[(key + version) % 100])

        def changes():
            for key in order:
                yield RowKind.INSERT, encode(key), row(key, 0)
            for key in order:  # the new row comes before the retraction of the old row
                yield RowKind.UPDATE_AFTER, encode(key), row(key, 1)
                yield RowKind.UPDATE_BEFORE, encode(key), row(key, 0)
            for key in order[::2]:
                yield RowKind.UPDATE_AFTER, encode(key), row(key, 2)

        result = list(changes())

        def prepare():
            taken = elements(result)
            backend = self.setting.open(next(numbers))
            task = self.setting.task(backend)
            batches = [taken[first : first + BATCH] for first in range(0, len(taken), BATCH)]

            def keep():
                backend.write_batch(task.writes())

            def check():
                assert len(task.outputs()) == self.keys * 2 + -(-self.keys // 2)
                backend.close()

            return len(taken), [lambda: task.run(batches), keep], check

        return prepare


def per_millisecond(durations, *steps):
    """Operations a millisecond: of CPU time, since machines are shared, and of wall time."""
    cpu = [1000 / sum(turn.cpu[step] for step in steps) for turn in durations]
    wall = [1000 / sum(turn.wall[step] for step in steps) for turn in durations]
    return cpu, wall


def name_of(setting):
    return f"{setting.backend}, {'upsert key' if setting.upsert_key else 'no upsert key'}, {setting.strategy.name}"


def settings(backend, upsert_key, strategies=Strategy):
    return [
        Setting(strategy, backend, upsert_key, f"{backend}-{upsert_key}-{strategy.value}") for strategy in strategies
    ]


def hot_key(options):
    figures, rates = [], {}
    for backend, upsert_key, delay in itertools.product(("hashmap", "rocksdb"), (False, True), options.delays):
        chosen = settings(backend, upsert_key)
        output = turns(options.runs, {variant.strategy: HotKey(variant, delay) for variant in chosen})
        for setting in chosen:
            of = output[setting.strategy][1:] or output[setting.strategy]
            cpu, wall = per_millisecond(of, 0, 1)
            taking, _ = per_millisecond(of, 0)
            whole, _ = per_millisecond(of, 0, 1, 2)
            key = (backend, upsert_key, setting.strategy, delay)
            rates[key] = cpu, taking
            name = f"{name_of(setting)}, delay {delay}"
            goal, met = goal_of(setting, delay)
            figures.append(figure(name, cpu, "ops/ms of CPU", goal=goal, met=met))
            figures.append(figure(f"{name}, wall", wall, "ops/ms"))
            if setting.strategy is Strategy.ADAPTIVE:
                figures.append(figure(f"{name}, with all that a checkpoint wants", whole, "ops/ms of CPU"))
    return [*ratios(options, rates), *figures]


def goal_of(setting, delay):
    if setting.strategy is not Strategy.ADAPTIVE or delay not in FLINK[setting.backend]:
        return None, None
    flink = FLINK[setting.backend][delay][setting.upsert_key]
    times = 3 if setting.backend == "rocksdb" else 1
    if setting.backend == "hashmap" and not (setting.upsert_key and delay >= 1000):
        return None, None
    return f">= {times} x Flink's {flink:,}", lambda rate: rate >= times * flink


def ratios(options, rates):
    for backend, upsert_key in itertools.product(("hashmap", "rocksdb"), (False, True)):
        what = f"{backend}, {'upsert key' if upsert_key else 'no upsert key'}"
        of = {delay: rates[backend, upsert_key, Strategy.ADAPTIVE, delay] for delay in options.delays}
        for delay in options.delays:
            if delay <= 10:
                # Turn by turn, since the machine's pace changes between them.
                value = rates[backend, upsert_key, Strategy.VALUE, delay]
                shares = [100 * ours / theirs for ours, theirs in zip(of[delay][0], value[0], strict=True)]
                yield figure(
                    f"{what}, delay {delay}: ADAPTIVE of VALUE", shares, "%", goal=">= 98", met=lambda x: x >= 98
                )
        threshold, _ = (50, 40) if backend == "rocksdb" else (400, 300)
        long = [statistics.median(taking) for delay, (_, taking) in of.items() if delay >= max(100, threshold)]
        if len(long) > 1:
            yield figure(
                f"{what}: ADAPTIVE's fastest map over its slowest, delays >= {max(100, threshold)}",
                [max(long) / min(long)],
                "x",
                goal="<= 1.3",
                met=lambda x: x <= 1.3,
            )


def change_by_change(options):
    for upsert_key, delay in itertools.product((False, True), options.delays[-2:]):
        chosen = settings("rocksdb", upsert_key, (Strategy.LEGACY, Strategy.ADAPTIVE))
        output = turns(
            options.runs,
            {variant.strategy: ChangeByChange(variant, delay, options.single) for variant in chosen},
        )
        rates = {strategy: per_millisecond(of[1:], 0)[0] for strategy, of in output.items()}
        times = statistics.median(rates[Strategy.ADAPTIVE]) / statistics.median(rates[Strategy.LEGACY])
        last = delay == DELAYS[-1]
        what = f"rocksdb, {'upsert key' if upsert_key else 'no upsert key'}, one change a micro-batch, {delay} rows"
        yield figure(
            f"{what}: ADAPTIVE over LEGACY",
            [times],
            "x",
            goal=">= 34" if last else None,
            met=(lambda x: x >= 34) if last else None,
        )
        for strategy, rate in rates.items():
            yield figure(f"{what}, {strategy.name}", rate, "ops/ms of CPU")


def short_histories(options):
    for backend in ("hashmap", "rocksdb"):
        chosen = settings(backend, upsert_key=False, strategies=(Strategy.VALUE, Strategy.ADAPTIVE, Strategy.LEGACY))
        output = turns(options.runs, {variant.strategy: ShortHistories(variant, options.keys) for variant in chosen})
        rates = {strategy: per_millisecond(of[1:] or of, 0, 1)[0] for strategy, of in output.items()}
        # Turn by turn, since the machine's pace changes between them.
        shares = [
            100 * ours / theirs for ours, theirs in zip(rates[Strategy.ADAPTIVE], rates[Strategy.VALUE], strict=True)
        ]
        what = f"{backend}, {options.keys:,} keys with short histories"
        yield figure(f"{what}: ADAPTIVE of VALUE", shares, "%", goal=">= 98", met=lambda x: x >= 98)
        for strategy, rate in rates.items():
            yield figure(f"{what}, {strategy.name}", rate, "ops/ms of CPU")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=6, help="turns; the first one is not reported")
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--single", type=int, default=100, help="pairs of changes that are micro-batches of their own")
    parser.add_argument("--quick", action="store_true", help="a smoke test")
    options = parser.parse_args()
    options.delays = DELAYS
    if options.quick:
        options.runs, options.keys, options.single, options.delays = 2, 2_000, 5, (2, 1000)
    shutil.rmtree(FOLDER, ignore_errors=True)
    figures = [*hot_key(options), *change_by_change(options), *short_histories(options)]
    report("materializer", figures)
    shutil.rmtree(FOLDER, ignore_errors=True)


if __name__ == "__main__":
    main()
