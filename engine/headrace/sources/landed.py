"""Landed files that a position still needs. Their names alone say which rows they have."""

from __future__ import annotations

from urllib.parse import unquote

from headrace.sources.kafka.landed import LandedName, digest_of, parse_landed
from headrace.sources.position import SourceFacts, TopicPosition, stored_name
from headrace.sources.transformed.source import landed_file


def names_of(file: str) -> set[str]:
    """Return the names of the landed files that hold the rows of a source's file, or what these were made of."""
    stored = stored_name(file)
    return {stored, file if stored == file else landed_file(file)}


def comes_after(name: str, facts: SourceFacts) -> bool:
    """Return whether the rows of a landed file come after the position in their source or partition."""
    stored = unquote(stored_name(name))
    landed = parse_landed(stored)
    if landed is None:
        return stored != name and stored > facts.last
    if facts.position_as(TopicPosition) is None or not _is_of_topic(landed, facts):
        return False
    partition = facts.partitions.get(landed.range.partition)
    return landed.range.first >= (0 if partition is None else partition.next)


def has_unread_messages(name: str, facts: SourceFacts) -> bool:
    """Return whether a landed file has messages that are read from the position in `facts` on."""
    landed = parse_landed(name)
    if landed is None or not _is_of_topic(landed, facts):
        return False
    partition = facts.partitions.get(landed.range.partition)
    return landed.range.end > (0 if partition is None else partition.read_up_to)


def _is_of_topic(landed: LandedName, facts: SourceFacts) -> bool:
    """Return whether a landed file is of the topic that was read; also where none was read yet."""
    topic = facts.position_as(TopicPosition)
    return topic is None or digest_of(topic.topic_id) == landed.topic_id
