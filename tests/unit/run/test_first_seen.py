"""Folders in the order of first listing: files are taken in as they come, whatever their names are, and nothing depends on the cut (no JVM)."""

from __future__ import annotations

import json
from datetime import date

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from headrace import KeyedProcessFunction, Pipeline, Struct, Timestamp, ValueState
from headrace.cli import app
from headrace.commit.input_report import InputKind, input_remarks
from headrace.edits.acknowledge import acknowledge
from headrace.edits.restore import restore
from headrace.errors import ConfigError, SourceError
from headrace.plan.loader import plan_of
from headrace.sources.folder.first_seen import placed_files
from headrace.sources.position import NO_FACTS, FolderPosition, SourceFacts, digest
from headrace.sources.registry import source_of
from headrace.sources.source import SourceFile, TakenIn, Want
from headrace.testing import World
from tests.unit.sources.source_reading import parquet_bytes
from tests.unit.support.fuzzing import examples
from tests.unit.support.refused_rows import RefusedJob

FIRST_SEEN = {"order": "first_seen"}
ROWS_OF_A_FILE = 2


class Row(Struct, frozen=True):
    all: str
    at: Timestamp
    text: str


class Arrival(Struct, frozen=True):
    number: int
    text: str


class Arrivals(KeyedProcessFunction[Row, Arrival]):
    """Number the rows of a key as they arrive."""

    count = ValueState("count", int)

    async def process(self, row, ctx, /):
        number = await self.count.value() or 0
        await self.count.update(number + 1)
        ctx.collect(Arrival(number, row.text))


def arrivals(*more):
    pipeline = Pipeline("rows")
    rows, *others = (pipeline.source(name, Row, event_time="at") for name in ("rows", *more))
    return (rows.union(*others) if others else rows).key_by("all").process("arrivals", Arrivals()).sink("seen")


def first_seen_job(*more, files_per_batch=16, **source):
    sources = {name: {**FIRST_SEEN, "max_ahead": "none", **source} for name in ("rows", *more)}
    return World().job(arrivals(*more), files_per_batch=files_per_batch, job={"sources": sources})


def put(job, *names, text=None, source="rows", at=0, step=0):
    for name in names:
        rows = [Row("all", at + step * number, f"{text or name} {number}") for number in range(ROWS_OF_A_FILE)]
        job.feed(source, rows, file=name)


def remove(job, name, source="rows"):
    (job.folder / "input" / source / name).unlink()


def arrived(job):
    rows = sorted(job.sink("seen"), key=lambda row: row.number)
    assert [row.number for row in rows] == list(range(len(rows)))
    return [row.text for row in rows]


def rows_of(names):
    return [f"{name} {number}" for name in names for number in range(ROWS_OF_A_FILE)]


class PlainLoop:
    """Files taken in one by one, a generation after the other."""

    def __init__(self):
        self.folder, self.left, self.taken = set(), [], []

    def take(self, count=None):
        """Take the next files, as many as a micro-batch has; return them."""
        if not self.folder & {*self.left}:
            self.left = sorted(self.folder - {*self.taken})
        chosen = [name for name in self.left if name in self.folder][:count]
        self.left = [name for name in self.left if chosen and name > chosen[-1]]
        self.taken += chosen
        return chosen

    def take_all(self, count):
        """Take files until nothing is left."""
        while self.take(count):
            pass


SPARK = ("part-00000-9f1c.parquet", "part-00000-1b2c.parquet")


def test_earlier_name_comes_after_files_taken_in():
    job = first_seen_job()
    for name in SPARK:
        put(job, name)
        job.run()
    assert arrived(job) == rows_of(SPARK)


def test_late_name_is_refused_with_the_way():
    job = first_seen_job(order="name")
    put(job, SPARK[0])
    job.run()
    put(job, SPARK[1])
    with pytest.raises(
        SourceError, match=r"appeared behind .* a new job with sources\.rows\.order: first_seen takes files in"
    ):
        job.run()


