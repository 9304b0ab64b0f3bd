"""A test runs or checks each block of README.md and docs/, or this file has the reason why none does."""

from __future__ import annotations

import ast
import json
import re
import shlex
from functools import cache
from pathlib import Path

import click
import duckdb
import pytest
import yaml
from msgspec.structs import fields

from headrace.cli import app
from headrace.config import ClusterFile, JobFile, load_cluster, load_job
from tests.jobs.home import PROJECT
from tests.unit.support.command_line import whole_command
from tests.unit.support.doc_pages import PAGES, blocks_of

# All blocks of these languages are checked: by `test_page_code.py`, and by a test below.
CHECKED_LANGUAGES = {"python", "yaml"}

COMMANDS = "unit/docs/test_command_pages.py"
SHOP = "unit/docs/test_shop_pages.py"
COMING = "unit/docs/test_coming_from_pages.py"
CORRECTIONS = "unit/docs/test_corrections_page.py::test_corrections_page_shows_real_outputs"

# The tests below check all blocks of these kinds.
MESSAGE = "a message: it has the words of the engine's code"
SYNTAX = "commands without output: their words are those of the command line"

# No test runs blocks of these kinds.
DRAWING = "a drawing of what the text says"
AIRFLOW = "needs Airflow and Spark for minutes; tests/demo runs the demo"
FLIGHTS = "needs the state that the demo leaves"
MACHINE = "needs another machine: a cluster, Docker, or other versions of Python, Java or Spark"
NETWORK = "needs the network; tests/package installs the wheel and makes a project"
MEASUREMENT = "a measurement of minutes"
SHORTENED = "an output that is cut off at the right"
FOREIGN = "a program of a system that the project does not install"
REASONS = {DRAWING, AIRFLOW, FLIGHTS, MACHINE, NETWORK, MEASUREMENT, SHORTENED, FOREIGN}

