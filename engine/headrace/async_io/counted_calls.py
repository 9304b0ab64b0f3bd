"""Counts the calls that reach a user's function: after the cache, groups and limits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from headrace.async_io.service_metrics import ServiceMetrics

AsyncCall = Callable[[Any], Awaitable[Any]]


def counted(call: AsyncCall, metrics: ServiceMetrics) -> AsyncCall:
    """Return `call` with counting, and timing of answered calls."""
    time = asyncio.get_running_loop().time

    async def counting(asked: Any) -> Any:
        metrics.calls += 1
        began = time()
        try:
            answer = await call(asked)
        except Exception:
            metrics.failures += 1
            raise
        metrics.took(time() - began)
        return answer

    return counting
