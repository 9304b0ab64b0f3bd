"""Files of a folder in the order of first listing: the generation of each, and those that have to wait for theirs.

    files of a generation    in the order of their names; those that were removed meanwhile are passed over
    new files                begin the next generation, once all files of the present one are taken up
    taken in before          in no generation any more: a file that comes back under its name is not taken in again
    missed                   a file that was not there when its generation was taken up is new when it comes back

A slice that repeats a recorded micro-batch begins no generation: it has the files that its job had seen.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from headrace.config import SourceConfig
from headrace.sources.generations import Generation, generation_at, name_at
from headrace.sources.position import FolderPosition, SourceFacts, digest
from headrace.sources.source import SourceFile, TakenIn, Want


@dataclass(frozen=True, slots=True)
class PlacedFiles:
    """Files of a folder that are begun or ahead of a position, in order; `seen` is the generation that begins now."""

    files: tuple[SourceFile, ...]
    seen: Generation | None = None
    has_waiting: bool = False
    """True: new files wait for the end of the present generation."""


def placed_files(listed: Iterable[SourceFile], since: SourceFacts, want: Want) -> PlacedFiles:
    """Return the files of a listing that are begun in `since`, or not taken in by then, with their generations."""
    begun = {name_at(place): generation_at(place) for place in since.begun}
    placed: list[SourceFile] = []
    new: list[SourceFile] = []
    for file in _not_taken(listed, want.taken_in, begun):
        number = begun.get(file.name) or want.taken_in.generations.get(digest(file.name), 0)
        own = file._replace(generation=number)
        is_ahead = number > 0 and own.place > since.last
        (placed if is_ahead or file.name in begun else new).append(own)
    if want.until is not None or not new:
        return PlacedFiles(_in_order(placed))
    if any(file.place > since.last for file in placed):
        return PlacedFiles(_in_order(placed), has_waiting=True)
    number = _last_generation(since, want.taken_in) + 1
    seen = Generation(number, tuple(sorted(digest(file.name) for file in new)))
    return PlacedFiles(_in_order([*placed, *(file._replace(generation=number) for file in new)]), seen)


def order_problem(name: str, config: SourceConfig, since: SourceFacts) -> str | None:
    """Return why a run cannot go on after a position: the files up to there were taken in in the other order. None if it can."""
    position = since.position_as(FolderPosition)
    former = "first_seen" if position is not None and position.generation else "name"
    if position is None or not position.last or former == config.order:
        return None
    return (
        f"source '{name}' has read its files in the order '{former}' up to {position.reached}, and the job's file says order: {config.order} now, "
        f"in which this position has no meaning. Nothing was taken in. Write sources.{name}.order: {former} again, or begin a new job."
    )


def _not_taken(listed: Iterable[SourceFile], taken_in: TakenIn, begun: Mapping[str, int]) -> Iterable[SourceFile]:
    taken: Collection[str] = taken_in.names or frozenset()
    return (file for file in listed if file.name in begun or digest(file.name) not in taken)


def _last_generation(since: SourceFacts, taken_in: TakenIn) -> int:
    reached = generation_at(since.last) if since.last else 0
    return max([reached, *taken_in.generations.values()])


def _in_order(files: Sequence[SourceFile]) -> tuple[SourceFile, ...]:
    return tuple(sorted(files, key=lambda file: file.place))
