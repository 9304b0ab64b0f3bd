"""A table of a real PostgreSQL, and the table that a job makes of its changes: equal after each run."""

from __future__ import annotations

import datetime as dt
import json
import random
from contextlib import closing
from decimal import Decimal
from typing import Annotated
from uuid import UUID

import psycopg2
import pytest

from headrace import DEBEZIUM, Digits, NaiveDatetime, Pipeline, Struct, Timestamp, field
from headrace.testing import MemoryTopic, PipelineHarness
from tests.jobs.connect_avro import avro_schema, avro_value
from tests.jobs.postgres import postgres
from tests.jobs.replication import Feed
from tests.jobs.schema_registry import Registry, avro, running


class Item(Struct, frozen=True):
    id: int
    shop: str
    price: Annotated[Decimal, Digits(12, 2)] | None
    day: dt.date | None
    opens: dt.time | None
    written: NaiveDatetime | None
    seen: dt.datetime | None
    code: UUID | None
    is_new: bool | None
    text: str | None
    at: Timestamp = field(name="__source_ts_ms")


COLUMNS = [name for name in Item.__struct_fields__ if name != "at"]
TABLE = """
create table items (id bigint, shop text, price numeric(12, 2), day date, opens time, written timestamp, seen timestamptz, code uuid,
    is_new boolean, text text, primary key (id, shop));
alter table items alter text set storage external;
"""

TOPIC = {
    "format": "kafka",
    "envelope": "debezium",
    "servers": "broker:9092",
    "topic": "items",
    "max_quarantined": "none",
}

pipeline = (
    Pipeline("items")
    .source("items", Item, event_time="at", row_kind=DEBEZIUM)
    .normalize("latest", key=("id", "shop"))
    .upsert_materialize("table", primary_key=("id", "shop"))
    .sink("items")
)


def drawn_row(chance, *, has_large):
    """Return values in SQL for all columns but the key; edges and nulls among them."""
    large = [f"repeat('{chance.choice('ab')}', 9000)"] if has_large else []
    choices = (
        ["null", "0", "-0.01", "9999999999.99", "-9999999999.99", f"{chance.randrange(10**6)} / 100.0"],
        ["null", "'0001-01-01'", "'1969-12-31'", "'9999-12-31'", "'2026-02-28'"],
        ["null", "'00:00'", "'23:59:59.999999'"],
        ["null", "'0001-01-01 00:00:00'", "'1969-12-31 23:59:59.999999'", "'2026-03-01 12:00:00.000001'"],
        ["null", "'1970-01-01 00:00+00'", "'2026-03-29 02:30+02'", "'2026-03-01 12:00:00.123456-07'"],
        ["null", "'7b0c41d2-0000-4000-8000-1f3a9c2e7b0c'"],
        ["null", "true", "false"],
        ["null", "''", "'it''s ☃'", *large],
    )
    return [chance.choice(values) for values in choices]


def change(cursor, chance, *, has_large):
    """Make one change of the table: also of a key, and of other columns than a large one."""
    key = f"id = {chance.randrange(6)} and shop = '{chance.choice('xy')}'"
    what = chance.choice(["insert", "insert", "update", "touch", "key", "delete"])
    if what == "insert":
        cursor.execute(f"delete from items where {key}")
        number, shop = key.split(" and ")
        values = [number.removeprefix("id = "), shop.removeprefix("shop = "), *drawn_row(chance, has_large=has_large)]
        cursor.execute(f"insert into items values ({', '.join(values)})")
    elif what == "update":
        pairs = zip(COLUMNS[2:], drawn_row(chance, has_large=has_large), strict=True)
        cursor.execute(f"update items set {', '.join(f'{name} = {value}' for name, value in pairs)} where {key}")
    elif what == "touch":
        cursor.execute(f"update items set is_new = not coalesce(is_new, false) where {key}")
    elif what == "key":
        new = chance.randrange(6)
        cursor.execute(f"update items set id = {new} where {key} and not exists (select from items where id = {new})")
    else:
        cursor.execute(f"delete from items where {key}")


