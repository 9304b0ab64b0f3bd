"""Schemes of places: where sources, sinks and state may be.

A place of another scheme would be taken for a folder of this machine, and the job would read nothing, or lose what it writes.
"""

from __future__ import annotations

import re
from typing import Final

OBJECT_STORES: Final = ("s3", "s3a")
_MEMORY: Final = "memory"
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
_WINDOWS: Final = re.compile(r"[A-Za-z]:[\\/]|\\\\")
_allowed: Final = {*OBJECT_STORES}


def allow_memory_places() -> None:
    """Allow `memory://` in this process. Such places are gone with it, so only harnesses use them."""
    _allowed.add(_MEMORY)


def check_scheme(text: str) -> None:
    """Raise `ValueError` that names what is supported, unless a place is a path of this machine or has a known scheme.

    The message does not repeat the place, which may hold a password.
    """
    if _WINDOWS.match(text):
        msg = f"a path of Windows is not supported: {_SUPPORTED}"
        raise ValueError(msg)
    match = _SCHEME.match(text)
    if match is None and not text.startswith("://"):
        return
    scheme = "" if match is None else match[1].lower()
    if scheme in _allowed and text[len(scheme) :].startswith("://"):
        return
    what = f"the scheme '{scheme}' of this place is not supported" if scheme not in _allowed else f"write {scheme}://"
    why = ", since such a place is gone with the process" if scheme == _MEMORY else ""
    msg = f"{what}{why}: {_SUPPORTED}"
    raise ValueError(msg)


_SUPPORTED: Final = "expected a path of this machine, such as /data/lake or file:///data/lake, or s3://BUCKET/FOLDER"
