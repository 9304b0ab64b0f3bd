"""Arrival order: the place of records, outputs, watermarks and timers, as bytes.

Bytes compare as the order does:

    record at ordinal 7                         00..07
    third output of that record                 00..07 00000002
    first output of *that* one downstream       00..07 00000002 00000000
    record 7 as the second use of its stream    00..07 01
    that record, broadcast, visits a key         00..07 00000000 <key> 00
    timer fired by the watermark after it       00..07 ff <time> <stage> <key> 00 [<namespace> 00]
    timer fired by the processing time of a     00..07 ff ff <micro-batch> <stage, from ff down> <time> <key> 00
      micro-batch whose first record is 8         [<namespace> 00]
    a watermark between ordinals 7 and 8        compares as ordinal 8, before any record of it

A stream that is used once adds nothing; each of several uses adds its number, so that records on both arms of a diamond
stay distinct where the arms meet again.

So an output sorts with its cause, whichever task made it, and the order downstream is as
deterministic as at the source, under any parallelism and any split into micro-batches. A watermark
that moves far equals many that move by a millisecond, each of which reaches an operator after all effects of
its timers upstream: hence timers sort by time, and those of one timestamp by stage. `caused_at` reads the time.

Processing time is read before a micro-batch begins, so an operator fires its own timers before it processes
the effects of those upstream: later stages come first. Only their numbers distinguish micro-batches
without records.
"""

from __future__ import annotations

import struct
from functools import lru_cache

_ORDINAL = struct.Struct(">Q")
_INDEX = struct.Struct(">I")
FIRST_OUTPUT = _INDEX.pack(0)
"""End of the place of an element's first output."""
END_OF_KEY = b"\x00"
"""End of the place of a timer without a namespace."""
_TIMER = struct.Struct(">QB")
_TICK = struct.Struct(">BQ")
_TIME = struct.Struct(">Q")
_BIAS = 1 << 63
_FIRST = _ORDINAL.pack(0)
"""Place of the first record, and of a watermark before it: nothing comes before them."""
_EDGES = tuple(bytes([edge]) for edge in range(256))
_LAST_STAGE = 0xFF
_AFTER_ALL_STAGES = b"\xff\xff"
_TIMERS_BEGIN = _ORDINAL.size
_TIME_BEGINS = _TIMERS_BEGIN + 1
CAUSE_SIZE = _TIME_BEGINS + _TIME.size
"""Number of first bytes of a place that `caused_at` reads."""
_MOST_DISTANT = 1 << 54
"""No timer is further from 1970 (ms, `LATEST_TIMER`); with a stage in place of its first byte, each time is."""


def record_order(ordinal: int) -> bytes:
    """Return the place of the record with this arrival ordinal, and of a watermark right before it."""
    return _ORDINAL.pack(ordinal)


def output_order(cause: bytes, index: int) -> bytes:
    """Return the place of the `index`-th output of the element at `cause`."""
    return cause + _INDEX.pack(index)


def visit_order(broadcast: bytes, key_json: bytes) -> bytes:
    """Return the place at which the broadcast record at `broadcast` visits a key. The record itself has no output."""
    return output_order(broadcast, 0) + _owner(key_json, "")


def edge_order(order: bytes, edge: int) -> bytes:
    """Return the place of the element at `order` in the `edge`-th use of its stream."""
    return order + _EDGES[edge]


def timer_order(watermark: bytes, timestamp: int, key_json: bytes, stage: int = 0, namespace: str = "") -> bytes:
    """Return the place of a timer that this watermark fires in the `stage`-th keyed operator of the pipeline.

    It is after everything before the watermark, and after all effects of timers for an earlier time, or for the same
    time in an earlier stage.
    """
    time = _TIMER.pack(timestamp + _BIAS, stage)
    return b"%b\xff%b%b" % (_last_before(watermark), time, _owner(key_json, namespace))


def outputs_of_timer(place: bytes, number: int) -> list[bytes]:
    """Return the places of the outputs of the timer at a place, of which there are `number`."""
    return [place + FIRST_OUTPUT] if number == 1 else [output_order(place, index) for index in range(number)]


def timers_begin(watermark: bytes, timestamp: int, stage: int) -> bytes:
    """Return how the places begin that `timer_order` gives to all timers of a time: the key and `END_OF_KEY` follow."""
    return timer_order(watermark, timestamp, b"", stage).removesuffix(END_OF_KEY)


def before_timers(watermark: bytes) -> bytes:
    """Return the place right before all timers fired by the watermark at this place, and after everything before it."""
    return _last_before(watermark) + b"\xfe" if watermark != _FIRST else b""


def behind_timers(watermark: bytes, timestamp: int) -> bytes:
    """Return the place right behind the timers up to `timestamp` (ms) that the watermark fires, and behind all their effects."""
    return _last_before(watermark) + b"\xff" + _TIME.pack(timestamp + 1 + _BIAS) if watermark != _FIRST else b""


def caused_at(order: bytes) -> int | None:
    """Return the time (ms) of the event-time timer that caused the element at this place; None if no such timer did."""
    if order[_TIMERS_BEGIN:_TIME_BEGINS] != b"\xff":
        return None
    (biased,) = _TIME.unpack_from(order, _TIME_BEGINS)
    timestamp: int = biased - _BIAS
    return timestamp if abs(timestamp) < _MOST_DISTANT else None


@lru_cache(maxsize=16)
def _last_before(watermark: bytes) -> bytes:
    """Return the place of the last record before a watermark, which fires many timers."""
    (ordinal,) = _ORDINAL.unpack_from(watermark)
    return _ORDINAL.pack(ordinal - 1)


def processing_time_order(ordinal: int, micro_batch: int) -> bytes:
    """Return the place before a micro-batch whose first record has, or would have, this ordinal.

    It is after all effects of earlier micro-batches, including the timers of their last watermark.
    """
    return _ORDINAL.pack(max(ordinal, 1) - 1) + _AFTER_ALL_STAGES + _ORDINAL.pack(micro_batch)


def processing_timer_order(
    processing_time: bytes, timestamp: int, key_json: bytes, stage: int = 0, namespace: str = ""
) -> bytes:
    """Return the place of a timer that fires at the processing time of this place in the `stage`-th keyed operator."""
    time = _TICK.pack(_LAST_STAGE - stage, timestamp + _BIAS)
    return b"%b%b%b" % (processing_time, time, _owner(key_json, namespace))


def _owner(key_json: bytes, namespace: str) -> bytes:
    # The index of an output follows. Its first byte is 0: less than that of any namespace.
    return b"%b\x00%b\x00" % (key_json, namespace.encode()) if namespace else key_json + END_OF_KEY
