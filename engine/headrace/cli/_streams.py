"""Standard output and error of the command: a reader that goes away, or a full disk, ends no command half-way."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TextIO

from headrace.errors import StorageError


class _LastingFile(io.FileIO):
    """File descriptor that drops what can no longer be written, and keeps the first error that is no closed pipe."""

    refusal: OSError | None = None

    def write(self, data: Any, /) -> int:
        """Write bytes; pretend to, if the reader of a pipe has gone or the storage refuses."""
        try:
            return super().write(data) or 0
        except BrokenPipeError:  # `headrace ... | head`
            return memoryview(data).nbytes
        except OSError as error:
            self.refusal = self.refusal or error
            return memoryview(data).nbytes


class Streams:
    """Standard output and error while a command runs."""

    def __init__(self, files: list[_LastingFile]) -> None:
        """Store the files below both streams."""
        self._files = files

    def exit_code(self, code: str | int | None) -> str | int | None:
        """Return the command's own exit code; that of a `StorageError`, with a note, if only its output was lost."""
        _flush()
        refusals = [file.refusal for file in self._files if file.refusal is not None]
        if not refusals or code:
            return code
        note = (
            f"the output could not be written: {refusals[0].strerror}. The command itself is done; what it did stays."
        )
        print(note, file=sys.stderr)
        return StorageError.exit_code


@contextmanager
def open_streams() -> Iterator[Streams]:
    """Replace standard output and error by streams that outlast their readers; by the null device, if a shell has closed them."""
    before = {name: getattr(sys, name) for name in _NAMES}
    files = []
    for name, stream in before.items():
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - for the whole process
            continue
        stream.flush()
        files.append(_LastingFile(stream.fileno(), "w", closefd=False))
        setattr(sys, name, _text(files[-1], stream))
    try:
        yield Streams(files)
    finally:
        _flush()
        for name, stream in before.items():
            if stream is not None:
                setattr(sys, name, stream)


_NAMES: Final = ("stdout", "stderr")


def _flush() -> None:
    for name in _NAMES:
        getattr(sys, name).flush()


def _text(file: _LastingFile, like: TextIO) -> TextIO:
    """Return a text stream over a file, with the encoding and buffering of another one."""
    lines = bool(like.line_buffering) or os.isatty(like.fileno())
    return io.TextIOWrapper(io.BufferedWriter(file), like.encoding, like.errors, line_buffering=lines)
