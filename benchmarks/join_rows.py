"""A regular join whose right side is updated: stored by its unique key, and as a multiset.

    make bench-join-rows

1,000 orders are joined with 1,000 customers, who change 50,000 times, in the harness of a pipeline (one process, state in memory).
The same changes come as upserts, as updates with their old rows from a source whose unique key nobody knows, and as upserts through
`normalize`, with and without the key behind it. Each turn checks that the last rows of all customers are in the result.
"""

import argparse
import random
import time

from benchmarks._report import figure, report
from headrace import Lifetime, Pipeline, RowKind, Struct, Timestamp
from headrace.testing import PipelineHarness

KEYS, UPDATES = 1_000, 50_000
INSERT, BEFORE, AFTER, _ = RowKind


class Order(Struct, frozen=True):
    id: int
    at: Timestamp
    customer: str


class Customer(Struct, frozen=True):
    customer: str
    at: Timestamp
    name: str
    points: int


class Served(Struct, frozen=True):
    id: int
    points: int


def served(order: Order, customer: Customer) -> Served:
    return Served(order.id, customer.points)


def same(customer: Customer) -> Customer:
    return customer


FORMS = {
    "upserts, a row for each key": lambda source: source.drop_update_before("customer"),
    "updates, multiset": lambda source: source,
    "normalized, a row for each key": lambda source: source.normalize("last", key=("customer",)).map(
        same, keeps=("customer",)
    ),
    "normalized, multiset": lambda source: source.normalize("last", key=("customer",)).map(same),
}


def changes(count, *, with_old_rows):
    """Return the changes of random customers, and the last points of each one."""
    chance, last, events = random.Random(44), {}, []
    for number in range(count):
        name = f"c{chance.randrange(KEYS)}"
        old = last.get(name)
        last[name] = Customer(name, number, f"name of {name}", number)
        if old is not None and with_old_rows:
            events.append((old, BEFORE))
        events.append((last[name], INSERT if old is None else AFTER))
    return events, {name: customer.points for name, customer in last.items()}


def turn(form, count):
    """Return the CPU time of an update (microseconds), and the bytes of the operators' state."""
    pipeline = Pipeline("served")
    orders = pipeline.source("orders", Order, event_time="at").key_by("customer")
    customers = FORMS[form](pipeline.source("customers", Customer, event_time="at", row_kind="op")).key_by("customer")
    pairs = orders.join("served", customers, emit=served, state_ttl=Lifetime.FOREVER)
    harness = PipelineHarness(pairs.upsert_materialize("latest", primary_key=("id",)).sink("served"))
    events, last = changes(count, with_old_rows=form == "updates, multiset")
    harness.feed("orders", [Order(number, 0, f"c{number}") for number in range(KEYS)])
    harness.feed("customers", [record for record, _ in events], kinds=[kind for _, kind in events])
    start = time.process_time()
    harness.run(end_of_input=True)
    used = time.process_time() - start
    rows = {f"c{row.id}": row.points for row in harness.sink("served")}
    assert rows == last
    stored = [
        row
        for row in harness.table("keyed_state").to_pylist()
        if row["operator"] in {"served", "last"} and not row["deleted"]
    ]
    columns = ("key", "user_key", "value")
    return used / count * 1e6, sum(len(str(row[name] or "")) for row in stored for name in columns)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke test: few updates, one turn")
    quick = parser.parse_args().quick
    count, repeats = (2_000, 1) if quick else (UPDATES, 3)
    turns = {form: [] for form in FORMS}
    turn("updates, multiset", KEYS * 2)  # what is imported and compiled once
    for _ in range(repeats):
        for form in FORMS:
            turns[form].append(turn(form, count))
    figures = []
    for form, results in turns.items():
        figures.append(figure(f"{form}: CPU", [used for used, _ in results], "us an update"))
        figures.append(figure(f"{form}: state", [size / 1e3 for _, size in results], "kB"))
    report("join_rows", figures)


if __name__ == "__main__":
    main()
