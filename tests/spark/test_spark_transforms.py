"""Spark's transform over a source: rows, order, versions of tables, crashes, and what is refused."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from msgspec.structs import replace

from headrace import Pipeline, crash_points
from headrace.config import Promote
from headrace.errors import ConfigError
from headrace.log.log import CheckpointLog
from headrace.plan.planner import sources_of
from headrace.run.backfill import BackfillOutcome, BackfillRequest
from headrace.run.options import RunOptions
from headrace.sources.interval import Interval
from headrace.spark.runner import run_in
from headrace.spark.transforms import SourceTransform
from headrace.tables.folder import JobFolder
from headrace.tables.schemas import QUARANTINE
from tests.jobs.home import Home
from tests.jobs.spark_transforms import Change, Order

QUICK = {"parallelism": 2, "backend": "hashmap"}
SECOND = 1_000


class Crash(BaseException):
    """The end of the process, as seen by the run."""


def order(number, **changes):
    items = [f"{number}-{place}" for place in range(number % 3)]
    row = {"id": number, "name": f"n{number}", "items": items, "amount": float(number % 4), "at": number * SECOND}
    return row | changes


def write_orders(folder, day, numbers, *, broken=()):
    lines = [json.dumps(order(number)) for number in numbers]
    for place, text in broken:
        lines.insert(place, text)
    (folder / f"2026-01-{day:02d}.json").write_text("\n".join(lines), encoding="utf-8")


def write_dims(path, word, *, ids=range(9)):
    rows = pa.table({"id": pa.array(ids, pa.int64()), "label": [f"{word}{number}" for number in ids]})
    write_deltalake(path, rows, mode="overwrite")


def expected(numbers, word):
    """Return the expected rows: items of orders with a known label, in arrival order."""
    return [
        (number, f"N{number}", f"{word(number)}{number % 10}", item)
        for number in numbers
        if number % 4 > 0 and number % 10 != 9
        for item in order(number)["items"]
    ]


@pytest.fixture
def transforms(tmp_path):
    """A job with the transform, and its dimension table."""

    def job_with(name="transforms", **source):
        home = Home(
            tmp_path / name,
            {
                "job": "transforms",
                "pipeline": "tests.jobs.spark_transforms:pipeline",
                "state": {"root": "state", "local": "local"},
                "watermark": {"bucket": 20},
                "sources": {
                    "orders": {"format": "json", "path": "input", "tables": {"dims": str(tmp_path / "dims")}, **source}
                },
                "sinks": {"numbered": {"path": "lake/numbered", "mode": "append"}},
            },
        )
        if not (tmp_path / "dims").exists():
            write_dims(str(tmp_path / "dims"), "a")
        return home

    return job_with


def numbered(home):
    rows = DeltaTable(home.config().sinks["numbered"].path).to_pyarrow_table().to_pylist()
    return [(row["id"], row["name"], row["label"], row["item"]) for row in sorted(rows, key=lambda row: row["number"])]


def refused(home):
    folder = home.config().job_folder
    view = JobFolder(str(folder)).view(QUARANTINE, CheckpointLog(JobFolder(str(folder))).last.versions[QUARANTINE])
    return sorted((row["position"], row["error"]) for row in view.live_rows())


def crashed_at(place, run, home, **options):
    def observer(reached):
        if reached == place:
            raise Crash

    with crash_points.observed(observer), pytest.raises(Crash):
        run(home, **QUICK, **options)


@pytest.mark.slow
def test_limits_and_crashes_change_no_row(transforms, run, tmp_path):
    home, split = transforms(), transforms("split", max_files_per_batch=1)
    for job in (home, split):
        write_orders(job.input, 1, range(1, 15), broken=[(3, '{"id": 1, "na'), (5, '{"id": "x"}')])
        write_orders(job.input, 2, range(15, 30))
    crashed_at("land.half", run, home)  # the first file is landed, the second is not
    assert len(list((tmp_path / "transforms/state/transforms/landed/orders").glob("*~*.parquet"))) == 1
    write_dims(str(tmp_path / "dims"), "b")
    crashed_at("run.after", run, home)
    run(home, **QUICK)
    assert numbered(home) == expected(range(1, 30), lambda _: "a")
    assert [
        (table.name, table.version)
        for table in CheckpointLog(JobFolder(home.config().job_folder)).last.sources["orders"].tables
    ] == [("dims", 0)]
    write_orders(home.input, 3, range(30, 33))
    run(home, **QUICK)
    assert numbered(home) == expected(range(1, 33), lambda number: "a" if number < 30 else "b")

    run(split, **QUICK)
    assert numbered(split) == expected(range(1, 30), lambda _: "b")
    assert len(CheckpointLog(JobFolder(split.config().job_folder)).checkpoints) > 2
    before_step = [error for _, error in refused(split) if "before the transform" in error]
    assert [error.partition(": ")[0] for error in before_step] == [
        f"2026-01-01.json:{row}, before the transform" for row in (3, 5)
    ]
    unlabelled = [error for _, error in refused(split) if error == "label is null"]
    assert len(unlabelled) == sum(len(order(number)["items"]) for number in (9, 19, 29) if number % 4)


def test_backfill_joins_recorded_version_with_corrected_file(transforms, run, spark, tmp_path):
    home = transforms(interval="%Y-%m-%d", max_files_per_batch=1)
    write_orders(home.input, 1, range(1, 8))
    write_orders(home.input, 2, range(15, 22))
    run(home, **QUICK)
    write_dims(str(tmp_path / "dims"), "b")
    write_orders(home.input, 1, range(2, 8))
    config, day = home.config(), Interval.named("2026-01-01", "2026-01-02")

    def run_branch(on_branch, wishes):
        return run_in(spark, on_branch, wishes, lambda _: None)

    request = BackfillRequest(replace(config, replay=replace(config.replay, promote=Promote.AUTOMATIC)), day, "again")
    _, result = request.run(RunOptions(run_id="backfill", **QUICK), run_branch)
    assert result.outcome is BackfillOutcome.PROMOTED
    write_orders(home.input, 3, range(30, 33))
    run(home, **QUICK)
    wanted = expected([*range(2, 8), *range(15, 22), *range(30, 33)], lambda number: "a" if number < 30 else "b")
    assert numbered(home) == wanted


def test_row_kinds_pass_through_the_step(run, tmp_path):
    home = Home(
        tmp_path,
        {
            "job": "changes",
            "pipeline": "tests.jobs.spark_transforms:changes",
            "state": {"root": "state", "local": "local"},
            "sources": {"orders": {"path": "input"}},
            "sinks": {"seen": {"path": "lake/seen", "mode": "append"}},
        },
    )
    rows = [(1, 20.0, "+I"), (1, 20.0, "-U"), (1, 5.0, "+U"), (2, 11.0, "-D"), (3, None, "+I")]
    columns = {"id": [row[0] for row in rows], "amount": [row[1] for row in rows], "op": [row[2] for row in rows]}
    pq.write_table(pa.table({**columns, "at": [1, 2, 3, 4, 5]}), home.input / "a.parquet")
    run(home, **QUICK)
    assert len(DeltaTable(home.config().sinks["seen"].path).to_pyarrow_table()) == 3
    assert [position for position, _ in refused(home)]


QUERIES = {
    "select * from orders order by id": "a sort; give source",
    "select count(*) as id from orders": "an aggregate; use key_by",
    "select distinct * from orders": "DISTINCT",
    "select * from orders limit 3": "a limit",
    "select *, row_number() over (partition by id order by at) as n from orders": "a window function",
    "select * from orders union all select * from orders": "a union",
    "with a as (select max(id) as id, max(at) as at from orders) select * from a": "an aggregate",
    "select * from orders where id = (select max(id) from orders)": "a subquery that reads the source",
    "select a.* from orders a join orders b on a.id = b.id": "reads the source twice",
    "select d.* from dims d": "nothing of the source",
    "select o.* from dims d left join orders o on o.id = d.id": "a join of type LeftOuter",
    "select o.* from orders o full join dims d on o.id = d.id": "a join of type FullOuter",
    "select *, rand() as r from orders": "rand.* has another value each time",
    "select *, uuid() as r from orders": "uuid.* has another value each time",
    "select *, monotonically_increasing_id() as r from orders": "has another value each time",
    "select *, current_timestamp() as r from orders": "has another value each time",
    "select *, current_date() as r from orders": "has another value each time",
    "select id from orders": r"no column 'amount', a field of Change \(it has id\)",
    "select id, name as amount, at from orders": "column 'amount' of the result is string, and the field of Change is double",
    "select id, amount, amount > 1 as at from orders": "column 'at' of the result is bool, and the field of Change is timestamp",
    "select * from parquet.`/nowhere`": "",
    "select * from ordres": "ordres.*may read orders, dims",
    "drop table orders": "cannot plan it",
    "insert into dims select 1, 'x'": "cannot plan it",
    "selec": "cannot plan it",
}


def transform_over(spark, home, make):
    pipeline = Pipeline("transforms")
    source = pipeline.source("orders", Order, event_time="at")
    make(source).sink("numbered")
    (node,) = sources_of(pipeline)
    return SourceTransform(spark, home.config(), node)


@pytest.mark.parametrize("query", QUERIES)
def test_steps_that_look_at_several_rows_are_refused(query, spark, transforms):
    transform = transform_over(spark, transforms(), lambda source: source.sql(query, record=Change, tables=("dims",)))
    with pytest.raises(ConfigError, match=f"source 'orders', Spark's transform sql: .*{QUERIES[query]}"):
        transform.digest()


GOOD = [
    "select id, amount, at from orders where id in (select id from dims)",
    "select id, amount, at from orders o where not exists (select 1 from dims d where d.id = o.id)",
    "select o.id, amount, at from orders o join (select id, count(*) as n from dims group by id) d on o.id = d.id",
    "select id, amount, at from orders lateral view explode(items) t as item",
    "select id, amount + (select max(id) from dims) as amount, at from orders",
    "from orders select *",
    "select id, amount, at from orders where 1 = 0",
]


@pytest.mark.parametrize("query", GOOD)
def test_steps_over_single_rows_are_accepted(query, spark, transforms):
    home = transforms()
    transform = transform_over(spark, home, lambda source: source.sql(query, record=Change, tables=("dims",)))
    again = transform_over(spark, home, lambda source: source.sql(query, record=Change, tables=("dims",)))
    assert transform.digest() == again.digest()


def test_python_functions_in_a_step_are_refused(spark, transforms):
    from pyspark.sql import functions as sf

    home = transforms()
    double = sf.udf(lambda amount: amount * 2, "double")
    for function, reason in {
        lambda df: df.withColumn("amount", double("amount")): "function of Python",
        lambda df: df.mapInArrow(lambda batches: batches, df.schema): "Python code",
        lambda df: df.repartition(3): "a repartition",
        lambda df: df.nothing("x"): "AttributeError|nothing",
        lambda _: 3: "returned 3, not a DataFrame",
    }.items():
        transform = transform_over(spark, home, lambda source, f=function: source.spark(f, Change))
        with pytest.raises(ConfigError, match=reason):
            transform.digest()


def test_function_and_its_plan_share_one_digest(spark, transforms):
    home = transforms()

    def digest(limit):
        return transform_over(
            spark,
            home,
            lambda source: source.spark(
                lambda df, dims: df.join(dims, "id").filter(f"amount > {limit}"), Change, tables=("dims",)
            ),
        ).digest()

    assert digest(1) == digest(1)
    assert digest(1) != digest(2)
