"""A topic as a source: each message is taken in once, in merge order, or the run says why not."""

from __future__ import annotations

import json
import re
import sys
from types import ModuleType

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import clock
from headrace.api.graph import SourceNode
from headrace.edits.restore import restore
from headrace.edits.vacuum import vacuum
from headrace.errors import ConfigError, SourceError
from headrace.plan.loader import plan_of
from headrace.records.watermarks import Timeline
from headrace.sources.intake import Intake
from headrace.sources.kafka.landed import MESSAGES
from headrace.sources.kafka.messages import MessageReader, Messages, read_messages
from headrace.sources.position import SourceFacts
from headrace.sources.row_check import RowCheck
from headrace.sources.slices import JobPosition, SliceRequest
from headrace.storage.storage import Storage
from tests.jobs.home import PROJECT
from tests.unit.support.fuzzing import examples
from tests.unit.support.table_job import pipeline, table
from tests.unit.support.topic_job import TopicJob, merged_by_hand, message

pytestmark = pytest.mark.delta


class TopicSlices:
    """Plans slices of the job's source without running it, and reads their messages."""

    def __init__(self, partitions, **source):
        self.job = TopicJob(partitions, **source)
        self.topic = self.job.topic
        self._config = self.job.harness.config
        self._plan = plan_of(self._config.code)
        self.restart()
        self.facts, self.timelines = {}, {}
        self.watermarks = []
        self.names = {}
        """By ordinal."""

    def restart(self):
        """Forget everything that is not in the facts."""
        self._intake = Intake(self._plan, self._config, topics={"rows": self.topic})

    def take_in(self, *, crashes=False, ends=False):
        """Take the next slice in, or crash before its commit; return whether there was one."""
        at = JobPosition(self.facts, self.timelines, {}, 0, 0, Storage(str(self.job.harness.folder / "transit")))
        taken = self._intake.next(at, SliceRequest(ends=ends))
        if crashes:
            self.restart()
        if taken is None or crashes:
            return taken is not None
        for file in taken.files:
            values = read_messages(Storage(file.path))["value"].to_pylist()[
                file.first_row : file.first_row + file.taken
            ]
            first = file.first_ordinal
            ordinals = range(first, first + file.taken)
            if file.ordinals is not None:
                ordinals = Storage(str(file.ordinals)).parquet().column(0).to_pylist()
            self.names |= {at: json.loads(value)["name"] for at, value in zip(ordinals, values, strict=True)}
        (line,) = taken.timelines
        self.watermarks += line.watermarks
        former = self.timelines.get("rows", Timeline())
        watermark = line.watermarks[-1][1] if line.watermarks else former.watermark
        self.timelines = {"rows": Timeline(("rows",), line.after, watermark)}
        self.facts = {"rows": msgspec.json.decode(msgspec.json.encode(taken.sources["rows"]), type=SourceFacts)}
        return True

    def arrived(self):
        """Return the names in arrival order."""
        assert sorted(self.names) == list(range(len(self.names)))
        return [self.names[at] for at in range(len(self.names))]


CRASHES = ("ingest.after", "commit.before", "publish.after")


def stops(job, match):
    """The run fails with this message and leaves the job as it was."""
    before = job.log.last.sources if job.log.exists else {}
    with pytest.raises(SourceError, match=match):
        job.run()
    assert job.log.last.sources == before


# ----------------------------------------------------------------------------------------------------------------- order


def test_messages_arrive_by_offset_and_once():
    job = TopicJob()
    job.put("p", "q", at=5)
    job.put("r", at=1)
    assert job.took() == ["p", "q", "r"]
    assert job.took() == []
    job.put("s")
    assert job.took() == ["s"]
    assert job.positions() == {0: 4}


BURSTS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.lists(st.integers(0, 9), max_size=5),
        st.integers(0, 3),
        st.sampled_from(["nothing", "slice", "crash", "restart"]),
    ),
    max_size=8,
)


