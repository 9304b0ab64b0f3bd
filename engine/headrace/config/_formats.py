"""Rules that settings of sources and of sinks share: keys that only some formats have, and topics."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from typing import Any, Final, Protocol

import msgspec

from headrace.config._cluster import HIDDEN

Problem = tuple[str, str]
"""A key of a source or a sink, and the problem with it."""


class Format(Protocol):
    """Format of a source or a sink."""

    @property
    def name(self) -> str:
        """Name of the format in the job's file."""
        ...

    @property
    def keys(self) -> Collection[str]:
        """Keys that it has, and some other format lacks."""
        ...


def foreign_keys(kind: Format, kinds: Iterable[Format]) -> dict[str, list[str]]:
    """Return the keys that a format lacks, each with the names of the formats that have it."""
    owners: dict[str, list[str]] = {}
    for other in kinds:
        for key in other.keys:
            owners.setdefault(key, []).append(other.name)
    return {key: names for key, names in owners.items() if key not in kind.keys}


def topic_place(topic: str | None, servers: str | None) -> str:
    """Return the place of a topic, for messages."""
    return f"topic {topic} at {servers}"


def client_problems(topic: str | None, options: Iterable[str], own: Collection[str]) -> Iterator[Problem]:
    """Yield what is wrong with the name of a topic, and with settings of a client of Kafka; the engine sets its `own`."""
    if topic and not _TOPIC.fullmatch(topic):
        yield "topic", f"'{topic}' is no topic's name: letters, digits, '.', '_' and '-', 249 at most"
    for option in options:
        if not option.startswith("kafka.") or option in own:
            rule = "the engine sets it" if option in own else "write settings of Kafka's clients, as kafka.NAME"
            yield f"options.{option}", f"this cannot be set here: {rule}"


def without_settings(config: Any) -> dict[str, Any]:
    """Return the settings of a source or a sink for printing, without the values of its client's settings."""
    plain: dict[str, Any] = msgspec.to_builtins(config, enc_hook=str)
    registry = getattr(config, "registry", None)
    secret = {} if registry is None else {"registry": registry.shown()}
    return plain | {"options": dict.fromkeys(config.options, HIDDEN)} | secret


_TOPIC: Final = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")
