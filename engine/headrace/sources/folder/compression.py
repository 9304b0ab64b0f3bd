"""Compression of whole files, told by the ending of a file's name: gzip, zstd and bzip2.

A packed file may consist of several members, as `cat a.gz b.gz` and parallel packers write them: all of them are read. A file
that ends within a member, or in which something else follows one, is damaged, so that no reader takes a part for the whole.
"""

from __future__ import annotations

import bz2
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Final

import pyarrow as pa

PACKERS: Final = {".gz": "gzip", ".zst": "zstd", ".bz2": "bzip2"}
"""Programs that pack files, by the endings that they add to names."""
UNPACKING_ERRORS: Final = (OSError, EOFError, zlib.error, pa.ArrowException)
"""Errors of packed bytes that are damaged."""

_CHUNK: Final = 1 << 16
_GZIP: Final = 16
"""What zlib adds to the size of its window for the format of gzip."""


def packed_too(*suffixes: str) -> tuple[str, ...]:
    """Return endings of names, and those of the same files packed."""
    return (*suffixes, *(f"{suffix}{ending}" for ending in PACKERS for suffix in suffixes))


def packer_of(name: str) -> str | None:
    """Return the program that packed a file of this name; None for a file that is not packed."""
    return next((packer for ending, packer in PACKERS.items() if name.lower().endswith(ending)), None)


def unpacked_parts(content: bytes, packer: str) -> Iterator[bytes]:
    """Yield the unpacked bytes in parts. Raises one of `UNPACKING_ERRORS`, after the parts before the damage."""
    if not content:
        msg = "it has no bytes, and a packed file has some"
        raise EOFError(msg)
    return _frames(content) if packer == "zstd" else _members(content, _MEMBERS[packer])


def _frames(content: bytes) -> Iterator[bytes]:
    with pa.CompressedInputStream(pa.BufferReader(content), "zstd") as stream:
        while part := stream.read(_CHUNK):
            yield part


def _members(content: bytes, member_of: Callable[[], Any]) -> Iterator[bytes]:
    """Yield the parts of members; zeros behind one are padding, as tapes have it.

    The functions of `gzip` and `bz2` copy the rest of the content for each member, and that of `bz2` passes over damaged members.
    """
    member = member_of()
    for start in range(0, len(content), _CHUNK):
        data = content[start : start + _CHUNK]
        while data:
            if member.eof:
                if not (data := data.lstrip(b"\0")):
                    break
                member = member_of()
            yield member.decompress(data)
            data = member.unused_data
    if not member.eof:
        msg = "it ends within its packed bytes"
        raise EOFError(msg)


_MEMBERS: Final[dict[str, Callable[[], Any]]] = {
    "gzip": lambda: zlib.decompressobj(zlib.MAX_WBITS | _GZIP),
    "bzip2": bz2.BZ2Decompressor,
}
