"""The JSON schemas for editors agree with what loading accepts."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest
import yaml

from headrace.config import cluster_schema, job_schema

REPOSITORY = Path(__file__).resolve().parents[3]


class _Text(yaml.SafeLoader):
    """YAML with the types of JSON: dates stay text."""


_Text.add_constructor("tag:yaml.org,2002:timestamp", lambda loader, node: loader.construct_scalar(node))


def documents(kind):
    return sorted((REPOSITORY / "conf" / kind).glob("*.yaml"))


@pytest.mark.parametrize("file", documents("jobs"), ids=lambda file: file.stem)
def test_projects_jobs_fit_the_schema(file):
    jsonschema.validate(yaml.load(file.read_text(), _Text), job_schema())  # noqa: S506 - derived from the safe loader


@pytest.mark.parametrize("file", documents("clusters"), ids=lambda file: file.stem)
def test_projects_clusters_fit_the_schema(file):
    jsonschema.validate(yaml.load(file.read_text(), _Text), cluster_schema())  # noqa: S506


def test_unknown_key_does_not_fit():
    with pytest.raises(jsonschema.ValidationError, match="'moed' was unexpected"):
        jsonschema.validate({"job": "a", "pipeline": "a:b", "sources": {}, "sinks": {}, "moed": 1}, job_schema())


@pytest.mark.parametrize(
    ("options", "fits"),
    [
        ({"event-order.watermark": "strictly-ordered", "buffer-timeout": "5s", "enabled": False}, True),
        ({"order-with-same-key": "${ORDER}", "buffer-size": "${SIZE:-200}", "cache-entries": None}, True),
        ({"event-order.watermark": "strict"}, False),
        ({"event_order_watermark": "out-of-order"}, False),
        ({"buffer-size": 0}, False),
        ({"enabled": "yes"}, False),
    ],
)
def test_async_state_options_match_names_in_files(options, fits):
    operators = {"legs": {"execution": {"async-state": options}}}
    job = {"job": "a", "pipeline": "a:b", "sources": {}, "sinks": {}, "operators": operators}
    assert jsonschema.Draft202012Validator(job_schema()).is_valid(job) == fits


def test_every_field_has_a_description():
    sections = {name: job_schema()["$defs"][name]["properties"] for name in ("RunConfig", "AsyncStateConfig")}
    assert (
        sections["RunConfig"]["budget"]["description"]
        == "After this time no micro-batch starts, and the present one holds what has not begun."
    )
    fields = [field for section in sections.values() for field in section.values()]
    assert [field for field in fields if "description" not in field] == []


PAGE = (REPOSITORY / "docs" / "configuration.md").read_text()


def properties():
    """Yield section, key and schema of each key of both kinds of files."""
    for schema in (job_schema(), cluster_schema()):
        for section, described in schema["$defs"].items():
            yield from ((section, key, field) for key, field in described.get("properties", {}).items())


def rows_of(key):
    """Return the cells of the rows of the page that name a key in their first cell."""
    lines = [re.split(r"(?<!\\)\|", line)[1:-1] for line in PAGE.splitlines() if line.startswith("| `")]
    return [cells for cells in lines if f"`{key}`" in cells[0]]


def test_page_of_configuration_has_every_key():
    headings = " ".join(re.findall(r"^### .*$", PAGE, re.MULTILINE))
    missing = {(section, key) for section, key, _ in properties() if not rows_of(key) and key not in headings}
    assert missing == set()


def test_page_of_configuration_has_every_default():
    plain = [(key, field["default"]) for _, key, field in properties() if isinstance(field.get("default"), int | str)]
    shown = [(key, default if isinstance(default, str) else json.dumps(default)) for key, default in plain]
    assert len(shown) > 50
    others = {("max_ahead", "P1D"), ("delimiter", ","), ("quote", '"')}  # the page has these as people write them
    wrong = [
        (key, text)
        for key, text in shown
        if text and not any(f"`{text}`" in cell for cells in rows_of(key) for cell in cells[2:3])
    ]
    assert set(wrong) - others == set()