NAMES = [
    "0000000001/a",
    "0000000002/a",
    "2/b",
    "A",
    "a",
    "a b",
    "a~0123abcd",
    "day=2026-03-01/a",
    "day=2026-03-02/a",
    "z",
    "é",
]
FILES = st.sampled_from([f"{name}.parquet" for name in NAMES])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), FILES),
        st.tuples(st.just("remove"), FILES),
        st.tuples(st.just("run"), st.sampled_from([None, None, 1, 2])),
        st.tuples(st.just("crash"), st.sampled_from(["run.after", "commit.before", "commit.after", "publish.after"])),
    ),
    max_size=14,
)


def follow(job, loop, steps, count):
    """Do the steps with a job and with a plain loop."""
    for step, value in steps:
        if step == "put" and value not in loop.folder:
            put(job, value)
            loop.folder.add(value)
        elif step == "remove" and value in loop.folder:
            remove(job, value)
            loop.folder.discard(value)
        elif step == "run":
            job.run(max_batches=value)
            if value is None:
                loop.take_all(count)
            for _ in range(value or 0):
                loop.take(count)
        elif step == "crash":
            job.run(crash_at=value)
            if value in {"commit.after", "publish.after"}:
                loop.take(count)


@pytest.mark.slow
@examples(40)
@given(steps=STEPS, count=st.integers(1, 3))
def test_any_course_equals_a_plain_loop(steps, count):
    job, loop = first_seen_job(files_per_batch=count), PlainLoop()
    follow(job, loop, [*steps, ("run", None), ("run", None)], count)
    assert arrived(job) == rows_of(loop.taken)


GROWTH = st.lists(
    st.tuples(st.lists(FILES, max_size=4, unique=True), st.sampled_from([None, 1, 2])), min_size=1, max_size=5
)


def grow(job, growth):
    """Write files and run, again and again; then run to the end."""
    there = set()
    for names, batches in growth:
        put(job, *(name for name in names if name not in there))
        there |= {*names}
        job.run(max_batches=batches)
    job.run()
    job.run()


@pytest.mark.slow
@examples(25)
@given(growth=GROWTH, count=st.integers(1, 3), data=st.data())
def test_restored_job_takes_files_in_the_same_order(growth, count, data):
    job = first_seen_job(files_per_batch=count)
    grow(job, growth)
    before = arrived(job)
    target = data.draw(st.sampled_from([checkpoint.checkpoint_id for checkpoint in job.facts]))
    with job.on_its_clock():
        restore(job.config, target, "again", "somebody")
    job.change(
        job={
            "sources": {
                "rows": {
                    "order": "first_seen",
                    "max_ahead": "none",
                    "max_files_per_batch": data.draw(st.integers(1, 5)),
                }
            }
        }
    )
    job.run()
    job.run()
    assert arrived(job) == before


@pytest.mark.slow
@examples(25)
@given(growth=GROWTH, count=st.integers(1, 3), data=st.data())
def test_branch_uses_the_generations_of_its_job(growth, count, data):
    job = first_seen_job(files_per_batch=count)
    grow(job, growth)
    before = arrived(job)
    at = data.draw(st.sampled_from([checkpoint.checkpoint_id for checkpoint in job.facts]))
    branch = job.branch("other", at=at)
    put(job, "0 late.parquet")
    branch.run()
    assert arrived(branch) == [*before, *rows_of(["0 late.parquet"])]
    branch.promote()
    put(job, "0 later.parquet")
    job.run()
    assert arrived(job) == [*before, *rows_of(["0 late.parquet", "0 later.parquet"])]


@pytest.mark.slow
def test_corrected_file_keeps_its_place_on_a_branch():
    job = first_seen_job(files_per_batch=1)
    for name in ("b", "c", "a"):
        put(job, f"{name}.parquet")
        job.run()
    remove(job, "c.parquet")
    put(job, "c.parquet", text="new c")
    branch = job.branch("other", at=0)
    branch.run()
    assert arrived(branch) == rows_of(["b.parquet", "new c", "a.parquet"])


