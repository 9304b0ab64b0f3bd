"""Epochs as such; with records and timers in them, see test_controller.py and test_async_process.py."""

from __future__ import annotations

import pytest

from headrace.execution.epoch import EpochManager, EpochStatus


class Epochs(EpochManager):
    """Logs how each epoch ends."""

    def __init__(self):
        super().__init__()
        self.log = []

    def end(self, name, trigger=None):
        """End the open epoch with an event other than a record; return it."""
        epoch = self.open
        self.on_non_record(trigger or (lambda _: self.log.append(f"{name} triggers")), lambda: self.log.append(name))
        return epoch


@pytest.fixture
def epochs():
    return Epochs()


def test_first_epoch_is_open_at_start(epochs):
    assert (epochs.open.status, len(epochs), epochs.is_idle, epochs.can_advance) == (EpochStatus.OPEN, 1, True, False)


def test_epoch_without_records_is_done_at_once(epochs):
    epochs.end("w1")
    assert epochs.can_advance
    epochs.advance()
    assert (epochs.log, epochs.is_idle) == (["w1 triggers", "w1"], True)


#    records  x    | y            x is at work when w1 arrives, y is done before x
#    epochs   1    | 2 (open)


def test_epoch_is_open_then_closed_then_finished(epochs):
    seen = []
    first = epochs.open
    first.ongoing += 1
    seen.append(first.status)
    epochs.end("w1", trigger=lambda epoch: seen.append(epoch.status))
    seen.append(first.status)
    assert not epochs.can_advance
    first.ongoing -= 1
    epochs.advance()
    assert seen == [EpochStatus.OPEN, EpochStatus.CLOSED, EpochStatus.FINISHED]


def test_watermark_waits_for_all_epochs_before_it(epochs):
    first = epochs.open
    first.ongoing += 1
    epochs.end("w1")
    epochs.end("w2")
    assert (epochs.can_advance, len(epochs)) == (False, 3)
    first.ongoing -= 1
    epochs.advance()
    assert epochs.log == ["w1 triggers", "w1", "w2 triggers", "w2"]


def test_work_of_a_watermark_belongs_to_its_epoch(epochs):
    def fire_a_timer(epoch):
        epoch.ongoing += 1

    first = epochs.end("w1", trigger=fire_a_timer)
    epochs.end("w2")
    epochs.advance()
    assert (first.status, epochs.log, len(epochs)) == (EpochStatus.FINISHED, [], 3)
    first.ongoing -= 1
    epochs.advance()
    assert epochs.log == ["w1", "w2 triggers", "w2"]


def test_watermark_work_does_not_advance_epochs_itself(epochs):
    epochs.end("w1", trigger=lambda _: epochs.log.append(f"can advance: {epochs.can_advance}"))
    epochs.advance()
    assert epochs.log == ["can advance: False", "w1"]
