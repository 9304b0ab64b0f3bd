"""Keys and values as a person writes them: JSON of the declared type, or plain text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import msgspec

from headrace.api.graph import NULL_KEY, OperatorFunction, Process
from headrace.api.records import is_naive, unit_of
from headrace.api.states import MapState
from headrace.api.types import annotations_of, key_types
from headrace.config import parse_timestamp
from headrace.edits.edit import JobView
from headrace.edits.entries.edit import EntryName, live_entries
from headrace.errors import ConfigError
from headrace.plan.stages import KeyedStage
from headrace.records.column_types import columns_of
from headrace.records.keys import typed_key
from headrace.records.record_columns import UnfitRecord, from_struct_array, to_struct_array
from headrace.state.codec import KeyCodec, encode, key_texts, microseconds_of, time_of, without_times, written_keys


def key_of(stage: KeyedStage, name: EntryName, job: JobView) -> bytes:
    """Return the stored key that a name means: where nothing declares its type, the only one that is there."""
    if all(key_types(record, key) is None for record, key in zip(stage.takes, stage.keys, strict=True)):
        live = {row["key"] for row in live_entries(job, name.operator, (name.state,), written_keys(name.key))}
        if len(live) == 1:
            return str(live.pop()).encode()
    return stored_key(stage, name.key)


def stored_key(stage: KeyedStage, text: str) -> bytes:
    """Return the JSON text under which an operator stores a key that somebody has written. Raises `ConfigError` where it does not fit.

    Where nothing declares the type of the key, it must be JSON as it is stored, or text that is no JSON. `[null]` is the key of records
    whose key is null, which an outer join keeps.
    """
    if _is_null_key(text):
        return _null_key(stage)
    record, key = next((record, key) for record, key in zip(stage.takes, stage.keys, strict=True) if key is not None)
    types = key_types(record, key)
    if types is None and len(key_texts(text)) > 1 and not text.lstrip().startswith('"'):
        msg = (
            f"nobody can tell whether {text!r:.200} is a text or a number: the key of operator '{stage.name}' is a function without the type that it "
            "returns. Annotate it, or write a text as JSON, in quotes. Nothing was changed."
        )
        raise ConfigError(msg)
    text = _with_stored_times(text, annotations_of(record, key))
    target: Any = Any if types is None else types[0] if len(types) == 1 else tuple[types]  # type: ignore[valid-type]
    try:
        value = _read(text, target)
        return encode(typed_key([*value] if isinstance(value, tuple) else value, types, key))
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        msg = f"{text!r:.200} is no key of operator '{stage.name}' (its key is {key}): {error}. Nothing was changed."
        raise ConfigError(msg) from error


def _with_stored_times(text: str, annotations: Sequence[Any]) -> str:
    """Return a key that somebody has written with its times as they are stored, where the types of its parts are times."""
    if not any(map(_is_time, annotations)):
        return text
    number = without_times(text)
    try:
        is_list = isinstance(msgspec.json.decode(number), list)
    except msgspec.DecodeError:
        number, is_list = msgspec.json.encode(text).decode(), False
    parts = msgspec.json.decode(number, type=list[msgspec.Raw]) if is_list else [msgspec.Raw(number.encode())]
    if len(parts) != len(annotations):
        return text
    # Other parts stay as they are written: a decimal has more digits than a number of JSON that Python has read.
    stored = [_stored_time(part, annotation) for part, annotation in zip(parts, annotations, strict=True)]
    return (b"[%s]" % b",".join(map(bytes, stored)) if is_list else bytes(stored[0])).decode()


def _is_time(annotation: Any) -> bool:
    return unit_of(annotation) is not None or datetime in {annotation, *get_args(annotation)}


def _stored_time(part: msgspec.Raw, annotation: Any) -> msgspec.Raw:
    """Return a part of a key; where it is the text of a time and its type is one, as that is stored."""
    written = msgspec.json.decode(part) if _is_time(annotation) else None
    time = time_of(written) if isinstance(written, str) else None
    if time is None or (is_naive(annotation) and time.tzinfo is not None):
        return part
    return msgspec.Raw(msgspec.json.encode(time if is_naive(annotation) else _instant(time, annotation)))


def _instant(time: datetime, annotation: Any) -> datetime | int:
    """Return an instant as a key holds it. Raises `ConfigError` where it has more digits than the key."""
    instant = microseconds_of(time)
    if (unit := unit_of(annotation)) is None:
        return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=instant)
    if unit == "us":
        return instant
    if instant % 1000:
        raise ConfigError(f"{time} is finer than a millisecond, and the key has milliseconds. Nothing was changed.")
    return instant // 1000


def refuse_several(what: str, written: str, stored: Iterable[str]) -> None:
    """Raise `ConfigError` when a person's text means several stored keys."""
    meant = sorted({*stored})
    if len(meant) > 1:
        raise ConfigError(
            f"several are meant by {what} {written}: {', '.join(meant)}. Write it as JSON, in single quotes. Nothing was changed."
        )


