"""TTL and conflicts of the materializer, through its harness, against the rules written as naive lists."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import Emit, OnConflict, RowKind, StateTtl, Strategy, Struct, TtlTime, UpdateType, Visibility
from headrace.errors import ConflictError
from headrace.testing import MaterializerHarness

INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE = RowKind
TTL = 10
EVENT = StateTtl(timedelta(milliseconds=TTL))
PROCESSING = StateTtl(timedelta(milliseconds=TTL), time=TtlTime.PROCESSING)
THRESHOLDS = {"threshold_high": 3, "threshold_low": 1}


class Row(Struct, frozen=True):
    """`key` is the primary key, `part` the upsert key if there is one."""

    key: str
    part: int
    text: str = ""


def change(text):
    """Read `+1a` as part 1 with text a; `-1a` retracts it."""
    return UPDATE_AFTER if text[0] == "+" else DELETE, Row("k", int(text[1]), text[2:])


def as_text(changes):
    return [f"{kind.symbol} {row.part}{row.text}" for kind, row in changes]


@pytest.fixture(params=Strategy)
def strategy(request):
    return request.param


@pytest.fixture
def harness(backend, strategy):
    created = []

    def new(**options):
        created.append(MaterializerHarness(Row, ("key",), strategy=strategy, backend=backend, **THRESHOLDS, **options))
        return created[-1]

    yield new
    for row in created:
        row.close()


def give(h, *texts, at):
    for text in texts:
        h.process(*change(text), at)


def test_row_expires_silently_and_next_is_insert(harness):
    h = harness(ttl=EVENT)
    give(h, "+1a", at=0)
    h.watermark(9)
    give(h, "+1b", at=5)
    h.watermark(15)
    give(h, "+1c", at=16)
    assert as_text(h.output()) == ["+I 1a", "+U 1b", "+I 1c"]
    assert h.statistics().expired == 2


def test_rows_expire_separately_except_with_legacy(harness, strategy):
    h = harness(ttl=EVENT)
    give(h, "+1a", at=0)
    give(h, "+2b", at=5)
    h.watermark(10)
    legacy = strategy is Strategy.LEGACY
    assert [row.part for row in h.history("k")] == ([1, 2] if legacy else [2])
    give(h, "-2b", at=11)
    assert as_text(h.output())[2:] == ["+U 1a" if legacy else "-D 2b"]


def test_legacy_renews_stamp_with_matched_retractions_only(backend):
    with MaterializerHarness(Row, ("key",), strategy=Strategy.LEGACY, ttl=EVENT, backend=backend) as h:
        give(h, "+1a", "+2b", at=0)
        give(h, "-2b", at=6)
        give(h, "-9x", at=9)
        h.watermark(15)
        assert len(h.history("k")) == 1
        h.watermark(16)
        assert h.history("k") == []


def test_updated_middle_row_outlives_later_rows(harness, strategy):
    if strategy is Strategy.LEGACY:
        return
    # position  1 2 3 4      age  2 3 4 1, since 1 was replaced last
    h = harness(ttl=EVENT, upsert_key=("part",))
    for at, text in enumerate(["+1a", "+2b", "+3c", "+4d", "+1e"]):
        give(h, text, at=at)
    for watermark, left in ((10, [1, 2, 3, 4]), (11, [1, 3, 4]), (12, [1, 4]), (13, [1]), (14, [])):
        h.watermark(watermark)
        assert [row.part for row in h.history("k")] == left


def test_late_row_never_expires_before_earlier_one(harness):
    h = harness(ttl=EVENT)
    give(h, "+1a", at=8)
    give(h, "+2b", at=1)
    h.watermark(17)
    assert len(h.history("k")) == 2
    h.watermark(18)
    assert h.history("k") == []


def test_keys_without_records_are_swept(harness):
    h = harness(ttl=EVENT)
    for number in range(20):
        h.process(INSERT, Row(str(number), 1), number)
    h.snapshot()
    h.watermark(19)
    assert (h.statistics().keys, h.statistics().expired) == (10, 10)
    h.watermark(100)
    assert h.snapshot().entries == ()


def test_processing_time_is_that_of_the_micro_batch(harness):
    h = harness(ttl=PROCESSING)
    give(h, "+1a", at=10**6)
    h.clock.advance(9)
    assert len(h.history("k")) == 1
    h.clock.advance(1)
    assert h.snapshot().entries == ()
    give(h, "+1b", at=0)
    assert as_text(h.output()) == ["+I 1a", "+I 1b"]


def test_sink_drops_row_whose_history_died(harness):
    h = harness(ttl=EVENT, emit=Emit.NET_CHANGE)
    give(h, "+1a", at=0)
    assert as_text(h.output()) == ["+I 1a"]
    h.watermark(10)
    give(h, "+2b", "-2b", at=11)
    assert as_text(h.output()) == ["-D 2b"]


def test_strategy_decides_which_history_is_a_map(backend, strategy):
    maps = {Strategy.LEGACY: "000", Strategy.VALUE: "000", Strategy.MAP: "111", Strategy.ADAPTIVE: "010"}[strategy]
    with MaterializerHarness(Row, ("key",), strategy=strategy, backend=backend, **THRESHOLDS) as h:
        output = ""
        for texts in (["+1a", "+2b"], ["+3c"], ["-1a", "-2b"]):
            give(h, *texts, at=0)
            output += str(h.statistics().maps)
        assert output == maps


@pytest.mark.parametrize(
    "ttl",
    [
        StateTtl(timedelta(1), update=UpdateType.ON_READ_AND_WRITE),
        StateTtl(timedelta(1), visibility=Visibility.RETURN_IF_NOT_CLEANED_UP),
    ],
)
def test_ttl_impossible_for_history_rows_is_refused(ttl):
    with pytest.raises(ValueError, match=r"ttl of 'materializer': .* must be"):
        MaterializerHarness(Row, ("key",), ttl=ttl)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"primary_key": ()}, "needs a primary key"),
        ({"primary_key": ("kye",)}, "Row has no field 'kye'; it has key, part, text"),
        ({"primary_key": ("key",), "upsert_key": ("aprt",)}, "Row has no field 'aprt'"),
    ],
)
def test_harness_refuses_the_arguments_a_pipeline_refuses(fields, message):
    with pytest.raises(ValueError, match=message):
        MaterializerHarness(Row, **fields)


def test_harness_uses_the_keys_of_a_job():
    class Fare(Struct, frozen=True):
        price: float | None

    with MaterializerHarness(Fare, ("price",)) as h:
        h.process(INSERT, Fare(-0.0))
        h.process(INSERT, Fare(0))
        assert [kind for kind, _ in h.output()] == [INSERT, UPDATE_AFTER]
        with pytest.raises(ValueError, match=r"the key \(price\) is null"):
            h.process(INSERT, Fare(None))


def test_key_without_rows_leaves_nothing_behind(harness, strategy):
    """The same holds after another upsert key was used."""
    h = harness(upsert_key=("key",))
    give(h, "+1a", at=1)
    arguments = {"primary_key": ("key",), "upsert_key": ("part",), "strategy": strategy, **THRESHOLDS}
    with MaterializerHarness.restore(h.snapshot(), Row, **arguments) as again:
        give(again, "-1a", at=2)
        assert as_text(again.output()) == ["-D 1a"]
        assert again.snapshot().entries == ()


def test_ttl_by_another_clock_is_refused():
    """The TTL's clock must be the clock of conflicts."""
    with pytest.raises(ValueError, match=r"on_conflict goes by the watermark, so its ttl must be in event time"):
        MaterializerHarness(Row, ("key",), ttl=PROCESSING, on_conflict=OnConflict.DO_NOTHING)


