"""Kept responses: outcomes of elements of the live lineage, which a replay on a branch takes instead of calls.

An element's request is the record, and in mode keyed-ordered its key. Its digest identifies it. If the live lineage got a request
several times, the response whose element is nearest in arrival order counts; of two at the same distance, the earlier one. So unchanged
input gets the same responses, however it is split into micro-batches.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b

import msgspec

from headrace.api.graph import AsyncWait, OutputMode
from headrace.api.services import OnFailure
from headrace.api.types import output_type
from headrace.async_io.pending_call import PendingCall, Status
from headrace.errors import ConfigError, StateSchemaError
from headrace.execution.element import Emitted

_ORDINAL_BYTES = 8
_DIGEST_BYTES = 16

Wanted = Mapping[str, Sequence[int]]
"""Arrival ordinals of the elements with a request, by its digest."""


class KeptResponse(msgspec.Struct, frozen=True, kw_only=True):
    """Own columns of `responses`; times are milliseconds since the epoch."""

    key: str
    """Key of the element; without keys, one of 256 texts such as "#a3", from the digest."""
    digest: str
    """Digest of the request."""
    position: str
    """Place of the element in arrival order."""
    ordinal: int
    """Arrival ordinal of the record that the element comes from."""
    service: str
    status: str
    """`completed`, or `quarantined` if the element failed for good."""
    attempts: int
    request: str
    """The record."""
    result: str | None
    """The records of the response; null if the element failed for good."""
    error: str | None
    """Last error of its calls."""
    responded_at: int
    expires_at: int


class KeptResponses:
    """Responses of one operator in one task of a branch."""

    def __init__(self, wait: AsyncWait, read: Callable[[Wanted], Iterable[KeptResponse]], *, never_calls: bool) -> None:
        """Take `read`, which returns the kept responses to some requests. With `never_calls`, an element without response is an error."""
        self._wait = wait
        self._read = read
        self._never_calls = never_calls
        self._by_place: dict[tuple[str, str], KeptResponse] = {}
        self._by_digest: dict[str, tuple[list[int], list[KeptResponse]]] = {}
        self._decoder = msgspec.json.Decoder(list[output_type(wait.function)])  # type: ignore[misc]

    def look_up(self, elements: Iterable[PendingCall]) -> None:
        """Read the responses to the elements that have none yet."""
        wanted: dict[str, list[int]] = defaultdict(list)
        for element in elements:
            if not element.is_done:
                wanted[digest_of(self._wait, element)].append(ordinal_of(element.emitted))
        by_digest: dict[str, list[KeptResponse]] = defaultdict(list)
        for response in self._read(wanted) if wanted else ():
            if response.status != Status.QUARANTINED.value or self._wait.on_failure is OnFailure.QUARANTINE:
                self._by_place[response.digest, response.position] = response
                by_digest[response.digest].append(response)
        for digest, responses in by_digest.items():
            ordered = sorted(responses, key=lambda response: (response.ordinal, response.position))
            self._by_digest[digest] = [response.ordinal for response in ordered], ordered

    def has(self, element: PendingCall) -> bool:
        """Return whether `take` gives an element its outcome."""
        return digest_of(self._wait, element) in self._by_digest

    def take(self, element: PendingCall) -> bool:
        """Give an element the outcome that the live lineage got; return False if none is kept. Raises `StateSchemaError` as `_decoded`."""
        response = self._nearest(element)
        if response is None:
            return False
        element.kept_at = response.responded_at, response.expires_at
        element.attempts, element.last_error = response.attempts, response.error
        if response.status == Status.QUARANTINED.value:
            element.status = Status.QUARANTINED
        else:
            element.complete(self._decoded(response.result or ""))
        return True

    def refuse_call(self, element: PendingCall) -> None:
        """Raise `ConfigError` if the service must not be called for an element without response."""
        if self._never_calls:
            name, service = self._wait.name, self._wait.service
            msg = (
                f"operator '{name}' has no kept response of service '{service}' for {element.emitted.record!r:.300}, and a call would have "
                f"effects outside (services.{service}.effects). No call was made, and nothing of this micro-batch was committed. If calls "
                "do no harm, run it with --allow-effects."
            )
            raise ConfigError(msg)

    def _nearest(self, element: PendingCall) -> KeptResponse | None:
        digest = digest_of(self._wait, element)
        at_place = self._by_place.get((digest, element.emitted.order.hex()))
        if at_place is not None or digest not in self._by_digest:
            return at_place
        ordinals, responses = self._by_digest[digest]
        own = ordinal_of(element.emitted)
        behind = bisect_left(ordinals, own)
        if behind == len(ordinals):
            return responses[bisect_left(ordinals, ordinals[-1])]
        if behind == 0 or ordinals[behind] - own < own - ordinals[behind - 1]:
            return responses[behind]
        return responses[bisect_left(ordinals, ordinals[behind - 1])]

    def _decoded(self, result: str) -> Sequence[msgspec.Struct]:
        try:
            records: list[msgspec.Struct] = self._decoder.decode(result)
        except msgspec.MsgspecError as error:
            wait = self._wait
            msg = (
                f"a kept response of service '{wait.service}' does not fit the output of operator '{wait.name}' any more: {error} "
                f"({result:.300}). Nothing of this micro-batch was committed. Add fields with defaults only, or call the service "
                f"again: services.{wait.service}.replay: call"
            )
            raise StateSchemaError(msg) from error
        return records


def kept_responses(
    wait: AsyncWait, answered: Iterable[PendingCall], *, now: int, keep_for: int
) -> Iterable[KeptResponse]:
    """Yield the rows of elements that have their outcome since this micro-batch. `keep_for` is a time in milliseconds.

    A response that a branch has taken keeps its times. Leaves out a response that JSON cannot store, such as one with NaN: a replay
    calls again for its element.
    """
    decoder = msgspec.json.Decoder(list[output_type(wait.function)])  # type: ignore[misc]
    for element in answered:
        result = None
        if element.status is Status.COMPLETED:
            records = list(element.results or ())
            stored = msgspec.json.encode(records)
            if not _is_stored_whole(decoder, stored, records):
                continue
            result = stored.decode()
        digest = digest_of(wait, element)
        responded_at, expires_at = element.kept_at or (now, now + keep_for)
        yield KeptResponse(
            key=element.key_json.decode() if wait.mode is OutputMode.KEYED_ORDERED else f'"#{digest[:2]}"',
            digest=digest,
            position=element.emitted.order.hex(),
            ordinal=ordinal_of(element.emitted),
            service=wait.service or "",
            status=element.status.value,
            attempts=element.attempts,
            request=msgspec.json.encode(element.emitted.record).decode(),
            result=result,
            error=element.last_error,
            responded_at=responded_at,
            expires_at=expires_at,
        )


def digest_of(wait: AsyncWait, element: PendingCall) -> str:
    """Return the digest of an element's request."""
    if element.digest is None:
        key = element.key_json if wait.mode is OutputMode.KEYED_ORDERED else b""
        element.digest = blake2b(key + _encoded(element.emitted.record), digest_size=_DIGEST_BYTES).hexdigest()
    return element.digest


def _encoded(record: msgspec.Struct) -> bytes:
    """Return a record as bytes that tell NaN from null, unlike JSON."""
    try:
        return msgspec.msgpack.encode(record)
    except OverflowError:  # a number of more than 64 bits
        return repr(record).encode()


def ordinal_of(emitted: Emitted) -> int:
    """Return the arrival ordinal of the record that an element comes from."""
    return int.from_bytes(emitted.order[:_ORDINAL_BYTES])


def _is_stored_whole(
    decoder: msgspec.json.Decoder[list[msgspec.Struct]], stored: bytes, records: list[msgspec.Struct]
) -> bool:
    try:
        return decoder.decode(stored) == records
    except msgspec.MsgspecError:
        return False
