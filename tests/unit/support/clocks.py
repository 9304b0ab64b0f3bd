"""Use of a virtual clock for a part of a test."""

from __future__ import annotations

from contextlib import contextmanager

from headrace import clock


@contextmanager
def used_clock(virtual):
    """Make `virtual` the process's clock for the block, and put the former one back."""
    before = clock.use(virtual)
    try:
        yield
    finally:
        clock.use(before)