def test_first_row_stays_and_later_are_dropped(harness):
    """Later rows are dropped at the watermark."""
    h = harness(on_conflict=OnConflict.DO_NOTHING)
    give(h, "+1a", "+2b", at=1)
    h.watermark(1)
    assert [row.part for row in h.history("k")] == [1]
    assert h.statistics().conflicts == 1
    give(h, "-2b", "-1a", at=2)
    assert as_text(h.output()) == ["+I 1a", "-D 1a"]
    assert [row.part for row in h.unmatched] == [2]


@pytest.mark.parametrize("policy", [OnConflict.DO_NOTHING, OnConflict.ERROR, OnConflict.DEDUPLICATE])
def test_row_before_its_predecessors_retraction_is_no_conflict(harness, policy):
    h = harness(on_conflict=policy)
    give(h, "+1a", at=1)
    h.watermark(5)
    give(h, "+2b", "-1a", at=6)
    h.watermark(6)
    give(h, "-2b", at=7)
    assert as_text(h.output())[-1] == "-D 2b"
    assert as_text(h.output()) == []
    assert h.statistics().conflicts == 0


def test_conflict_before_watermark_waits_over_restarts(harness):
    h = harness(on_conflict=OnConflict.ERROR)
    give(h, "+1a", "+2b", at=5)
    h.snapshot()
    h.watermark(4)
    with pytest.raises(ConflictError, match=r'"part":1.*"part":2'):
        h.watermark(5)


