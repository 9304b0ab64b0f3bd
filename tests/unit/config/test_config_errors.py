"""Refused files: the message names file, line, key and advice."""

from __future__ import annotations

import pytest

from headrace.config import load_cluster, load_job
from headrace.errors import ConfigError

# Text that is appended to a valid file (whose last line is 9), and words that the message must contain.
MISTAKES = {
    "an unknown key": ("retentoin: {hours: 1}\n", ["demo.yaml:10", "retentoin", "did you mean 'retention'?"]),
    "an unknown key below": ("run:\n  buget: 3m\n", ["demo.yaml:11", "run.buget", "'budget'", "allowed: budget"]),
    "a duplicate key": ("owner: a\nowner: b\n", ["demo.yaml:11", "owner", "already given on line 10"]),
    "a wrong type": ("max_parallelism: many\n", ["demo.yaml:10", "max_parallelism", "a whole number", "(many)"]),
    "a number in quotes": ('max_parallelism: "8"\n', ["a whole number", "text (8)"]),
    "a number for a text": ("owner: 12\n", ["owner", 'write it in quotes: "12"']),
    "a value out of range": ("max_parallelism: 0\n", ["'0' is out of range: it must be >= 1"]),
    "a choice": ("mode: interwal\n", ["mode", "did you mean 'interval'?", "allowed: caught_up, interval"]),
    "a mapping expected": ("run: fast\n", ["run: expected a mapping", "text (fast)"]),
    "a list expected": ("tags: demo\n", ["tags: expected a list"]),
    "nothing given": ("state:\n", ["state: expected a mapping", "got nothing"]),
    "a bad duration": ("run: {budget: 3 parsecs}\n", ["run.budget", "such as 30m", "'3 parsecs'"]),
    "a negative duration": ("run: {budget: -5}\n", ["run.budget", "'-5'"]),
    "no time": ("run: {budget: 0}\n", ["run.budget", "at least 1s"]),
    "a short lease": ("run: {lease: 1s}\n", ["run.lease", "5s"]),
    "a bad identifier": ("services: {The Weather: {url: 'http://x'}}\n", ["services.The Weather", "lower-case"]),
    "a password": ("services: {w: {url: 'http://me:pw@x'}}\n", ["services.w.url", "environment"]),
    "a URL of another kind": ("services: {w: {url: 'file:///etc/passwd'}}\n", ["services.w.url", "http://127"]),
    "no URL at all": ("services: {w: {url: 'http://[x?key=hush'}}\n", ["services.w.url", "this is no URL"]),
    "no time to keep answers": (
        "services: {w: {url: 'http://x', keep_responses: 0}}\n",
        ["services.w.keep_responses", "90d"],
    ),
    "no responses to take": (
        "services: {w: {url: 'http://x', replay: responses}}\n",
        ["services.w.replay", "keep_responses"],
    ),
    "no kind of replay": ("services: {w: {url: 'http://x', replay: no}}\n", ["services.w.replay"]),
    "a bad cron": ("schedule: {cron: daily, start: 2026-01-01}\n", ["schedule.cron", "five fields"]),
    "a bad time zone": ("schedule: {cron: '@daily', start: 2026-01-01, timezone: Mars}\n", ["no time zone 'Mars'"]),
    "a bad date": ("schedule: {cron: '@daily', start: soon}\n", ["schedule.start", "such as 2026-01-31", "soon"]),
    "partitions of no intervals": (
        "schedule: {cron: '@daily', start: 2026-01-01, after: [a.b]}\n",
        ["schedule.after", "needs mode 'interval'"],
    ),
    "partitions of two starters": (
        "schedule: {cron: '@daily', start: 2026-01-01, after: [a.b], automatic: false}\n",
        ["schedule.automatic", "it is the assets that start runs"],
    ),
    "partitions that would be filled": (
        "run: {gaps: fill}\nschedule: {cron: '@daily', start: 2026-01-01, after: [a.b]}\n",
        ["run.gaps", "runs wait for it"],
    ),
    "partitions of one asset twice": (
        "schedule: {cron: '@daily', start: 2026-01-01, after: [a.b, a.b]}\n",
        ["schedule.after", "each once"],
    ),
    "hours that come twice": (
        "schedule: {cron: '@hourly', start: 2026-01-01, after: [a.b], timezone: Europe/Berlin}\n",
        ["schedule.after", "the same hour is two partitions"],
    ),
    "a missing key": ("schedule: {cron: '@daily'}\n", ["schedule.start: this key is missing"]),
    "little memory": ("max_memory: 1000\n", ["demo.yaml:10", "max_memory", "it must be >= 16777216"]),
    "memory with a unit": ("max_memory: 1 GB\n", ["demo.yaml:10", "max_memory", "a whole number", "(1 GB)"]),
    "too many tasks": ("max_parallelism: 4\nparallelism: 5\n", ["demo.yaml:11", "parallelism", "(4) key groups"]),
    "far too many tasks": ("max_parallelism: 100000\nparallelism: 100000\n", ["demo.yaml:11", "<= 32768"]),
    "an interval without pattern": ("mode: interval\n", ["sources.events", "'interval', the pattern"]),
    "a variable that is not set": ("owner: ${NOBODY_SET_THIS}\n", ["NOBODY_SET_THIS is not set", ":-..."]),
    "a malformed reference": ("owner: ${NOT-THIS}\n", ["'${NOT-THIS}' is not a reference"]),
    "an unknown option": (
        "execution: {async-state: {bufer-size: 3}}\n",
        ["demo.yaml:10: execution.async-state.bufer-size", "did you mean 'buffer-size'?", "event-order.watermark"],
    ),
    "a python spelling": ("execution: {async_state: {}}\n", ["execution.async_state: unknown key", "'async-state'"]),
    "a misspelt order": (
        "execution:\n  async-state: {event-order.watermark: strict}\n",
        ["demo.yaml:11: execution.async-state.event-order.watermark", "allowed: out-of-order, strictly-ordered"],
    ),
    "an order that is no text": (
        "execution: {async-state: {order-with-same-key: [1]}}\n",
        ["expected one of record-ordered, state-ordered, got a list"],
    ),
    "an override out of range": (
        "operators:\n  legs:\n    execution:\n      async-state: {buffer-size: 0}\n",
        ["demo.yaml:13: operators.legs.execution.async-state.buffer-size", "'0' is out of range: it must be >= 1"],
    ),
    "a merge key": ("run:\n  <<: {budget: 1m}\n", ["demo.yaml:11", "a key must be text, got a merge key"]),
    "no YAML": ("run: [\n", ["demo.yaml:", "not valid YAML"]),
    "tab": ("run:\n\tbudget: 5m\n", ["demo.yaml:", "a tab begins here, and YAML is indented with spaces"]),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_is_named_with_its_place(home, job_file, mistake):
    added, expected = MISTAKES[mistake]
    job_file(added)
    with pytest.raises(ConfigError) as error:
        load_job("demo")
    assert [part for part in expected if part not in str(error.value)] == []


def test_all_problems_are_reported_at_once(home, job_file):
    job_file("moed: interval\nparalelism: 2\nrun: {retries: -1}\n")
    with pytest.raises(ConfigError, match="has 3 problems") as error:
        load_job("demo")
    assert [f"demo.yaml:{line}" in str(error.value) for line in (10, 11, 12)] == [True] * 3


def test_name_in_file_must_match_file_name(home, job_file):
    job_file(replace=("job: demo", "job: other"))
    with pytest.raises(ConfigError, match="'other' must be the file's own name, 'demo'"):
        load_job("demo")


def test_two_sinks_cannot_share_a_table(home, job_file):
    job_file("  again:\n    path: s3://lake/board\n    mode: append\n")
    with pytest.raises(ConfigError, match=r"sinks.again.path: sink 'board' writes to the same table"):
        load_job("demo")


@pytest.mark.parametrize("text", ["", "- a\n", "just words\n"])
def test_file_must_be_a_mapping(home, text):
    (home / "conf/jobs/demo.yaml").write_text(text)
    with pytest.raises(ConfigError, match="expected a mapping"):
        load_job("demo")


@pytest.mark.parametrize("value", ["hunter2", "${TOKEN:-hunter2}", "x${TOKEN}", "1234"])
def test_secret_is_never_written_down(home, value):
    text = f"master: m\nparallelism: 1\nstorage:\n  AWS_SECRET_ACCESS_KEY: {value}\n"
    (home / "conf/clusters/local.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"local.yaml:4: .*environment") as error:
        load_cluster("local")
    assert value not in str(error.value)


def test_secret_under_unknown_key_is_never_printed(home, job_file):
    job_file("password: hunter2\n")
    with pytest.raises(ConfigError, match=r"password: secrets are never") as error:
        load_job("demo")
    assert "hunter2" not in str(error.value)


def test_cluster_takes_exactly_its_keys(home):
    (home / "conf/clusters/local.yaml").write_text("master: m\nparallelism: 1\ncores: 3\n")
    with pytest.raises(ConfigError, match=r"local.yaml:3: cores: unknown key .*allowed: master, parallelism"):
        load_cluster("local")


def test_unknown_cluster_error_names_known_ones(home):
    with pytest.raises(ConfigError, match=r"unknown cluster 'moon' \(known: local\)"):
        load_job("demo", cluster="moon")
