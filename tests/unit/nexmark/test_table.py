"""The table of docs/nexmark.md, the job files, and how lines are counted."""

from __future__ import annotations

import re

import pytest

from headrace.config import load_job
from headrace.plan.bindings import binding_problems
from pipelines.nexmark.project import make_project
from pipelines.nexmark.queries import NAMES, load
from pipelines.nexmark.table import MOST_LINES, lines_of, main
from tests.jobs.home import PROJECT

PAGE = (PROJECT / "docs" / "nexmark.md").read_text()


def test_every_query_is_implemented_and_short():
    assert tuple(f"q{number}" for number in range(23)) == NAMES
    assert {name: lines for name in NAMES if (lines := lines_of(name)) > MOST_LINES} == {}


def test_page_counts_the_same_lines():
    result = dict(re.findall(r"^\| (q\d+) \| (\d+) \|", PAGE, re.MULTILINE))
    assert result == {name: str(lines_of(name)) for name in NAMES}


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nexmark")
    make_project(folder)
    return folder


@pytest.mark.parametrize("query", NAMES)
def test_job_file_binds_each_query(query, project):
    config = load_job(f"nexmark_{query}", project)
    assert config.pipeline == f"pipelines.nexmark.queries.{query}:pipeline"
    assert binding_problems(config, load(query)) == []
    assert (project / "pipelines/nexmark/queries" / f"{query}.py").exists()


def test_project_is_never_written_over(project):
    with pytest.raises(FileExistsError, match="conf/jobs"):
        make_project(project)


@pytest.mark.slow
def test_result_table_marks_correct_queries(capsys):
    assert main(["q2", "q22", "--events", "500"]) == 0
    head, _, *rows = capsys.readouterr().out.splitlines()
    assert head.startswith("| query | lines | correct | input rows")
    assert [re.split(r" \| ", row)[:4] for row in rows] == [["| q2", "5", "yes", "460"], ["| q22", "7", "yes", "460"]]
