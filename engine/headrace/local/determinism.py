"""Determinism of filters, event times and keys: tried on a sample in two processes, with other seeds of `hash` and dates a day apart.

`headrace check` does this, and a run does not: two fresh processes cost a second. A pipeline whose keys are fields, and that has no
transforms, costs nothing. The code of keyed operators, and what comes behind them, is not tried.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
import pyarrow as pa

from headrace import clock
from headrace.api.graph import (
    Additions,
    AssignEventTime,
    AsyncWait,
    DropUpdateBefore,
    Filter,
    KeyBy,
    StatelessTransform,
)
from headrace.config import FileOptions, JobConfig, PipelineCode
from headrace.errors import HeadraceError, SourceError, UserFunctionError
from headrace.execution.element import Emitted, shown_record
from headrace.local.workers import child_environment
from headrace.plan.loader import plan_of
from headrace.plan.stages import Flow, Plan, Through, ToStage
from headrace.records.keys import key_reader
from headrace.records.source_columns import order_column
from headrace.run.rows import ColumnarRows
from headrace.run.transforms import applied, called
from headrace.sources.folder.listing import FolderListing
from headrace.sources.folder.partitions import read_in_folder
from headrace.sources.row_check import RowCheck
from headrace.sources.source import SourceFile
from headrace.state.codec import encode
from headrace.storage.storage import Storage

_ROWS: Final = 200
_LARGEST_FILE: Final = 32 << 20
"""Size of the largest file that is read for a sample, in bytes."""
_PATIENCE: Final = 60.0
"""Seconds that the processes may take."""
_DAY: Final = 86_400
_WORD_OF: Final = {"key": "key", "filter": "verdict", "event time": "event time", "transform": "result"}

DETERMINES_ROWS: Final = ("key", "filter", "event time")
"""Kinds of functions whose results decide where a row goes."""


class Sample(msgspec.Struct, frozen=True):
    """Input of a process: the pipeline, and a file of each source. Its clock is ahead by `shift` seconds."""

    code: PipelineCode
    files: dict[str, tuple[str, str, FileOptions]]
    shift: int = 0


class Results(msgspec.Struct, frozen=True):
    """Results of one function, by the place of the record, with the record for people."""

    kind: str
    name: str
    by_place: dict[str, tuple[str, str]]


class Difference(msgspec.Struct, frozen=True):
    """A function that gave a record another result in the other process."""

    kind: str
    name: str
    record: str
    results: tuple[str, str]

    def __str__(self) -> str:
        """Return a sentence."""
        one, other = self.results
        return (
            f"{self.name} gives the same record another {_WORD_OF[self.kind]} in another process, or on another day: {one:.100} and "
            f"{other:.100} for {self.record:.300}"
        )


def differences(config: JobConfig, plan: Plan) -> list[Difference]:
    """Return the functions of a job that are not deterministic, as far as a sample of its input shows.

    Raises `HeadraceError` when a process fails or takes too long.
    """
    files = {
        stage.source.name: (file.path, file.name, config.sources[stage.source.name].file_options)
        for stage in plan.source_stages
        if _has_functions(stage.flow) and (file := _sample_file(config, stage.source.name)) is not None
    }
    if not files:
        return []
    # Both run at once.
    processes = [_started(Sample(config.code, files, shift), seed) for seed, shift in (("1", 0), ("2", _DAY))]
    one, other = [_results(process) for process in processes]
    return [*_compared(one, other)]


def _compared(one: Sequence[Results], other: Sequence[Results]) -> Iterator[Difference]:
    for left, right in zip(one, other, strict=False):
        if (left.kind, left.name) != (right.kind, right.name):
            return  # a transform has failed in one of the processes: a run says more
        for place, (result, record) in left.by_place.items():
            second, _ = right.by_place.get(place, (result, record))
            if second != result:
                yield Difference(left.kind, left.name, record, (result, second))
                break


def _has_functions(flow: Flow) -> bool:
    """Return whether a flow has transforms, or keys that a function makes."""
    ends = [use.to for use in flow.uses]
    return any(
        (isinstance(to, Through) and not isinstance(to.transform, DropUpdateBefore | Additions | AsyncWait))
        or (isinstance(to, ToStage) and to.key is not None and to.key.function is not None)
        or (isinstance(to, Through) and _has_functions(to.flow))
        for to in ends
    )


def _sample_file(config: JobConfig, name: str) -> SourceFile | None:
    """Return the largest file of a source that is small enough; None where the source is no local folder, or has none."""
    source = config.sources[name]
    if not source.kind.is_folder or "://" in source.path:
        return None
    try:
        files = FolderListing(name, source, Storage("")).content().files
    except SourceError:  # another check names it
        return None
    fitting = [file for file in files if 0 < file.size <= _LARGEST_FILE]
    return max(fitting, key=lambda file: (file.size, file.name), default=None)


# ------------------------------------------------------------------------------------------------------ processes


def _started(sample: Sample, seed: str) -> subprocess.Popen[bytes]:
    line = [
        sys.executable,
        "-c",
        "from headrace.local.determinism import main; main()",
        msgspec.json.encode(sample).decode(),
    ]
    return subprocess.Popen(
        line, env=child_environment(seed), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def _results(process: subprocess.Popen[bytes]) -> list[Results]:
    try:
        shown, errors = process.communicate(timeout=_PATIENCE)
    except subprocess.TimeoutExpired as error:
        process.kill()
        process.communicate()
        msg = f"the transforms of the pipeline took more than {_PATIENCE:g} s for {_ROWS} rows"
        raise HeadraceError(msg) from error
    if process.returncode:
        msg = f"the process that tries the pipeline's transforms ended with {process.returncode}: {errors.decode(errors='replace')[-500:]}"
        raise HeadraceError(msg)
    return msgspec.json.decode(shown, type=list[Results])


def main() -> None:
    """Try the sample in the argument, and print the results. User code prints to standard error."""
    sample = msgspec.json.decode(sys.argv[1], type=Sample)
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)
        if sample.shift:
            clock.shift_wall_clock(sample.shift)
        answers.write(msgspec.json.encode(tried(sample)))


def tried(sample: Sample) -> list[Results]:
    """Return what the functions of a pipeline give for a sample. A transform that fails ends its branch."""
    results: list[Results] = []
    for stage in plan_of(sample.code).source_stages:
        if stage.source.name in sample.files:
            uri, name, options = sample.files[stage.source.name]
            node = stage.source.stored
            rows = read_in_folder(Storage(uri), name, node, options)
            problems = {row: problem for row, problem in rows.problems.items() if row < _ROWS}
            check = RowCheck(node)
            checked = check.check(rows.table.slice(0, _ROWS), problems)
            places = order_column(pa.array(range(len(checked.columns)), pa.int64()))
            taken = ColumnarRows(node.record, places, check.times(checked.columns), checked.kinds, checked.columns)
            good = taken.filter(checked.columns.is_valid()) if checked.columns.null_count else taken
            if stage.source.transform is None:
                _walk(stage.flow, good.emitted(), results)
    return results


def _walk(flow: Flow, emitted: Sequence[Emitted], results: list[Results]) -> None:
    for use in flow.uses:
        to = use.to
        try:
            if isinstance(to, ToStage) and to.key is not None and to.key.function is not None:
                results.append(_keys(to.key, to.stage, emitted))
            elif isinstance(to, Through) and not isinstance(to.transform, AsyncWait):
                given = list(applied(to.transform, emitted))
                results.append(_of_transform(to.transform, emitted, given))
                _walk(to.flow, given, results)
        except UserFunctionError:
            continue  # a run says more


def _keys(key: KeyBy, stage: str, emitted: Sequence[Emitted]) -> Results:
    read = key_reader(key)
    name = f"key_by {key} of '{stage}'"
    return Results(
        "key", name, {row.order.hex(): (_text(called(name, read, row.record)), _shown(row)) for row in emitted}
    )


def _of_transform(transform: StatelessTransform, emitted: Sequence[Emitted], given: Sequence[Emitted]) -> Results:
    if isinstance(transform, Filter):
        kept = {row.order for row in given}
        return Results(
            "filter", transform.name, {row.order.hex(): (str(row.order in kept), _shown(row)) for row in emitted}
        )
    if isinstance(transform, AssignEventTime):
        return Results(
            "event time", transform.name, {row.order.hex(): (str(row.timestamp), _shown(row)) for row in given}
        )
    return Results("transform", transform.name, {row.order.hex(): (_text(row.record), _shown(row)) for row in given})


def _shown(row: Emitted) -> str:
    return shown_record(row.record)


def _text(value: object) -> str:
    return encode(value).decode()
