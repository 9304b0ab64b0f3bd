"""The number of examples of a fuzz test or a slow property; HEADRACE_EXAMPLES multiplies it: 4 for a long search, 0.5 in `.ci/run`."""

from __future__ import annotations

import os

import hypothesis

FACTOR = float(os.environ.get("HEADRACE_EXAMPLES", "1"))


def examples(count: int) -> hypothesis.settings:
    """Return settings of a test that draws `count` examples by default."""
    return hypothesis.settings(max_examples=round(count * FACTOR) or 1, suppress_health_check=[*hypothesis.HealthCheck])
