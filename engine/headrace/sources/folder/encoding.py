"""Encodings of files of text. Bytes that are no text become surrogates, which no text has, so that each row can be told from the next.

A file is refused where its first bytes show another encoding than the one that it should have: every byte is a letter of
ISO 8859, so such a file would be read as wrong text.
"""

from __future__ import annotations

import codecs
import re
from json import detect_encoding
from typing import Final

from headrace.sources.folder.format import DamagedFileError

NO_TEXT: Final = re.compile("[\ud800-\udfff]")
"""Characters that decoding puts in place of bytes that are not text."""

_MARKS: Final = {  # UTF-32 first: its mark begins with that of UTF-16
    "utf-32-le": codecs.BOM_UTF32_LE,
    "utf-32-be": codecs.BOM_UTF32_BE,
    "utf-8": codecs.BOM_UTF8,
    "utf-16-le": codecs.BOM_UTF16_LE,
    "utf-16-be": codecs.BOM_UTF16_BE,
}
"""Byte order marks by their encodings."""
_MARK: Final = "\ufeff"
_BY_MARK: Final = "utf-16"
_LOOKED_AT: Final = 4


def decoded(content: bytes, encoding: str, *, is_whole: bool = True) -> str:
    """Return a text without its byte order mark; of one that is not whole, without the character that is cut off.

    Raises `DamagedFileError` for the mark of another encoding, for UTF-16 without a mark where only the mark could tell the order
    of the bytes, and for a text that ends within a character of UTF-16.
    """
    mark = next((name for name, mark in _MARKS.items() if content.startswith(mark)), None)
    codec = mark if mark is not None and encoding == _BY_MARK and mark.startswith(_BY_MARK) else encoding
    if mark is None and encoding == _BY_MARK and content:
        msg = "it has no byte order mark, which tells the order of its bytes: write encoding: utf-16-le or utf-16-be"
        raise DamagedFileError(msg)
    if mark not in {None, codec}:
        msg = f"it begins with the mark of {mark}, and its encoding should be {encoding}"
        raise DamagedFileError(msg)
    if not codec.startswith(_BY_MARK):
        if b"\0" in content[:_LOOKED_AT]:
            msg = f"it begins with a zero byte, as texts of utf-16 do, and its encoding should be {encoding}"
            raise DamagedFileError(msg)
        return content.decode(codec, "surrogateescape").removeprefix(_MARK)
    return _wide(content, codec, is_whole=is_whole)


def in_utf8(content: bytes, *, is_whole: bool = True) -> bytes:
    """Return a JSON text in UTF-8 without its byte order mark. Its first bytes tell the encoding, as RFC 4627 says.

    Raises `DamagedFileError` for a text that ends within a character.
    """
    codec = detect_encoding(content)
    if codec.startswith("utf-8"):
        return content.removeprefix(codecs.BOM_UTF8)
    return _wide(content, codec, is_whole=is_whole).encode("utf-8", "surrogatepass")


def shown_text(text: str, encoding: str) -> str:
    """Return a text with escapes for bytes that are no text."""
    if NO_TEXT.search(text) is None:
        return text
    if encoding.startswith(_BY_MARK):
        return text.encode(errors="backslashreplace").decode()
    return text.encode(encoding, "surrogateescape").decode(encoding, "backslashreplace")


def _wide(content: bytes, codec: str, *, is_whole: bool) -> str:
    """Decode a text of UTF-16 or UTF-32: surrogates that have no other half stay as they are."""
    try:
        text = codecs.getincrementaldecoder(codec)("surrogatepass").decode(content, is_whole)
    except UnicodeDecodeError as error:
        msg = f"it is not {codec}: {error.reason} at byte {error.start:,}"
        raise DamagedFileError(msg) from error
    return text.removeprefix(_MARK)