@pytest.mark.slow
@examples(20)
@given(bursts=BURSTS, partitions=st.integers(1, 3), limit=st.none() | st.integers(1, 7))
def test_any_split_gives_the_same_order(bursts, partitions, limit):
    split = TopicSlices(partitions, **({} if limit is None else {"max_rows_per_batch": limit}))
    whole = TopicSlices(partitions)
    sent = [[] for _ in range(partitions)]
    for number, (drawn, times, gap, then) in enumerate(bursts):
        partition = drawn % partitions
        rows = [(f"{number}.{place}", at) for place, at in enumerate(times)]
        sent[partition] += rows
        for slices in (split, whole):
            slices.topic.append([message(*row) for row in rows], partition=partition)
            slices.topic.skip(gap, partition=partition)
        if then == "restart":
            split.restart()
        elif then != "nothing":
            split.take_in(crashes=then == "crash")
    for slices in (split, whole):
        while slices.take_in(ends=True):
            pass
        assert slices.arrived() == merged_by_hand(sent)
        assert (
            [partition.next for partition in slices.facts["rows"].partitions.values()]
            == [bounds.end for bounds in slices.topic.state().partitions.values()]
            if slices.facts
            else True
        )
    assert split.watermarks == whole.watermarks


@pytest.mark.parametrize("place", CRASHES)
def test_crash_loses_and_doubles_nothing(place):
    job = TopicJob(2, max_rows_per_batch=4)
    sent = [[("a", 1), ("b", 5), ("c", 2), ("d", 9)], [("p", 3), ("q", 3), ("r", 8)]]
    for partition, messages in enumerate(sent):
        job.topic.append([message(*expected_message) for expected_message in messages], partition=partition)
    assert job.run(crash_at=place) is None
    job.run(end_of_input=True)
    assert job.arrived() == merged_by_hand(sent)


def test_partition_without_messages_delays_all_partitions():
    job = TopicJob(2)
    job.put("p", "q")
    assert job.took() == []
    assert "2 rows of 'rows[0]' wait for 'rows[1]'" in job.harness.events[-1].message
    job.put("r", at=9, partition=1)
    assert job.took() == ["p", "q"]


def test_idle_partition_delays_no_other_partition():
    job = TopicJob(2, idle_after="1h")
    job.put("p", "q")
    assert job.took() == []
    job.harness.clock.advance(3_600_000)
    assert job.took() == ["p", "q"]
    assert [partition.idle for partition in job.facts.partitions.values()] == [False, True]


def test_messages_ahead_are_landed_once():
    job = TopicJob(2, max_rows_per_batch=4)
    job.put(*"abcdef", at=100)
    job.put(*"uvwxyz", at=0, partition=1)
    job.run()
    assert job.arrived() == list("uvwxyz")
    reads = job.topic.reads
    job.put("end", at=200, partition=1)
    assert job.took() == list("abcdef")
    assert reads == 4
    assert len(job.landed()) == job.topic.reads


def test_topic_and_folder_merge_by_event_time():
    job = TopicJob(2, "others")
    job.put("p", at=1)
    job.put("q", at=3, partition=1)
    job.harness.feed_table("others", table("x", "y", at=2000))
    assert job.took(end_of_input=True) == ["p", "x", "y", "q"]


# ------------------------------------------------------------------------------------------------------ where to begin


@pytest.mark.parametrize(
    ("start", "taken"), [("earliest", ["p", "q", "r"]), ("latest", ["r"]), ("1970-01-01T00:01Z", ["q", "r"])]
)
def test_start_decides_where_a_job_begins(start, taken):
    job = TopicJob(start=start)
    job.topic.append([message("p")], timestamp=59_999)
    job.topic.append([message("q")], timestamp=60_000)
    first = job.took()
    job.topic.append([message("r")], timestamp=90_000)
    assert first + job.took() == taken


