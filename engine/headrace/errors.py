"""Errors, split by who has to act. Each class has the exit code that the command line ends with."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "CheckFailed",
    "ClusterError",
    "ConfigError",
    "ConflictError",
    "EngineBug",
    "FencedError",
    "HeadraceError",
    "IntervalError",
    "LimitError",
    "OpenIntervalError",
    "ServiceError",
    "SinkMismatchError",
    "SourceError",
    "SparkNeededError",
    "StateSchemaError",
    "StorageError",
    "UserFunctionError",
]


_CREDENTIALS: Final = re.compile(
    r"(?<=://)[^\s/@:'\"]*:[^\s/@'\"]+(?=@)|(?<=http://)[^\s/@'\"]+(?=@)|(?<=https://)[^\s/@'\"]+(?=@)"
)
"""User and password in a URL, or a token in one of HTTP. The name of a container (`abfss://name@account`) is none."""


def without_credentials(text: str) -> str:
    """Return a text with `...` in place of the credentials in its URLs."""
    return _CREDENTIALS.sub("...", text) if "://" in text else text


_SAYS_WHAT_IS_LEFT: Final = re.compile(r"\b(?:nothing|untouched|stays?|(?:was|were) not)\b", re.IGNORECASE)


class HeadraceError(Exception):
    """Base class of all errors of Headrace. Never raised itself."""

    exit_code: ClassVar[int] = 70

    unstarted: ClassVar[str] = ""
    """What an error of this class has left that ends a command before it has begun: a sentence. Empty where it is always said."""

    has_begun: bool = False
    """The command that it ends has begun its work."""

    def __str__(self) -> str:
        """Return the message, without user names and passwords in URLs."""
        return without_credentials(super().__str__())

    @property
    def text_of_start(self) -> str:
        """Message of a command that starts work: with `unstarted`, if it had not begun, and the message does not say what is left."""
        text = str(self).rstrip()
        if self.has_begun or not self.unstarted or _SAYS_WHAT_IS_LEFT.search(text):
            return text
        return _followed_by(text, self.unstarted)

    @classmethod
    def told(cls, message: str) -> HeadraceError:
        """Return an error of this class as a task reported it to the driver."""
        error = cls.__new__(cls)
        Exception.__init__(error, message)
        return error


def _followed_by(text: str, sentence: str) -> str:
    """Return a message and a sentence behind it, on a line of its own if the message has several lines."""
    if "\n" in text:
        return f"{text}\n{sentence}"
    return f"{text}{'' if text.endswith(('.', '?')) else '.'} {sentence}"


def add_to(error: HeadraceError, sentence: str) -> None:
    """Let an error say what else the command that it ends has left, and the way on: its caller knows, and its place does not."""
    error.args = (_followed_by(Exception.__str__(error).rstrip(), sentence),)


_OF_RUN: Final = re.compile(r"Nothing (?:of this micro-batch )?was (taken in|committed)")


def keep_committed(error: HeadraceError, checkpoints: Sequence[int]) -> None:
    """Let the error of a run that left nothing behind say which checkpoints the run has committed before: they stay."""
    error.has_begun = True
    if not checkpoints:
        return
    first, last = checkpoints[0], checkpoints[-1]
    stay = (
        f"checkpoint {first} of this run stays" if first == last else f"checkpoints {first} to {last} of this run stay"
    )
    error.args = (_OF_RUN.sub(rf"Nothing of this micro-batch was \1; {stay}", Exception.__str__(error), count=1),)


class ConfigError(HeadraceError):
    """Fix the configuration (or the name given on the command line)."""

    exit_code = 2
    unstarted = "Nothing was started."


class FencedError(HeadraceError):
    """Another run holds the job, or took it over. Nothing was committed."""

    exit_code = 3


class ServiceError(HeadraceError):
    """A service failed for longer than the retries allow. Run again when it is back."""

    exit_code = 4


_WAY_ON: Final = (
    "Nothing of this micro-batch was committed. Correct the code, then run again: it gets the same input again."
)
"""What an error of user code left behind, and what to do."""


class UserFunctionError(HeadraceError):
    """A user function raised. Fix the code; the micro-batch left nothing behind."""

    exit_code = 5

    def __init__(
        self, operator: str, key: str | None, record: str, traceback: str, *, method: str | None = None
    ) -> None:
        """Store the facts that name the place: the operator, the key, the record and the user's traceback.

        `method` is the name of the input method, if the function has more than one.
        """
        where = f"operator '{operator}'"
        where += f", {method}()" if method is not None else ""
        where += f", key {key}" if key is not None else ""
        super().__init__(f"user function failed in {where}, record {record}\n{traceback.rstrip()}\n{_WAY_ON}")
        self.operator, self.key, self.record, self.traceback = operator, key, record, traceback


class StateSchemaError(HeadraceError):
    """Stored state does not fit the declared type."""

    exit_code = 6
    unstarted = "Nothing was started."


class SourceError(HeadraceError):
    """An input cannot be read. Repair or remove it, or let it go to quarantine."""

    exit_code = 7


class StorageError(HeadraceError):
    """A disk or an object store refused access (full, gone, forbidden). Nothing was committed."""

    exit_code = 8

    doing: tuple[str, ...] = ()
    """What was being done when storage refused, from the outermost on; its cause is the refusal. Empty in other errors."""

    kept: str = ""
    """What stays, in place of the usual sentence: a clause."""

    is_missing: bool = False
    """The file, or the version of the table, is not there."""


class CheckFailed(HeadraceError):  # noqa: N818 - a check that fails is no error of the program
    """A requested check found a difference."""

    exit_code = 1
    unstarted = "Nothing was started."


class IntervalError(HeadraceError):
    """An interval run would leave a gap, or repeat an interval whose input has changed, or that somebody asked for again."""

    exit_code = 9

    is_taken_in: bool = False
    """The job has taken in the interval already, so that a backfill can compute it again."""
    changes: tuple[str, ...] = ()
    """Changes of the interval's input since then, as clauses."""
    leaves_gap: bool = False
    """The job has to take in an earlier interval first."""

    @classmethod
    def of_taken_in(cls, message: str, changes: tuple[str, ...] = ()) -> IntervalError:
        """Return the error for an interval that was taken in already."""
        error = cls(message)
        error.is_taken_in, error.changes = True, changes
        return error

    @classmethod
    def of_gap(cls, message: str) -> IntervalError:
        """Return the error for an interval before which others are missing."""
        error = cls(message)
        error.leaves_gap = True
        return error