def test_conflict_names_operator_and_key_not_function(harness):
    h = harness(on_conflict=OnConflict.ERROR)
    give(h, "+1a", "+2b", "+3c", "+4d", at=5)
    with pytest.raises(ConflictError) as conflict:
        h.watermark(5)
    message = str(conflict.value)
    assert "operator 'materializer': 4 rows claim the primary key \"k\"" in message
    assert "and 1 more" in message
    assert "function" not in message


def test_late_row_waits_for_the_next_watermark(harness):
    """The row does not wait for the end of a micro-batch."""
    h = harness(on_conflict=OnConflict.DO_NOTHING)
    h.watermark(7)
    give(h, "+1a", "+2b", at=1)
    h.snapshot()
    assert [row.part for row in h.history("k")] == [1, 2]
    give(h, "-1a", at=1)
    h.watermark(8)
    assert [row.part for row in h.history("k")] == [2]


def test_dropped_duplicates_never_reappear(harness):
    h = harness(on_conflict=OnConflict.DEDUPLICATE)
    give(h, "+1a", "+2b", at=1)
    h.watermark(1)
    give(h, "-2b", at=2)
    assert as_text(h.output()) == ["+I 1a", "+U 2b", "-D 2b"]


def test_deduplication_keeps_the_row_that_the_sink_holds(harness):
    h = harness(on_conflict=OnConflict.DEDUPLICATE, upsert_key=("part",), emit=Emit.NET_CHANGE)
    give(h, "+1a", "+2b", "+1c", at=1)
    assert as_text(h.output()) == ["+I 1c"]
    h.watermark(1)
    assert [row.text for row in h.history("k")] == ["c"]


