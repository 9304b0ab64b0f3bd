"""When a task has to stop."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from headrace import clock
from headrace.run.watch import StopSign
from headrace.storage.files import Files
from headrace.storage.storage import Storage


@pytest.fixture
def at_zero():
    virtual = clock.VirtualClock()
    with clock.installed(virtual):
        yield virtual


def sign(stop_at=None, folder=""):
    batch = SimpleNamespace(folder=Storage(str(folder)))
    return StopSign(SimpleNamespace(stop_at=stop_at, stop_file="stop" if folder else None, batch=batch))


def test_stop_sign_is_set_from_its_time(at_zero):
    stop = sign(stop_at=100)
    at_zero.advance(99)
    assert not stop()
    at_zero.advance(1)
    assert stop()


def test_stop_sign_checks_file_once_per_second(at_zero, tmp_path):
    stop = sign(folder=tmp_path)
    assert not stop()
    (tmp_path / "stop").touch()
    assert not stop()
    at_zero.advance(1000)
    assert stop()


def test_unanswering_store_neither_stops_nor_fails_task(at_zero, tmp_path, monkeypatch):
    stop = sign(stop_at=5000, folder=tmp_path)
    (tmp_path / "stop").touch()

    def refuse(*_):
        raise OSError("503 Slow Down")

    with monkeypatch.context() as patched:
        patched.setattr(Files, "file_system", refuse)
        assert not stop()
    at_zero.advance(1000)
    assert stop()
