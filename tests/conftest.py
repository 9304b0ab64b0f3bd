"""What holds for the tests of all tiers."""

from __future__ import annotations

import gc


def pytest_collection_finish():
    """Keep modules and tests out of garbage collections: they live to the end, and each full collection would visit them."""
    gc.collect()
    gc.freeze()