# By page: the first words of a block, and the test or the kind.
BLOCKS = {
    "README": {
        "make demo": AIRFLOW,
        "pip install": NETWORK,
        "$ headrace state list flights": FLIGHTS,
    },
    "aggregates": {
        "+I a Bonn": "unit/operators/test_aggregates_page.py::test_equal_values_give_the_shown_results",
        "+I 1": "unit/operators/test_unmatched_retractions.py::test_retractions_never_go_below_empty",
    },
    "airflow": {
        "make airflow": AIRFLOW,
        "{": "unit/docs/test_page_blocks.py::test_result_on_the_airflow_page_is_json",
        "export AIRFLOW_CONN_HEADRACE_AIRFLOW_API": "unit/cli/test_backfill_dag.py::test_backfill_shows_each_day",
        'eval "$(.venv/bin/python': "demo/test_demo.py::test_documented_backfill_follows_the_demo",
    },
    "alerts": {
        '{"job": "flights"': "unit/cli/test_alerts.py::test_webhook_gets_alert_and_is_never_shown",
    },
    "apply-changes": {
        "$ headrace history customers 7": "unit/operators/test_apply_changes_page.py::test_history_shows_the_input_of_versions",
    },
    "async-io": {"headrace run JOB --finish": SYNTAX},
    "backfill": {
        "headrace backfill shop --from 2026-03-02": SYNTAX,
        "$ headrace backfill spend": "unit/docs/test_backfill_page.py::test_page_corrects_a_day_of_a_table",
        "$ headrace backfill bronze": "unit/cli/test_chain_of_jobs.py::test_two_commands_correct_the_chain",
        "job        0 ---": DRAWING,
    },
    "branches": {
        "$ headrace branch create shop try_it": f"{SHOP}::test_branch_page_creates_a_branch",
        "$ headrace checkpoints": f"{SHOP}::test_branch_page_draws_the_lines",
        "log of the job": DRAWING,
    },
    "changing-jobs": {
        "$ headrace branch create shop again": "unit/cli/test_new_operators.py::test_branch_from_the_beginning_computes_a_new_operator",
        "$ headrace state drop": f"{SHOP}::test_change_page_drops_an_operator",
        "headrace state rename shop --sink": SYNTAX,
        "$ headrace state rename": f"{SHOP}::test_change_page_renames_an_operator",
        "$ headrace rescale": f"{SHOP}::test_change_page_rescales_the_job",
        "$ headrace drop shop": f"{SHOP}::test_change_page_drops_the_job",
        "cp -a var/state/shop": "unit/commit/test_renamed_and_copied_jobs.py::test_renamed_job_continues_with_its_stored_name",
    },
    "changelogs": {
        "├── stage 2": "unit/operators/test_changelog_modes.py::test_page_shows_real_changes",
    },
    "cli": {
        "$ headrace checkpoints\n id": f"{COMMANDS}::test_cli_page_looks_back",
        "$ headrace sql": f"{COMMANDS}::test_cli_page_looks_back",
        "$ headrace checkpoints\n     id": f"{COMMANDS}::test_cli_page_draws_the_lines",
        "$ headrace state expired": f"{COMMANDS}::test_cli_page_shows_expired_entries",
        "$ headrace diff": f"{COMMANDS}::test_cli_page_compares_checkpoints",
        "$ headrace state get N1": f"{COMMANDS}::test_cli_page_prints_documents",
    },
    "commit-protocol": {"checkpoints    0 --": DRAWING, "folder came from a backup": DRAWING},
    "concepts": {"ordinals    0": DRAWING},
    "configuration": {
        "headrace jobs --schema": SYNTAX,
        "$ headrace check flights": f"{COMMANDS}::test_configuration_page_names_all_problems",
    },
    "correcting-state": {
        "$ headrace history retract": "unit/cli/test_correct_by_hand.py::test_page_takes_a_row_out",
        "$ headrace why": f"{SHOP}::test_correcting_page_corrects_a_key",
        "$ headrace state": f"{SHOP}::test_correcting_page_corrects_a_key",
        "headrace state load": "unit/edits/test_load.py::test_new_job_begins_with_loaded_values",
    },
    "corrections": {"$ ": CORRECTIONS},
    "delta-tables": {
        "ALTER TABLE delta": MACHINE,
    },
    "erasure": {
        "$ headrace erase purchases anna --mentions": f"{COMMANDS}::test_erasure_page_erases",
        "$ headrace erase purchases anna\n": f"{COMMANDS}::test_erasure_page_lists_then_purges",
        "$ headrace savepoint purchases": f"{COMMANDS}::test_erasure_page_lists_then_purges",
    },
    "errors": {
        "SourceError: source 'readings': cannot read": f"{COMMANDS}::test_errors_page_refuses_a_file",
        "$ headrace reconcile purchases": f"{COMMANDS}::test_errors_page_reconciles_job_and_sinks",
        "$ headrace quarantine sensors": f"{COMMANDS}::test_errors_page_requeues_rows",
    },
    "execution-model": {"$ headrace sql JOB": SYNTAX},
    "from-dbt-and-sqlmesh": {
        "{{ config": f"{COMING}::test_late_order_counts_beside_dbt_model",
        "MODEL (": FOREIGN,
    },
    "from-declarative-pipelines": {"from pyspark": f"{COMING}::test_calls_fit_the_signatures_of_pyspark"},
    "from-flink": {"CREATE TABLE": FOREIGN, "public class": FOREIGN},
    "from-merge": {"MERGE INTO": f"{COMING}::test_headrace_shows_an_offer_that_merge_loses"},
    "from-transform-with-state": {"from pyspark": f"{COMING}::test_processor_of_spark_can_be_defined"},
    "index": {"pip install": NETWORK},
    "joins": {
        "+I  tea, no price": "unit/operators/test_joins_page.py::test_row_kinds_equal_the_table_on_the_page",
    },
    "kafka": {
        "headrace setup --kafka": SYNTAX,
        "offset      0": DRAWING,
        "headrace branch create shop again": "kafka/test_topics.py::test_promoted_branch_reads_expired_messages_once",
    },
    "lineage": {
        "$ headrace lineage flights": "unit/cli/test_lineage.py::test_page_shows_the_lineage_of_a_column",
        "pip install 'headrace[openlineage]'": NETWORK,
    },
    "logs": {
        "2026-03-01T06:00:02Z opened": "unit/cli/test_json_lines.py::test_page_shows_real_lines",
        '{"time"': "unit/cli/test_json_lines.py::test_page_shows_real_lines",
    },
    "materializer": {
        "+I a    +U b": DRAWING,
        "select * exclude": "unit/docs/test_page_blocks.py::test_query_on_the_materializer_page_gives_the_table",
        "$ headrace history flights": SYNTAX,
    },
    "metrics": {
        "pip install 'headrace[otel]'": NETWORK,
        "run             job": "unit/telemetry/test_exported_runs.py::test_page_names_the_attributes_of_spans",
    },
    "nexmark": {
        "$ python -m pipelines.nexmark.generator": "unit/nexmark/test_generator.py::test_command_prints_the_written_files",
        "$ python -m benchmarks.nexmark": MEASUREMENT,
    },
    "own-dag": {"airflow dags test morning": "package/test_wheel.py::test_own_dag_runs_the_job_in_another_environment"},
    "performance": {
        "$ make bench-end-to-end": MEASUREMENT,
    },
    "pipeline": {
        "flowchart LR": "unit/plan/test_pipeline_page.py::test_page_diagram_equals_the_explain_output",
        "process 'totals' takes": MESSAGE,
        "$ headrace check shop": SHORTENED,
    },
    "quickstart": {
        "$ make": AIRFLOW,
        '$ eval "$(': FLIGHTS,
        "$ headrace restore flights": FLIGHTS,
        "$ python -m pipelines.flights.weather_service": FLIGHTS,
        "$ headrace run flights": FLIGHTS,
        "$ python3 -m venv": NETWORK,
        "$ headrace check\n": f"{SHOP}::test_quickstart_changes_and_restores_the_job",
        "$ pytest -q": f"{SHOP}::test_quickstart_changes_and_restores_the_job",
        "$ export AIRFLOW_HOME": "package/test_wheel.py::test_dag_of_a_new_project_runs",
    },
    "ranking": {"+I  chess": "unit/operators/test_ranking_page.py::test_each_score_is_emitted_once"},
    "releasing": {"make test-all": NETWORK},
    "report": {"$ headrace report": f"{SHOP}::test_report_page_writes_a_page"},
    "running-on-a-cluster": {
        "$ headrace run shop --runner local\n2026": f"{SHOP}::test_cluster_page_runs_without_a_jvm",
        "make setup": MACHINE,
        "cp .env.example": MACHINE,
    },
    "schema-evolution": {"version 1   Leg": DRAWING, "StateSchemaError": MESSAGE},
    "several-sources": {
        "orders     10:00": DRAWING,
        "1,234 rows of 'orders'": MESSAGE,
        "headrace run shop --end-of-input": SYNTAX,
    },
    "sinks": {
        "headrace sink take-over": SYNTAX,
        "$ headrace check orders": f"{COMMANDS}::test_sinks_page_announces_columns",
        "$ headrace maintain orders": f"{COMMANDS}::test_sinks_page_compacts_small_files",
        "/lake/visits/": DRAWING,
    },
    "sources": {
        "$ headrace quarantine orders": f"{COMMANDS}::test_sources_page_shows_refused_rows",
        "$ headrace backfill orders": SYNTAX,
        "day=2026-03-02/country=DE": DRAWING,
        "$ headrace new orders": SYNTAX,
    },
    "state-tables": {
        "$ headrace sql": f"{COMMANDS}::test_state_tables_page_queries_changes",
        "select key, value->>": f"{COMMANDS}::test_state_tables_page_queries_values",
        "select checkpoint_id, held": f"{COMMANDS}::test_state_tables_page_queries_work",
    },
    "tutorial": {
        "headrace new shop": SYNTAX,
        "$ ": f"{SHOP}::test_tutorial_runs_from_start_to_change",
    },
    "ttl": {
        "              Friday 18:00": DRAWING,
        "$ headrace state expired flights": SYNTAX,
    },
    "windows": {
        "+I  shop 7, 10:00, 1 order": "unit/operators/test_windows_page.py::test_early_results_equal_the_page",
        "+I  shop 7, 10:00, 3 orders": "unit/operators/test_windows_page.py::test_example_corrects_and_sets_aside",
    },
    "writing-a-pipeline": {
        "$ headrace check sensors": f"{COMMANDS}::test_pipeline_page_shows_results",
        "$ headrace restore sensors": f"{COMMANDS}::test_pipeline_page_goes_back",
    },
}


