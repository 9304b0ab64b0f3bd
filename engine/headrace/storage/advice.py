"""Advice in errors of a disk or an object store: what to do depends on what it refused."""

from __future__ import annotations

import errno
from typing import Final

_FULL: Final = "free space, then run again"
_MISSING: Final = "correct the path, or bring what it names back (a disk that is not mounted?), then run again"
_FORBIDDEN: Final = "give the user of the job the right to read and write there, then run again"
_OTHER: Final = "look at the disk or the object store, and repair what it reports, then run again"

_BY_NUMBER: Final = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), _FULL),
    **dict.fromkeys((errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG), _MISSING),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), _FORBIDDEN),
}
_BY_WORDS: Final = {
    "No space left": _FULL,
    "Disk quota": _FULL,
    "No such file": _MISSING,
    "Not a directory": _MISSING,
    "NoSuchBucket": _MISSING,
    "not found": _MISSING,
    "Permission denied": _FORBIDDEN,
    "Read-only file system": _FORBIDDEN,
    "AccessDenied": _FORBIDDEN,
    "Forbidden": _FORBIDDEN,
    "InvalidAccessKeyId": _FORBIDDEN,
}
"""Words in errors of object stores, of Delta and of tasks, which have no number."""


def storage_advice(error: BaseException | str) -> str:
    """Return what to do about an error of storage, or about the text of one: the end of a sentence, without a full stop."""
    by_number = _BY_NUMBER.get(getattr(error, "errno", None) or 0)
    if by_number is not None:
        return by_number
    text = str(error)
    return next((advice for words, advice in _BY_WORDS.items() if words in text), _OTHER)
