"""Arrival order: the place of records, outputs, watermarks and timers, as bytes.

Bytes compare as the order does:

    record at ordinal 7                         00..07
    third output of that record                 00..07 00000002
    first output of *that* one downstream       00..07 00000002 00000000
    record 7 as the second use of its stream    00..07 01
    timer fired by the watermark after it       00..07 ff <stage> <time> <key> 00 [<namespace> 00]
    timer fired by the processing time of a     00..07 ff ff <micro-batch> <stage, from ff down> <time> <key> 00
      micro-batch whose first record is 8         [<namespace> 00]
    a watermark between ordinals 7 and 8        compares as ordinal 8, before any record of it

A stream that is used once adds nothing; each of several uses adds its number, so that records on both arms of a diamond
stay distinct where the arms meet again.

So an output sorts with its cause, whichever task made it, and the order downstream is as
deterministic as at the source, under any parallelism and any split into micro-batches. A watermark
reaches an operator after all effects of its timers upstream: hence timers sort by stage first.
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
_TIMER = struct.Struct(">BQ")
_BIAS = 1 << 63
_EDGES = tuple(bytes([edge]) for edge in range(256))
_LAST_STAGE = 0xFF
_AFTER_ALL_STAGES = b"\xff\xff"


def record_order(ordinal: int) -> bytes:
    """Return the place of the record with this arrival ordinal, and of a watermark right before it."""
    return _ORDINAL.pack(ordinal)


def output_order(cause: bytes, index: int) -> bytes:
    """Return the place of the `index`-th output of the element at `cause`."""
    return cause + _INDEX.pack(index)


def edge_order(order: bytes, edge: int) -> bytes:
    """Return the place of the element at `order` in the `edge`-th use of its stream."""
    return order + _EDGES[edge]


def timer_order(watermark: bytes, timestamp: int, key_json: bytes, stage: int = 0, namespace: str = "") -> bytes:
    """Return the place of a timer that this watermark fires in the `stage`-th keyed operator of the pipeline.

    It is after everything before the watermark, including timers of earlier stages and their effects.
    """
    time = _TIMER.pack(stage, timestamp + _BIAS)
    return b"%b\xff%b%b" % (_last_before(watermark), time, _owner(key_json, namespace))


def before_timers(watermark: bytes) -> bytes:
    """Return the place right before all timers fired by the watermark at this place, and after everything before it."""
    return _last_before(watermark) + b"\xfe"


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
    time = _TIMER.pack(_LAST_STAGE - stage, timestamp + _BIAS)
    return b"%b%b%b" % (processing_time, time, _owner(key_json, namespace))


def _owner(key_json: bytes, namespace: str) -> bytes:
    # The index of an output follows. Its first byte is 0: less than that of any namespace.
    return b"%b\x00%b\x00" % (key_json, namespace.encode()) if namespace else key_json + b"\x00"
