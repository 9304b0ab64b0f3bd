"""The page of all keys of the configuration equals the structs that read them."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from headrace.config import cluster_schema, job_schema
from tests.jobs.home import PROJECT

PAGE = PROJECT / "docs" / "reference" / "configuration.md"


@pytest.mark.slow
def test_page_of_keys_equals_the_code():
    command = [sys.executable, PROJECT / "setup" / "configuration_page.py", "--check"]
    assert subprocess.run(command, check=False).returncode == 0, "run make reference"


def test_page_has_each_key_once():
    keys = [
        key
        for schema in (job_schema(), cluster_schema())
        for section in schema["$defs"].values()
        for key in section.get("properties", {})
    ]
    assert sorted(re.findall(r"^\| `([^`]+)` \|", PAGE.read_text(), re.MULTILINE)) == sorted(keys)


@pytest.mark.parametrize(
    "row",
    [
        "| `name` | name, or null | `null` |",
        "| `retry_delay` | duration | `1m` |",
        "| `max_ahead` | duration, `none`, or null | `1d` |",
        "| `show_rows` | whole number from 0 to 50 | `0` |",
        "| `rate` | number above 0, or null | `null` |",
        "| `keys` | `text`, `json`, `avro`, `protobuf`, or null | `null` |",
        "| `interval` | text, [mapping](#sourcesnameinterval), or null | `null` |",
        "| `sinks` | [mapping of names](#sinksname) | required |",
        "| `buffer-size` | whole number from 1 | `1000` |",
        "| `adaptive.threshold.high` | whole number from 1 | 50 on rocksdb, else 400 |",
        "| `delimiter` | text | `','` |",
        "| `connectors` | list of `delta`, `s3` or `kafka` | `[delta]` |",
        "| `py_files` | list of paths or URIs | `[]` |",
        "| `on_retry` | package.module:function, or null | `null` |",
    ],
)
def test_row_names_the_values_of_a_key(row):
    assert f"\n{row} " in PAGE.read_text()
