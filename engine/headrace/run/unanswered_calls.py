"""Calls that no service responds to in a run with `--finish`: without a timeout, each such run would end with its budget, and change nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import msgspec

from headrace.async_io.pending_call import COMPLETED
from headrace.commit.protocol import OpenJob
from headrace.errors import ServiceError
from headrace.run.batch_sequence import BatchSequence
from headrace.run.options import StoppedBecause
from headrace.tables.schemas import ASYNC_REQUESTS


@dataclass(frozen=True, slots=True)
class WaitingCall:
    """An element of an async operator without its outcome: its key and the element as JSON, and the checkpoint that changed it last: each call changes it."""

    key: str
    element: str
    checkpoint_id: int


@dataclass(slots=True)
class UnansweredCalls:
    """Elements that waited for a call when a run began that has to end all waiting; none, for other runs."""

    batches: BatchSequence
    seconds: float = field(init=False)
    before: dict[tuple[str, int], WaitingCall] = field(init=False)

    def __post_init__(self) -> None:
        """Read the elements that wait now. Raises `StorageError` when the storage refuses."""
        options = self.batches.options
        self.seconds = self.batches.seconds_left()
        self.before = _waiting_calls(self.batches.job) if options.finish or options.end_of_input else {}

    def refuse(self, reason: StoppedBecause) -> None:
        """Raise `ServiceError` if the run's budget has ended while calls waited, and none of them got a response.

        Where the input took the whole budget, there was no call, and another run goes on.
        """
        if reason != "budget" or not self.before:
            return
        after = _waiting_calls(self.batches.job)
        were_called = any(
            after[name].checkpoint_id != call.checkpoint_id for name, call in self.before.items() if name in after
        )
        if were_called and self.before.keys() <= after.keys():
            raise self._error()

    def _error(self) -> ServiceError:
        job, first = self.batches.config.job, min(self.before)
        counts = Counter(operator for operator, _ in self.before)
        numbers = ", ".join(f"{count:,} of operator '{name}'" for name, count in sorted(counts.items()))
        timeouts = ", ".join(f"async_io.{name}.timeout" for name in sorted(counts))
        call = self.before[first]
        return ServiceError(
            f"no waiting call had a response within the run's budget of {self.seconds:.0f} s: {numbers}, the first of '{first[0]}' "
            f"with key {call.key}, record {_record_of(call):.300}. Nothing is lost: they wait in async_requests (headrace waiting {job} --calls). "
            f"Give these calls an end ({timeouts} in the job's file), and, if elements without a response may be set aside, "
            f"on_failure=OnFailure.QUARANTINE in the pipeline (headrace quarantine {job} --requeue brings them back). Or mend the "
            "service, or raise run.budget. Then run again."
        )


def _record_of(call: WaitingCall) -> str:
    return msgspec.json.encode(msgspec.json.decode(call.element)["value"]).decode()


def _waiting_calls(job: OpenJob) -> dict[tuple[str, int], WaitingCall]:
    if not job.versions[ASYNC_REQUESTS]:
        return {}  # no row was ever added to the table
    rows = job.view(ASYNC_REQUESTS).live_rows(("operator", "sequence", "key", "element", "status", "checkpoint_id"))
    return {
        (row["operator"], row["sequence"]): WaitingCall(row["key"], row["element"], row["checkpoint_id"])
        for row in rows
        if row["status"] != COMPLETED.value
    }
