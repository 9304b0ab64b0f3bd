"""Kept responses of the live lineage, which the runs of a branch take."""

from __future__ import annotations

import msgspec

from headrace.config import JobConfig
from headrace.log.log import CheckpointLog
from headrace.tables.folder import JobFolder
from headrace.tables.schemas import RESPONSES


class LiveResponses(msgspec.Struct, frozen=True, kw_only=True):
    """Where a branch finds the kept responses of its job, and for which services it takes them."""

    folder: JobFolder
    version: int | None
    """Version of the table of responses; None if the job has none."""

    services: tuple[str, ...]
    """Services whose responses are taken."""

    never_called: tuple[str, ...] = ()
    """Those of them that must not be called for an element without response."""


def live_responses(config: JobConfig, *, allow_effects: bool = False) -> LiveResponses | None:
    """Return the responses for the runs of a branch, as of the job's last checkpoint; None on the job itself, or if none are taken."""
    services = tuple(name for name, service in config.services.items() if service.takes_responses)
    if config.branch is None or not services:
        return None
    folder = JobFolder.of(config.itself)
    last = CheckpointLog(folder).last
    return LiveResponses(
        folder=folder,
        version=None if last is None else last.versions.get(RESPONSES),
        services=services,
        never_called=() if allow_effects else tuple(name for name in services if config.services[name].effects),
    )
