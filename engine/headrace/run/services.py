"""Kept responses of the live lineage, which the runs of a branch take."""

from __future__ import annotations

import msgspec

from headrace.config import JobConfig
from headrace.log.log import CheckpointLog
from headrace.tables.folder import JobFolder
from headrace.tables.schemas import ANSWERS


class LiveAnswers(msgspec.Struct, frozen=True, kw_only=True):
    """Where a branch finds the kept answers of its job, and for which services it takes them."""

    folder: JobFolder
    version: int | None
    """Version of the table of answers; None if the job has none."""

    services: tuple[str, ...]
    """Services whose answers are taken."""

    never_called: tuple[str, ...] = ()
    """Those of them that must not be called for an element without answer."""


def live_answers(config: JobConfig, *, allow_effects: bool = False) -> LiveAnswers | None:
    """Return the answers for the runs of a branch, as of the job's last checkpoint; None on the job itself, or if none are taken."""
    services = tuple(name for name, service in config.services.items() if service.takes_answers)
    if config.branch is None or not services:
        return None
    folder = JobFolder.of(config.itself)
    last = CheckpointLog(folder).last
    return LiveAnswers(
        folder=folder,
        version=None if last is None else last.versions.get(ANSWERS),
        services=services,
        never_called=() if allow_effects else tuple(name for name in services if config.services[name].effects),
    )
