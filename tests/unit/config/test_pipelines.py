"""Finding a job's pipeline, and whether the job binds what it needs."""

from __future__ import annotations

import sys

import pytest

from engine.config import load_job, load_pipeline
from engine.errors import ConfigError

PIPELINE = """\
import msgspec
from engine.api import Pipeline

class Event(msgspec.Struct, frozen=True):
    key: str
    at: int

pipeline = (
    Pipeline("demo").source("events", Event, event_time="at")
    .upsert_materialize("latest", primary_key=("key",)).sink("board")
)
number = 3
"""


@pytest.fixture
def module(home, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delitem(sys.modules, "demo_pipeline", raising=False)
    file = home / "demo_pipeline.py"
    file.write_text(PIPELINE)
    yield file
    sys.modules.pop("demo_pipeline", None)


def error_of() -> str:
    with pytest.raises(ConfigError) as error:
        load_pipeline(load_job("demo"))
    return str(error.value)


def test_a_pipeline_is_found_below_home(module):
    assert load_pipeline(load_job("demo")).name == "demo"


def test_a_missing_module_is_named(module):
    module.unlink()
    assert "demo.yaml:2: pipeline: module 'demo_pipeline' cannot be imported: there is no module" in error_of()


def test_an_error_in_user_code_is_shown_with_its_place(module):
    module.write_text("a = 1\nb = a / 0\n")
    assert f"ZeroDivisionError: division by zero ({module}:2)" in error_of()


def test_a_missing_variable_gets_a_hint(module, job_file):
    job_file(replace=("demo_pipeline:pipeline", "demo_pipeline:pipelin"))
    assert "has no variable 'pipelin'; did you mean 'pipeline'?" in error_of()


def test_something_else_than_a_pipeline_is_refused(module, job_file):
    job_file(replace=("demo_pipeline:pipeline", "demo_pipeline:number"))
    assert "is a int, not a Pipeline" in error_of()


def test_an_unbound_source_is_named(module, job_file):
    job_file(replace=("  events:", "  evnts:"))
    message = error_of()
    assert "sources.events: the pipeline's source 'events' is not bound" in message
    assert "demo.yaml:4: sources.evnts: the pipeline has no source 'evnts'; did you mean 'events'?" in message


def test_overrides_of_unknown_operators_are_refused(module, job_file):
    job_file("async_io: {weather: {capacity: 3}}\n")
    assert "async_io.weather: the pipeline has no async operator 'weather' (it has: none)" in error_of()


KEYED = (
    PIPELINE.replace("import Pipeline", "import KeyedProcessFunction, Pipeline")
    .replace(
        "pipeline = (",
        "class Legs(KeyedProcessFunction[Event, Event]):\n    async def process(self, record, ctx, /): ...\n\npipeline = (",
    )
    .replace("    .upsert", '    .key_by("key").process("legs", Legs())\n    .upsert')
)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("leg", "operators.leg: the pipeline has no keyed process 'leg'; did you mean 'legs'? (it has: legs)"),
        ("latest", "operators.latest: 'latest' is not a keyed process; only those can be set here"),
        ("events", "operators.events: 'events' is not a keyed process; only those can be set here"),
    ],
)
def test_only_keyed_processes_of_the_pipeline_are_set(module, job_file, name, problem):
    module.write_text(KEYED)
    job_file(f"operators: {{{name}: {{}}}}\n")
    assert f"demo.yaml:10: {problem}" in error_of()


def test_a_keyed_process_may_be_set(module, job_file):
    module.write_text(KEYED)
    job_file("operators: {legs: {execution: {async-state: {buffer-size: 3}}}}\n")
    config = load_job("demo")
    assert load_pipeline(config).name == "demo"
    assert config.async_state("legs").buffer_size == 3


def test_merging_needs_a_primary_key(module):
    module.write_text(PIPELINE.replace('.upsert_materialize("latest", primary_key=("key",))', ""))
    assert "sinks.board.mode: merge needs a primary key" in error_of()
