"""The async wait operator in its simplest correct form: all elements of a slice, within one run.

Up to `capacity` calls run at once on one asyncio loop; a call that fails is repeated as the retry
strategy says, within the timeout that covers all attempts of its record. Results leave in arrival
order, so both output modes look the same downstream.
"""

from __future__ import annotations

import asyncio
import traceback
from collections import Counter
from collections.abc import Sequence

import msgspec

from engine import clock
from engine.api import AsyncWait
from engine.errors import ServiceError, UserFunctionError
from engine.execution.element import Emitted, output_order


class AsyncWaitOperator:
    """One `AsyncWait` operator in one task."""

    def __init__(self, operator: AsyncWait, services: dict[str, str]) -> None:
        """`services` is handed to the function's `open`."""
        self.operator = operator
        self.metrics: Counter[str] = Counter()
        self._services = services

    def run(self, elements: Sequence[Emitted]) -> list[Emitted]:
        """Answer every element; return the results in the elements' order.

        Raises `ServiceError` when an element has used up its retries or its timeout, and
        `UserFunctionError` for an exception that the retry strategy does not cover. The first
        failure ends the run: calls still in flight are cancelled.
        """
        return asyncio.run(self._run(elements))

    async def _run(self, elements: Sequence[Emitted]) -> list[Emitted]:
        results: list[Sequence[msgspec.Struct]] = [()] * len(elements)
        queue = iter(enumerate(elements))

        async def worker() -> None:
            for position, element in queue:
                results[position] = await self._answer(element.record)

        function = self.operator.function
        try:
            await self._open()
            workers = min(self.operator.capacity, len(elements))
            async with asyncio.TaskGroup() as group:
                for _ in range(workers):
                    group.create_task(worker())
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from errors
        finally:
            await function.close()
        return [
            Emitted(output_order(element.order, index), element.timestamp, element.kind, record)
            for element, answers in zip(elements, results, strict=True)
            for index, record in enumerate(answers)
        ]

    async def _open(self) -> None:
        try:
            await self.operator.function.open(self._services)
        except Exception as error:
            text = "".join(traceback.format_exception(error))
            raise UserFunctionError(self.operator.name, None, "none yet: open() failed", text) from error

    async def _answer(self, record: msgspec.Struct) -> Sequence[msgspec.Struct]:
        seconds = self.operator.timeout.total_seconds()
        self.metrics["requests"] += 1
        try:
            async with asyncio.timeout(seconds):
                return await self._attempts(record)
        except TimeoutError as error:
            self.metrics["timeouts"] += 1
            msg = (
                f"operator '{self.operator.name}' had no answer within {seconds:g} s for {record!r:.300}. "
                "Nothing was committed; check the service, then run again."
            )
            raise ServiceError(msg) from error

    async def _attempts(self, record: msgspec.Struct) -> Sequence[msgspec.Struct]:
        retry = self.operator.retry
        retries = 0
        while True:
            try:
                answers: Sequence[msgspec.Struct] = await self.operator.function.invoke(record)
            except Exception as error:  # noqa: BLE001 - the retry strategy decides which ones count
                if not retry.retries_exception(error):
                    raise self._user_error(record, error) from error
                if not retry.can_retry(retries):
                    raise self._given_up(record, retries, error) from error
                self.metrics["retries"] += 1
                await clock.sleep_async(retry.backoff(retries).total_seconds())
                retries += 1
            else:
                return answers

    def _given_up(self, record: msgspec.Struct, retries: int, error: Exception) -> ServiceError:
        return ServiceError(
            f"operator '{self.operator.name}' gave up after {retries + 1} calls for {record!r:.300}: "
            f"{type(error).__name__}: {error}. Nothing was committed; "
            "check the service, then run again."
        )

    def _user_error(self, record: msgspec.Struct, error: Exception) -> UserFunctionError:
        text = "".join(traceback.format_exception(error))
        return UserFunctionError(self.operator.name, None, f"{record!r:.500}", text)
