"""The ordered multiset: its layouts, over any backend, against a plain list."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import Strategy
from headrace.errors import EngineBug
from headrace.materializer.dict_layout import DictLayout
from headrace.materializer.histories import Histories
from headrace.materializer.identities import projection
from headrace.materializer.map_layout import MapLayout
from headrace.materializer.ordered_multiset import ListLayout, Removal
from headrace.materializer.stored_history import StoredMap
from headrace.options import Layouts, MaterializerOptions
from headrace.state.backend import HashMapBackend

KEY = b'"k"'


def row(text):
    return b'{"part":"%b"}' % text.encode()


class Model:
    """Numbers and texts in a list; the oldest insertion first in `ages`."""

    def __init__(self):
        self.rows, self.ages = [], []

    def append(self, text, at):
        number = self.rows[-1][0] + 1 if self.rows else 0
        self.rows.append((number, text, at))
        self.ages.append(number)

    def put(self, text, at):
        for place, (number, identity, _) in enumerate(self.rows):
            if identity == text:
                self.rows[place] = (number, text, at)
                return
        self.append(text, at)

    def remove(self, text):
        place = next((place for place, entry in enumerate(self.rows) if entry[1] == text), None)
        if place is None:
            return Removal.NOTHING
        del self.rows[place]
        if place < len(self.rows):
            return Removal.OTHER
        return Removal.LAST if self.rows else Removal.ALL

    def expire(self, until):
        dead = [entry for entry in self.rows if entry[2] <= until]
        self.rows = [entry for entry in self.rows if entry[2] > until]
        return len(dead)


def assert_same(rows, model):
    """Compare a layout with a model."""
    assert [(n, raw, at) for _, (n, raw, _, at) in rows.entries()] == [(n, row(t), at) for n, t, at in model.rows]
    assert rows.size == len(model.rows)
    assert rows.oldest() == min((at for *_, at in model.rows), default=None)
    assert rows.newest() == max((at for *_, at in model.rows), default=None)
    for position, (own, *_) in enumerate(model.rows):
        before, after = rows.before(own), rows.after(own)
        assert (before and before[0]) == (model.rows[position - 1][0] if position else None)
        assert (after and after[0]) == (model.rows[position + 1][0] if position + 1 < len(model.rows) else None)


steps = st.lists(
    st.tuples(
        st.sampled_from(["append", "put", "remove", "remove", "expire", "reopen"]),
        st.sampled_from(["a", "b", "c", "d"]),
        st.integers(0, 3),
    ),
    max_size=40,
)


def take(step, text, clock, rows, model):
    """Do a step with a layout and with the model, and compare what they return."""
    if step == "expire":
        assert rows.expire(clock - 4) == model.expire(clock - 4)
    elif step == "remove":
        assert rows.remove(row(text)) is model.remove(text)
    else:
        getattr(rows, step)(row(text), row(text), 0, clock)
        getattr(model, step)(text, clock)


@pytest.mark.parametrize("strategy", [Strategy.VALUE, Strategy.MAP, Strategy.ADAPTIVE])
@given(steps=steps)
def test_layout_behaves_like_a_plain_list(backends, strategy, steps):
    model, clock = Model(), 0
    with backends.lent() as new:
        backend = new()

        def opened():
            result = Histories(backend, Layouts(strategy, high=4, low=2), projection(()), ages=True)
            result.load([KEY])
            return result

        histories = opened()
        for step, text, number in steps:
            rows = histories.live[KEY]
            clock += number
            if step == "reopen":
                backend.write_batch(list(histories.writes()))
                histories = opened()
            else:
                take(step, text, clock, rows, model)
            rows = histories.switch(KEY)
            assert_same(rows, model)
            assert rows.is_map is Layouts(strategy, 4, 2).wants_map(rows.size, is_map=rows.is_map)
        backend.write_batch(list(histories.writes()))
        assert bool(model.rows) == bool(dict(backend.items()))  # no part of a removed row is left


@given(steps=steps)
def test_dicts_are_stored_like_linked_nodes(steps):
    model, rows, clock = Model(), DictLayout(), 0
    for step, text, number in steps:
        clock += number
        if step == "reopen":
            rows = DictLayout(rows.entries())
        else:
            take(step, text, clock, rows, model)
        assert_same(rows, model)
        if rows.size:
            ends = rows.first(), rows.last(), rows.get(rows.last()[0])
            assert [end[0] for end in ends] == [model.rows[place][0] for place in (0, -1, -1)]
            assert rows.head() == MapLayout.of(rows.entries(), ages=False).head()
            assert stored(rows) == stored(MapLayout.of(rows.entries(), ages=False))
        for other in "abcd":
            assert rows.find(row(other)) == next((n for n, own, _ in model.rows if own == other), None)


def stored(rows):
    """Return the entries of a map."""
    return dict(StoredMap(HashMapBackend(), KEY, projection(())).whole(rows.parts()))


def test_unneeded_map_entries_are_not_accessed(backend):
    if not MaterializerOptions().layouts(Strategy.MAP, "rocksdb").stores_maps:
        pytest.fail("rocksdb stores maps")
    histories = Histories(backend, Layouts(Strategy.MAP, 4, 2), projection(()))
    histories.load([KEY])
    for number in range(1000):
        histories.live[KEY].append(row(str(number)), row(str(number)), 0, 0)
    histories.switch(KEY)
    backend.write_batch(list(histories.writes()))
    counting = Counting(backend)
    histories = Histories(counting, Layouts(Strategy.MAP, 4, 2), projection(()))
    histories.load([KEY])
    histories.prefetch([(KEY, row("500")), (KEY, row("new"))])
    asked = len(counting.asked)
    assert histories.live[KEY].remove(row("500")) is Removal.OTHER
    histories.live[KEY].append(row("new"), row("new"), 0, 0)
    assert len(counting.asked) == asked  # all entries that the changes need were loaded
    assert asked == 1 + 2 + 2 + 1 + 2  # head; ends; two identities; the node; its neighbours
    # head; 500 and its identity gone; neighbours relinked; the last one knows of the new one; the new one and its identity
    assert len(list(histories.writes())) == 1 + 2 + 2 + 1 + 2


class Counting:
    """Counts entries asked for."""

    def __init__(self, backend):
        self._backend, self.asked = backend, []

    def get_many(self, keys):
        self.asked += keys
        return self._backend.get_many(keys)


def test_missing_node_is_reported(backend):
    histories = Histories(backend, Layouts(Strategy.MAP, 4, 2), projection(()))
    histories.load([KEY])
    for text in "abcdef":
        histories.live[KEY].append(row(text), row(text), 0, 0)
    histories.switch(KEY)
    backend.write_batch(list(histories.writes()))
    backend.write_batch([(entry, None) for entry in dict(backend.items()) if b"\x00n" in entry])
    with pytest.raises(EngineBug, match=r"node \d of the history .* is missing"):
        Histories(backend, Layouts(Strategy.MAP, 4, 2), projection(())).load([KEY])


def test_size_between_the_thresholds_keeps_its_layout():
    layouts = Layouts(Strategy.ADAPTIVE, high=5, low=3)
    is_map, output = False, ""
    for size in (1, 2, 3, 4, 5, 4, 3, 4, 5):
        is_map = layouts.wants_map(size, is_map=is_map)
        output += "M" if is_map else "l"
    assert output == "llllMMllM"


@pytest.mark.parametrize(
    ("backend_name", "high", "low"), [("rocksdb", 50, 40), ("hashmap", 400, 300), ("delta", 400, 300)]
)
def test_thresholds_are_those_of_the_flip(backend_name, high, low):
    layouts = MaterializerOptions().layouts(Strategy.ADAPTIVE, backend_name)
    assert (layouts.high, layouts.low) == (high, low)


@pytest.mark.parametrize(("high", "low"), [(5, 5), (4, 5), (5, -1), (40, None), (None, 50)])
def test_thresholds_that_contradict_each_other_are_refused(high, low):
    with pytest.raises(
        ValueError, match=r"adaptive.threshold.low must be at least 0 and below adaptive.threshold.high"
    ):
        MaterializerOptions(threshold_high=high, threshold_low=low).layouts(Strategy.ADAPTIVE, "rocksdb")


def test_layouts_agree_on_equal_rows():
    for layout in (ListLayout(), DictLayout(), MapLayout()):
        for text in "aba":
            layout.append(text, row(text), 0, 0)
        assert [layout.find("a"), layout.find("b"), layout.find("c")] == [0, 1, None]
        assert [layout.remove("a"), layout.find("a"), layout.remove("a")] == [Removal.OTHER, 2, Removal.LAST]