def test_new_partition_begins_at_its_first_message():
    job = TopicJob(start="latest")
    job.put("p")
    job.run()
    job.topic.grow()
    job.put("x", "y", at=5, partition=1)
    job.put("q", at=9)
    assert job.took() == ["x", "y"]
    assert [(number, own.number, own.next) for number, own in job.facts.partitions.items()] == [
        (0, 1, 1),
        (1, 2, 2),
    ]


def test_partition_source_numbers_never_change():
    job = TopicJob(1, "others")
    job.run(end_of_input=False)
    job.put("p", at=1)
    job.harness.feed_table("others", table("x", at=1000))
    job.run()
    job.topic.grow()
    job.put("q", at=1, partition=1)
    job.put("end", at=9)
    job.harness.feed_table("others", table("y", at=9000))
    job.run()
    facts = job.log.last.sources
    numbers = [
        facts["rows"].number,
        facts["others"].number,
        *(partition.number for partition in facts["rows"].partitions.values()),
    ]
    assert numbers == [0, 1, 2, 3]


# --------------------------------------------------------------------------------------------------------- bad messages


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (b"{", "Input data was truncated"),
        (b"", "Input data was truncated"),
        (b"[1]", "Expected `object`, got `array`"),
        (b"\xff\xfe", "the value is not UTF-8"),
        (b'{"shop": "a", "at": 1, "name": "\\\xe5"}', "the value is not UTF-8"),
        (b"{}", "shop is missing"),
        ({"shop": 7, "at": 0, "name": "x"}, "shop is 7, which is not string"),
        ({"shop": "a", "at": "yesterday", "name": "x"}, "at is 'yesterday', which is not a timestamp"),
        ({"shop": "a", "at": 1 << 60, "name": "x"}, "at is .* outside the years 1 to 9999"),
        ({"shop": "a", "at": 0, "name": "x", "size": 1 << 70}, "size is .*, which is not int64"),
        (b'{"a":' * 5000, "truncated|nested too deep"),
        (None, "the message has no value"),
    ],
)
def test_bad_message_does_not_affect_good_ones(value, error):
    (node,) = (operator for operator in pipeline().operators if isinstance(operator, SourceNode))
    values = [b'{"shop": "a", "at": 1, "name": "p"}', encoded(value), b'{"shop": "a", "at": 2, "name": "q"}']
    rows = [{"value": value, "topic": "t", "partition": 3, "offset": 7 + at} for at, value in enumerate(values)]
    table = pa.Table.from_pylist(rows, MESSAGES)
    columns, kinds, bad, *_ = RowCheck(node, MessageReader(node, Messages())).check(table)
    assert [row and row["name"] for row in columns.to_pylist()] == ["p", None, "q"]
    assert kinds.to_pylist() == [0, 0, 0]
    assert [(row.position, bool(re.match(rf"t-3@8: .*({error})", row.error))) for row in bad] == [(1, True)], bad
    assert RowCheck(node, MessageReader(node, Messages())).times_in_order(table).to_pylist() == [1, None, 2]


def encoded(value):
    return msgspec.json.encode(value) if isinstance(value, dict) else value


def test_bad_message_goes_to_quarantine():
    job = TopicJob()
    job.put("p")
    job.topic.append([b"\xff{", None], key=b"k")
    job.put("q", at=1)
    assert job.took() == ["p", "q"]
    (position, error, raw), (_, tombstone, _) = job.quarantine("raw")
    assert position.endswith(".parquet:1")
    assert error.startswith("shop.rows-0@1: ")
    assert tombstone == "shop.rows-0@2: the message has no value (a tombstone)"
    message = json.loads(raw)
    assert (message["offset"], message["key"], message["value"]) == (1, "k", "\\xff{")


def test_bad_message_fails_if_configured():
    job = TopicJob(on_bad_row="fail")
    job.topic.append([b"{"])
    stops(job, r"shop\.rows-0@0: the value is not JSON \(Input data was truncated\)")


def test_tombstones_are_skipped_if_configured():
    job = TopicJob(on_tombstone="skip")
    job.topic.append([None, message("p"), None])
    assert job.took() == ["p"]
    assert job.quarantine() == []


