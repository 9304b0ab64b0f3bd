"""Limits of the input that one micro-batch takes from a source."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.config import SourceConfig
from headrace.sources.source import SourceFile


def first_files(
    files: Sequence[SourceFile], config: SourceConfig, rows_of: Callable[[SourceFile], int], rows_taken: int
) -> Sequence[SourceFile]:
    """Return the first files within the limits of a source, but at least one if there is one; `rows_of` counts a file's rows.

    `rows_taken` rows of the first file were taken in before. What is left of it counts by its rows, but not as a file: otherwise
    a micro-batch of one file would take in the rest of a file alone.
    """
    chosen = files[: config.max_files_per_batch + (rows_taken > 0)]
    limit = config.max_rows_per_batch
    if limit is None:
        return chosen
    rows = 0
    for count, file in enumerate(chosen):
        rows += max(rows_of(file) - (0 if count else rows_taken), 0)
        if rows > limit:
            return chosen[: max(count, 1)]
    return chosen