@pytest.mark.slow
def test_branch_passes_over_files_that_are_gone():
    job = first_seen_job(files_per_batch=1)
    for names in (["b.parquet", "d.parquet"], ["c.parquet"], ["a.parquet"]):
        put(job, *names)
        job.run()
    for name in ("b.parquet", "c.parquet"):
        remove(job, name)
    branch = job.branch("other", at=0)
    branch.run()
    assert arrived(branch) == rows_of(["d.parquet", "a.parquet"])
    put(job, "c.parquet")
    branch.run()
    assert arrived(branch) == rows_of(["d.parquet", "a.parquet", "c.parquet"])


@pytest.mark.slow
def test_job_and_branch_may_go_separate_ways():
    job = first_seen_job()
    put(job, "m.parquet")
    job.run()
    branch = job.branch("other")
    put(job, "b.parquet")
    branch.run()
    put(job, "a.parquet")
    job.run()
    branch.run()
    assert arrived(job) == rows_of(["m.parquet", "a.parquet", "b.parquet"])
    assert arrived(branch) == rows_of(["m.parquet", "b.parquet", "a.parquet"])
    branch.promote()
    put(job, "0.parquet")
    job.run()
    assert arrived(job) == rows_of(["m.parquet", "b.parquet", "a.parquet", "0.parquet"])


@pytest.mark.slow
def test_begun_file_keeps_the_place_of_its_branch():
    job = first_seen_job("more")
    put(job, "b.parquet")
    put(job, "m.parquet", source="more", at=3)
    job.run()
    branch = job.branch("other")
    put(job, "c.parquet", at=1, step=9)
    branch.run()
    assert branch.facts[-1].sources["rows"].begun == ("0000000002/c.parquet",)
    remove(job, "c.parquet")
    put(job, "a.parquet", at=11)
    job.run()
    put(job, "c.parquet", at=1, step=9)
    put(job, "z.parquet", source="more", at=50)
    job.run()
    generations = [checkpoint.sources["rows"].seen for checkpoint in job.facts if "rows" in checkpoint.sources]
    assert [seen.number for seen in generations if seen is not None and digest("c.parquet") in seen.names] == [3]
    branch.run(end_of_input=True)
    own = ["b.parquet 0", "b.parquet 1", "c.parquet 0", "m.parquet 0", "m.parquet 1", "c.parquet 1"]
    assert arrived(branch) == [*own, *rows_of(["a.parquet", "z.parquet"])]


def recorded_order(job, source, names):
    """Return file names in the order of their generations, as the checkpoints have recorded them."""
    seen = [checkpoint.sources[source].seen for checkpoint in job.facts if source in checkpoint.sources]
    numbers = {name: generation.number for generation in seen if generation is not None for name in generation.names}
    return sorted(names, key=lambda name: (numbers[digest(name)], name))


MEETINGS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["rows", "more"]), FILES, st.integers(0, 6)),
        st.tuples(st.just("run"), st.sampled_from([None, 1, 2]), st.none()),
    ),
    min_size=1,
    max_size=12,
)


@pytest.mark.slow
@examples(25)
@given(steps=MEETINGS, count=st.integers(1, 3), data=st.data())
def test_sources_that_meet_keep_their_generations(steps, count, data):
    job, written = first_seen_job("more", files_per_batch=count), {"rows": [], "more": []}
    for what, value, at in steps:
        if what == "run":
            job.run(max_batches=value)
        elif value not in written[what]:
            put(job, value, text=f"{what}/{value}", source=what, at=at)
            written[what].append(value)
    job.run(end_of_input=True)
    before = arrived(job)
    for source, names in written.items():
        own = [text for text in before if text.startswith(f"{source}/")]
        assert own == rows_of(f"{source}/{name}" for name in recorded_order(job, source, names))
    branch = job.branch("other", at=data.draw(st.sampled_from(range(len(job.facts)))))
    branch.run(end_of_input=True)
    assert arrived(branch) == before
    with job.on_its_clock():
        restore(job.config, 0, "again", "somebody")
    job.run(end_of_input=True)
    assert arrived(job) == before


