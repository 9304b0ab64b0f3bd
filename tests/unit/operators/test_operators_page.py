"""The shop of docs/operators.md makes the tables that DuckDB makes of all feeds."""

from __future__ import annotations

import random
import re
from datetime import UTC, datetime

import duckdb
import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.testing import PipelineHarness
from tests.jobs.home import PROJECT
from tests.unit.support.doc_pages import page_module
from tests.unit.support.fuzzing import examples

PAGE = (PROJECT / "docs" / "operators.md").read_text()
HOUR = 3_600_000
START = round(datetime(2026, 3, 27, 20, tzinfo=UTC).timestamp() * 1000)
MOST_LINES = 80

SQL = """
-- current_orders
select * from (from orders qualify row_number() over (partition by id order by lsn desc) = 1) where op <> 'd';
-- revenue
select "at"::date, count(*), sum(cents) from current_orders where status <> 'cancelled' group by 1;
-- paid_within_a_week
select o.id, o.cents, p.card from orders o join payments p on p.order_id = o.id
where o.op = 'c' and p."at" between o."at" and o."at" + interval 7 days;
-- unpaid_after_two_days
select o.id, o.cents from orders o where o.op = 'c' and not exists (
    from payments p where p.order_id = o.id and p."at" between o."at" and o."at" + interval 48 hours);
-- customer_history
select id, tier, lsn, lead(lsn) over (partition by id order by lsn) from customers qualify op <> 'd';
-- alarms
select card, "at", count(*) over (
    partition by card order by "at" range between interval 10 minutes preceding and current row) n
from payments qualify n >= 3;
"""


@pytest.fixture(scope="module")
def page():
    with pytest.MonkeyPatch.context() as patch:
        yield page_module("operators", patch)


def feeds(page, chance):
    """Return orders with their changes, payments and customers, each up to an hour out of order."""
    orders, payments, customers = [], [], []
    for number in range(chance.randint(0, 6)):
        at, customer = START + chance.randrange(0, 200 * HOUR, HOUR // 4), chance.choice("xy")
        state = page.Order(number, at, "c", customer, "open", chance.randint(1, 9), at)
        orders.append(state)
        for op in chance.choice(["", "u", "uu", "d", "ud"]):
            at += 1 + chance.randrange(0, 30 * HOUR, HOUR // 4)
            status = chance.choice(["open", "cancelled"])
            state = msgspec.structs.replace(state, lsn=at, op=op, at=at, status=status, cents=chance.randint(1, 9))
            orders.append(state)
    for _ in range(chance.randint(0, 9)):
        at = START + chance.randrange(0, 300 * HOUR, HOUR // 12)
        payments.append(page.Payment(chance.randint(0, 6), chance.choice("ab"), chance.randint(1, 9), at))
    for name in "xyz"[: chance.randint(0, 3)]:
        at = START
        for place in range(chance.randint(1, 4)):
            at += chance.randint(1, 40 * HOUR)
            op = chance.choice("uud") if place else "c"
            customers.append(page.Customer(name, at, op, None if op == "d" else f"tier {place}", at))
    by_disorder = {id(row): row.at + chance.randint(0, HOUR - 1) for row in (*orders, *payments, *customers)}
    return {
        name: sorted(rows, key=lambda row: by_disorder[id(row)])
        for name, rows in (("orders", orders), ("payments", payments), ("customers", customers))
    }


def by_sql(page, rows):
    """Return the tables of the SQL."""
    types = {"orders": page.Order, "payments": page.Payment, "customers": page.Customer}
    queries = re.findall(r"-- (\w+)\n(.*?);", SQL, re.DOTALL)
    tables = {}
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for name, record in types.items():
            fields = msgspec.structs.fields(record)
            kinds = [pa.string() if field.type in {str, str | None} else pa.int64() for field in fields]
            schema = pa.schema(list(zip([field.name for field in fields], kinds, strict=True)))
            connection.register(
                f"fed_{name}", pa.Table.from_pylist([msgspec.to_builtins(row) for row in rows[name]], schema)
            )
            connection.execute(
                f'CREATE TABLE {name} AS SELECT * REPLACE (make_timestamp("at" * 1000) AS "at") FROM fed_{name}'
            )
        for name, query in queries:
            connection.execute(f"CREATE TABLE {name} AS {query}")
            tables[name] = connection.sql(f"FROM {name}").fetchall()
    return {name: sorted(map(shown, table), key=repr) for name, table in tables.items()}


def shown(row):
    return tuple(value.isoformat() if hasattr(value, "isoformat") else value for value in row)


def plain(row):
    """Return the values of a row, with its event time as SQL has it."""
    values = {
        name: datetime.fromtimestamp(getattr(row, name) / 1000, UTC).replace(tzinfo=None)
        if name == "at"
        else getattr(row, name)
        for name in row.__struct_fields__
    }
    if "card" in values and values["card"] is None:
        del values["card"]  # unpaid: SQL selects no card
    return shown(values.values())


@pytest.mark.slow
@examples(12)
@given(seed=st.integers(0, 99_999), parallelism=st.sampled_from([1, 3]), bucket=st.sampled_from([1, 1000]))
def test_shop_equals_duckdb(page, seed, parallelism, bucket):
    chance = random.Random(seed)
    rows = feeds(page, chance)
    harness = PipelineHarness(page.shop, parallelism=parallelism, bucket=bucket, now=START + 400 * HOUR)
    rest = {name: list(given_rows) for name, given_rows in rows.items()}
    while any(rest.values()):
        for name in rest:
            size = chance.randint(1, 6)
            harness.feed(name, rest[name][:size])
            rest[name] = rest[name][size:]
        harness.run(crash_at=chance.choice([None, None, "commit.after"]))
    harness.run(end_of_input=True)
    expected = by_sql(page, rows)
    assert len(expected) == 6
    assert {name: sorted(map(plain, harness.sink(name)), key=repr) for name in expected} == expected


def test_shop_has_few_lines():
    code = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1]
    lines = [line for line in code[code.index("class Order") :].splitlines() if line.strip()]
    assert len(lines) <= MOST_LINES
