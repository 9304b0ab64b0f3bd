"""The TTL information in checkpoints."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

from headrace import ExpiryClock, OnGap, Pipeline, StateTtl, Struct, Timestamp, TtlTime, UpdateType
from headrace.log.checkpoint import Checkpoint, Kind
from headrace.log.lineage import Lineage
from headrace.log.ttl import history_ttls
from headrace.plan.planner import plan_stages
from headrace.state.ttl import Gap, TtlHistory

HOUR = timedelta(hours=1)
MS = timedelta(milliseconds=1)


PATIENT = StateTtl(HOUR, on_gap=OnGap.PROLONG, gap_threshold=100 * MS)


def advanced(history, declared, *, paused_since=None, watermark=None, now=1_000):
    return history.advanced(declared, paused_since=paused_since, watermark_of=lambda _: watermark, processing_time=now)


def test_pause_over_threshold_stays_a_gap():
    first = advanced(TtlHistory(), {"op.a": PATIENT}, paused_since=899)
    assert first.gaps == (Gap(899, 1_000),)
    second = advanced(first, {"op.a": PATIENT}, paused_since=1_100, now=1_200)
    assert second.gaps == first.gaps
    third = advanced(second, {"op.a": PATIENT}, paused_since=1_300, watermark=1_200, now=2_000)
    assert third.gaps == (Gap(899, 1_000), Gap(1_300, 2_000, 1_200))


def test_gap_without_watermark_is_prolonged_whole():
    stored = b'{"gaps":[[1000,2000,null],[3000,4000,2500],[5000,6000,null]]}'
    history = msgspec.json.decode(stored, type=TtlHistory)
    assert history.gaps == (Gap(1_000, 2_000), Gap(3_000, 4_000, 2_500), Gap(5_000, 6_000))
    assert msgspec.json.decode(msgspec.json.encode(history), type=TtlHistory) == history
    assert history.lifetimes("op").of(PATIENT, "a").gaps == [(1_000, 2_000), (3_000, 4_000), (5_000, 6_000)]


@pytest.mark.parametrize("ttl", [None, StateTtl(HOUR), StateTtl(HOUR, update=UpdateType.DISABLED)])
def test_no_gap_is_stored_without_prolonging_state(ttl):
    assert advanced(TtlHistory(), {"op.a": ttl}, paused_since=0).gaps == ()


def test_first_micro_batch_was_not_paused():
    assert advanced(TtlHistory(), {"op.a": PATIENT}).gaps == ()


def test_enabling_ttl_is_remembered_until_disabled():
    off, on = {"op.a": None}, {"op.a": StateTtl(HOUR)}
    without = advanced(TtlHistory(), off, watermark=10)
    switched = advanced(without, on, watermark=20)
    assert switched.since == {"op.a": 20}
    later = advanced(switched, on, watermark=30)
    assert later.since == {"op.a": 20}
    assert later.lifetimes("op").since == {"a": 20}
    assert later.lifetimes("o").since == {}
    assert advanced(later, off, watermark=40).since == {}


def test_enabling_processing_time_counts_from_micro_batch():
    without = advanced(TtlHistory(), {"op.a": StateTtl(HOUR, update=UpdateType.DISABLED)}, watermark=10)
    assert advanced(without, {"op.a": StateTtl(HOUR, time=TtlTime.PROCESSING)}, watermark=20).since == {"op.a": 1_000}


def test_new_clock_for_stamps_counts_as_enabling():
    event, processing = {"op.a": StateTtl(HOUR)}, {"op.a": StateTtl(HOUR, time=TtlTime.PROCESSING)}
    first = advanced(TtlHistory(), event, watermark=10)
    assert advanced(first, processing, watermark=20).since == {"op.a": 1_000}
    assert advanced(advanced(first, processing, watermark=20), event, watermark=30).since == {"op.a": 30}
    longer = {"op.a": StateTtl(2 * HOUR, expiry=ExpiryClock.PROCESSING_TIME)}
    assert advanced(first, longer, watermark=20).since == {}


def test_histories_of_materializers_are_remembered_beside_states():
    class Row(Struct, frozen=True):
        at: Timestamp
        key: str

    kept = (
        Pipeline("p")
        .source("rows", Row, event_time="at")
        .upsert_materialize("m", primary_key=("key",), ttl=StateTtl(HOUR))
    )
    assert history_ttls(plan_stages(kept.sink("board"))) == {"m.history": StateTtl(HOUR)}
    passed = (
        Pipeline("p")
        .source("rows", Row, event_time="at")
        .upsert_materialize("m", primary_key=("key",), upsert_key=("key",))
    )
    assert history_ttls(plan_stages(passed.sink("board"))) == {}


def test_ttl_from_the_beginning_is_not_enabling():
    on = {"op.a": StateTtl(HOUR)}
    assert advanced(advanced(TtlHistory(), on, watermark=10), on, watermark=20).since == {}
    assert advanced(TtlHistory(), {"op.a": None, **on}, watermark=20).since == {}


def test_changed_ttls_are_listed_by_operator():
    history = advanced(TtlHistory(), {"one.a": StateTtl(HOUR), "two.a": None, "three.a": PATIENT})
    same = {"one.a": StateTtl(HOUR, update=UpdateType.ON_CREATE), "two.a": None, "three.a": PATIENT}
    assert history.changed(same) == set()
    assert history.changed({**same, "one.a": StateTtl(2 * HOUR)}) == {"one"}
    assert history.changed({**same, "two.a": StateTtl(HOUR)}) == {"two"}
    assert history.changed({**same, "three.a": StateTtl(HOUR)}) == {"three"}
    assert history.changed({**same, "four.a": StateTtl(HOUR)}) == set()
    assert TtlHistory().changed(same) == set()


def test_only_micro_batches_end_a_pause():
    def checkpoint(number, kind, *, at, restored_from=None):
        return Checkpoint(
            incarnation=1,
            checkpoint_id=number,
            parent_id=number - 1 if number else None,
            kind=kind,
            run_id="r",
            attempt_id="a",
            max_parallelism=4,
            versions={},
            committed_at=at,
            restored_from=restored_from,
        )

    checkpoints = [checkpoint(0, Kind.INITIAL, at=0)]
    assert Lineage(checkpoints).last_micro_batch() is None
    checkpoints += [
        checkpoint(1, Kind.BATCH, at=10),
        checkpoint(2, Kind.BATCH, at=20),
        checkpoint(3, Kind.COMPACTION, at=30),
        checkpoint(4, Kind.SAVEPOINT, at=40),
    ]
    assert Lineage(checkpoints).last_micro_batch() == 20
    checkpoints.append(checkpoint(5, Kind.RESTORE, at=50, restored_from=1))
    assert Lineage(checkpoints).last_micro_batch() == 10
