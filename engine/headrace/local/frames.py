"""Messages between a run and its workers: a length, then that many bytes of JSON."""

from __future__ import annotations

from typing import BinaryIO, Final

import msgspec

from headrace.spark.reports import TaskReport

_LENGTH: Final = 4
"""Number of bytes of a frame's length, big-endian."""


class SourceWork(msgspec.Struct, frozen=True, tag="source"):
    """One task of a source's stage; `task` is a `SourceTask`."""

    stage: str
    number: int
    task: msgspec.Raw


class KeyedWork(msgspec.Struct, frozen=True, tag="keyed"):
    """One task of a keyed stage; `task` is a `KeyedTask`, `transit` has the files that the stage reads."""

    stage: str
    number: int
    task: msgspec.Raw
    transit: tuple[str, ...]


Work = SourceWork | KeyedWork

encode_work = msgspec.json.encode
decode_work = msgspec.json.Decoder(SourceWork | KeyedWork).decode
encode_answer = msgspec.json.encode
decode_answer = msgspec.json.Decoder(TaskReport).decode


def write_frame(stream: BinaryIO, content: bytes) -> None:
    """Write a message. Raises `OSError` when the other side is gone."""
    stream.write(len(content).to_bytes(_LENGTH, "big") + content)
    stream.flush()


def read_frame(stream: BinaryIO) -> bytes | None:
    """Return the next message; None when the other side is gone."""
    header = stream.read(_LENGTH)
    size = int.from_bytes(header, "big")
    content = stream.read(size)
    return content if len(header) == _LENGTH and len(content) == size else None
