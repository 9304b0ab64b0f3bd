"""Stop without waiting for everything (FLIP-425, "Faster Checkpoint Drain").

A run that has to end finishes requests in execution, and code that has begun. It holds records that have not begun, and
those that wait at a declared block: they are stored in `buffered_requests`, and resume in the next run.

    order      1  2  3  4  5 | W | 6  7
    begun      x  x     x
    at a block       x                    3 is held with its block, 5, 6 and 7 as they arrived; the cut is 3

Everything before the cut is finished. Records after it may be finished, too; but an operator that reads this one's
output in order can only proceed to the cut, and holds the rest in turn. The watermark W counts as not seen, and the
next run repeats it for all keys: a key that has passed it finds no due timers.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from operator import attrgetter
from typing import TypeVar

import msgspec

from headrace.execution.element import Element, RecordCodec, Watermark, before_watermark

E = TypeVar("E", bound="Element | BufferedRequest")

PROCESS = ""
"""Block id of a record that has not begun."""


class BufferedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A held record: the record as it arrived, and the block in which it resumes."""

    order: bytes
    timestamp: int
    kind: int
    key_json: bytes
    raw: bytes
    block_id: str = PROCESS
    state: str = ""
    """Name of the state whose value the block waits for."""
    index: int = 0
    """Number of its outputs so far."""
    input: int = 0
    """Number of the input that it came by."""


@dataclass(frozen=True, slots=True)
class Held:
    """Records that a task holds, in order. `cut` is the place up to which it is done; None if everything is done."""

    requests: list[BufferedRequest] = field(default_factory=list)
    cut: bytes | None = None

    @classmethod
    def of(cls, requests: Iterable[BufferedRequest], unseen: Iterable[Watermark], cut: bytes | None) -> Held:
        """Return the held records and the new cut: the earliest of `cut`, held records and unseen watermarks."""
        ordered = sorted(requests, key=lambda request: request.order)
        places = [request.order for request in ordered[:1]]
        places += [before_watermark(watermark) for watermark in unseen]
        places += [] if cut is None else [cut]
        return cls(ordered, min(places, default=None))


def as_it_came(element: Element, codec: RecordCodec) -> BufferedRequest:
    """Hold a record that has not begun. Raises `UserFunctionError` for one that cannot be stored."""
    order, timestamp, kind, key_json, _, input_ = element
    raw = codec.encode(element)
    return BufferedRequest(order=order, timestamp=timestamp, kind=kind, key_json=key_json, raw=raw, input=input_)


def at_block(element: Element, codec: RecordCodec, block_id: str, state: str, index: int) -> BufferedRequest:
    """Hold a record that waits at a block for the value of a state, and has emitted `index` outputs."""
    return msgspec.structs.replace(as_it_came(element, codec), block_id=block_id, state=state, index=index)


def element_of(request: BufferedRequest, codec: RecordCodec) -> Element:
    """Return the record of a held request.

    Raises `UserFunctionError` when it no longer fits its type, and `StateSchemaError` when its input no longer exists.
    """
    record = codec.decode(request.key_json, request.raw, request.input)
    return Element(request.order, request.timestamp, request.kind, request.key_json, record, request.input)


def held_as(record: Element | BufferedRequest, codec: RecordCodec) -> BufferedRequest:
    """Hold an element that was about to be processed."""
    return as_it_came(record, codec) if isinstance(record, Element) else record


def merged(
    batches: Iterable[Sequence[Element]], resumed: Sequence[Element | BufferedRequest]
) -> Iterator[list[Element | BufferedRequest]]:
    """Yield arriving, held and broadcast elements together, in order."""
    arriving: Iterator[Element | BufferedRequest] = chain.from_iterable(batches)
    in_order = heapq.merge(sorted(resumed, key=_order_of), arriving, key=_order_of)
    while chunk := list(islice(in_order, _MERGED_AT_ONCE)):
        yield chunk


def chunked(batches: Iterable[Sequence[E]], size: int) -> Iterator[Sequence[E]]:
    """Yield the elements in portions of at most `size`."""
    for batch in batches:
        for start in range(0, len(batch), size):
            yield batch[start : start + size]


def divided(
    batches: Iterable[Sequence[Element | BufferedRequest]], cut: bytes | None, codec: RecordCodec
) -> tuple[list[list[Element]], Held]:
    """Return the batches before the cut, and the held records, for an operator without blocks and watermarks."""
    taken: list[list[Element]] = []
    rest: list[BufferedRequest] = []
    for batch in batches:
        before_cut, beyond = split(batch, cut)
        taken.append([record if isinstance(record, Element) else element_of(record, codec) for record in before_cut])
        rest += [held_as(record, codec) for record in beyond]
    return taken, Held.of(rest, (), cut)


def split(elements: Sequence[E], cut: bytes | None) -> tuple[Sequence[E], Sequence[E]]:
    """Return the elements before the cut, and the others."""
    if cut is None or not elements or elements[-1].order < cut:
        return elements, ()
    place = next(index for index, element in enumerate(elements) if element.order >= cut)
    return elements[:place], elements[place:]


def seen_and_held(
    watermarks: Sequence[Watermark], cut: bytes | None
) -> tuple[Sequence[Watermark], Sequence[Watermark]]:
    """Return the watermarks that all tasks have processed when everything up to `cut` is done, and those that the next run repeats."""
    if cut is None:
        return watermarks, ()
    return tuple(w for w in watermarks if w.order <= cut), tuple(w for w in watermarks if w.order > cut)


_order_of = attrgetter("order")
_MERGED_AT_ONCE = 10_000