def test_begun_file_must_stay():
    job = first_seen_job("more")
    put(job, "b.parquet", at=1, step=4)
    put(job, "a.parquet", source="more", at=3)
    job.run()
    assert job.facts[-1].sources["rows"].begun == ("0000000001/b.parquet",)
    remove(job, "b.parquet")
    with pytest.raises(SourceError, match=r"source 'rows': b\.parquet of .* is gone, and not all of its rows"):
        job.run()


def test_end_of_input_waits_for_all_generations():
    job = first_seen_job("more", files_per_batch=1)
    put(job, "b.parquet", at=5)
    put(job, "c.parquet", at=6)
    put(job, "m.parquet", source="more", at=9)
    job.run(max_batches=1)
    put(job, "a.parquet", at=7)
    job.run(end_of_input=True)
    assert arrived(job) == rows_of(["b.parquet", "c.parquet", "a.parquet", "m.parquet"])


def test_source_with_a_waiting_file_is_not_idle():
    job = first_seen_job("more", files_per_batch=1, idle_after="1h", max_quarantined="none")
    put(job, "b.parquet", at=5)
    job.feed_table("rows", pa.table({"all": ["all"], "at": [6], "text": [None]}), file="c.parquet")
    put(job, "m.parquet", source="more", at=9)
    job.run(max_batches=1)
    put(job, "a.parquet", at=7)
    job.clock.advance(7_200_000)
    job.run()
    assert arrived(job) == rows_of(["b.parquet", "a.parquet"])
    job.clock.advance(7_200_000)
    job.run()
    assert arrived(job) == rows_of(["b.parquet", "a.parquet", "m.parquet"])


@pytest.mark.parametrize(("former", "now"), [("name", "first_seen"), ("first_seen", "name")])
def test_order_of_a_job_stays(former, now):
    job = first_seen_job(order=former)
    put(job, "2026/a.parquet")
    job.run()
    job.change(job={"sources": {"rows": {"order": now}}})
    put(job, "2026/b.parquet")
    problem = rf"in the order '{former}' up to 2026/a\.parquet, .* order: {now} now.* Write sources\.rows\.order: {former} again"
    with pytest.raises(ConfigError, match=problem):
        job.run()
    config = job.config
    source = source_of(plan_of(config.code).sources[0], config)
    assert [(remark.outcome, remark.key) for remark in source.remarks(job.facts[-1].sources["rows"])] == [
        ("fail", "order")
    ]
    job.change(job={"sources": {"rows": {"order": former}}})
    job.run()
    assert arrived(job) == rows_of(["2026/a.parquet", "2026/b.parquet"])


def test_order_may_change_before_the_first_file():
    job = first_seen_job(order="name")
    job.run()
    job.change(job={"sources": {"rows": {"order": "first_seen"}}})
    for name in SPARK:
        put(job, name)
        job.run()
    assert arrived(job) == rows_of(SPARK)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ({"interval": "%Y-%m-%d"}, "'first_seen' is for names without times"),
        ({"order": "last_seen"}, "last_seen"),
        ({"format": "delta"}, "the format delta does not have it"),
    ],
)
def test_settings_that_do_not_fit_are_refused(source, why):
    with pytest.raises(ConfigError, match=why):
        first_seen_job(**source).run()


def test_twin_in_a_later_generation_is_refused():
    job = first_seen_job(format="json")
    job.feed_bytes("rows", b'{"all": "all", "at": 0, "text": "b"}', file="b.json")
    job.run()
    job.feed_bytes("rows", b'{"all": "all", "at": 0, "text": "b"}', file="b.jsonl")
    match = r"b\.jsonl has the name of b\.json with another ending, and b\.json was taken in"
    with pytest.raises(SourceError, match=match) as refused:
        job.run()
    assert "rename it; 'headrace input rows --acknowledge b.jsonl' passes it over for good." in str(refused.value)
    with job.on_its_clock():
        acknowledge(job.config, ["b.jsonl"], "a copy", "somebody")
    job.feed_bytes("rows", b'{"all": "all", "at": 0, "text": "a"}', file="a.json")
    job.run()
    assert arrived(job) == ["b", "a"]