def _is_null_key(text: str) -> bool:
    try:
        return bool(msgspec.json.decode(text) == NULL_KEY)
    except msgspec.DecodeError:
        return False


def _null_key(stage: KeyedStage) -> bytes:
    assert isinstance(stage.operator, Process)  # noqa: S101 - by `keyed_stage`
    function = stage.operator.function
    if not (isinstance(function, OperatorFunction) and function.takes_null_keys):
        msg = (
            f"[null] is the key of records whose key is null, and operator '{stage.name}' takes none: they go to the quarantine. A text is written "
            "as JSON, in quotes. Nothing was changed."
        )
        raise ConfigError(msg)
    return encode(NULL_KEY)


def _read(text: str, type_: Any) -> Any:
    """Return what somebody has written as JSON of a type, or else as plain text. Raises `msgspec.ValidationError` where neither fits."""
    try:
        return msgspec.json.decode(text, type=type_)
    except msgspec.DecodeError as error:
        try:
            return msgspec.convert(text, type=type_)
        except msgspec.ValidationError:
            raise msgspec.ValidationError(str(error)) from error


def entry_key(state: MapState[Any, Any], name: EntryName) -> bytes:
    """Return the stored key within a map that a name means. Raises `ConfigError` where it does not fit."""
    codec: KeyCodec[Any] = KeyCodec(state.key_type, f"state '{state.name}'")
    return codec.encode(
        typed(
            _with_stored_times(name.entry or "", [state.key_type]),
            state.key_type,
            f"the key within state '{state.name}'",
        )
    )


def typed(text: str, type_: Any, what: str) -> Any:
    """Return a value that somebody has written as JSON, or as plain text where that fits. Raises `ConfigError` where neither does."""
    try:
        return _as_stored(_read(text, type_), type_)
    except msgspec.ValidationError as error:
        msg = f"{what} must be {_name(type_)}, as JSON: {error}. Given: {text!r:.200}. Nothing was changed."
        raise ConfigError(msg) from error
    except UnfitRecord as error:
        field = error.field.removeprefix("value").removeprefix(".")
        raise ConfigError(f"{what} does not fit: {field} {error.why}. Nothing was changed.") from error


def types_of_fields(type_: Any) -> dict[str, Any]:
    """Return the types of a record's fields, by their names in JSON; nothing for a type without declared fields."""
    if not _is_struct(type_):
        return {}
    return {field.encode_name: field.type for field in msgspec.structs.fields(type_)}


def json_of(text: str, type_: Any) -> msgspec.Raw | str:
    """Return what somebody has written as JSON of a type, or as a time where the type is one, or else as plain text."""
    try:
        msgspec.json.decode(text, type=type_)
    except msgspec.DecodeError:
        return _time_of(text, type_) or text
    return msgspec.Raw(text.encode())


def _time_of(text: str, type_: Any) -> msgspec.Raw | None:
    """Return a time as the number that a field of a time holds; None for another type, and for what is no time."""
    per_millisecond = {"ms": 1, "us": 1000}.get(unit_of(type_) or "")
    try:
        return None if per_millisecond is None else msgspec.Raw(b"%d" % (parse_timestamp(text) * per_millisecond))
    except ValueError:
        return None


def _as_stored(value: Any, type_: Any) -> Any:
    """Return a value as it comes back from columns: decimals have their declared digits. Raises `UnfitRecord` where they don't fit."""
    record = msgspec.defstruct("Value", [("value", type_)])
    try:
        columns_of(record)
    except ConfigError:  # a state may hold what has no columns
        return value
    (stored,) = from_struct_array(to_struct_array([record(value)], record), record)
    return stored.value  # type: ignore[union-attr]  # its record has a value


def _name(type_: Any) -> str:
    name: str = getattr(type_, "__name__", "") if isinstance(type_, type) else ""
    return name or str(type_)


def _is_struct(type_: Any) -> bool:
    return isinstance(type_, type) and issubclass(type_, msgspec.Struct)