def test_times_may_be_texts():
    job = TopicJob()
    job.topic.append(
        [message("p") | {"at": "1970-01-01T01:00:05+01:00"}, message("q") | {"at": "1970-01-01T00:00:07.5"}]
    )
    job.topic.append([message("r", 6)])
    assert job.took() == ["p", "q", "r"]
    assert job.log.last.timelines["rows"].bucket.open_max == 7500


def test_row_kinds_are_read_from_a_field():
    job = TopicJob(declared={"row_kind": "op"})
    job.topic.append([message("p", op="+I"), message("p", op="-D"), message("q", op="?"), message("r")])
    assert job.took() == ["p", "-Dp"]
    assert [error.partition(": ")[2] for _, error, _ in job.quarantine("raw")] == [
        "op is '?', not one of +I, -U, +U, -D",
        "op is None, not one of +I, -U, +U, -D",
    ]


def test_bad_messages_are_requeued_from_landed_files():
    from headrace.edits.requeue import requeue

    job = TopicJob(2, on_tombstone="quarantine", idle_after="0s")
    job.topic.append([message("p"), None, message("q", 1)])
    job.run()
    job.topic.expire(3)
    requeue(job.harness.config, "again")
    job.configure(on_tombstone="skip")
    assert job.took() == []
    assert job.quarantine() == []
    assert job.facts.requeued == ()


# ------------------------------------------------------------------------------------------------- what brokers may do


def test_expired_messages_stop_the_run():
    job = TopicJob()
    job.put("p", "q")
    job.run()
    job.put(*"abcde")
    job.topic.expire(5)
    stops(
        job,
        r"partition 0 of topic shop\.rows at in-memory:9092 begins at offset 5, .* offset 2: .*skip_offsets: 0:2-4\. ",
    )
    assert job.configure(skip_offsets="0:2-4").took() == ["d", "e"]


def test_suggested_skip_keeps_former_skips():
    job = TopicJob(skip_offsets="0:1")
    job.put("p", "q", "r")
    assert job.took() == ["p", "r"]
    job.put("s", "t")
    job.topic.expire(4)
    stops(job, r"skip_offsets: 0:1, 0:3\. ")
    assert job.configure(skip_offsets="0:1, 0:3").took() == ["t"]


def test_landed_messages_outlive_the_topic():
    job = TopicJob(max_rows_per_batch=2)
    job.put(*"abcd")
    assert job.run(crash_at="commit.before:2") is None
    job.topic.expire(4)
    assert job.took() == ["c", "d"]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda topic: topic.recreate(), r"is another topic than the one that was read \(its id is .*made anew"),
        (lambda topic: topic.truncate(1), r"partition 0 of .* ends at offset 1, .* up to offset 2"),
    ],
)
def test_changed_topic_stops_the_run(change, match):
    job = TopicJob()
    job.put("p", "q")
    job.run()
    change(job.topic)
    stops(job, match)


def test_gaps_of_compacted_messages_are_accepted():
    job = TopicJob(max_rows_per_batch=2)
    job.put(*"abcdefg")
    job.topic.compact(0, 2, 3, 6)
    assert job.took() == ["b", "e", "f"]
    assert job.positions() == {0: 7}


def test_crash_before_first_commit_forgets_another_topic():
    job = TopicJob()
    job.put("old")
    assert job.run(crash_at="commit.before") is None
    job.topic.recreate()
    job.put("new")
    assert job.took() == ["new"]


# ------------------------------------------------------------------------------------------------------- landed files


def test_restore_reads_landed_messages_again():
    job = TopicJob()
    job.put("p")
    job.run()
    first = job.log.last.checkpoint_id
    job.put("q")
    job.run()
    job.topic.expire(2)
    restore(job.harness.config, first, "back", "restoring")
    assert job.took() == ["q"]


