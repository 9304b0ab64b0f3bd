"""The async wait operator in its simplest correct form: all elements of a slice, within one run.

Up to `capacity` calls run at once on one asyncio loop; a call that fails is repeated as the retry
strategy says, within the timeout that covers all attempts of its record. Results leave in arrival
order, so both output modes look the same downstream.
"""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Sequence

import msgspec

from engine import clock
from engine.api import AsyncWait
from engine.api._pipeline import output_type
from engine.errors import ServiceError, UserFunctionError
from engine.execution.element import Emitted, output_order


class AsyncWaitOperator:
    """One `AsyncWait` operator in one task."""

    def __init__(self, operator: AsyncWait, services: dict[str, str]) -> None:
        """`services` is handed to the function's `open`."""
        self.operator = operator
        self.metrics: Counter[str] = Counter()
        self._services = services
        self._out = output_type(operator.function)

    def run(self, elements: Sequence[Emitted]) -> list[Emitted]:
        """Answer every element; return the results in the elements' order.

        Raises `ServiceError` when an element has used up its retries or its timeout, and
        `UserFunctionError` for an exception that the retry strategy does not cover, an answer that is
        no list of the function's output type, or an exception of `open` or `close` (where it never
        hides an earlier failure). The first failure ends the run: calls still in flight are cancelled.
        """
        return asyncio.run(self._run(elements))

    async def _run(self, elements: Sequence[Emitted]) -> list[Emitted]:
        async with self.opened():
            results = await self._answer_all(elements)
        return [
            emitted
            for element, answers in zip(elements, results, strict=True)
            for emitted in results_of(element, answers)
        ]

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Open the function for the block, and close it after it, whatever happens."""
        function = self.operator.function
        try:
            await self._opens_or_closes("none yet: open() failed", function.open(self._services))
            yield
        except BaseException:
            with contextlib.suppress(Exception):
                await function.close()
            raise
        await self._opens_or_closes("none any more: close() failed", function.close())

    async def _answer_all(self, elements: Sequence[Emitted]) -> list[Sequence[msgspec.Struct]]:
        results: list[Sequence[msgspec.Struct]] = [()] * len(elements)
        queue = iter(enumerate(elements))

        async def worker() -> None:
            for position, element in queue:
                results[position] = await self.answer(element.record)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(self.operator.capacity, len(elements))):
                    group.create_task(worker())
        except ExceptionGroup as errors:
            first = errors.exceptions[0]
            raise first from first.__cause__
        return results

    async def answer(self, record: msgspec.Struct) -> Sequence[msgspec.Struct]:
        """Call for one record until there is an answer; errors as in `run`."""
        seconds = self.operator.timeout.total_seconds()
        self.metrics["requests"] += 1
        try:
            async with asyncio.timeout(seconds):
                answers = await self._attempts(record, clock.monotonic() + seconds)
        except TimeoutError as error:
            self.metrics["timeouts"] += 1
            last = f" (last error: {_text(error.__cause__)})" if isinstance(error.__cause__, Exception) else ""
            msg = (
                f"operator '{self.operator.name}' had no answer within {seconds:g} s for {record!r:.300}{last}. "
                "Nothing was committed; check the service, then run again."
            )
            raise ServiceError(msg) from error
        if not isinstance(answers, list | tuple) or not all(isinstance(answer, self._out) for answer in answers):
            msg = f"invoke() must answer with a list of {self._out.__name__}, not {answers!r:.200}"
            raise UserFunctionError(self.operator.name, None, f"{record!r:.500}", msg)
        return answers

    async def _attempts(self, record: msgspec.Struct, deadline: float) -> Sequence[msgspec.Struct]:
        retry = self.operator.retry
        retries = 0
        while True:
            try:
                return await self._invoke(record)
            except UserFunctionError:
                raise
            except Exception as error:
                if not retry.retries_exception(error):
                    raise self._user_error(repr(record), error) from error
                if not retry.can_retry(retries):
                    raise self._given_up(record, retries, error) from error
                seconds = retry.backoff(retries).total_seconds()
                if clock.monotonic() + seconds >= deadline:
                    raise TimeoutError from error  # no other call could begin in time
                self.metrics["retries"] += 1
                await clock.sleep_async(seconds)
                retries += 1

    async def _invoke(self, record: msgspec.Struct) -> Sequence[msgspec.Struct]:
        try:
            answers: Sequence[msgspec.Struct] = await self.operator.function.invoke(record)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # by the timeout, or since another call has failed
            # The function's own doing. Let through, it would end this worker in silence: a lost record.
            raise self._user_error(repr(record), error) from error
        return answers

    async def _opens_or_closes(self, what: str, call: Awaitable[None]) -> None:
        try:
            await call
        except Exception as error:
            raise self._user_error(what, error) from error

    def _given_up(self, record: msgspec.Struct, retries: int, error: Exception) -> ServiceError:
        return ServiceError(
            f"operator '{self.operator.name}' gave up after {retries + 1} calls for {record!r:.300}: "
            f"{_text(error)}. Nothing was committed; check the service, then run again."
        )

    def _user_error(self, what: str, error: BaseException) -> UserFunctionError:
        text = "".join(traceback.format_exception(error))
        return UserFunctionError(self.operator.name, None, what[:500], text)


def results_of(element: Emitted, answers: Sequence[msgspec.Struct]) -> list[Emitted]:
    """What goes on for an element that was answered."""
    return [
        Emitted(output_order(element.order, index), element.timestamp, element.kind, record)
        for index, record in enumerate(answers)
    ]


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
