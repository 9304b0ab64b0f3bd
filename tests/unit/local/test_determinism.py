"""`headrace check` names functions whose results depend on chance, on the seed of `hash`, or on the date."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
from typer.testing import CliRunner

from headrace.cli import app
from headrace.cli.check import determinism
from headrace.config._types import PipelineCode
from headrace.errors import HeadraceError, UserFunctionError
from headrace.local import determinism as processes
from headrace.plan.loader import plan_of
from headrace.storage import pandas as late_pandas
from headrace.testing import PipelineHarness
from tests.jobs import undetermined
from tests.jobs.undetermined import Order

ROWS = [Order(f"order {number}" + "x" * (number % 2), number) for number in range(50)]


@pytest.fixture(scope="module")
def harness():
    harness = PipelineHarness(undetermined.fields)
    harness.feed("orders", ROWS)
    return harness


def findings(harness, pipeline):
    code = PipelineCode(f"tests.jobs.undetermined:{pipeline}", str(Path(__file__).parents[3]))
    config = SimpleNamespace(code=code, sources={"orders": harness.config.sources["orders"]})
    return list(determinism(config, plan_of(code)))


@pytest.mark.slow
def test_undetermined_functions_are_named(harness):
    named = findings(harness, "undetermined")
    assert [(finding.outcome, finding.detail.split(" in another process")[0]) for finding in named] == [
        ("fail", "key_by by_chance of 'relay_0' gives the same record another key"),
        ("fail", "key_by by_hash of 'relay_1' gives the same record another key"),
        ("fail", "filter of_today gives the same record another verdict"),
        ("fail", "filter after_day gives the same record another verdict"),
        ("fail", "assign_event_time arrival gives the same record another event time"),
        ("warn", "map stamped gives the same record another result"),
    ]
    assert "hashlib" in named[0].advice


@pytest.mark.slow
def test_same_results_are_no_finding(harness):
    assert findings(harness, "repeatable") == []


def test_run_refuses_keys_of_chance():
    harness = PipelineHarness(undetermined.chance)
    harness.feed("orders", ROWS)
    with pytest.raises(
        UserFunctionError, match="it gave this record the key [0-8], and [0-8] when it was called again"
    ):
        harness.run()


def test_plain_keys_start_no_process(harness):
    with mock.patch("subprocess.Popen", side_effect=AssertionError):
        assert findings(harness, "fields") == []


def test_processes_that_fail_are_a_warning(harness):
    with mock.patch.object(processes, "differences", side_effect=HeadraceError("too slow")):
        (finding,) = findings(harness, "undetermined")
    assert (finding.outcome, finding.detail) == ("warn", "too slow")


@pytest.mark.parametrize("options", [[], ["--no-sample"]])
def test_functions_are_tried_unless_refused(harness, options, monkeypatch):
    monkeypatch.setenv("HEADRACE_HOME", str(harness.config.file.parents[2]))
    monkeypatch.setattr(late_pandas, "without_pandas", lambda: None)
    with mock.patch.object(processes, "differences", return_value=iter(())) as tried:
        CliRunner().invoke(app, ["check", harness.config.job, *options])
    assert tried.called == (not options)
