"""Options of CSV and JSON files in a job's file: wrong ones are refused by name when it is loaded."""

from __future__ import annotations

import pytest

from headrace.config import CsvOptions, JsonOptions, SourceConfig, load_job, time_pattern
from headrace.config._csv import csv_problems
from headrace.errors import ConfigError


def problems(**options):
    return dict(csv_problems(CsvOptions(**options)))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"quote": None},
        {"quote": "'", "delimiter": '"'},
        {"header": False, "columns": ("id", "at")},
        {"decimal": ",", "delimiter": ","},
        {"decimal": ",", "delimiter": ";", "thousands": "."},
        {"delimiter": ",", "thousands": ","},
        {"delimiter": ",", "thousands": "'"},
        {"time_pattern": "%d.%m.%Y %H:%M", "day_pattern": "%d.%m.%y"},
        {"time_pattern": "%d.%m.%Y", "day_pattern": "%Y-%j"},
        {"comment": "#", "escape": "\\", "skip_lines": 3},
        {"true_values": ("Y",), "false_values": ()},
    ],
)
def test_good_options_have_no_problems(options):
    assert problems(**options) == {}


@pytest.mark.parametrize(
    ("key", "options", "says"),
    [
        ("delimiter", {"delimiter": "'", "quote": "'"}, "cannot stand between fields"),
        ("delimiter", {"delimiter": ""}, "expected one character"),
        ("quote", {"quote": "''"}, "cannot stand around fields"),
        ("quote", {"quote": "\n"}, "no line break"),
        ("quote", {"quote": ""}, "expected one character"),
        ("escape", {"escape": "\\", "quote": None}, "csv.quote is null"),
        ("escape", {"escape": "'", "quote": "'"}, "cannot escape quotes"),
        ("escape", {"escape": ","}, "no quote, line break or delimiter"),
        ("comment", {"comment": "##"}, "cannot begin comments"),
        ("comment", {"comment": ","}, "no quote, line break or delimiter"),
        ("comment", {"comment": '"'}, "no quote, line break or delimiter"),
        ("columns", {"columns": ("id", "at")}, "write header: false"),
        ("columns", {"columns": ("id", "at", "id"), "header": False}, "id twice"),
        ("columns", {"columns": ("id", ""), "header": False}, "empty name"),
        ("true_values", {"true_values": ("Y", "1"), "false_values": ("y",)}, "'y' cannot mean true and"),
        ("true_values", {"true_values": ("False",)}, "'false' cannot mean true and"),
        ("thousands", {"thousands": "."}, "csv.decimal is '.', too"),
        ("thousands", {"thousands": ",", "decimal": ",", "delimiter": ","}, "csv.decimal is ',', too"),
        ("thousands", {"thousands": ",", "quote": None}, "csv.delimiter is ',', too, and no quote"),
        ("thousands", {"thousands": ".."}, "expected one character"),
        ("thousands", {"thousands": ""}, "expected one character"),
        ("thousands", {"thousands": "1"}, "expected one character"),
        ("thousands", {"thousands": "-"}, "expected one character"),
        ("thousands", {"thousands": "e"}, "expected one character"),
        ("thousands", {"thousands": '"'}, "expected one character"),
        ("thousands", {"thousands": "\n"}, "expected one character"),
        ("day_pattern", {"day_pattern": "%d.%m."}, "it has no year"),
        ("day_pattern", {"day_pattern": "%Y-%m"}, "name no day together"),
        ("day_pattern", {"day_pattern": "%Y-%m-%d %H"}, "write it as csv.time_pattern"),
        ("time_pattern", {"time_pattern": "%d.%m. %H:%M"}, "it has no year"),
        ("time_pattern", {"time_pattern": "%H:%M"}, "it has no year"),
        ("time_pattern", {"time_pattern": "noon"}, "no date field"),
        ("time_pattern", {"time_pattern": ""}, "no date field"),
        ("time_pattern", {"time_pattern": "%Y-%m-%d %I:%M"}, "%I counts to 12 twice a day"),
        ("time_pattern", {"time_pattern": "%Y-%m-%d %M"}, "%M needs the hour"),
        ("time_pattern", {"time_pattern": "%Y-%m-%d %H:%M %Z"}, "write %z, the offset from UTC"),
        ("time_pattern", {"time_pattern": "%Y-%m-%d %z"}, "%z needs the hour"),
        ("time_pattern", {"time_pattern": "%x %X"}, "depends on the locale"),
        ("time_pattern", {"time_pattern": "%Y-%m-%d %Q"}, "%Q is no directive"),
        ("time_pattern", {"time_pattern": "%Y-%m-%d %Y"}, "%Y is there twice"),
        ("time_pattern", {"time_pattern": "dd.MM.yyyy"}, "no date field"),
    ],
)
def test_wrong_options_are_named(key, options, says):
    assert says in problems(**options)[f"csv.{key}"]


@pytest.mark.parametrize(
    ("rows", "is_path"), [("features", True), ("a.b", True), ("", False), ("a..b", False), (".", False)]
)
def test_path_of_json_rows_has_names(rows, is_path):
    config = SourceConfig(format="json", json=JsonOptions(rows=rows))
    assert [key for key, _ in config.kind.problems(config)] == ([] if is_path else ["json.rows"])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("quote: ab", r"demo.yaml:\d+: sources.events.csv.quote: 'ab' cannot stand around fields"),
        ("encoding: ebcdic", r"demo.yaml:\d+: sources.events.csv.encoding: .*windows-1252"),
        ("skip_lines: -1", r"demo.yaml:\d+: sources.events.csv.skip_lines"),
        ("decimal: ;", r"demo.yaml:\d+: sources.events.csv"),
    ],
)
def test_loading_names_line_and_option(job_file, home, options, says):
    job_file(replace=("path: data/events", f"path: data/events\n    format: csv\n    csv:\n      {options}"))
    with pytest.raises(ConfigError, match=says):
        load_job("demo", home)


def test_other_formats_lack_the_options(job_file, home):
    job_file(replace=("path: data/events", "path: data/events\n    format: csv\n    json: {rows: a}"))
    with pytest.raises(ConfigError, match="the format csv does not have it: write format: json"):
        load_job("demo", home)


def test_patterns_write_iso():
    assert time_pattern("%d.%m.%Y").iso_day("31.01.2026") == "2026-01-31"
    assert time_pattern("%d.%m.%Y %H %z").iso_time("31.01.2026 10 -0330") == "2026-01-31T10:00:00-03:30"
    assert time_pattern("%d.%m.%Y %H %z").iso_time("31.01.2026 10 +01:00:30") is None
