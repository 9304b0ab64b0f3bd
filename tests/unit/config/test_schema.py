"""The JSON schemas for editors agree with what loading accepts."""

from __future__ import annotations

import json
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


def properties():
    """Yield section, key and schema of each key of both kinds of files."""
    for schema in (job_schema(), cluster_schema()):
        for section, described in schema["$defs"].items():
            yield from ((section, key, field) for key, field in described.get("properties", {}).items())


def test_every_field_has_a_description():
    described = {(section, key): field.get("description") for section, key, field in properties()}
    assert (
        described["RunConfig", "budget"]
        == "After this time no micro-batch starts, and the present one holds what has not begun."
    )
    # A section that is a key of the job alone is described where it is defined.
    assert {place for place, text in described.items() if text is None and place[0] != "JobFile"} == set()


def test_descriptions_show_links_as_their_text():
    described = {(section, key): field.get("description") for section, key, field in properties()}
    assert described["SourceConfig", "csv"] == "Format csv: how the files are written."
    assert ".md" not in json.dumps([job_schema(), cluster_schema()]).replace("*.md", "")
