"""An unknown operator name is an error that lists the known names."""

from __future__ import annotations

import pytest

from headrace.errors import ConfigError
from headrace.log.checkpoint import Kind
from headrace.readers import state as keyed_state
from headrace.readers.expired import expired_entries
from headrace.readers.history import key_history
from headrace.readers.state import largest_histories, rows_of_key
from headrace.readers.waiting import list_quarantine, list_requests, list_retries
from tests.unit.readers.opened_jobs import opened, values
from tests.unit.support.demo_job import entry

READERS = [
    lambda job, name: keyed_state.get(job, "N1", name),
    keyed_state.scan,
    lambda job, name: key_history(job, "N1", name),
    expired_entries,
    largest_histories,
    lambda job, name: rows_of_key(job, "N1", name),
    list_retries,
    list_requests,
    lambda job, name: list_quarantine(job, operator=name),
]


@pytest.mark.parametrize("read", READERS)
def test_unknown_operator_is_an_error_with_names(state, read):
    with pytest.raises(ConfigError, match=r"job 'demo' has no operator 'lags' \(it has: .*latest, legs\)"):
        read(opened(), "lags")


@pytest.mark.parametrize("read", READERS)
def test_declared_operator_may_have_no_rows(state, read):
    read(opened(), "legs")


@pytest.mark.slow
def test_operator_that_was_removed_stays_readable(state):
    state.add("keyed_state", [{**entry("N9", '"old"', 6), "operator": "former"}])
    state.commit(Kind.BATCH)
    assert values(keyed_state.get(opened(), "N9", "former")) == ['"old"']


@pytest.mark.slow
def test_without_the_pipeline_stored_operators_are_known(state, home):
    (home / "demo_cli_pipeline.py").write_text("import nothing_there")
    assert values(keyed_state.get(opened(), "N1", "legs")) == ['"LAX-SFO"']
    with pytest.raises(ConfigError, match=r"no operator 'lags' \(it has: latest, legs\)"):
        keyed_state.get(opened(), "N1", "lags")


def test_quarantine_of_a_source_is_listed_alone(state):
    assert len(list_quarantine(opened(), operator="events").rows) == 1
    assert list_quarantine(opened(), operator="legs").rows == []
