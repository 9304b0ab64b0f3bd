"""Finding a job's pipeline, and checking that the job binds its sources, sinks and services."""

from __future__ import annotations

import sys

import pytest

from headrace import Strategy
from headrace.config import load_job
from headrace.errors import ConfigError
from headrace.plan.bindings import kindless_sinks, load_pipeline

PIPELINE = """\
import msgspec
from headrace import Pipeline, Timestamp

class Event(msgspec.Struct, frozen=True):
    key: str
    at: Timestamp

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


def test_pipeline_is_found_below_home(module):
    assert load_pipeline(load_job("demo")).name == "demo"


def test_missing_module_is_named(module):
    module.unlink()
    assert "demo.yaml:2: pipeline: module 'demo_pipeline' cannot be imported: there is no module" in error_of()


def test_user_code_error_shows_its_place(module):
    module.write_text("a = 1\nb = a / 0\n")
    assert f"ZeroDivisionError: division by zero ({module}:2)" in error_of()


def test_missing_variable_gets_a_hint(module, job_file):
    job_file(replace=("demo_pipeline:pipeline", "demo_pipeline:pipelin"))
    assert "has no variable 'pipelin'; did you mean 'pipeline'?" in error_of()


def test_object_that_is_no_pipeline_is_refused(module, job_file):
    job_file(replace=("demo_pipeline:pipeline", "demo_pipeline:number"))
    assert "is of type int, not a Pipeline" in error_of()


def test_unbound_source_is_named(module, job_file):
    job_file(replace=("  events:", "  evnts:"))
    message = error_of()
    assert "sources.events: the pipeline's source 'events' is not bound" in message
    assert "demo.yaml:4: sources.evnts: the pipeline has no source 'evnts'; did you mean 'events'?" in message


def test_sink_as_its_own_source_is_refused(module, job_file):
    job_file(replace=("data/events", "s3a://lake/./board/"))
    assert "sinks.board.path: source 'events' reads this folder: a job must not read what it writes" in error_of()


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
        (
            "leg",
            "operators.leg: the pipeline has no keyed process or materializer 'leg'; did you mean 'legs'? (it has: legs, latest)",
        ),
        (
            "events",
            "operators.events: 'events' is neither a keyed process nor a materializer; only those can be set here",
        ),
    ],
)
def test_only_keyed_operators_of_the_pipeline_are_set(module, job_file, name, problem):
    module.write_text(KEYED)
    job_file(f"operators: {{{name}: {{}}}}\n")
    assert f"demo.yaml:10: {problem}" in error_of()


def test_keyed_process_may_be_set(module, job_file):
    module.write_text(KEYED)
    job_file("operators: {legs: {execution: {async-state: {buffer-size: 3}}}}\n")
    config = load_job("demo")
    assert load_pipeline(config).name == "demo"
    assert config.async_state("legs").buffer_size == 3


def test_materializer_may_be_set(module, job_file):
    module.write_text(KEYED)
    job_file("operators: {latest: {execution: {upsert-materialize: {strategy: map}}}}\n")
    config = load_job("demo")
    assert load_pipeline(config).name == "demo"
    assert config.upsert_materialize("latest").strategy is Strategy.MAP


@pytest.mark.parametrize(
    ("name", "section", "problem"),
    [
        ("latest", "async-state: {buffer-size: 3}", "async-state: 'latest' is a materializer"),
        ("legs", "upsert-materialize: {strategy: map}", "upsert-materialize: 'legs' is no materializer"),
    ],
)
def test_option_without_effect_is_refused(module, job_file, name, section, problem):
    module.write_text(KEYED)
    job_file(f"operators: {{{name}: {{execution: {{{section}}}}}}}\n")
    assert f"demo.yaml:10: operators.{name}.execution.{problem}: this has no effect on it" in error_of()


@pytest.mark.parametrize(
    ("backend", "given", "problem"),
    [
        ("rocksdb", "high: 30", "not 40 and 30 (low: the default on rocksdb)"),
        ("rocksdb", "low: 50", "not 50 and 50 (high: the default on rocksdb)"),
        ("hashmap", "high: 300", "not 300 and 300 (low: the default on hashmap)"),
        ("delta", "low: 500", "not 500 and 400 (high: the default on delta)"),
        ("rocksdb", "high: 41", None),
        ("hashmap", "high: 301", None),
    ],
)
def test_threshold_must_not_contradict_backends_other_default(module, job_file, backend, given, problem):
    """A threshold may not contradict the backend's default of the other threshold."""
    job_file(f"state: {{backend: {backend}}}\nexecution: {{upsert-materialize: {{adaptive.threshold.{given}}}}}\n")
    if problem is None:
        assert load_pipeline(load_job("demo")).name == "demo"
    else:
        message = error_of()
        assert "demo.yaml:11: execution.upsert-materialize: adaptive.threshold.low must be" in message
        assert message.endswith(problem)