def entries_of(block):
    """Return the entries above for a block."""
    return [first for first in BLOCKS.get(block.page, {}) if block.text.startswith(first)]


def blocks_of_kind(kind):
    """Return the blocks of all pages that have this kind above."""
    listed = ((block, entries_of(block)) for page in PAGES for block in blocks_of(page))
    return [block for block, entries in listed if any(BLOCKS[block.page][first] == kind for first in entries)]


def is_test(place):
    """Return whether a file of tests has a test."""
    file, _, name = place.partition("::")
    path = PROJECT / "tests" / file
    return path.is_file() and name in {getattr(node, "name", None) for node in ast.parse(path.read_text()).body}


@pytest.mark.parametrize("page", PAGES)
def test_every_block_is_run_or_listed(page):
    others = [block for block in blocks_of(page) if block.language not in CHECKED_LANGUAGES]
    assert [f"{page}:{block.line}" for block in others if len(entries_of(block)) != 1] == []


def test_every_entry_names_blocks_and_a_test():
    listed = {(block.page, first) for page in PAGES for block in blocks_of(page) for first in entries_of(block)}
    assert {(page, first) for page, entries in BLOCKS.items() for first in entries} - listed == set()
    tests = {kind for entries in BLOCKS.values() for kind in entries.values()} - REASONS - {MESSAGE, SYNTAX}
    assert [place for place in sorted(tests) if not is_test(place)] == []


