"""Which checkpoints have rows of an erased key, according to later checkpoints."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.edits.vacuum import KeptCheckpoints
from headrace.errors import ConfigError, StorageError
from headrace.log.checkpoint import Checkpoint, Kind
from headrace.log.marks import (
    drop_of,
    erased_ids,
    id_ranges,
    ids_of,
    live_savepoints,
    purged_ids,
    refuse_erased,
    refuse_purged,
)


def line(*kinds_and_fields):
    """Checkpoints 0, 1, 2, ..., a second apart."""
    return [
        Checkpoint(
            incarnation=1,
            checkpoint_id=number, kind=kind, run_id="r", attempt_id="a", max_parallelism=1, versions={"timers": number},
            committed_at=number * 1000, **fields,
        )
        for number, (kind, fields) in enumerate(kinds_and_fields)
    ]  # fmt: skip


ERASED = line(
    (Kind.INITIAL, {}),
    (Kind.BATCH, {}),
    (Kind.SAVEPOINT, {"name": "kept"}),
    (Kind.ERASURE, {"erased": ((1, 2),), "note": "request 17"}),
    (Kind.VACUUM, {"erased": ((2, 2),), "note": "request 17"}),
    (Kind.BATCH, {}),
)


@given(st.sets(st.integers(0, 40)))
def test_ranges_contain_exactly_their_ids(ids):
    ranges = id_ranges(ids)
    assert ids_of(ranges) == ids
    assert all(second[0] > first[1] + 1 for first, second in pairwise(ranges))


def test_log_distinguishes_erasures_from_purges():
    assert (erased_ids(ERASED), purged_ids(ERASED)) == ({1, 2}, {2})
    with pytest.raises(ConfigError, match="checkpoint 3 erased .request 17."):
        refuse_erased("job", ERASED, 1, brings_back=False)
    refuse_erased("job", ERASED, 1, brings_back=True)
    refuse_erased("job", ERASED, 5, brings_back=False)
    with pytest.raises(StorageError, match="checkpoint 4 deleted them .request 17."):
        refuse_erased("job", ERASED, 2, brings_back=True)
    refuse_purged("shop", ERASED, 1)


def test_purged_checkpoints_are_not_kept():
    kept = KeptCheckpoints.of(ERASED, oldest=0)
    assert [checkpoint.checkpoint_id for checkpoint in kept.recent] == [0, 1, 3, 4, 5]
    assert list(kept.savepoints) == []


def test_dropped_names_can_be_given_again():
    named = [(Kind.INITIAL, {}), (Kind.SAVEPOINT, {"name": "a"}), (Kind.SAVEPOINT, {"name": "b"})]
    again = [(Kind.SAVEPOINT_DROP, {"name": "a"}), (Kind.SAVEPOINT, {"name": "a"})]
    dropped = line(*named, *again)
    assert [live_savepoint.checkpoint_id for live_savepoint in live_savepoints(dropped)] == [2, 4]
    assert drop_of(dropped, "a").checkpoint_id == 3
    assert drop_of(dropped, "b") is None
