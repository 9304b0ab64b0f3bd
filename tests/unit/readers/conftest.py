"""The demonstration job, and the command."""

from __future__ import annotations

from tests.unit.support.demo_job import at_nine, headrace, home, state

__all__ = ["at_nine", "headrace", "home", "state"]
