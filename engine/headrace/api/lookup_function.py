"""Look-ups by key: many records share one answer, which a look-up cache remembers."""

from __future__ import annotations

import abc
from collections.abc import Hashable
from typing import Any, TypeVar

import msgspec

from headrace.api.functions import AsyncFunction, function_types

In = TypeVar("In", bound=msgspec.Struct)
Out = TypeVar("Out", bound=msgspec.Struct)


class LookupFunction(AsyncFunction[In, Out]):
    """An `AsyncFunction` in three steps: make the key of a record, ask the service for the key, join the record with the answer.

    With `cache=LookupCache(...)` only a call that is not in the cache reaches the service.
    """

    @abc.abstractmethod
    def cache_key(self, record: In, /) -> Hashable:
        """Return the key to look up for a record."""

    @abc.abstractmethod
    async def look_up(self, key: Any, /) -> Any:
        """Ask the service. A false answer, such as None, is negative; an exception is a failure."""

    @abc.abstractmethod
    def join(self, record: In, answer: Any, /) -> list[Out]:
        """Return the records to emit for `record`, given the answer for its key."""

    async def invoke(self, record: In, /) -> list[Out]:
        """Return the records to emit for `record`: none, one or many. Called for each attempt."""
        return self.join(record, await self.look_up(self.cache_key(record)))


def inner_lookup(function: LookupFunction[In, Out]) -> LookupFunction[In, Out]:
    """Return the same look-up, which emits nothing for a record with a negative answer."""
    (takes,), gives = function_types(function)

    class InnerLookup(LookupFunction[takes, gives]):  # type: ignore[valid-type]  # known when it is called
        async def open(self, services: dict[str, str], /) -> None:
            await function.open(services)

        async def close(self) -> None:
            await function.close()

        def cache_key(self, record: Any, /) -> Hashable:
            return function.cache_key(record)

        async def look_up(self, key: Any, /) -> Any:
            return await function.look_up(key)

        def join(self, record: Any, answer: Any, /) -> list[Any]:
            return function.join(record, answer) if answer else []

        async def timeout(self, record: Any, /) -> list[Any]:
            return await function.timeout(record)

        def default(self, record: Any, error: Exception, /) -> list[Any]:
            return function.default(record, error)

        def deleted(self, record: Any, /) -> Any:
            return function.deleted(record)

    InnerLookup.deterministic = function.deterministic
    InnerLookup.__name__ = type(function).__name__
    return InnerLookup()
