"""Base and field types of configuration structs, with the rule of each type.

A rule is in `Meta.extra["role"]`, where the reader of the YAML finds it.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

Renames = tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
"""Fields with other names, by source or sink."""


class PipelineCode(msgspec.Struct, frozen=True):
    """Location of a pipeline: `package.module:variable`, and the places of its modules."""

    reference: str

    home: str
    """Folder of the project. Importable in the driver, and in tasks on machines that have it at the same path."""

    py_files: tuple[str, ...] = ()
    """Archives (.zip, .egg, .whl) and single modules (.py), as Spark's `--py-files`."""

    source_names: Renames = ()
    """Names that the job's file gives to fields, by source."""

    sink_names: Renames = ()
    """The same by sink."""

    def make_importable(self) -> None:
        """Put the home and the `py_files` that this machine has at the start of `sys.path`, the home first."""
        entries = (self.home, *(_entry(file) for file in self.py_files if "://" not in file))
        for entry in reversed(entries):
            if entry not in sys.path and Path(entry).exists():
                sys.path.insert(0, entry)

    def described(self) -> str:
        """Return the searched places, for messages."""
        archives = f", its py_files ({', '.join(self.py_files)})" if self.py_files else ""
        return f"the job's home folder ({self.home}){archives} or the environment of {sys.executable}"


def _entry(py_file: str) -> str:
    return str(Path(py_file).parent) if py_file.endswith(".py") else py_file


NAME = "name"
LOCATION = "location"
SCALAR = "scalar"
SECRET = "secret"  # noqa: S105  the name of a role
PIPELINE = "pipeline"
FUNCTION = "function"

Name = Annotated[str, Meta(pattern="^[a-z][a-z0-9_]{0,62}$", extra={"role": NAME})]
"""An identifier: it becomes a folder, a table or a column value."""

Location = Annotated[str, Meta(min_length=1, extra={"role": LOCATION})]
"""A path, absolute once loaded (relative ones start at the home folder), or a URI such as s3://..."""

Secret = Annotated[str, Meta(extra={"role": SECRET})]
"""Text that mostly is a reference to the environment. A process that needs no secret keeps the reference."""

Scalar = Annotated[str, Meta(extra={"role": SCALAR}, extra_json_schema={"scalar": True})]
"""Text, or a number or true/false that is turned into text (Spark settings, storage options)."""

PipelineRef = Annotated[
    str,
    Meta(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$", extra={"role": PIPELINE}),
]
"""Location of a pipeline object: `package.module:variable`."""

FunctionRef = Annotated[
    str,
    Meta(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$", extra={"role": FUNCTION}),
]
"""Location of a function: `package.module:function`."""

Count = Annotated[int, Meta(ge=1)]
"""A whole number from 1."""

Memory = Annotated[int, Meta(ge=1 << 24)]
"""A number of bytes from 16 MiB: with less, files would have a few rows each."""

Tasks = Annotated[int, Meta(ge=1, le=32_768)]
"""A number of tasks at once. More would take minutes to begin."""

KeyGroups = Annotated[int, Meta(ge=1, le=2**31 - 1)]
"""A number of key groups: tables store a group in 32 bits."""

Examples = Annotated[int, Meta(ge=0, le=50)]
"""A number of examples for people."""

Whole = Annotated[int, Meta(ge=0)]
"""A whole number from 0."""

Rate = Annotated[float, Meta(gt=0)]
"""A number above 0, such as 0.5."""

Span = Annotated[timedelta, Meta(extra={"role": "duration"})]
"""`30m`, `5s`, `1h30m`, `2d`; a plain number means seconds."""

NONE_WORD = "duration or none"

SpanOrNone = Annotated[timedelta, Meta(extra={"role": NONE_WORD}, extra_json_schema={"or_none": True})]
"""A `Span`, or the word `none`."""


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A mapping in the file whose keys are exactly the fields."""


def shown_repr(config: msgspec.Struct, shown: Mapping[str, Any]) -> str:
    """Return a struct's `repr` of its printable settings: configurations end up in tracebacks and logs."""
    return f"{type(config).__name__}({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


class Promote(enum.StrEnum):
    """Ways in which the result of a backfill becomes live."""

    AUTOMATIC = "automatic"
    APPROVAL = "approval"
    REFUSE = "refuse"
