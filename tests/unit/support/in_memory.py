"""State and sinks of harnesses in memory. Commits to Delta tables are most of the time of a small job.

Tables in memory behave as Delta tables do: `tests/unit/storage/test_store_contract.py` holds both to one contract.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from headrace.testing import PipelineHarness
from headrace.testing._memory_disk import forget_disk

_names = itertools.count(1)


@contextmanager
def tables_in_memory() -> Iterator[None]:
    """Let harnesses without a `storage` of their own have one in memory, for as long as they live."""
    begin = PipelineHarness.__post_init__

    def begin_in_memory(harness: PipelineHarness, now: object) -> None:
        if harness.storage is None:
            name = f"harness-{next(_names)}"
            harness.storage = f"memory://{name}"
            weakref.finalize(harness, forget_disk, name)
        begin(harness, now)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PipelineHarness, "__post_init__", begin_in_memory)
        yield
