"""Look-ups by key: many records, one answer (what a look-up cache is best at)."""

from __future__ import annotations

import abc
from collections.abc import Hashable
from typing import Any, TypeVar

import msgspec

from headrace.api.functions import AsyncFunction

In = TypeVar("In", bound=msgspec.Struct)
Out = TypeVar("Out", bound=msgspec.Struct)


class LookupFunction(AsyncFunction[In, Out]):
    """An `AsyncFunction` in three steps, so that with `cache=LookupCache(...)` only the middle one calls out.

    The key of a record, what the service says for the key, and the record joined with that.
    """

    @abc.abstractmethod
    def cache_key(self, record: In, /) -> Hashable:
        """What to look up for a record."""

    @abc.abstractmethod
    async def look_up(self, key: Any, /) -> Any:
        """Ask the service. None, or anything else that is false, is a negative answer; an exception is a failure."""

    @abc.abstractmethod
    def join(self, record: In, found: Any, /) -> list[Out]:
        """The records to emit for `record`, given what was found for its key."""

    async def invoke(self, record: In, /) -> list[Out]:
        """See `AsyncFunction.invoke`: the three steps."""
        return self.join(record, await self.look_up(self.cache_key(record)))