# --------------------------------------------------------------------------------------------------- configuration

SOURCE = {"orders": {"path": "input"}}
SINK = {"totals": {"path": "lake", "mode": "append"}}
CLUSTER = {"master": "local[2]", "parallelism": 2}
KAFKA = {"format": "kafka", "servers": "broker:9092", "topic": "orders"}


def yaml_blocks():
    return [block for page in PAGES for block in blocks_of(page) if block.language == "yaml"]


@pytest.mark.parametrize("block", yaml_blocks(), ids=lambda block: f"{block.page}:{block.line}")
def test_yaml_blocks_are_valid_files(block, tmp_path, monkeypatch):
    def write(path: Path, content):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(content))

    def names_in(cls):
        return {field.encode_name for field in fields(cls)}

    for name in re.findall(r"\$\{(\w+)\}", block.text):
        monkeypatch.setenv(name, "http://service")
    section = yaml.safe_load(block.text)
    if section.keys() <= names_in(ClusterFile):
        write(tmp_path / "conf/clusters/documented.yaml", CLUSTER | section)
        assert load_cluster("documented", tmp_path).name == "documented"
        return
    if not section.keys() <= names_in(JobFile):
        section = {"sources": {"orders": KAFKA | section}}
    job = {"job": "documented", "pipeline": "documented:pipeline", "sources": SOURCE, "sinks": SINK, **section}
    write(tmp_path / "conf/clusters/local.yaml", CLUSTER)
    write(tmp_path / f"conf/jobs/{job['job']}.yaml", job)
    assert load_job(job["job"], tmp_path).job == job["job"]