class Model:
    """One key's rows with their insertions; all the rules, implemented in the simplest way."""

    def __init__(self, upsert_key, strategy, policy, has_ttl):
        self.upsert_key, self.legacy, self.policy, self.has_ttl = (
            upsert_key,
            strategy is Strategy.LEGACY,
            policy,
            has_ttl,
        )
        self.rows, self.emitted, self.unmatched = [], [], 0
        self.since = float("-inf")
        self.passed = -1

    def end(self, watermark):
        """Let the watermark pass each timestamp: what waits for it is settled, then rows expire."""
        if watermark is None:
            return
        for timestamp in [*range(self.passed + 1, watermark), watermark]:
            self.settle(timestamp)
            self.expire(timestamp)
        self.passed = watermark

    def settle(self, timestamp):
        settled = [entry for entry in self.rows if entry[1] <= timestamp]
        if len(settled) > 1 and self.policy is OnConflict.DO_NOTHING:
            self.rows = [entry for entry in self.rows if entry is settled[0] or entry[1] > timestamp]
        if len(settled) > 1 and self.policy is OnConflict.DEDUPLICATE:
            self.rows = [entry for entry in self.rows if entry is settled[-1] or entry[1] > timestamp]

    def expire(self, timestamp):
        if self.has_ttl:
            newest = max((at for _, at in self.rows), default=0)
            stamp = (lambda _: newest) if self.legacy else (lambda at: at)
            self.rows = [(row, at) for row, at in self.rows if max(stamp(at), self.since) + TTL > timestamp]

    def take(self, kind, row, at, watermark):
        self.end(watermark)
        if self.policy is not OnConflict.KEEP_HISTORY and watermark is not None:
            at = max(at, watermark + 1)
        if self.has_ttl:
            at = max([at, *(inserted_at for _, inserted_at in self.rows)])
        same = [i for i, (entry, _) in enumerate(self.rows) if self.matches(entry, row)]
        shown = self.rows[0] if self.rows else None
        if kind in {INSERT, UPDATE_AFTER}:
            self.add(row, at, same, shown)
        elif not same:
            self.unmatched += 1
        else:
            self.remove(row, at, same[0])

    def matches(self, entry, row):
        return (
            all(getattr(entry, field) == getattr(row, field) for field in self.upsert_key)
            if self.upsert_key
            else entry == row
        )

    def add(self, row, at, same, shown):
        first = self.policy is OnConflict.DO_NOTHING
        if not first or shown is None or (same and same[0] == 0 and self.upsert_key):
            self.emitted.append((UPDATE_AFTER if self.rows else INSERT, row))
        if same and self.upsert_key and self.policy is OnConflict.DEDUPLICATE:
            del self.rows[same[0]]
            self.rows.append((row, at))
        elif same and self.upsert_key:
            self.rows[same[0]] = (row, at)
        else:
            self.rows.append((row, at))

    def remove(self, row, at, position):
        del self.rows[position]
        if not self.rows:
            self.emitted.append((DELETE, row))
            return
        if self.legacy and self.has_ttl:
            self.rows[-1] = (self.rows[-1][0], at)
        if self.policy is OnConflict.DO_NOTHING:
            if position == 0:
                self.emitted.append((UPDATE_AFTER, self.rows[0][0]))
        elif position == len(self.rows):
            self.emitted.append((UPDATE_AFTER, self.rows[-1][0]))


actions = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(RowKind), st.integers(0, 3), st.sampled_from("ab"), st.integers(0, 8)),
        st.tuples(st.sampled_from(["watermark", "restart"]), st.just(0), st.just(""), st.integers(1, 6)),
    ),
    max_size=40,
)
policies = st.sampled_from([OnConflict.KEEP_HISTORY, OnConflict.DO_NOTHING, OnConflict.DEDUPLICATE])


@pytest.mark.parametrize("upsert_key", [None, ("part",)])
@given(actions=actions, strategy=st.sampled_from(Strategy), policy=policies, has_ttl=st.booleans())
def test_lifetimes_and_conflicts_follow_the_rules(backends, upsert_key, actions, strategy, policy, has_ttl):
    model = Model(upsert_key, strategy, policy, has_ttl)
    options = {"upsert_key": upsert_key, "on_conflict": policy, "ttl": EVENT if has_ttl else None, **THRESHOLDS}
    with backends.lent() as new:
        h = MaterializerHarness(Row, ("key",), strategy=strategy, backend=new(), **options)
        now, mark, results, unmatched = 0, None, [], 0
        for what, part, text, step in actions:
            if what == "watermark":
                mark = (mark or 0) + step
                h.watermark(mark)
                model.end(mark)
            elif what == "restart":
                results += h.output()
                unmatched += len(h.unmatched)
                snapshot = h.snapshot()
                h.close()
                h = MaterializerHarness.restore(
                    snapshot, Row, primary_key=("key",), strategy=strategy, backend=new(), **options
                )
            else:
                now = max((mark or 0) - 2, now - 3) + step
                row = Row("k", part, text)
                h.process(what, row, now)
                model.take(what, row, now, mark)
        results += h.output()
        unmatched += len(h.unmatched)
        assert results == model.emitted
        assert unmatched == model.unmatched
        model.end(mark)
        assert h.history("k") == [row for row, _ in model.rows]
        h.close()
