"""Refusals of disks, object stores and tables, and what to do about each.

Every method of a table raises `StorageError` with what it was doing, such as `to read URI`. `doing`
adds what the caller was about. Inside of `headrace.storage`, errors are raw: `OSError`, those of Arrow, and the ones below.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

import pyarrow as pa

from headrace.errors import SinkMismatchError, StorageError
from headrace.storage.damage import FileDamage, file_in_the_way, named_damage, plain, way_on

_FULL: Final = "free space, then run again"
_MISSING: Final = "correct the path, or bring what it names back (a disk that is not mounted?), then run again"
_IN_THE_WAY: Final = "move that file away, or correct the path, then run again"
_FORBIDDEN: Final = "give the user of the job the right to read and write there, then run again"
_READ_ONLY: Final = "mount the file system for writing, then run again"
_OTHER: Final = "look at the disk or the object store, and repair what it reports, then run again"

_BLOCKED: Final = (errno.ENOTDIR, errno.EEXIST)
_BLOCKED_WORDS: Final = ("ot a directory", "ile exists", "Invalid table location")
"""What systems say of a path below a file, or of a folder that cannot be made since a file has its name."""

_BY_NUMBER: Final = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), _FULL),
    **dict.fromkeys((errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG), _MISSING),
    **dict.fromkeys((errno.EACCES, errno.EPERM), _FORBIDDEN),
    errno.EROFS: _READ_ONLY,
}
_BY_WORDS: Final = {
    "No space left": _FULL,
    "Disk quota": _FULL,
    "No such file": _MISSING,
    "Not a directory": _MISSING,
    "NoSuchBucket": _MISSING,
    "not found": _MISSING,
    "Permission denied": _FORBIDDEN,
    "Operation not permitted": _FORBIDDEN,
    "Read-only file system": _READ_ONLY,
    "AccessDenied": _FORBIDDEN,
    "Forbidden": _FORBIDDEN,
    "InvalidAccessKeyId": _FORBIDDEN,
}
"""Words in errors of object stores, of Delta and of tasks, which have no number."""


class StoreError(OSError):
    """Refusal by Delta: the storage is full, read-only or out of reach, or a file or an old version is gone."""


class DamagedError(StoreError):
    """A file of a table is gone, cut off or overwritten."""

    def __init__(self, fault: FileDamage) -> None:
        """Store the fault."""
        super().__init__(str(fault))
        self.fault = fault


class TableRefusedError(Exception):
    """Commit that the table refuses for what it is: a rule that a row breaks, or a feature that only other writers know."""


def storage_advice(error: BaseException | str) -> str:
    """Return what to do about an error of storage, or about the text of one: the end of a sentence, without a full stop."""
    by_number = _BY_NUMBER.get(getattr(error, "errno", None) or 0)
    if by_number is not None:
        return by_number
    text = str(error)
    return next((advice for words, advice in _BY_WORDS.items() if words in text), _OTHER)


@contextmanager
def doing(what: str, kept: str = "") -> Iterator[None]:
    """Say in each refusal of storage what was being done, such as "checkpoint 7 in sink 'board'", and what is `kept` (a clause).

    Raw errors of disks, object stores, Delta and Arrow become `StorageError`, and a commit that a table refuses for what it is
    becomes `SinkMismatchError`. Callers handle `VersionTakenError` and `TableMissingError`, which pass.
    """
    try:
        yield
    except StorageError as error:
        if error.doing and what not in error.doing:
            _name(error, (what, *error.doing), kept)
        raise
    except TableRefusedError as error:
        msg = f"the table refused {what}: {error}\nNothing was written to it. Change the table, or the rows, then run again."
        raise SinkMismatchError.of_refusal(msg) from error
    except (OSError, pa.ArrowException) as error:  # the last one: a file that is gone or damaged
        refusal = StorageError()
        refusal.is_missing, refusal.__cause__ = isinstance(error, FileNotFoundError | StoreError), error
        _name(refusal, (what,), kept)
        raise refusal from error


def reason_of(error: BaseException) -> BaseException:
    """Return why storage refused, without what was being done; the error itself if it is no refusal."""
    return error.__cause__ or error if isinstance(error, StorageError) and error.doing else error


def _name(refusal: StorageError, what: tuple[str, ...], kept: str) -> None:
    """Write the message of a refusal; `what` was being done, from the outermost on."""
    refusal.doing, refusal.kept = what, kept or refusal.kept
    steps = [_without_place(step, what[0]) for step in what[1:]]
    inner = f" ({', '.join(steps)})" if steps else ""
    reason = refusal.__cause__ or ""
    fault = reason.fault if isinstance(reason, DamagedError) else named_damage(reason)
    text, advice = (str(fault), way_on(fault.uri)) if fault is not None else _cause(reason, what)
    untouched = refusal.kept or ("What was committed before is untouched" if fault is None else "")
    between = "" if not untouched else "; " if fault is None else ". "
    refusal.args = (f"storage refused {what[0]}{inner}: {text}. {untouched}{between}{advice}",)


def _cause(reason: BaseException | str, what: tuple[str, ...]) -> tuple[str, str]:
    """Return why storage refused, without a full stop, and what to do."""
    text = plain(str(reason)).rstrip(".")
    is_blocked = getattr(reason, "errno", None) in _BLOCKED or any(words in text for words in _BLOCKED_WORDS)
    if is_blocked and (blocking := file_in_the_way(f"{' '.join(what)} {text}")) is not None:
        return f"{blocking} is a file, and a folder is needed there", f"{_IN_THE_WAY}."
    return text, f"{storage_advice(reason)}."


def _without_place(step: str, outer: str) -> str:
    """Return a step without its table's location if the outer step names it."""
    begin, _, place = step.rpartition(" of ")
    return begin if begin and outer.endswith(place) else step


class _Located(Protocol):
    @property
    def uri(self) -> str: ...


_Parameters = ParamSpec("_Parameters")
_Owner = TypeVar("_Owner", bound=_Located)
_Result = TypeVar("_Result")
_Method = Callable[Concatenate[_Owner, _Parameters], _Result]


def refusing(verb: str) -> Callable[[_Method[_Owner, _Parameters, _Result]], _Method[_Owner, _Parameters, _Result]]:
    """Return a decorator of methods: a refusal is a `StorageError` with the verb, such as "to read", and the owner's URI."""

    def decorated(method: _Method[_Owner, _Parameters, _Result]) -> _Method[_Owner, _Parameters, _Result]:
        @wraps(method)
        def refused(owner: _Owner, /, *arguments: _Parameters.args, **named: _Parameters.kwargs) -> _Result:
            with doing(f"{verb} {owner.uri}"):
                return method(owner, *arguments, **named)

        return refused

    return decorated


_Commit = TypeVar("_Commit", bound=Callable[..., int])


def committing(method: _Commit) -> _Commit:
    """Decorate a commit on top of the version `parent`, its first argument: a refusal names the version that it would become."""

    @wraps(method)
    def refused(owner: _Located, parent: int, *arguments: Any, **named: Any) -> int:
        with doing(f"version {parent + 1} of {owner.uri}"):
            return method(owner, parent, *arguments, **named)

    return refused  # type: ignore[return-value]  # it takes and returns what the method does