class OpenIntervalError(IntervalError):
    """More input may still come to the interval of a run. Run it again later."""

    open_until: int | None = None
    """When the interval ends for good (ms); None: unknown."""

    @classmethod
    def until(cls, message: str, open_until: int) -> OpenIntervalError:
        """Return the error for an interval that is open until a time (ms)."""
        error = cls(message)
        error.open_until = open_until
        return error


class SinkMismatchError(HeadraceError):
    """Job and sink disagree on what was published, or the sink's table belongs to another job, or refuses rows. Trying again does not help."""

    exit_code = 10

    is_refusal: bool = False
    """The table of the sink refuses a commit, by one of its rules."""

    @classmethod
    def of_refusal(cls, message: str) -> SinkMismatchError:
        """Return the error for a table that refuses a commit by one of its rules."""
        error = cls(message)
        error.is_refusal = True
        return error


class ConflictError(HeadraceError):
    """Several rows claim one primary key, and the job is configured with `on_conflict=ERROR`. Mend the input, or choose another way."""

    exit_code = 12


class ClusterError(HeadraceError):
    """Spark's JVM, its executors, its Python workers or workers of the local runner died or did not start: usually memory ran out.

    Run again.
    """

    exit_code = 13


class SparkNeededError(HeadraceError):
    """A run `--without-spark` has found something that only Spark can do. Nothing was taken in: run without that option."""

    exit_code = 14


class LimitError(HeadraceError):
    """A backfill would cost more than the job's file allows. Nothing was begun: a person has to allow it."""

    exit_code = 15


class EngineBug(HeadraceError):  # noqa: N818 - it says what it is
    """Headrace broke its own rules. Please report it with the message."""

    exit_code = 70
