"""`headrace erase` and `headrace drop`: remove one key's data, or a whole job, for good."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from headrace.cli.arguments import (
    NOT_CHANGED,
    Apply,
    ApplyWhy,
    JobOrText,
    Key,
    NamedJob,
    OperatorOption,
    RunId,
    job_and_text,
    load,
    new_run_id,
    reason,
)
from headrace.names import counted
from headrace.report import Block, Report, Table, Time, facts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace.config import JobConfig
    from headrace.edits.drop_job import JobToDrop, SinkToDrop
    from headrace.edits.erase import Erasure
    from headrace.edits.erase_survey import ErasureSurvey, FoundRows, SinkRows
    from headrace.edits.erased_key import ErasedKey


_SHOWN = 20
"""Number of other files with the key that are shown."""

Mentions = Annotated[
    bool,
    typer.Option(
        "--mentions", help="Also waiting records, quarantined input and kept responses with the key in their text."
    ),
]


def register_erase(app: typer.Typer) -> None:
    """Add the command."""
    app.command("erase")(erase)


def erase(
    first: JobOrText,
    second: Key = None,
    *,
    operator: OperatorOption = None,
    mentions: Mentions = False,
    apply: Apply = False,
    purge: Annotated[
        bool, typer.Option("--purge", help="With --apply: delete old files with the key's rows at once.")
    ] = False,
    why: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--why", metavar="TEXT", help="The reason, kept for ever. It must not name the key."),
    ] = None,
    run_id: RunId = None,
) -> Report:
    """Erase one key from the job: state, timers, histories, records that wait, quarantine, responses.

    Shows the rows, and changes nothing unless --apply is given. Old versions keep the rows until the retention
    ends; --purge deletes their files at once, and checkpoints that had the key can then be neither read nor restored.
    You erase rows of sinks and files of sources yourself: the output says how.

    Example:  headrace erase purchases anna

    Example:  headrace erase purchases anna --apply --purge --why "request 17"

    Exit codes: 0; 1 if a purge has left the key in a file, which the output names; 2 for an unknown job or operator, a key
    that nothing has, a bad reason, a branch, or a savepoint that has the key; 3 while a run holds the job; 8 storage;
    10 job and sink disagree.
    """
    from headrace.edits.erase import Erasure, find_key
    from headrace.edits.erase import erase as erase_key
    from headrace.edits.erase_survey import rows_in_sinks
    from headrace.edits.erased_key import ErasedKey
    from headrace.errors import CheckFailed

    job, text = job_and_text(first, second)
    config, key = load(job), ErasedKey(text, operator, mentions)
    reason = _reason(why, apply=apply, purge=purge)
    _check_operator(config, operator)
    if apply:
        done = erase_key(config, run_id or new_run_id(), key, why=reason, purge=purge)
        left = find_key(config, key, in_all_texts=purge)
    else:
        left = find_key(config, key)
        done = Erasure(left)
    sinks = [*rows_in_sinks(config, key)]
    if done.files_deleted == 0 and not _is_known(done.survey, sinks):
        _refuse_unknown(config, key)
    is_left = purge and (any(left.files.values()) or bool(left.others))
    return Report(
        *facts(**_plain_erasure(key, done, left, sinks, apply=apply)),
        *_blocks(key, done, left, sinks, apply=apply),
        exit_code=CheckFailed.exit_code if is_left else 0,
    )


def _is_known(before: ErasureSurvey, sinks: Sequence[SinkRows]) -> bool:
    """Return whether anything has the key: rows or files of the state, texts of other rows, notes, or a sink."""
    return not before.is_empty or bool(before.mentions or before.notes) or any(sink.conditions for sink in sinks)


def _refuse_unknown(config: JobConfig, key: ErasedKey) -> None:
    """Raise `ConfigError` for a key that nothing has: it may be misspelt."""
    from headrace.errors import ConfigError
    from headrace.readers.job_at import JobAtCheckpoint
    from headrace.readers.known_keys import how_keys_are_written, similar_keys

    job = JobAtCheckpoint(config)
    of_operator = "" if key.operator is None else f" of operator '{key.operator}'"
    similar = similar_keys(job, key.key)
    nearest = f"There is {' and '.join(similar)}. " if similar else ""
    msg = (
        f"job '{config.job}': no row{of_operator} has the key '{key.key}', nor has a file of the state or a sink, so there is nothing to "
        f"erase. Nothing was changed. If you have erased it before, it is gone for good. {nearest}{how_keys_are_written(job)}"
    )
    raise ConfigError(msg)


def _reason(why: str | None, *, apply: bool, purge: bool) -> str:
    from headrace.errors import ConfigError

    if purge and not apply:
        msg = "--purge deletes files: it needs --apply. Nothing was changed."
        raise ConfigError(msg)
    if apply and why is None:
        msg = "--apply needs a reason: add --why. It is kept with the checkpoint, for ever, so leave the key out of it."
        raise ConfigError(msg)
    return why or ""


def _check_operator(config: JobConfig, operator: str | None) -> None:
    from headrace.readers.job_at import JobAtCheckpoint, check_operator
    from headrace.tables.schemas import ALL_TABLES

    if operator is not None:
        check_operator(JobAtCheckpoint(config), operator, tuple(ALL_TABLES))


def _blocks(
    key: ErasedKey, done: Erasure, left: ErasureSurvey, sinks: Sequence[SinkRows], *, apply: bool
) -> Iterator[Block | str]:
    """Yield what people read."""
    config, before = left.config, done.survey
    if before.is_empty:
        yield f"{config.job}: no file of the state has rows of key {key.key}"
    else:
        yield f"{config.job}: rows of key {key.key} in the state{', before' if apply else ''}"
        yield _table(before.rows) if before.rows else "  none, at the last checkpoint\n"
    if done.checkpoint is not None:
        rows = counted(sum(rows.rows for rows in before.rows), "row")
        yield f"erased {rows}, as checkpoint {done.checkpoint.checkpoint_id}"
    if done.files_deleted:
        yield f"deleted {counted(done.files_deleted, 'file')}"
    if apply or not before.is_empty:
        yield from _old_versions(left, apply=apply, was_there=not before.is_empty)
    if before.mentions:
        yield "\nThese rows of other keys have it in their text, and stay:"
        yield _table(before.mentions)
        yield "Erase such a key by a call of its own."
        if not key.with_mentions:
            yield "With --mentions, rows that wait, are in quarantine or are kept responses go with this one."
    yield from _elsewhere(config, sinks)
    if not apply and not before.is_empty:
        yield f"\nNothing was changed. To erase it:\n  {_call(config.job, key)} --apply --why ..."


def _call(job: str, key: ErasedKey) -> str:
    """Return the command line of this call."""
    operator = [] if key.operator is None else ["--operator", key.operator]
    mentions = ["--mentions"] if key.with_mentions else []
    return shlex.join(["headrace", "erase", job, key.key, *operator, *mentions])


def _table(rows: Sequence[FoundRows]) -> Table:
    return Table.shown(("table", "operator", "key", "rows", "live"), rows)


def _old_versions(left: ErasureSurvey, *, apply: bool, was_there: bool) -> Iterator[str]:
    """Yield lines on the files that still have the bytes, and when they are gone. `was_there`: this command found some."""
    from headrace.log.marks import id_ranges

    yield from _others(left)
    files = sum(map(len, left.files.values()))
    if not files:
        rest = "" if left.others or left.mentions or left.notes or not was_there else "The bytes are gone: "
        yield f"{rest}{'no' if rest else 'No'} file below {left.config.job_folder} has rows of it."
        return
    ranges = id_ranges({checkpoint.checkpoint_id for checkpoint in left.holders})
    ids = ", ".join(f"{first} to {last}" if last > first else str(first) for first, last in ranges)
    yield f"{counted(files, 'file has', 'files have')} rows of it; checkpoints that need them: {ids or 'none'}."
    yield "The bytes are gone with the first vacuum after"
    yield f"  {Time(left.gone_after)} (retention.hours: {left.config.retention.hours}),"
    yield f"or at once with {'--purge' if apply else '--apply --purge'}: these checkpoints can then be neither read nor restored."
    if left.savepoints:
        yield "Savepoints keep them until they are dropped:"
        for name in dict.fromkeys(checkpoint.name for checkpoint in left.savepoints):
            yield f"  headrace savepoint {left.config.job} {name} --drop --why ..."


def _others(left: ErasureSurvey) -> Iterator[str]:
    """Yield lines on files and notes that have the key, and that no erasure of the state removes."""
    if left.others:
        yield f"{len(left.others):,} other file{'s have' if len(left.others) > 1 else ' has'} it below {left.config.job_folder}:"
    for path, mend in left.others[:_SHOWN]:
        yield f"  {path}: {mend}"
    if len(left.others) > _SHOWN:
        yield f"  and {len(left.others) - _SHOWN:,} more, which --json lists"
    if left.notes:
        yield f"Notes name it, and are kept for ever: {', '.join(left.notes)}."


def _elsewhere(config: JobConfig, sinks: Sequence[SinkRows]) -> Iterator[str]:
    """Yield lines on data that Headrace does not touch."""
    yield "\nSinks are yours; no row of theirs was changed:"
    for sink in sinks:
        rows = sum(count for _, count in sink.conditions)
        yield f"  {sink.sink} ({sink.mode}): it is a column's value in {counted(rows, 'row')}"
        if sink.statement is not None:
            yield f"    Spark SQL:  {sink.statement}"
            yield f"    deltalake:  {sink.delta_rs_call}"
    if any(sink.statement for sink in sinks):
        yield "  Then VACUUM the table, and let its Delta log expire. Until then a restore of the job"
        yield "  may go back to versions of the sink that have the rows."
    yield "Rows that are taken in again bring the key back. So look at the files of the sources, too:"
    for name, source in config.sources.items():
        yield f"  {name}: {source.place}"
    yield "Local copies of state on other machines go with the second micro-batch there; they are in"
    yield f"  {config.local_folder}"
    yield "Look also at logs of runs, backups, and versions that an object store keeps by itself."


def _plain_erasure(
    key: ErasedKey, done: Erasure, left: ErasureSurvey, sinks: Sequence[SinkRows], *, apply: bool
) -> dict[str, Any]:
    files = sorted(f"{table}/{name}" for table, names in left.files.items() for name in names)
    return {
        "job": left.config.job,
        "key": key.key,
        "applied": apply,
        "checkpoint": done.checkpoint and done.checkpoint.checkpoint_id,
        "files_deleted": done.files_deleted,
        "rows": [item._asdict() for item in done.survey.rows],
        "mentions": [item._asdict() for item in done.survey.mentions],
        "left": {
            "files": files,
            "others": [item._asdict() for item in left.others],
            "notes": [*left.notes],
            "checkpoints": [item.checkpoint_id for item in left.holders],
            "savepoints": list(dict.fromkeys(item.name for item in left.savepoints)),
            "gone_after": Time(left.gone_after if files else None),
        },
        "sinks": [
            {
                "sink": item.sink,
                "path": item.path,
                "mode": item.mode,
                "rows": sum(count for _, count in item.conditions),
                "statement": item.statement,
                "delta_rs_call": item.delta_rs_call,
            }
            for item in sinks
        ],
    }


Sinks = Annotated[bool, typer.Option("--sinks", help="Also delete the tables of its sinks.")]


def register_drop(app: typer.Typer) -> None:
    """Add the command."""
    app.command("drop")(drop)


def drop(
    job: NamedJob,
    *,
    sinks: Sinks = False,
    apply: Apply = False,
    why: ApplyWhy = None,
    run_id: RunId = None,
) -> Report:
    """Delete a job's folder: its state, its checkpoints, its savepoints. A dry run, unless --apply is given.

    Nothing undoes it. The tables of its sinks stay, unless --sinks is given; the job's file and its pipeline always stay. After an
    interruption, no run and no command opens the job any more; call it again to finish.

    Example:  headrace drop flights

    Example:  headrace drop flights --apply --why "replaced by flights_by_day"

    Exit codes: 0; 2 for an unknown job, one without stored data, or no reason; 3 while a run holds the job; 8 storage; 10 a sink is
    not the job's alone.
    """
    from headrace.edits.drop_job import drop_job, droppable_job

    config = load(job, checked=False)
    if apply:
        marker = drop_job(config, reason(why), run_id or new_run_id(), sinks=sinks)
        return _done(config, marker.sinks)
    return _planned(config, droppable_job(config), sinks=sinks)


def _planned(config: JobConfig, job_to_drop: JobToDrop, *, sinks: bool) -> Report:
    folder, parts, marker = job_to_drop.folder, job_to_drop.parts, job_to_drop.marker
    return Report(
        *facts(job=config.job, applied=False, folder=folder),
        *facts(parts={name: usage._asdict() for name, usage in parts.items()}),
        *facts(sinks=[_plain(sink, deleted=sinks) for sink in job_to_drop.sinks], is_half_dropped=marker is not None),
        None if marker is None else f"An earlier drop was interrupted ({marker.why}): --apply finishes it.",
        f"folder {folder}",
        Table.shown(("holds", "files", "bytes"), [(name, *usage) for name, usage in sorted(parts.items())]),
        *(_fate(sink, sinks=sinks) for sink in job_to_drop.sinks),
        f"\n{config.job}: a restore cannot undo this. {NOT_CHANGED}",
    )


def _fate(sink: SinkToDrop, *, sinks: bool) -> str:
    """Return a sentence on what becomes of a sink."""
    fate = "stays" if not sinks else sink.refusal or "would be deleted"
    files = f"{counted(sink.usage.files, 'file')}, {counted(sink.usage.size, 'byte')}"
    return f"sink '{sink.name}' at {sink.uri}, {files}: {fate}"


def _plain(sink: SinkToDrop, *, deleted: bool) -> dict[str, object]:
    return {
        "name": sink.name,
        "uri": sink.uri,
        **sink.usage._asdict(),
        "published": sink.published,
        "deleted": deleted and sink.refusal is None,
        "refusal": sink.refusal,
    }


def _done(config: JobConfig, sinks: dict[str, str]) -> Report:
    kept = {name: sink.path for name, sink in config.sinks.items() if name not in sinks}
    return Report(
        *facts(job=config.job, applied=True, folder=config.job_folder, deleted=sinks, kept=kept),
        f"{config.job}: {config.job_folder} is deleted.",
        *(f"sink '{name}' at {uri} is deleted." for name, uri in sinks.items()),
        *(
            f"sink '{name}' at {uri} stays: a new job of this name must be given another path."
            for name, uri in kept.items()
        ),
        f"The job's file stays: {config.file}",
    )