# -------------------------------------------------------------------------------------------------------- commands

# Placeholders in commands within sentences, and the values that take their places here.
PLACEHOLDERS = {"...": "value", "ID": "1", "N": "1", "CHECKPOINT": "1"}


def commands_on(page):
    """Return the calls of `headrace` in blocks and in sentences of a page."""
    lines = [line for block in blocks_of(page) for line in command_lines(block)]
    return [*lines, *re.findall(r"`(headrace [^`\n]*)`", PAGES[page].read_text())]


def command_lines(block):
    """Return the calls of `headrace` in a block, which begin a line."""
    lines = [command for command, _ in block.calls] or block.text.splitlines()
    return [line.split(";")[0] for line in lines if re.match(r"headrace [a-z]", line)]


def problem_of(line):
    """Return why the command line refuses these words; None if it takes them, or lacks a value that the page omits."""
    words = [PLACEHOLDERS.get(word, word) for word in shlex.split(line, comments=True)[1:]]
    command, context = whole_command(app), None
    try:
        context = command.make_context("headrace", words, resilient_parsing=False)
        while isinstance(command, click.Group) and (rest := [*context.protected_args, *context.args]):
            name, command, rest = command.resolve_command(context, rest)
            context = command.make_context(name, rest, parent=context)
    except click.MissingParameter:
        return None
    except click.UsageError as error:
        return f"{line}: {error.format_message()}"
    except click.exceptions.Exit:
        return None
    return None


@pytest.mark.parametrize("page", PAGES)
def test_commands_of_pages_exist(page):
    assert [problem for problem in map(problem_of, commands_on(page)) if problem] == []


# -------------------------------------------------------------------------------------------------------- messages

FEWEST_WORDS = 5


@cache
def templates():
    """Return the fixed parts of each longer text of the engine."""
    trees = [ast.parse(file.read_text()) for file in sorted((PROJECT / "engine").rglob("*.py"))]
    texts = [fixed_parts(node) for tree in trees for node in ast.walk(tree)]
    long = (parts for parts in texts if sum(len(part.split()) for part in parts) >= FEWEST_WORDS)
    return {tuple(re.sub(r"\s+", " ", part) for part in parts) for parts in long}


def fits(parts, message):
    """Tell whether a message has these parts in this order, with any values in place of the fields."""
    # Most texts lack a part: only the others need the slow look.
    return all(part in message for part in parts) and re.search(".+?".join(map(re.escape, parts)), message)


def fixed_parts(node):
    """Return the parts of a text between its fields; an empty list for other nodes."""
    match node:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.JoinedStr(values=values):
            return "".join(value.value if isinstance(value, ast.Constant) else "\0" for value in values).split("\0")
    return []


@pytest.mark.slow
@pytest.mark.parametrize("block", blocks_of_kind(MESSAGE), ids=lambda block: f"{block.page}:{block.line}")
def test_messages_have_the_words_of_the_code(block):
    message = " ".join(block.text.split())
    assert any(fits(parts, message) for parts in templates())


# --------------------------------------------------------------------------------------------------- other languages


def test_result_on_the_airflow_page_is_json():
    (block,) = [block for block in blocks_of("airflow") if block.language == "json"]
    assert json.loads(block.text)["job"] == "flights"


def test_query_on_the_materializer_page_gives_the_table():
    (block,) = [block for block in blocks_of("materializer") if block.language == "sql"]
    with duckdb.connect() as database:
        database.sql("""create table changes as from (values
            ('a', 1, '+I', '1'), ('a', 2, '+U', '2'), ('b', 3, '+I', '3'), ('b', 3, '-D', '4')
        ) rows(flight_id, delay, _row_kind, _order)""")
        assert database.sql(block.text).fetchall() == [("a", 2)]
