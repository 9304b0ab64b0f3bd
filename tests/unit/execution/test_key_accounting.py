from __future__ import annotations

import pytest

from headrace.execution.key_accounting import KeyAccountingUnit
from headrace.execution.record_context import RecordContext


@pytest.fixture
def keys():
    return KeyAccountingUnit()


@pytest.fixture
def records():
    """Three records of one key, and one of another."""
    return [RecordContext(key, None) for key in (b"1", b"1", b"1", b"2")]


def owners(records):
    return [record.owns_key for record in records]


def test_free_key_is_taken(keys, records):
    assert keys.occupy(records[0])
    assert (len(keys), owners(records)) == (1, [True, False, False, False])


def test_occupied_key_is_refused_to_another_record(keys, records):
    keys.occupy(records[0])
    assert not keys.occupy(records[1])
    assert owners(records) == [True, False, False, False]


def test_record_may_take_its_key_again(keys, records):
    assert [keys.occupy(records[0]), keys.occupy(records[0])] == [True, True]
    keys.release(records[0])
    assert len(keys) == 0


def test_keys_do_not_disturb_each_other(keys, records):
    keys.occupy(records[0])
    assert keys.occupy(records[3])
    keys.release(records[0])
    assert owners(records) == [False, False, False, True]


def test_released_key_is_free(keys, records):
    keys.occupy(records[0])
    keys.release(records[0])
    assert keys.occupy(records[1])
    assert owners(records) == [False, True, False, False]


def test_passed_on_key_is_never_free(keys, records):
    keys.occupy(records[0])
    keys.pass_on(records[0], records[1])
    assert owners(records) == [False, True, False, False]
    assert not keys.occupy(records[2])


def test_any_running_record_can_be_returned(keys, records):
    assert keys.any() is None
    keys.occupy(records[3])
    assert keys.any() is records[3]
