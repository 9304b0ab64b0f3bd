"""Format of a source's files, where the format itself has variants."""

from __future__ import annotations

from typing import Literal

from headrace.config._types import Section


class CsvOptions(Section, frozen=True, kw_only=True):
    """Format of CSV files."""

    delimiter: str = ","
    """The character between two fields; "\\t" is a tab."""

    header: bool = True
    """true: the first row names the columns. false: the columns are the fields of the record in their order, then the column of the row kind if the source has one."""

    null_values: tuple[str, ...] = ("",)
    """Texts that mean null, where they are not in quotes."""

    escape: str | None = None
    """The character that, in a field in quotes, takes whatever follows it as it is: `"\\\\"` for files that write a quote as `\\"`. null: none."""

    encoding: Literal["utf-8", "iso-8859-1", "iso-8859-15", "windows-1252"] = "utf-8"
    """How the text is encoded."""


class FileOptions(Section, frozen=True, kw_only=True):
    """Format of a source's files."""

    format: str = "parquet"
    csv: CsvOptions = CsvOptions()
