"""Syncing that does not wait: what a test writes need not outlive it."""

from __future__ import annotations

import os
from contextlib import contextmanager
from unittest import mock

from headrace.storage import schemes as durability


def _opened_in_turn(paths):
    for path in paths:
        durability.sync_path(path)


def _no_wait(_descriptor):
    """Do nothing in place of fsync."""


@contextmanager
def without_waiting():
    """Open each file that is synced, one after the other, but do not wait for the disk."""
    with mock.patch.object(durability, "_sync_all", _opened_in_turn), mock.patch.object(os, "fsync", _no_wait):
        yield
