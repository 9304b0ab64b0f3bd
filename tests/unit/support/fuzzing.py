"""How many examples a fuzz test or a slow property draws; HEADRACE_EXAMPLES times as many in a long search."""

from __future__ import annotations

import os

import hypothesis

FACTOR = int(os.environ.get("HEADRACE_EXAMPLES", "1"))


def examples(count: int) -> hypothesis.settings:
    """Return settings of a test that draws `count` examples by default."""
    return hypothesis.settings(max_examples=count * FACTOR, suppress_health_check=list(hypothesis.HealthCheck))