def test_no_file_is_late_but_changed_is_named():
    job = first_seen_job()
    for name in SPARK:
        put(job, name)
        job.run()
    put(job, "0.parquet")
    assert input_remarks(job.config, job.facts) == []
    remove(job, SPARK[0])
    put(job, SPARK[0], text="another text")
    (remark,) = input_remarks(job.config, job.facts)
    assert (remark.kind, remark.file) == (InputKind.CHANGED, SPARK[0])
    job.run()
    assert arrived(job) == rows_of([*SPARK, "0.parquet"])


def test_generation_of_many_files_is_recorded_once():
    job = first_seen_job(files_per_batch=3)
    names = [f"{number:05d}.parquet" for number in range(20)]
    put(job, *names)
    job.run()
    seen = [checkpoint.sources["rows"].seen for checkpoint in job.facts if "rows" in checkpoint.sources]
    assert [len(generation.names) for generation in seen if generation is not None] == [20]
    assert seen[0] is not None
    assert arrived(job) == rows_of(names)


def test_ten_thousand_names_are_one_generation():
    names = [f"{number:05d}.parquet" for number in range(10_000)]
    listed = [SourceFile(name, f"/rows/{name}", 0) for name in names]
    first = placed_files(listed[5_000:], NO_FACTS, Want())
    known = dict.fromkeys(first.seen.names, first.seen.number)
    assert [file.name for file in first.files] == names[5_000:]
    since = SourceFacts(position=FolderPosition("0000000001/09998.parquet", generation=1))
    taken = frozenset(map(digest, names[5_000:-1]))
    middle = placed_files(listed, since, Want(TakenIn(taken, generations=known)))
    assert ([file.name for file in middle.files], middle.has_waiting, middle.seen) == (names[-1:], True, None)
    after = placed_files(listed, since, Want(TakenIn(frozenset([*taken, digest(names[-1])]), generations=known)))
    assert ([file.name for file in after.files], after.seen.number) == (names[:5_000], 2)


def test_people_read_bare_names(monkeypatch):
    job = first_seen_job("more")
    for name, at in zip(SPARK, (0, 40), strict=True):
        put(job, name, at=at, step=30)
        put(job, name, source="more", at=at + 20)
        job.run()
    monkeypatch.setenv("HEADRACE_HOME", str(job.folder))
    shown = CliRunner().invoke(app, ["status", "rows", "--json"]).stdout
    assert SPARK[1] in shown
    assert "000000000" not in shown
    (of_job,) = json.loads(shown)["jobs"]
    rows = of_job["sources"]["rows"]
    assert (rows["last_file"], rows["unread"]) == (SPARK[1], [SPARK[1]])
    assert not [event.message for event in job.events if "000000000" in event.message]


class Dated(Struct, frozen=True):
    at: Timestamp
    day: date


def test_folders_with_values_give_columns():
    pipeline = Pipeline("rows").source("rows", Dated, event_time="at").sink("seen")
    job = World().job(pipeline, job={"sources": {"rows": FIRST_SEEN}})
    for day in (2, 1):
        job.feed_bytes("rows", parquet_bytes(pa.table({"at": [0]})), file=f"day=2026-03-0{day}/part-0.parquet")
        job.run()
    assert [row.day.day for row in job.sink("seen")] == [2, 1]


def test_requeued_rows_are_found_by_bare_names():
    job = RefusedJob(world=World(), source=FIRST_SEEN)
    for name in ("0000000001/b.parquet", "0000000001/a.parquet"):
        job.feed("p", f"{name}?", file=name)
        job.run()
    assert [position for position, _ in job.quarantine()] == ["0000000001/a.parquet:1", "0000000001/b.parquet:1"]
    job.mend().requeue(files=["0000000001/a.parquet"])
    assert job.waiting() == [("0000000001/a.parquet", ((1, 2),))]
    job.run()
    assert job.arrived() == ["p", "p", "0000000001/a.parquet?"]
    job.requeue()
    job.run()
    assert job.arrived() == ["p", "p", "0000000001/a.parquet?", "0000000001/b.parquet?"]
