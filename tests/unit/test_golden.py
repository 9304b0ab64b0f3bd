"""The comparing part of the golden results, and the choice of their runs."""

from __future__ import annotations

import itertools
import json

from pipelines.nexmark.queries import NAMES
from tests import golden
from tests.golden import PAIRWISE, Run, Verdicts

RUN = Run("q4", PAIRWISE[0])


def test_digests_count_rows_and_omit_empty_parts():
    digests = golden.digests_of({"sink": ['{"a": 1}', '{"a": 2}'], "state": []})
    assert [*digests] == ["sink"]
    assert digests["sink"].startswith("2 ")
    assert digests != golden.digests_of({"sink": ['{"a": 1}', '{"a": 3}'], "state": []})


def test_parts_that_changed_came_or_went_differ():
    before = {"equal": "1 aa", "changed": "2 bb", "gone": "3 cc"}
    after = {"equal": "1 aa", "changed": "2 ff", "new": "4 dd"}
    assert golden.differing(before, after) == [
        "changed: 2 rows before, 2 now",
        "gone: 3 rows before, 0 now",
        "new: 0 rows before, 4 now",
    ]


def test_row_differences_count_repeated_rows():
    before, after = {"sink": ["a", "a", "b"], "state": ["s"]}, {"sink": ["a", "b", "c"], "state": ["s"]}
    assert [*golden.row_differences(before, after)] == [
        "sink: 1 rows are missing",
        "  - a",
        "sink: 1 rows are new",
        "  + c",
    ]


def test_job_without_digests_must_agree_with_itself():
    verdicts = Verdicts({})
    assert verdicts.add(RUN, {"sink": "1 aa"}) == []
    assert verdicts.add(RUN, {"sink": "1 bb"}) == ["sink: 1 rows before, 1 now"]
    assert verdicts.differing == [RUN]


def test_runs_cover_all_jobs_and_pairs():
    runs = golden.chosen_runs()
    assert len(runs) <= 40
    assert {run.job for run in runs} == {"flights", "logbook", *NAMES} == {*json.loads(golden.GOLDEN.read_text())}
    columns = [[str(value.batches), str(value.parallelism), value.backend, bool(value.crash)] for value in PAIRWISE]
    for one, other in itertools.combinations(range(4), 2):
        pairs = {(row[one], row[other]) for row in columns}
        assert len(pairs) == len({row[one] for row in columns}) * len({row[other] for row in columns})