def test_vacuum_keeps_files_of_waiting_messages():
    job = TopicJob(2)
    job.put("p", at=9)
    job.put("q", at=1, partition=1)
    job.put("r", at=9)
    job.run()
    assert job.arrived() == ["q"]
    job.put("s", at=2, partition=1)
    job.run()
    before = job.landed()
    with clock.installed(clock.VirtualClock(clock.now() + 169 * 3_600_000)):
        removed = vacuum(job.harness.config, "clean", dry_run=False)
    assert [name for name in before if any(path.endswith(name) for path in removed)] == [
        name for name in before if "rows-1@" in name
    ]
    job.put("t", at=20, partition=1)
    assert job.took() == ["p", "r"]


def test_missing_landed_file_is_named():
    job = TopicJob(2)
    job.put("p", "q", "r", at=5)
    job.put("x", at=6, partition=1)
    assert job.took() == ["p", "q", "x"]
    (waiting,) = job.facts.begun
    (job.harness.folder / "state/reader/landed/rows" / waiting).unlink()
    stops(job, rf"{waiting} in .*landed/rows is gone, and not all of its messages were taken in yet")


def test_kafka_page_example_gives_documented_result():
    page = (PROJECT / "docs" / "kafka.md").read_text()
    (example,) = (code for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "assert" in code)
    module = ModuleType("kafka_page")
    sys.modules[module.__name__] = module
    try:
        exec(compile(example, "docs/kafka.md", "exec", dont_inherit=True), vars(module))  # noqa: S102
    finally:
        del sys.modules[module.__name__]


# ------------------------------------------------------------------------------------------------------ the job's file


@pytest.mark.parametrize(
    ("source", "match"),
    [
        ({"start": "version 3"}, "a topic has no versions"),
        ({"start": "snapshot"}, "a topic has no versions"),
        ({"topic": "a b"}, "'a b' is no topic's name"),
        ({"topic": ""}, "sources.rows: the key 'topic' is missing"),
        ({"path": "input"}, "the format kafka does not have it"),
        ({"interval": "%Y"}, "a topic has no intervals by name"),
        ({"skip_offsets": "3"}, "'3' names no offsets"),
        ({"skip_offsets": "0:5-3"}, "'0:5-3' names no offsets"),
        ({"options": {"startingOffsets": "x"}}, "write settings of Kafka's clients"),
        ({"options": {"kafka.group.id": "x"}}, "the engine sets it"),
        ({"options": {"kafka.sasl.jaas.config": "x"}}, "secrets are never written into configuration files"),
    ],
)
def test_wrong_keys_are_named(source, match):
    job = TopicJob()
    job.configure(**source)
    with pytest.raises(ConfigError, match=match):
        job.run()


def test_other_formats_have_no_keys_of_topics():
    job = TopicJob()
    job.configure(format="parquet", path="input")
    with pytest.raises(ConfigError, match="sources.rows.servers: the format parquet does not have it"):
        job.run()


def test_settings_of_clients_are_hidden(monkeypatch):
    monkeypatch.setenv("JAAS", "password=hunter2")
    job = TopicJob(options={"kafka.sasl.jaas.config": "${JAAS}", "kafka.security.protocol": "SASL_SSL"})
    config = job.harness.config
    assert config.sources["rows"].options["kafka.sasl.jaas.config"] == "password=hunter2"
    assert "hunter2" not in f"{config.shown()}{config!r}{config.sources['rows']}"


def test_order_by_option_is_refused():
    job = TopicJob(declared={"order_by": ["name"]})
    with pytest.raises(ConfigError, match="order_by"):
        job.run()


def test_interval_runs_need_a_setting():
    job = TopicJob()
    with pytest.raises(ConfigError, match="source 'rows' has no 'interval' in its configuration"):
        job.run(mode="interval", interval_start=0, interval_end=1)


def test_changed_source_format_is_refused():
    job = TopicJob()
    job.put("p")
    job.run()
    job.harness.topics = {}
    (job.harness.folder / "input/rows").mkdir(parents=True, exist_ok=True)
    job.harness.change(job={})
    with pytest.raises(ConfigError, match="has read a topic up to"):
        job.run()
