"""The options of upsert materializers: from the pipeline over the job to the operator."""

from __future__ import annotations

import msgspec
import pytest

from headrace import Strategy
from headrace.config import job_schema, load_job
from headrace.config._sections import UpsertMaterializeConfig
from headrace.errors import ConfigError
from headrace.options import DEFAULT_THRESHOLDS, Layouts

KEYS = [field.encode_name for field in msgspec.structs.fields(UpsertMaterializeConfig)]


def layouts(backend="rocksdb", operator="board"):
    return load_job("demo").upsert_materialize(operator).layouts(Strategy.VALUE, backend)


def test_defaults_are_pipelines_strategy_and_flip_thresholds(home, job_file):
    job_file("")
    assert layouts() == Layouts(Strategy.VALUE, 50, 40)
    assert layouts("hashmap") == Layouts(Strategy.VALUE, 400, 300)


def test_operator_settings_override_the_job(home, job_file):
    job_file(
        "execution: {upsert-materialize: {strategy: map, adaptive.threshold.high: 70}}\n"
        "operators: {board: {execution: {upsert-materialize: {strategy: adaptive, adaptive.threshold.low: 60}}}}\n"
    )
    assert layouts() == Layouts(Strategy.ADAPTIVE, 70, 60)
    assert layouts(operator="other") == Layouts(Strategy.MAP, 70, 40)


def test_thresholds_that_contradict_each_other_name_the_file(home, job_file):
    job_file("execution: {upsert-materialize: {adaptive.threshold.high: 30}}\n")
    with pytest.raises(
        ConfigError, match=r"demo.yaml.*execution.upsert-materialize: adaptive.threshold.low .* 40 and 30"
    ):
        layouts()


def test_changed_backend_uses_its_own_defaults(home, job_file):
    job_file("state: {backend: hashmap}\nexecution: {upsert-materialize: {adaptive.threshold.high: 350}}\n")
    assert load_job("demo").upsert_materialize("board").threshold_high == 350
    job_file("state: {backend: rocksdb}\nexecution: {upsert-materialize: {adaptive.threshold.high: 60}}\n")
    with pytest.raises(ConfigError, match=r"not 300 and 60 \(low: the default on hashmap\)"):
        load_job("demo").upsert_materialize("board", "hashmap")


def test_names_are_those_of_the_flip():
    assert KEYS == ["strategy", "adaptive.threshold.high", "adaptive.threshold.low"]


def test_schema_states_the_defaults():
    described = job_schema()["$defs"]["UpsertMaterializeConfig"]["properties"]
    for key, position in (("adaptive.threshold.high", 0), ("adaptive.threshold.low", 1)):
        rocksdb, other = DEFAULT_THRESHOLDS["rocksdb"][position], DEFAULT_THRESHOLDS["hashmap"][position]
        assert described[key]["description"].endswith(f" Default: {rocksdb} on rocksdb, else {other}.")
