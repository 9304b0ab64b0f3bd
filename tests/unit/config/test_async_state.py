"""The options of asynchronous state: from the default over the job to the operator, and on to its tasks."""

from __future__ import annotations

import re
from dataclasses import fields
from datetime import timedelta
from enum import Enum
from pathlib import Path
from unittest.mock import Mock

import msgspec
import pytest

from headrace import KeyedProcessFunction, Pipeline, Struct, Timestamp
from headrace.config import AsyncStateConfig, format_duration, job_schema, load_job
from headrace.log.checkpoint import Checkpoint, Kind
from headrace.log.lineage import Lineage
from headrace.options import AsyncStateOptions, EventOrder, KeyOrder
from headrace.plan.planner import plan_stages
from headrace.run.micro_batch import MicroBatch
from headrace.sources.slices import NO_INPUT

PARENT = Checkpoint(
    incarnation=1,
    checkpoint_id=0,
    kind=Kind.INITIAL,
    run_id="run",
    attempt_id="attempt",
    max_parallelism=128,
    versions={},
    committed_at=0,
)
REPOSITORY = Path(__file__).resolve().parents[3]
FLIP_425 = {
    "enabled": True,
    "in-flight-records-limit": 6000,
    "buffer-size": 1000,
    "buffer-timeout": timedelta(seconds=1),
    "order-with-same-key": KeyOrder.RECORD_ORDERED,
    "event-order.watermark": EventOrder.OUT_OF_ORDER,
}
KEYS = {field.encode_name: field.name for field in msgspec.structs.fields(AsyncStateConfig)}


def as_text(value) -> str:
    """Return a default in the form of a file."""
    if isinstance(value, timedelta):
        return format_duration(value)
    return str(value.value if isinstance(value, Enum) else value).lower()


def test_names_and_defaults_are_those_of_the_flip():
    defaults = AsyncStateOptions()
    assert {key: getattr(defaults, name) for key, name in KEYS.items() if key in FLIP_425} == FLIP_425


def test_every_option_can_be_configured():
    assert list(KEYS.values()) == [field.name for field in fields(AsyncStateOptions)]


def test_job_without_async_state_gets_defaults(home):
    assert load_job("demo").async_state("legs") == AsyncStateOptions()


def test_every_key_sets_its_option(home, job_file):
    job_file("""\
execution:
  async-state:
    enabled: false
    in-flight-records-limit: 60
    buffer-size: 10
    buffer-timeout: 250ms
    order-with-same-key: state-ordered
    event-order.watermark: strictly-ordered
    io-parallelism: 3
    cache-entries: 7
""")
    assert load_job("demo").async_state("legs") == AsyncStateOptions(
        enabled=False,
        in_flight_records_limit=60,
        buffer_size=10,
        buffer_timeout=timedelta(milliseconds=250),
        order_with_same_key=KeyOrder.STATE_ORDERED,
        event_order_watermark=EventOrder.STRICTLY_ORDERED,
        io_parallelism=3,
        cache_entries=7,
    )


def test_operator_overrides_the_job_key_by_key(home, job_file):
    job_file("""\
execution: {async-state: {buffer-size: 500, io-parallelism: 4}}
operators:
  legs: {execution: {async-state: {buffer-size: 200, io-parallelism: null}}}
  gates: {}
""")
    config = load_job("demo")
    assert config.async_state("legs") == AsyncStateOptions(buffer_size=200, io_parallelism=4)
    assert config.async_state("gates") == AsyncStateOptions(buffer_size=500, io_parallelism=4)


@pytest.mark.parametrize("enabled", [True, False])
def test_run_option_overrides_enabled(home, job_file, enabled):
    job_file("operators: {legs: {execution: {async-state: {enabled: " + str(not enabled).lower() + "}}}}\n")
    config = load_job("demo")
    assert config.async_state("legs", enabled=enabled).enabled == enabled
    assert config.async_state("legs").enabled != enabled


def test_environment_variable_can_set_a_choice(home, job_file, monkeypatch):
    monkeypatch.setenv("ORDER", "strictly-ordered")
    job_file("execution: {async-state: {event-order.watermark: '${ORDER}'}}\n")
    assert load_job("demo").async_state("legs").event_order_watermark is EventOrder.STRICTLY_ORDERED


@pytest.mark.parametrize(("asked", "enabled"), [(None, True), (False, False)])
def test_each_operators_tasks_get_its_options(home, job_file, monkeypatch, asked, enabled):
    class Leg(Struct, frozen=True):
        tail: str
        at: Timestamp

    class Legs(KeyedProcessFunction[Leg, Leg]):
        async def process(self, leg, ctx, /):
            pass

    job_file("operators: {legs: {execution: {async-state: {buffer-size: 200, order-with-same-key: state-ordered}}}}\n")
    sent = []

    def keyed(task, *_):
        sent.append(task)
        return []

    tasks = Mock(sources=lambda _: [], keyed=keyed)
    job = Mock(
        config=load_job("demo"),
        next_id=1,
        versions={},
        attempt_id="a",
        last=PARENT,
        checkpoints=[],
        lineage=Lineage([]),
    )
    legs = Pipeline("demo").source("events", Leg, event_time="at").key_by("tail").process("legs", Legs())
    plan = plan_stages(legs.key_by("tail").process("gates", Legs()).sink("board"))
    MicroBatch(tasks, job, plan, parallelism=2, backend="hashmap", processing_time=0, async_state=asked).run(NO_INPUT)
    assert [task.async_state for task in sent] == [
        AsyncStateOptions(enabled=enabled, buffer_size=200, order_with_same_key=KeyOrder.STATE_ORDERED),
        AsyncStateOptions(enabled=enabled),
    ]


def test_schema_contains_the_defaults():
    described = job_schema()["$defs"]["AsyncStateConfig"]["properties"]
    output = {key: re.search(r"Default: ([\w-]+)", field["description"])[1] for key, field in described.items()}
    assert output == {key: as_text(getattr(AsyncStateOptions(), name)) for key, name in KEYS.items()}


def test_projects_own_job_leaves_the_defaults(monkeypatch):
    """Nobody has to read eight options that change no result: the page has them."""
    monkeypatch.delenv("HEADRACE_HOME", raising=False)
    job = load_job("flights", REPOSITORY)
    assert job.execution.async_state == AsyncStateConfig()
    assert job.async_state("delay_propagation") == AsyncStateOptions()
