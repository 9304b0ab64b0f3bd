"""The job `purchases` with checkpoints made by hand: each has a row of state and a row of a sink, without a run."""

from __future__ import annotations

from contextlib import contextmanager

import pyarrow as pa

from headrace import clock
from headrace.commit.protocol import OpenJob
from headrace.log.checkpoint import Checkpoint, Kind
from headrace.plan.loader import plan_of, sink_schemas
from headrace.sinks.sink import OutputFile
from headrace.storage.table import ROW_KIND
from headrace.tables.changelog import stage_state
from headrace.tables.schemas import KEYED_STATE
from headrace.testing._written_folder import state_rows
from tests.jobs.home import LOCAL
from tests.unit.support.s3 import BUCKET

SINK = "lines_by_item"


def commit_purchase(job: OpenJob, customer: str) -> Checkpoint:
    """Commit a micro-batch after which `customer` is in the state, and is the only customer in the sink."""
    config, name = job.config, f"{job.next_id}-{customer}.parquet"
    entry = {"operator": "customers", "key_group": 1, "key": f'"{customer}"', "state": "spent", "value": "{}"}
    state = stage_state(job.folder, KEYED_STATE, name, state_rows(KEYED_STATE, [entry], job.next_id, 128))
    schema = sink_schemas(plan_of(config.code), config.appended)[SINK][0]
    line = {"item": "apples", "customer": customer, "bought": 1, "cents": 1, "in_basket": 1, "idle": False}
    changes = pa.Table.from_pylist([line], schema).append_column(ROW_KIND, pa.array(["+U"]))
    output = job.folder.stage(f"outputs/{SINK}/{name}", changes)
    outputs = {SINK: [OutputFile(output.path, output.rows, output.size)]}
    return job.commit(Kind.BATCH, files={KEYED_STATE: [state]}, outputs=outputs)


def put_on_object_store(home, storage, monkeypatch):
    """Move the job of a home, its sinks included, to an object store with these options."""
    root = f"s3://{BUCKET}/{home.folder.name}"
    home.configure(
        {
            "state": {"root": f"{root}/state"},
            "sinks": {name: {"path": f"{root}/lake/{name}"} for name in ("lines_by_item", "reminders")},
        }
    )
    secrets = {name: value for name, value in storage.items() if name.endswith(("KEY", "KEY_ID"))}
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    home.write_cluster("local", {**LOCAL, "storage": storage | {name: f"${{{name}}}" for name in secrets}})


@contextmanager
def after_retention(config):
    """Set a time at which all earlier writes are older than the retention."""
    with clock.installed(clock.VirtualClock(clock.now() + (config.retention.hours + 1) * 3_600_000)):
        yield
