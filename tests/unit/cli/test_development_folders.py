"""A folder that a development version wrote: every command that opens a job refuses it."""

from __future__ import annotations

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from headrace.tables.schemas import CHECKPOINTS_SCHEMA

COMMANDS = [
    *("run --runner local", "check", "verify", "status", "checkpoints", "waiting --timers", "sql demo SHOW", "views"),
    *("waiting --calls", "waiting --held", "quarantine", "input"),
    *("state list", "state get X", "state scan", "branch create demo b --at 0"),
    *(
        "savepoint demo s --why w",
        "restore demo --to 0 --why w --yes",
        "maintain --files",
        "maintain --state",
        "reconcile",
    ),
    *("rescale demo --max-parallelism 64", "erase demo X --why w", "drop demo"),
]


@pytest.fixture(params=["column", "format"])
def reason(request, home):
    """Make a job's folder with a log without a column, or with the format of a development version."""
    folder = home / "var" / "state" / "demo"
    if request.param == "column":
        fields = [field for field in CHECKPOINTS_SCHEMA if field.name != "cause"]
        DeltaTable.create(f"{folder}/checkpoints", schema=pa.schema(fields))
        return "'checkpoints' has no column 'cause'"
    row = {**dict.fromkeys(CHECKPOINTS_SCHEMA.names), "kind": "initial", "run_id": "r", "attempt_id": "a"}
    row |= {"checkpoint_id": 0, "committed_at": 0, "log_version": 1, "format_version": 3, "versions": "{}"}
    write_deltalake(f"{folder}/checkpoints", pa.Table.from_pylist([row], CHECKPOINTS_SCHEMA))
    return "it has format 3, and this program knows up to 1"


def test_commands_refuse_a_development_folder(headrace, reason):
    others = {}
    for command in COMMANDS:
        result = headrace(command)
        output = " ".join((result.stdout + result.stderr).split())
        if not ("was written by a development version of Headrace" in output and reason in output):
            others[command] = (result.exit_code, output)
    assert not others
