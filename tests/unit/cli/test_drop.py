"""`headrace drop`: the files of a job, before and after the deletion."""

from __future__ import annotations

import json


def test_dry_run_lists_and_changes_nothing(headrace, state):
    output = " ".join(headrace("drop demo").stdout.split())
    assert f"folder {state.folder}" in output
    assert "keyed_state" in output
    assert f"sink 'board' at {state.sink}" in output
    assert "stays" in output
    assert "Nothing was changed. --apply does it." in output
    assert (state.folder / "keyed_state").exists()


def test_drop_deletes_folder_and_lists_remaining_sinks(headrace, state, home):
    done = headrace("drop", "demo", "--apply", "--why", "not needed")
    output = " ".join(done.stdout.split())
    assert f"demo: {state.folder} is deleted." in output
    assert f"sink 'board' at {state.sink} stays" in output
    assert not state.folder.exists()
    assert state.sink.exists()
    assert (home / "conf/jobs/demo.yaml").exists()


def test_json_output_is_one_document(headrace, state):
    planned = json.loads(headrace("drop demo --sinks --json").stdout)
    assert (planned["applied"], planned["sinks"][0]["deleted"]) == (False, False)
    assert "was never written by job 'demo'" in planned["sinks"][0]["refusal"]
    assert planned["parts"]["keyed_state"]["files"] > 0
    done = json.loads(headrace("drop", "demo", "--apply", "--why", "x", "--json").stdout)
    assert (done["applied"], done["deleted"]) == (True, {})


def test_sink_of_another_job_exits_with_ten(headrace, state):
    refused = headrace("drop", "demo", "--sinks", "--apply", "--why", "not needed")
    assert (refused.exit_code, "Nothing was deleted" in refused.stderr) == (10, True)
    assert state.folder.exists()


def test_job_without_stored_tables_exits_with_two(headrace):
    assert headrace("drop demo").exit_code == 2
