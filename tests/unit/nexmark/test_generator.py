"""The generator: the same files for the same arguments, with the stated disorder."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.nexmark.generator import START, Shape, generate, main, write_events
from pipelines.nexmark.records import LONGEST_AUCTION, Auction, Bid, Person
from tests.unit.support.fuzzing import examples

SHAPES = st.builds(
    Shape,
    st.integers(0, 300),
    seed=st.integers(),
    gap_ms=st.integers(1, 1000),
    disorder_ms=st.integers(0, 5000),
    late=st.sampled_from([0.0, 0.2]),
    late_ms=st.integers(0, 60_000),
)


def events_of(shape) -> list[Any]:
    """The generated events: persons, auctions and bids, as a struct of each has its own fields."""
    return list(generate(shape))


def lags_of(events):
    """How far each event is behind the latest time before it."""
    latest = 0
    for event in events:
        yield max(latest, event.date_time) - event.date_time
        latest = max(latest, event.date_time)


@examples(30)
@given(shape=SHAPES)
def test_times_are_unique_and_lags_bounded(shape):
    events = events_of(shape)
    assert len({event.date_time for event in events}) == len(events) == shape.events
    assert all(START <= event.date_time < START + shape.events * shape.gap_ms for event in events)
    most = shape.disorder_ms if not shape.late else shape.disorder_ms + 1 + shape.late_ms
    assert all(lag <= most for lag in lags_of(events))


@examples(20)
@given(shape=SHAPES)
def test_events_refer_to_earlier_events(shape):
    events = sorted(events_of(shape), key=lambda event: event.date_time)
    persons, auctions = set(), set()
    for event in events:
        if type(event) is Person:
            persons.add(event.id)
        elif type(event) is Auction:
            auctions.add(event.id)
            assert event.seller in persons
            assert 0 < event.expires - event.date_time <= LONGEST_AUCTION.total_seconds() * 1000
        else:
            assert event.bidder in persons
            assert event.auction in auctions
            assert event.price > 0


def test_one_person_three_auctions_forty_six_bids():
    counts = Counter(type(event) for event in generate(Shape(500)))
    assert counts == {Person: 10, Auction: 30, Bid: 460}


def test_late_events_are_later_than_the_disorder():
    lags = [*lags_of(generate(Shape(2000, late=0.1)))]
    assert 50 < sum(lag > Shape(0).disorder_ms for lag in lags) < 300


def test_same_seed_writes_the_same_rows(tmp_path):
    written = [write_events(tmp_path / name, Shape(300, seed=3), files=4) for name in ("one", "other")]
    assert written == [{"persons": 6, "auctions": 18, "bids": 276}] * 2
    files = sorted(file.relative_to(tmp_path / "one") for file in (tmp_path / "one").rglob("*.parquet"))
    assert len(files) == 3 * 4 + 1
    assert all(
        pq.read_table(tmp_path / "one" / file).equals(pq.read_table(tmp_path / "other" / file)) for file in files
    )


@pytest.mark.parametrize("files", [1, 7, 30])
def test_files_together_have_the_arrivals_in_order(tmp_path, files):
    shape = Shape(20, seed=5)
    write_events(tmp_path, shape, files=files)
    parts = sorted((tmp_path / "bids").iterdir())
    times = [at.timestamp() * 1000 for part in parts for at in pq.read_table(part)["date_time"].to_pylist()]
    assert (len(parts), times) == (files, [event.date_time for event in generate(shape) if type(event) is Bid])


def test_folder_with_files_is_left_alone(tmp_path):
    write_events(tmp_path, Shape(10))
    with pytest.raises(FileExistsError, match="bids|persons"):
        write_events(tmp_path, Shape(10))


@pytest.mark.parametrize("wrong", [{"gap_ms": 0}, {"events": -1}, {"late": 1.5}, {"disorder_ms": -1}])
def test_impossible_shapes_are_refused(wrong):
    with pytest.raises(ValueError, match="gap_ms must be at least 1"):
        generate(Shape(**{"events": 10} | wrong))


def test_command_prints_the_written_files(tmp_path, capsys):
    main(["--events", "100", "--seed", "7", "--files", "2", "--out", str(tmp_path / "nexmark")])
    assert "2 persons, 6 auctions, 92 bids" in capsys.readouterr().out
