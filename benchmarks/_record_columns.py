"""The cost of carrying records between stages, and of reading a source's rows: CPU nanoseconds a record.

PYTHONPATH=engine:. .venv/bin/python -m benchmarks._record_columns
"""

import gc
import time

import msgspec
import pyarrow as pa

from benchmarks.counting import Click
from headrace.records.columns import RecordReader
from headrace.records.keys import stage_key
from headrace.records.order import record_order
from headrace.records.record_columns import from_struct_array, to_struct_array
from headrace.records.source_columns import order_column
from headrace.sources.row_check import RowCheck
from headrace.state.codec import encode
from headrace.state.key_columns import key_json_column

RECORDS = 500_000
KEYS = 100_000
TURNS = 15


class _Source:
    record, event_time, row_kind, order_by = Click, "ts", None, ()


def measure(name, steps):
    """Print the best of several turns of steps, each of which processes the result of the step before."""
    best = [float("inf")] * len(steps)
    for _ in range(TURNS):
        gc.collect()
        given = None
        for at, step in enumerate(steps):
            before = time.process_time()
            given = step(given)
            best[at] = min(best[at], (time.process_time() - before) / RECORDS * 1e9)
    print(f"{name:45}", " + ".join(f"{seconds:5.0f}" for seconds in best), f"= {sum(best):5.0f}")


def main():
    gc.disable()  # as tasks do
    clicks = [Click(f"key-{seq * 7919 % KEYS}", seq % 1000, seq, 1_357_000_000_000 + seq) for seq in range(RECORDS)]
    decode = msgspec.json.Decoder(Click).decode
    measure(
        "JSON: encode, pa.binary, to_pylist, decode",
        [
            lambda _: list(map(encode, clicks)),
            lambda raw: pa.array(raw, pa.binary()),
            lambda array: array.to_pylist(),
            lambda raw: list(map(decode, raw)),
        ],
    )
    measure(
        "columns: to_struct_array, from_struct_array",
        [lambda _: to_struct_array(clicks, Click), lambda array: from_struct_array(array, Click)],
    )
    struct = to_struct_array(clicks, Click)
    table = pa.table({field.name: struct.field(field.name) for field in struct.type})
    stamps = table["ts"].cast(pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC"))
    table = table.set_column(3, "ts", stamps)
    reader = RecordReader(Click, None)
    measure("source: read", [lambda _: reader.read(table)])
    measure("source: read_columns", [lambda _: reader.read_columns(table)])
    ordinals = pa.array(range(RECORDS), pa.int64())
    measure("place: record_order", [lambda _: list(map(record_order, range(RECORDS)))])
    measure("place: order_column", [lambda _: order_column(ordinals)])
    measure("key: stage_key, encode", [lambda _: [encode(stage_key(click, ("key",))) for click in clicks]])
    measure("key: key_json_column", [lambda _: key_json_column(struct.field("key"))])
    measure("event time: RowCheck", [lambda _: RowCheck(_Source).times_in_order(table)])


if __name__ == "__main__":
    main()
