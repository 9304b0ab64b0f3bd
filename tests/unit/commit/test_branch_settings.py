"""A branch keeps the code, the input and the settings that it runs with."""

from __future__ import annotations

import pytest

from headrace import Pipeline
from headrace.commit.branch_code import config_of, differences_to_file, on_branch
from headrace.edits.fork import fork
from headrace.errors import ConfigError
from headrace.log import branches
from headrace.log.branches import Branches
from tests.unit.support.branched_job import BranchedJob, Order, Totals, totals
from tests.unit.support.crashes import Killed, dying_at


@pytest.fixture
def job():
    result = BranchedJob()
    result.feed(("ann", 1), ("bob", 2))
    result.run()
    return result


def forked(job, **settings):
    fork(
        job.config, "other", None, "somebody", settings={key.replace("__", "."): text for key, text in settings.items()}
    )


def change(job, /, **changes):
    """Change the job's file or its pipeline."""
    job.harness.change(**changes)
    job.config = job.harness.config


def recorded(job):
    return Branches(job.config).get("other")


@pytest.mark.slow
def test_branch_keeps_its_settings(job):
    forked(job, run__budget="5m", sources__orders__path="input/corrected")
    config = on_branch(job.config, "other")
    assert config.run.budget.total_seconds() == 300
    assert config.sources["orders"].path == str(job.harness.folder / "input/corrected")
    assert config.sinks["totals"].path.endswith("lines/other/sinks/totals")
    assert job.config.sources["orders"].path.endswith("input/orders")


@pytest.mark.slow
def test_later_settings_replace_earlier_ones(job):
    forked(job, run__budget="5m", run__grace="1m")
    job.run("other", settings={"run.budget": "7m"})
    assert recorded(job).settings == {"run.budget": "7m", "run.grace": "1m"}
    assert recorded(job).run_id == "run-2"
    job.run("other")
    assert on_branch(job.config, "other").run.budget.total_seconds() == 420
    assert recorded(job).run_id == "run-2", "a run with the same settings records nothing"


@pytest.mark.slow
def test_branch_with_overridden_input_reads_it(job):
    forked(job, sources__orders__path="input/corrected")
    job.feed(("cyd", 7))
    (job.harness.folder / "input" / "orders").rename(job.harness.folder / "input" / "corrected")
    job.run("other")
    assert {dict(row)["customer"] for row in job.content("other")["sink totals"]} == {"ann", "bob", "cyd"}


@pytest.mark.slow
def test_settings_of_refused_run_are_not_kept(job):
    forked(job)
    with pytest.raises(ConfigError, match="no source 'ordrs'; did you mean 'orders'"):
        job.run("other", settings={"sources.ordrs.path": "x"})
    assert recorded(job).settings == {}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"run.budgt": "5m"}, "did you mean 'budget'"),
        ({"sinks.totals.mode": "append"}, "a branch cannot set sinks"),
        ({"sources.ordrs.path": "x"}, "no source 'ordrs'"),
        ({"pipeline": "nowhere:pipeline"}, "--set pipeline: .*nowhere"),
    ],
)
def test_bad_settings_make_no_branch(job, settings, message):
    with pytest.raises(ConfigError, match=message):
        fork(job.config, "other", None, "somebody", settings=settings)
    assert not Branches(job.config).open


@pytest.mark.slow
def test_outdated_settings_error_names_the_branch(job):
    forked(job, sources__orders__interval="'%Y'")
    change(job, job={"sources": {"orders": {"format": "delta"}}})
    with pytest.raises(ConfigError, match="branch 'other' has settings of its own .* headrace branch drop shop other"):
        on_branch(job.config, "other")


@pytest.mark.slow
def test_new_branch_has_the_code_of_the_file(job):
    forked(job)
    assert differences_to_file(job.config, recorded(job)) == []
    job.run("other")
    assert differences_to_file(job.config, recorded(job)) == []


@pytest.mark.slow
def test_settings_that_change_results_are_differences(job):
    forked(job, watermark__bucket="7", sources__orders__path="input/corrected")
    expected = [
        "branch 'other' ran with sources.orders.path input/corrected, and the job's file says input/orders",
        "branch 'other' ran with watermark.bucket 7, and the job's file says 2",
    ]
    assert differences_to_file(job.config, recorded(job)) == expected
    (job.harness.folder / "input" / "corrected").mkdir()
    job.run("other")
    assert differences_to_file(job.config, recorded(job)) == expected
    change(job, job={"watermark": {"bucket": 7}, "sources": {"orders": {"path": "input/corrected"}}})
    left = differences_to_file(job.config, recorded(job))
    assert not [difference for difference in left if " pipeline " not in difference]


def test_settings_without_influence_are_no_differences(job):
    forked(job, run__budget="5m", state__backend="delta", sources__orders__max_files_per_batch="1")
    job.run("other")
    assert differences_to_file(job.config, recorded(job)) == []


@pytest.mark.slow
def test_file_that_changed_since_the_run_differs(job):
    forked(job)
    job.run("other")
    before = job.config.pipeline
    change(job, pipeline=totals())
    assert differences_to_file(job.config, recorded(job)) == [
        f"branch 'other' ran with pipeline {before}, and the job's file says {job.config.pipeline}"
    ]
    job.run("other")
    assert differences_to_file(job.config, recorded(job)) == []


@pytest.mark.slow
def test_table_of_an_earlier_release_is_read(job, monkeypatch):
    with monkeypatch.context() as patch:
        schema = branches._SCHEMA
        patch.setattr(branches, "_SCHEMA", schema.remove(schema.get_field_index("earlier")))
        forked(job)
        job.feed(("cyd", 7))
        job.run("other", settings={"watermark.bucket": "500"})
    assert recorded(job).earlier == ()
    job.run("other", settings={"watermark.bucket": "2"})
    assert [run.ran_with["watermark.bucket"] for run in recorded(job).earlier] == ["500"]


@pytest.mark.slow
def test_new_source_in_the_file_is_a_difference(job):
    forked(job)
    job.run("other")
    pipeline = Pipeline("shop")
    orders = pipeline.source("orders", Order, event_time="at").union(pipeline.source("more", Order, event_time="at"))
    results = orders.key_by("customer").process("totals", Totals())
    results.side("small", Order).sink("small")
    results.upsert_materialize("latest", primary_key=("customer",), upsert_key=("customer",)).sink("totals")
    change(job, pipeline=pipeline)
    assert "branch 'other' ran without sources.more.path, and the job's file says input/more" in differences_to_file(
        job.config, recorded(job)
    )


@pytest.mark.slow
def test_branch_that_is_not_ready_is_not_run(job):
    with pytest.raises(Killed), dying_at("fork.listed"):
        forked(job, run__budget="5m")
    with pytest.raises(
        ConfigError, match="branch 'other' of job 'shop' is not ready: .* headrace branch create shop other"
    ):
        job.run("other")
    fork(job.config, "other", None, "somebody")
    job.run("other")
    assert recorded(job).settings == {"run.budget": "5m"}


def test_secrets_are_not_recorded(job, monkeypatch):
    monkeypatch.setenv("TOKEN", "hush")
    change(job, job={"services": {"geo": {"url": "http://localhost:1/?key=${TOKEN}"}}})
    forked(job)
    job.run("other")
    branch = recorded(job)
    assert "hush" not in repr(branch)
    assert branch.ran_with["services.geo.url"] == "http://localhost:1/?..."
    assert config_of(job.config, branch).services["geo"].url.endswith("hush")
