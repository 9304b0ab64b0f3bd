"""The causes of each exit code: a test makes each cause happen."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from headrace import errors
from tests.jobs.home import PROJECT

UNIT = PROJECT / "tests" / "unit"
CAUSES = {
    (1, "a command's own check finds a problem"): "cli/test_checks.py::test_missing_source_fails_and_names_the_line",
    (
        1,
        "`check --strict`, and a service is not healthy",
    ): "cli/test_checks.py::test_unhealthy_service_is_a_warning_unless_strict",
    (1, "`doctor`, and there is no Java"): "cli/test_checks.py::test_doctor_without_java_says_how_to_get_one",
    (
        1,
        "`verify`, and a table is damaged, also when nobody reads the output",
    ): "cli/test_streams.py::test_closed_pipe_keeps_the_exit_code",
    (
        2,
        "problems in a job's file or its pipeline, all at once",
    ): "docs/test_command_pages.py::test_configuration_page_names_all_problems",
    (
        2,
        "a job's name without the key that should follow it",
    ): "cli/test_commands_that_read.py::test_job_without_its_key_is_named",
    (2, "no checkpoint is that old"): "readers/test_job_at_checkpoint.py::test_as_of_without_checkpoint_is_refused",
    (
        2,
        "a branch of a job that was rescaled",
    ): "commit/test_branch_beside_changes.py::test_branch_of_rescaled_job_begins_again",
    (3, "another run holds the job"): "cli/test_commands_that_act.py::test_held_job_ends_with_three",
    (
        4,
        "a service does not answer until the end",
    ): "async_io/test_async_probes.py::test_unanswered_probe_at_end_is_abandoned",
    (
        5,
        "user code raises any exception, `sys.exit()` among them",
    ): "async_io/test_exceptions_of_calls.py::test_exception_of_any_method_is_user_codes",
    (
        5,
        "a forgotten `await`, `asyncio` in a keyed function, a reason or a time that cannot be stored",
    ): "execution/test_user_hints.py::test_mistakes_of_user_code_are_explained",
    (6, "stored state has another type"): "cli/test_changes_of_jobs.py::test_state_type_conflict_exits_with_six",
    (6, "stored state has another key"): "log/test_operator_keys.py::test_another_key_is_refused_with_ways_out",
    (
        7,
        "a file of a requeued row is missing",
    ): "cli/test_requeue.py::test_unknown_names_and_missing_files_set_exit_codes",
    (7, "a file's name is not UTF-8"): "sources/test_folder.py::test_name_that_is_not_utf8_is_refused",
    (
        7,
        "a file changed, with `on_changed_file: fail`",
    ): "run/test_changed_input.py::test_changed_file_may_end_the_run",
    (
        8,
        "a full disk, a missing path, a refused permission, a broken disk: each with its own advice",
    ): "storage/test_storage_advice.py::test_each_cause_has_its_advice",
    (8, "a path below a file"): "storage/test_storage_advice.py::test_path_below_a_file_is_no_full_disk",
    (
        8,
        "the disk below standard output is full; the command itself is done",
    ): "cli/test_streams.py::test_full_disk_is_named_after_the_command",
    (8, "a damaged log or row of a table"): "readers/test_damaged_logs.py::test_damaged_log_is_named",
    (
        8,
        "a sink refuses rows; the next run publishes them",
    ): "commit/test_publish.py::test_next_run_publishes_after_sink_error",
    (9, "an interval leaves a gap"): "cli/test_run_report.py::test_reported_error_is_not_shown_as_well",
    (9, "half of an interval was taken in"): "run/test_interval_runs.py::test_interval_taken_in_by_half_is_refused",
    (10, "a sink is ahead of the job's log"): "edits/test_sinks.py::test_sink_ahead_of_the_log_is_refused",
    (10, "a sink's table belongs to another job"): "cli/test_drop.py::test_sink_of_another_job_exits_with_ten",
    (
        12,
        "rows conflict over a primary key",
    ): "materializer/test_materializer_lifetimes.py::test_conflict_before_watermark_waits_over_restarts",
    (13, "Spark does not start"): "spark/test_session_java.py::test_failed_start_of_spark_is_cluster_error",
    (13, "workers always die"): "local/test_workers.py::test_always_dying_workers_end_the_run",
    (
        14,
        "`run --without-spark`, and Spark is needed",
    ): "cli/test_run_report.py::test_run_that_needs_spark_has_its_code",
    (
        15,
        "a backfill beyond the limits of the job's file",
    ): "cli/test_backfill.py::test_plan_beyond_a_limit_needs_a_person",
    (
        70,
        "an exception that Headrace does not expect, and nothing else",
    ): "cli/test_errors.py::test_unknown_exception_is_reported_with_traceback",
    (130, "Ctrl-C"): "cli/test_errors.py::test_interrupted_command_ends_with_130",
}
"""Tests by exit code and cause."""

_INTERRUPTED = 130


@cache
def functions_of(file: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef)}


def test_every_exit_code_has_a_cause():
    classes = [vars(errors)[name] for name in errors.__all__ if name != "HeadraceError"]
    assert {code for code, _ in CAUSES} == {*(cls.exit_code for cls in classes), _INTERRUPTED}


@pytest.mark.parametrize("place", sorted({*CAUSES.values()}))
def test_every_cause_has_its_test(place):
    file, _, function = place.partition("::")
    assert function in functions_of(UNIT / file)