def test_thresholds_of_one_operator_name_it(module, job_file):
    module.write_text(KEYED)
    job_file("operators: {latest: {execution: {upsert-materialize: {adaptive.threshold.high: 7}}}}\n")
    assert "demo.yaml:10: operators.latest.execution.upsert-materialize: adaptive.threshold.low must" in error_of()


def test_contradiction_within_job_is_reported_once(module, job_file):
    module.write_text(KEYED)
    job_file("execution: {upsert-materialize: {adaptive.threshold.high: 7}}\n")
    assert error_of().count("adaptive.threshold.low must") == 1


def test_merging_needs_a_primary_key(module):
    module.write_text(PIPELINE.replace('.upsert_materialize("latest", primary_key=("key",))', ""))
    assert "sinks.board.mode: merge needs a primary key" in error_of()


def pipeline_asking(**options):
    wait = f'.async_wait("asked", Asking(), timeout=timedelta(seconds=1), **{options})\n    .upsert'
    asking = "class Asking(AsyncFunction[Event, Event]):\n    async def invoke(self, record, /): ...\n\npipeline = ("
    text = PIPELINE.replace("import Pipeline", "import AsyncFunction, Pipeline").replace("pipeline = (", asking)
    return "from datetime import timedelta\n" + text.replace(".upsert", wait)


def test_service_that_is_not_bound_is_named(module, job_file):
    module.write_text(pipeline_asking(service="wether"))
    job_file("services: {weather: {url: 'http://127.0.0.1:1'}}\n")
    assert (
        "services.wether: async_wait 'asked' needs the service 'wether': add it under services; did you mean 'weather'?"
    ) in error_of()


def test_settings_of_calls_need_an_operator(module, job_file):
    """An operator that does not name the service would pay twice on a branch, whatever `effects` says."""
    module.write_text(pipeline_asking())
    job_file("services: {shop: {url: 'http://127.0.0.1:1', effects: true, rate: 20}}\n")
    assert (
        "services.shop: rate, effects would not hold for any call: no async_wait names the service 'shop' (there are: 'asked'). "
        "Give service='shop' to those that call it"
    ) in error_of()


def test_service_without_settings_needs_no_name(module, job_file):
    module.write_text(pipeline_asking())
    job_file("services: {shop: {url: 'http://127.0.0.1:1', health: null}}\n")
    assert "asked" in [operator.name for operator in load_pipeline(load_job("demo")).operators]


@pytest.mark.parametrize(
    ("mode", "row_kind", "materializes", "sinks"),
    [
        ("append", True, False, ["board"]),
        ("append", True, True, []),
        ("append", False, False, []),
        ("merge", True, True, []),
    ],
)
def test_sinks_that_lose_row_kinds_are_found(module, job_file, mode, row_kind, materializes, sinks):
    text = PIPELINE.replace("    key: str", "    key: str\n    kind: str")
    if row_kind:
        text = text.replace('event_time="at"', 'event_time="at", row_kind="kind"')
    if not materializes:
        text = text.replace('.upsert_materialize("latest", primary_key=("key",))', "")
    module.write_text(text)
    job_file(replace=("mode: merge", f"mode: {mode}"))
    config = load_job("demo")
    assert kindless_sinks(config, load_pipeline(config)) == sinks


LATE = """\
from datetime import timedelta
import msgspec
from headrace import Pipeline, Timestamp
from headrace.operators import Tumbling

class Event(msgspec.Struct, frozen=True):
    key: str
    kind: str
    at: Timestamp

events = Pipeline("demo").source("events", Event, event_time="at", row_kind="kind")
first = events.key_by("key").window(Tumbling(timedelta(hours=1))).top("first", 1, by="at")
first.side("late", Event).sink("late")
pipeline = first.sink("board", key="key")
"""


@pytest.mark.parametrize(
    ("piece", "with_this", "sinks"),
    [("", "", ["late"]), (', row_kind="kind"', "", []), ('.sink("late")', '.additions().sink("late")', [])],
)
def test_late_retractions_lose_their_kinds(module, job_file, piece, with_this, sinks):
    module.write_text(LATE.replace(piece, with_this))
    job_file(replace=("sinks:\n", "sinks:\n  late: {path: s3a://lake/late, mode: append}\n"))
    config = load_job("demo")
    assert kindless_sinks(config, load_pipeline(config)) == sinks


def test_folder_takes_no_late_retractions(module, job_file):
    module.write_text(LATE)
    job_file(replace=("sinks:\n", "sinks:\n  late: {format: parquet, path: lake/late, mode: append}\n"))
    assert "parquet keeps all of them: put upsert_materialize()" in (message := error_of())
    assert "or additions() where it gets late records" in message
