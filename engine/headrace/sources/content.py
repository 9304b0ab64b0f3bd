"""Digest of a file's content, by which a later run tells a corrected file from one that was only touched or copied."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import blake2b
from typing import Final

from headrace.tables.files import Storage, file_system

UNKNOWN: Final = ""
"""Digest of content that nobody has read, or that cannot be read."""

_CHUNK: Final = 1 << 20
_READERS: Final = 8


def content_digest(uri: str, storage: Storage = None) -> str:
    """Return the digest of a file's content; UNKNOWN if it cannot be read. Reads the whole file, at about 1 GB/s from a local disk."""
    store, path = file_system(uri, storage)
    digest = blake2b(digest_size=8)
    try:
        with store.open_input_stream(path) as content:
            while chunk := content.read(_CHUNK):
                digest.update(chunk)
    except OSError:
        return UNKNOWN
    return digest.hexdigest()


def content_digests(uris: Sequence[str], storage: Storage = None) -> list[str]:
    """Return the digests of several files. Reads several at once: hashing lets other threads run."""
    if len(uris) < 2:  # noqa: PLR2004 - one file needs no second thread
        return [content_digest(uri, storage) for uri in uris]
    with ThreadPoolExecutor(_READERS) as readers:
        return list(readers.map(partial(content_digest, storage=storage), uris))
