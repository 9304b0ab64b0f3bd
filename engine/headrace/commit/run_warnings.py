"""Warnings of a run: facts that somebody has to know although the run succeeded, and the same facts for `headrace status`.

A run collects them in its report, from where they reach the log, the asset events, and the WARNING of a degraded run.
`headrace status` derives them from the job's checkpoints.
"""

from __future__ import annotations

from typing import Any

import msgspec


class RunWarning(msgspec.Struct, frozen=True):
    """Fact that does not fail a run: its kind, one sentence without a full stop, and its values."""

    kind: str
    message: str
    fields: dict[str, Any] = {}
