"""Rows that no record fits: how many of them a micro-batch may put into the quarantine."""

from __future__ import annotations

import pytest

from headrace.errors import ConfigError, SourceError
from headrace.testing import MemoryTopic, PipelineHarness
from tests.unit.support.refused_rows import RefusedJob, Strict, pipeline


def messages(harness, topic, *sizes):
    topic.append([{"shop": "a", "at": 0, "name": "n", "size": size} for size in sizes])
    return harness.run()


def test_file_without_a_fitting_row_fails():
    job = RefusedJob(source={"max_quarantined": None})
    job.feed("a", "b?", file="1.parquet")
    job.feed("c?", "d?", at=2000, file="2.parquet")
    for _ in range(2):
        with pytest.raises(
            SourceError,
            match=r"'rows': all 2 rows of .*/2\.parquet do not fit.*row 0: size is null.*max_quarantined.*--acknowledge 2\.parquet",
        ):
            job.run()
    (job.harness.folder / "input/rows/2.parquet").unlink()
    assert job.run().rows_in == 2
    assert job.arrived() == ["a"]


@pytest.mark.parametrize(
    "allowed", [{"on_bad_file": "quarantine", "max_quarantined": None}, {"max_quarantined": "none"}]
)
def test_job_file_allows_whole_files(allowed):
    job = RefusedJob(source=allowed)
    job.feed("a?", "b?")
    assert job.run().quarantined == 2


@pytest.mark.parametrize(("limit", "above"), [("2", "1"), ("50%", "49.9 %")])
def test_limit_is_a_number_or_a_share(limit, above):
    job = RefusedJob(source={"max_quarantined": above})
    job.feed("a", "b?")
    job.feed("c?", "d")
    with pytest.raises(SourceError, match=rf"2 of 4 rows .* more than 'sources.rows.max_quarantined: {above}' allows"):
        job.run()
    job.harness.change(job={"sources": {"rows": {"max_quarantined": limit}}})
    assert job.run().quarantined == 2


def test_error_names_how_a_csv_file_is_written():
    harness = PipelineHarness(pipeline(Strict), job={"sources": {"rows": {"format": "csv", "max_quarantined": None}}})
    harness.feed_bytes("rows", b"shop,at,name,size\na,24.10.2026 10:00,n,1\n", file="1.csv")
    ways = "'sources.rows.csv' says how files are written: delimiter, day_pattern, time_pattern, decimal and thousands"
    with pytest.raises(SourceError, match=f"at is '24.10.2026 10:00', which is not a timestamp.*{ways}"):
        harness.run()


@pytest.mark.parametrize("text", ["0.05", "101%", "all"])
def test_other_limits_are_refused(text):
    job = RefusedJob(source={"max_quarantined": text})
    with pytest.raises(ConfigError, match=rf"sources\.rows\.max_quarantined: '{text}' is no limit: expected a number"):
        job.run()


def test_requeued_rows_may_be_refused_again():
    job = RefusedJob(source={"max_quarantined": "none"})
    job.feed("a?")
    job.run()
    job.requeue()
    job.harness.change(job={"sources": {"rows": {"max_quarantined": "0"}}})
    assert job.run().quarantined == 1


def test_topic_fails_when_many_messages_misfit():
    topic = MemoryTopic("shops")
    harness = PipelineHarness(pipeline(Strict), topics={"rows": topic})
    assert messages(harness, topic, "x").quarantined == 1
    with pytest.raises(SourceError, match=r"all 10 messages of topic .* do not fit.*max_quarantined"):
        messages(harness, topic, *["x"] * 10)
    with pytest.raises(SourceError, match="all 10 messages"):  # a retry takes the same ones
        messages(harness, topic, 1)
    harness.change(job={"sources": {"rows": {"max_quarantined": "95%"}}})
    with pytest.raises(SourceError, match="10 of 10 rows"):
        harness.run()
    harness.change(job={"sources": {"rows": {"max_quarantined": 10}}})
    assert harness.run().quarantined == 10
