"""Simulated world: what it does about a thread that it cannot let go on."""

from __future__ import annotations

import threading

import pytest

from tests.simulation import world
from tests.simulation.world import World


def test_wait_for_unknown_lock_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that the world does not know would let the whole test wait for ever."""
    monkeypatch.setattr(world, "LONGEST_WORK", 0.2)
    simulated, lock = World(1), threading.Lock()

    def hold_meanwhile() -> None:
        with lock:
            for _ in range(50):
                simulated.step()

    simulated.start("first", hold_meanwhile)
    simulated.start("second", hold_meanwhile)

    with pytest.raises(AssertionError, match=r"(?s)a thread of (first|second) waits .*in hold_meanwhile"):
        simulated.run()