def rows_of(cursor):
    cursor.execute(f"select {', '.join(COLUMNS)} from items")
    rows = (dict(zip(COLUMNS, row, strict=True)) for row in cursor.fetchall())
    return sorted(
        (Item(**{**row, "code": row["code"] and UUID(row["code"])}, at=1_700_000_000_000) for row in rows), key=repr
    )


@pytest.fixture(scope="module")
def database():
    with postgres("-c wal_level=logical") as url:
        address = url.replace("+psycopg2", "")
        with closing(psycopg2.connect(address)) as connection, connection.cursor() as cursor:
            cursor.execute("show wal_level")
            if cursor.fetchone() != ("logical",):
                pytest.skip("the PostgreSQL that the environment names has no wal_level=logical")
        yield address


def commit_changes(connection, cursor, chance, *, has_large):
    """Make transactions of a few changes each; some are rolled back."""
    connection.autocommit = False
    for _ in range(15):
        for _ in range(chance.randrange(1, 4)):
            change(cursor, chance, has_large=has_large)
        (connection.rollback if chance.random() < 0.2 else connection.commit)()
    connection.autocommit = True


@pytest.fixture
def connection(database):
    with closing(psycopg2.connect(database)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        cursor.execute(f"drop publication if exists feed; drop table if exists items; {TABLE}")
        yield connection
        cursor.execute("select pg_drop_replication_slot('feed')")


class InAvro:
    """Writer of messages as Debezium's converter to Avro makes them."""

    def __init__(self, registry):
        self.registry, self.key = registry, None

    def __call__(self, key, value):
        if value is None:
            return self.key, None  # the tombstone behind a deletion
        event = value["schema"] | {"name": "items.Envelope", "fields": [*value["schema"]["fields"], *BESIDE]}
        fields = [part for part in event["fields"][0]["fields"] if part["field"] in key]
        of_key = {"type": "struct", "name": "items.Key", "fields": fields}
        self.key = self.encoded(of_key, key)
        return self.key, self.encoded(event, value["payload"])

    def encoded(self, connect, value):
        schema = avro_schema(connect)
        text = json.dumps(schema)
        numbers = {known["schema"]: number for number, known in self.registry.schemas.items()}
        number = numbers[text] if text in numbers else self.registry.add(text)
        return avro(number, schema, avro_value(connect, value))


BESIDE = [
    {"field": "op", "type": "string"},
    {"field": "ts_ms", "type": "int64"},
    {
        "field": "source",
        "type": "struct",
        "name": "Source",
        "fields": [{"field": "ts_ms", "type": "int64"}, {"field": "table", "type": "string"}],
    },
]


def in_json(key, value):
    return json.dumps(key).encode(), None if value is None else json.dumps(value).encode()


@pytest.fixture
def in_avro():
    """A writer of messages, and the source's settings to read them."""
    with running(Registry()) as registry:
        yield InAvro(registry), {"values": "avro", "registry": {"url": registry.url}}


@pytest.mark.parametrize("identity", ["default", "full"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_job_follows_a_table_of_postgresql(connection, seed, identity):
    follows(connection, seed, identity, in_json, {})


@pytest.mark.parametrize("identity", ["default", "full"])
def test_job_follows_a_table_in_avro(connection, in_avro, identity):
    follows(connection, 1, identity, *in_avro)


def follows(connection, seed, identity, encoded, settings):
    """Change the table, and see after each run that the job's table equals it."""
    chance, topic, cursor = random.Random(seed), MemoryTopic("items"), connection.cursor()
    h = PipelineHarness(pipeline, job={"sources": {"items": TOPIC | settings}}, topics={"items": topic}, bucket=7)
    cursor.execute(f"alter table items replica identity {identity}")
    feed = Feed(cursor, "items")
    for _ in range(4):
        commit_changes(connection, cursor, chance, has_large=identity == "full")
        for key, value in feed.messages():
            of_key, of_value = encoded(key, value)
            topic.append([of_value], key=of_key)
        h.run()
        assert [row["error"] for row in h.table("quarantine").to_pylist()] == []
        assert sorted(h.sink("items"), key=repr) == rows_of(cursor)
