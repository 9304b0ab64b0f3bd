"""All changes of a key, over compactions, restores and vacuums."""

from __future__ import annotations

from deltalake import DeltaTable

from headrace.log.checkpoint import Kind
from headrace.readers.history import key_history
from tests.unit.readers.opened_jobs import opened


def test_history_reaches_back_over_a_compaction(state):
    rows = key_history(opened(), "N1").dicts()
    assert [(row["checkpoint_id"], row["value"]) for row in rows] == [(1, '"JFK-LAX"'), (2, '"LAX-SFO"')]


def test_history_omits_changes_undone_by_a_restore(state):
    DeltaTable(str(state.folder / "keyed_state")).restore(1)
    state.versions["keyed_state"] += 1
    state.commit(Kind.RESTORE, restored_from=1)
    assert [row["checkpoint_id"] for row in key_history(opened(), "N1").dicts()] == [1]


def test_history_skips_vacuumed_versions(state):
    for file in (state.folder / "keyed_state").glob("*.parquet"):
        if file.name not in {
            uri.rsplit("/", 1)[-1] for uri in DeltaTable(str(state.folder / "keyed_state")).file_uris()
        }:
            file.unlink()
    assert [row["checkpoint_id"] for row in key_history(opened(), "N1").dicts()] == [2]
