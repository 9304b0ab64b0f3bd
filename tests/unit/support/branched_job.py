"""A job that can be forked: totals by customer, in a merge sink that also deletes, an append sink, timers and TTLs in both time domains."""

from __future__ import annotations

from datetime import timedelta

from headrace import (
    KeyedProcessFunction,
    Pipeline,
    RowKind,
    StateTtl,
    Struct,
    TimeDomain,
    Timestamp,
    TtlTime,
    ValueState,
)
from headrace.commit.branch_code import on_branch
from headrace.config import with_settings
from headrace.edits.compact import compact
from headrace.local.tasks import LocalTasks
from headrace.log.log import CheckpointLog
from headrace.run.job_run import run_on
from headrace.run.options import RunOptions
from headrace.storage.storage import Storage
from headrace.tables.folder import JobFolder
from headrace.tables.schemas import STATE_TABLES
from headrace.testing import PipelineHarness

CUSTOMERS = ("ann", "bob", "cyd", "dee", "eve")
HOUR = 3_600_000
TOLD_AGAIN, NEW, REMINDED = -1, -2, -3


class Order(Struct, frozen=True):
    """An order; the amount 0 closes the customer's account."""

    customer: str
    at: Timestamp
    amount: int


class Total(Struct, frozen=True):
    """The total of a customer."""

    customer: str
    amount: int


class Totals(KeyedProcessFunction[Order, Total]):
    """Adds up amounts.

    Small orders go to the side output; a total is emitted again an hour later, and two hours of processing time later.

    A customer without an order for three hours of processing time is new.
    """

    amount = ValueState("amount", int)
    seen = ValueState("seen", int, ttl=StateTtl(timedelta(hours=5)))
    visits = ValueState("visits", int, ttl=StateTtl(timedelta(hours=3), time=TtlTime.PROCESSING))

    async def process(self, order, ctx, /):
        before = await self.amount.value()
        await self.seen.update((await self.seen.value() or 0) + 1)
        visits = await self.visits.value()
        await self.visits.update((visits or 0) + 1)
        if visits is None:
            ctx.output("small", Order(order.customer, order.at, NEW))
        ctx.timers.register_processing_time(ctx.timers.processing_time + 2 * HOUR)
        if order.amount == 0:
            await self.amount.clear()
            if before is not None:
                ctx.collect(Total(order.customer, before), RowKind.DELETE)
            return
        amount = (before or 0) + order.amount
        await self.amount.update(amount)
        if before is not None:
            ctx.collect(Total(order.customer, before), RowKind.UPDATE_BEFORE)
        ctx.collect(Total(order.customer, amount), RowKind.INSERT if before is None else RowKind.UPDATE_AFTER)
        ctx.timers.register_event_time(order.at + HOUR)
        if order.amount < 3:
            ctx.output("small", order)

    async def on_timer(self, timestamp, ctx, /):
        amount = TOLD_AGAIN if ctx.time_domain is TimeDomain.EVENT_TIME else REMINDED
        ctx.output("small", Order(ctx.key, timestamp, amount))


def totals():
    """Return the pipeline."""
    pipeline = Pipeline("shop")
    results = pipeline.source("orders", Order, event_time="at").key_by("customer").process("totals", Totals())
    results.side("small", Order).sink("small")
    results.upsert_materialize("latest", primary_key=("customer",), upsert_key=("customer",)).sink("totals")
    return pipeline


class BranchedJob:
    """The job, and runs of it and of its branches in this process."""

    def __init__(self, pipeline=None, **options):
        self.harness = PipelineHarness(pipeline or totals(), **{"bucket": 2, **options})
        self.config = self.harness.config
        self._hour = 0
        self._runs = 0

    def feed(self, *orders):
        """Add a file of (customer, amount), an hour later than the previous file."""
        self._hour += 1
        at = self._hour * HOUR
        records = [Order(customer, at + number, amount) for number, (customer, amount) in enumerate(orders)]
        self.harness.feed("orders", records)

    def correct(self, number, *orders):
        """Write the file of a number (the first is 1) again, with other orders."""
        name = f"{number:06d}.parquet"
        (self.harness.folder / "input" / "orders" / name).unlink()
        records = [Order(customer, number * HOUR + place, amount) for place, (customer, amount) in enumerate(orders)]
        self.harness.feed("orders", records, file=name)

    def run(self, branch=None, settings=None, **options):
        """Run the job or a branch of it once; `settings` are new settings of the branch."""
        self._runs += 1
        config = self.config if branch is None else on_branch(self.config, branch)
        config = with_settings(config, config.settings | (settings or {}))
        wishes = RunOptions(run_id=f"run-{self._runs}", backend=self.harness.backend, parallelism=2, **options)
        with self.on_its_clock():
            return run_on(LocalTasks(), config, wishes, self.harness.events.append, **self.inputs(config))

    def inputs(self, config):
        """Return the topics and steps that a run reads, as options of `run_on`."""
        return {}

    def compact(self, branch=None):
        """Compact the state tables of the job, or of a branch."""
        with self.on_its_clock():
            return compact(self.config if branch is None else self.config.on_branch(branch), "compaction")

    def on_its_clock(self):
        """Use the clock of the harness for a block."""
        return self.harness.on_its_clock()

    def pause(self, hours):
        """Let time pass."""
        self.harness.clock.advance(hours * HOUR)

    def last(self, branch=None):
        """Return the last checkpoint of the job or of a branch."""
        config = self.config if branch is None else self.config.on_branch(branch)
        return CheckpointLog(JobFolder(config.job_folder)).last

    def content(self, branch=None, *, with_expired=True):
        """Return live entries by table, and the rows of the sinks, without checkpoint ids and access times.

        Entries that TTL has expired stay in the tables until they are dropped. Entries expired by processing
        time are always omitted: the time of their removal is not part of the result.
        """
        config = self.config if branch is None else self.config.on_branch(branch)
        last = CheckpointLog(JobFolder(config.job_folder)).last
        tables = {
            name: [
                tuple(value for column, value in row.items() if column not in {"checkpoint_id", "last_access"})
                for row in JobFolder(config.job_folder).view(name, last.versions[name]).live_rows()
                if with_expired or (row.get("expires_at") or last.watermark + 1) > last.watermark
                if row.get("state") != "visits" or row["expires_at"] > self.harness.clock.now()
            ]
            for name in STATE_TABLES
        }
        for name, sink in config.sinks.items():
            snapshot = Storage(sink.table_path).table().latest()
            rows = snapshot.read(snapshot.schema).to_pylist()
            tables[f"sink {name}"] = [tuple(sorted(row.items())) for row in rows]
        return {name: sorted(rows, key=repr) for name, rows in tables.items()}

    def versions(self):
        """Return the version of each table and sink of the job itself."""
        uris = [f"{self.config.job_folder}/{name}" for name in (*STATE_TABLES, "checkpoints")]
        uris += [sink.table_path for sink in self.config.sinks.values()]
        return {uri: Storage(uri).table().latest().version for uri in uris}
