"""Commits of a Delta table that remove or rewrite rows: refused, passed over and listed, or taken in as their net changes."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.status import _passed_text
from headrace.errors import ConfigError, SourceError
from headrace.report import Time
from tests.unit.sources.hand_table import HandTable, column
from tests.unit.support.fuzzing import examples
from tests.unit.support.table_job import TableJob, TableWriter
from tests.unit.support.table_job import table as timed

COLUMNS = [column("shop", "string"), column("at", "timestamp"), column("name", "string"), column("size", "long")]


def table(*names, **options):
    """Rows with these names at one time: rows with equal names are equal."""
    rows = timed(*names, **options)
    return rows.set_column(1, "at", pa.array([1_000_000] * len(names), rows["at"].type))


def new_table(folder, **options):
    return HandTable(folder / "table", COLUMNS, features=["deletionVectors"], **options)


def rewritten_delete(written, first):
    written.commit(written.remove(first), written.add(table("p", "r")), operation="DELETE")


def vector_delete(written, first):
    again = written.again("part-001.parquet", written.vector([1]))
    written.commit(written.remove(first), again, operation="DELETE")


def whole_delete(written, first):
    written.commit(written.remove(first), operation="WRITE")


def update(written, first):
    written.commit(written.remove(first), written.add(table("p", "x", "r")), operation="UPDATE")


def merge(written, first):
    again = written.again("part-001.parquet", written.vector([1]))
    written.commit(written.remove(first), again, written.add(table("x", "y")), operation="MERGE")


def overwrite(written, first):
    written.commit(written.remove(first), written.add(table("r", "x")), operation="WRITE")


def restore(written, first):
    written.commit(written.remove(first), operation="RESTORE", operationParameters={"version": "0"})


def optimize(written, first):
    moved = written.add(table(*"rqp"), data_change=False)
    written.commit(written.remove(first, data_change=False), moved, operation="OPTIMIZE")


STOPS = None
CASES = [
    # change, skip_deletes, skip, as_changes
    (rewritten_delete, [], [], ["-Dq"]),
    (vector_delete, [], [], ["-Dq"]),
    (whole_delete, [], [], ["-Dp", "-Dq", "-Dr"]),
    (update, STOPS, [], ["-Dq", "x"]),
    (merge, STOPS, [], ["-Dq", "x", "y"]),
    (overwrite, STOPS, [], ["-Dp", "-Dq", "x"]),
    (restore, STOPS, [], ["-Dp", "-Dq", "-Dr"]),
    (optimize, [], [], []),
]


@pytest.mark.parametrize(
    ("change", "policy", "taken"),
    [
        (change, policy, taken)
        for change, *results in CASES
        for policy, taken in zip(("skip_deletes", "skip", "as_changes"), results, strict=True)
    ],
)
def test_policy_decides_on_each_change(tmp_path, change, policy, taken):
    written = new_table(tmp_path)
    first = written.add(table(*"pqr"))
    written.commit(first)
    job = TableJob(written, on_change=policy)
    assert job.took() == ["p", "q", "r"]
    change(written, first)
    written.commit(written.add(table("s")))
    if taken is STOPS:
        with pytest.raises(SourceError, match=r"version 2 of"):
            job.run()
    else:
        assert job.took() == [*taken, "s"]
        assert job.table.version == 3


def test_default_names_the_policies(tmp_path):
    written = new_table(tmp_path)
    first = written.add(table(*"pqr"))
    written.commit(first)
    update(written, first)
    with pytest.raises(
        SourceError,
        match=r"\(UPDATE\) removes or rewrites rows \(1 file\).*on_change: as_changes.*on_change: skip_deletes.*"
        r"on_change: skip\).*sources\.rows\.skip_versions: 2$",
    ):
        TableJob(written).run()


def test_restore_to_a_time_is_never_new_rows(tmp_path):
    written = new_table(tmp_path)
    first = written.add(table(*"pqr"))
    written.commit(first)
    whole_delete(written, first)
    written.commit(first, operation="RESTORE", operationParameters={"version": None, "timestamp": "2026-01-01"})
    with pytest.raises(SourceError, match=r"version 3 of .* \(RESTORE\) removes or rewrites rows"):
        TableJob(written, on_change="skip_deletes").run()
    assert TableJob(written, on_change="skip").took() == ["p", "q", "r"]
    assert TableJob(written, on_change="as_changes").took() == [*"pqr", "-Dp", "-Dq", "-Dr", *"pqr"]


# ------------------------------------------------------------------------------------------------------- passed over


def test_passed_versions_are_warned_of_once_and_kept(tmp_path):
    written = new_table(tmp_path)
    first = written.add(table(*"pqr"))
    written.commit(first)
    job = TableJob(written, on_change="skip")
    job.run()
    update(written, first)
    report = job.run()
    assert [(warning.kind, warning.fields["source"]) for warning in report.warnings] == [("passed_versions", "rows")]
    assert (
        "source 'rows' passed over version 2 (UPDATE, 1 file, 1970-01-01T00:00:02.000Z)" in report.warnings[0].message
    )
    assert report.warnings[0].fields["versions"] == [
        {"version": 2, "operation": "UPDATE", "files": 1, "timestamp": 2000}
    ]
    assert [passed.version for passed in job.facts.passed_over] == [2]
    before = job.last.checkpoint_id
    report = job.run()
    assert (job.last.checkpoint_id, report.warnings) == (before, ())
    written.commit(written.add(table("s")))
    assert job.took() == ["s"]
    assert job.facts.passed_over == ()


def test_many_passed_versions_are_counted(tmp_path):
    written = new_table(tmp_path)
    for _ in range(7):
        added = written.add(table("p"))
        written.commit(added)
        written.commit(written.remove(added), operation="DELETE")
    job = TableJob(written, on_change="skip")
    (warning,) = job.run().warnings
    listed = "2 earlier versions, version 6 (DELETE, 1 file, 1970-01-01T00:00:06.000Z), version 8 (DELETE, "
    assert warning.message.startswith(f"source 'rows' passed over {listed}")
    shown = [{**own, "timestamp": Time(own["timestamp"])} for own in warning.fields["versions"]]
    assert _passed_text(shown) in warning.message


def test_passed_version_behind_a_limit_comes_later(tmp_path):
    written = new_table(tmp_path)
    first, second = written.add(table("p")), written.add(table("q"))
    written.commit(first, second)
    written.commit(written.remove(first), operation="DELETE")
    job = TableJob(written, on_change="skip_deletes", max_files_per_batch=1)
    assert job.took(max_batches=1) == ["p"]
    assert (job.facts.passed_over, job.table.version) == ((), 0)
    assert job.took() == ["q"]
    assert ([passed.version for passed in job.facts.passed_over], job.table.version) == ([2], 2)


def test_sources_that_meet_pass_over_alike(tmp_path):
    written = new_table(tmp_path)
    first = written.add(timed(*"pqr"))
    written.commit(first)
    job = TableJob(written, "more", on_change="skip")
    job.harness.feed_table("more", timed("x", at=1500))
    job.run()
    assert (job.arrived(), job.table.begun != ()) == (["p", "x"], True)
    vector_delete(written, first)
    job.run(max_batches=5)
    assert job.facts.passed_over == ()
    job.harness.feed_table("more", timed("y", at=9000))
    job.run()
    assert job.arrived() == ["p", "x", "q", "r"]
    written.commit(written.add(timed("s", at=9500)))
    assert job.took(max_batches=5) == ["y"]
    assert job.table.version == 2


# -------------------------------------------------------------------------------------------------------- as changes

ROWS = st.lists(st.tuples(st.sampled_from("pqr"), st.integers(0, 1)), min_size=1, max_size=5)
STEPS = st.one_of(
    st.tuples(st.just("append"), st.lists(ROWS, min_size=1, max_size=2)),
    st.tuples(st.sampled_from(["delete", "mask"]), st.sets(st.integers(0, 9), min_size=1, max_size=4)),
    st.tuples(st.just("update"), st.sets(st.integers(0, 9), min_size=1, max_size=4)),
    st.tuples(st.just("overwrite"), ROWS),
    st.tuples(st.just("restore"), st.integers(0, 5)),
    st.tuples(st.just("optimize"), st.none()),
)


class History:
    """A table that is changed in all ways; it knows its rows after each version."""

    def __init__(self, folder):
        self.written = new_table(folder)
        self.files = {}
        self.past = [{}]

    def add(self, rows, **options):
        action = self.written.add(table(*[name for name, _ in rows], sizes=[size for _, size in rows]), **options)
        self.files[action["add"]["path"]] = (action, rows, frozenset())
        return action

    def live(self):
        return [
            (path, number, row)
            for path, (_, rows, deleted_rows) in self.files.items()
            for number, row in enumerate(rows)
            if number not in deleted_rows
        ]

    def rows(self, files):
        return Counter(
            row for _, rows, deleted_rows in files.values() for at, row in enumerate(rows) if at not in deleted_rows
        )

    def step(self, kind, how):
        actions = getattr(self, f"_{kind}")(how)
        self.written.commit(*actions, operation=kind.upper())
        self.past.append(dict(self.files))

    def _drop(self, paths, **options):
        return [self.written.remove(self.files.pop(path)[0], **options) for path in sorted(paths)]

    def _append(self, files):
        return [self.add(rows) for rows in files]

    def _chosen(self, numbers):
        chosen = {}
        for path, number, _ in [row for at, row in enumerate(self.live()) if at in numbers]:
            chosen.setdefault(path, set()).add(number)
        return chosen

    def _delete(self, numbers):
        actions = []
        for path, deleted in self._chosen(numbers).items():
            _, rows, deleted_rows = self.files[path]
            kept = [row for at, row in enumerate(rows) if at not in deleted | deleted_rows]
            actions += [*self._drop([path]), *([self.add(kept)] if kept else [])]
        return actions

    def _mask(self, numbers):
        actions = []
        for path, deleted in self._chosen(numbers).items():
            _, rows, deleted_rows = self.files[path]
            actions += self._drop([path])
            deleted_rows = frozenset(deleted_rows | deleted)
            action = self.written.again(path, self.written.vector(sorted(deleted_rows)))
            self.files[path] = (action, rows, deleted_rows)
            actions.append(action)
        return actions

    def _update(self, numbers):
        chosen = self._chosen(numbers)
        changed = [self.files[path][1][at] for path, places in chosen.items() for at in places]
        return [*self._mask(numbers), *([self.add([("x", size) for _, size in changed])] if changed else [])]

    def _overwrite(self, rows):
        return [*self._drop([*self.files]), self.add(rows)]

    def _restore(self, version):
        target = self.past[version % len(self.past)]
        former, self.files = self.files, dict(target)
        identity = {path: state[2] for path, state in former.items()}
        wanted = {path: state[2] for path, state in target.items()}
        removed = [former[path][0] for path in former if identity[path] != wanted.get(path)]
        # A RESTORE changes rows, also where it brings files of an OPTIMIZE back.
        former_adds = [target[path][0] for path in target if wanted[path] != identity.get(path)]
        added = [{"add": {**action["add"], "dataChange": True}} for action in former_adds]
        return [*map(self.written.remove, removed), *added]

    def _optimize(self, _):
        rows = [row for _, _, row in self.live()]
        return [*self._drop([*self.files], data_change=False), *([self.add(rows, data_change=False)] if rows else [])]


@examples(15)
@given(
    steps=st.lists(STEPS, min_size=1, max_size=7),
    limits=st.fixed_dictionaries(
        {"max_files_per_batch": st.integers(1, 3), "max_rows_per_batch": st.none() | st.integers(1, 4)}
    ),
    start=st.sampled_from(["earliest", "snapshot", "version 2"]),
    first_look=st.integers(0, 7),
)
def test_net_changes_are_those_of_a_loop(tmp_path_factory, steps, limits, start, first_look):
    history = History(tmp_path_factory.mktemp("history"))
    job = TableJob(history.written, on_change="as_changes", start=start, **limits)
    begin = 0
    for number, (kind, how) in enumerate(steps, 1):
        history.step(kind, how)
        if number == first_look:
            job.run(max_batches=1)
    if start == "snapshot":
        begin = first_look if first_look in range(1, len(steps) + 1) else len(steps)
    elif start == "version 2":
        begin = 1
    job.run()
    arrived = [(row.kind, row.name, row.size) for row in job.seen()] if job.last.sources else []
    versions = [history.rows(files) for files in history.past]
    if start == "snapshot":
        count = versions[begin].total()
        assert Counter((name, size) for _, name, size in arrived[:count]) == versions[begin]
        arrived = arrived[count:]
    for before, after in zip(versions[begin:], versions[begin + 1 :], strict=False):
        removed, added = before - after, after - before
        expected = [("-D", *row) for row in removed.elements()], [("+I", *row) for row in added.elements()]
        assert Counter(arrived[: removed.total()]) == Counter(expected[0])
        arrived = arrived[removed.total() :]
        assert Counter(arrived[: added.total()]) == Counter(expected[1])
        arrived = arrived[added.total() :]
    assert arrived == []


def test_changes_in_partitions_have_their_values():
    written = TableWriter(partition_by=["size"])
    written.append("p", "q", sizes=[1, 2])
    job = TableJob(written, on_change="as_changes")
    assert job.took() == ["p", "q"]
    write_deltalake(written.path, table("p", "q", sizes=[1, 3]), mode="overwrite")
    assert job.took() == ["-Dq", "q"]
    assert [(row.kind, row.size) for row in job.seen()[-2:]] == [("-D", 2), ("+I", 3)]


def removed_partition(folder, **listed):
    """A table of which the null partition is removed, as `listed` says."""
    written = new_table(folder, partition=["size"])
    first = written.add(table("p").drop(["size"]), values={"size": None})
    written.commit(first)
    remove = {"path": first["add"]["path"], "dataChange": True, **listed}
    written.commit({"remove": remove}, operation="DELETE")
    return TableJob(written, on_change="as_changes")


def test_null_partition_may_be_left_out(tmp_path):
    job = removed_partition(tmp_path, extendedFileMetadata=True, partitionValues={})
    assert job.took() == ["p", "-Dp"]
    assert [row.size for row in job.seen()] == [None, None]


def test_removed_file_without_partition_is_refused(tmp_path):
    with pytest.raises(SourceError, match=r"version 2 of .* the log does not have their partition values"):
        removed_partition(tmp_path).run()


def test_values_of_all_kinds_are_compared(tmp_path):
    nested = {"type": "array", "elementType": "double", "containsNull": True}
    written = HandTable(tmp_path / "table", [*COLUMNS, column("more", nested), column("f", "double")])
    times = table(*"pqrs")
    values = [[1.0, None], None, [float("nan")], [0.0]]
    rows = times.append_column("more", pa.array(values)).append_column("f", pa.array([float("nan"), None, 0.1, 1.0]))
    first = written.add(rows)
    written.commit(first)
    values[3] = [0.5]
    changed = rows.set_column(4, "more", pa.array(values)).take([3, 2, 1, 0])
    written.commit(written.remove(first), written.add(changed), operation="UPDATE")
    assert TableJob(written, on_change="as_changes").took() == [*"pqrs", "-Ds", "s"]


def test_file_that_is_gone_stops_the_comparison(tmp_path):
    written = new_table(tmp_path)
    first = written.add(table(*"pqr"))
    written.commit(first)
    job = TableJob(written, on_change="as_changes")
    job.run()
    update(written, first)
    (written.path / "part-001.parquet").unlink()
    with pytest.raises(SourceError, match=r"part-001\.parquet is gone. Version 2 of the table needs it; a VACUUM"):
        job.run()
    (written.path / "part-001.parquet").write_bytes(b"no parquet")
    with pytest.raises(SourceError, match=r"of version 2 of .* cannot be compared: .*skip_versions: 2$"):
        job.configure(on_bad_file="quarantine").run()


def test_policy_cannot_change_within_a_version(tmp_path):
    written = new_table(tmp_path)
    first = written.add(table(*"pqr"))
    written.commit(first)
    overwrite(written, first)
    job = TableJob(written, on_change="as_changes", max_files_per_batch=1)
    assert job.took(max_batches=2) == ["p", "q", "r", "-Dp", "-Dq"]
    for policy in ("fail", "skip"):
        job.harness.change(job={"sources": {"rows": {**job.harness.job["sources"]["rows"], "on_change": policy}}})
        with pytest.raises(ConfigError):
            job.run()
    assert job.configure(on_change="as_changes").took() == ["x"]


@pytest.mark.parametrize(
    ("source", "options", "match"),
    [
        ({"on_change": "skip", "change_feed": True}, {}, r"on_change: change_feed: true takes in all changes"),
        ({"on_change": "as_changes"}, {"row_kind": None}, r"sources.rows.on_change: rows of changes have kinds"),
        ({"on_change": "skip"}, {"row_kind": "_change_type"}, r"sources.rows.on_change: .*on_change: as_changes"),
        ({"on_change": "never"}, {}, r"on_change"),
        ({"on_change": "skip", "format": "parquet"}, {}, r"on_change: the format parquet does not have it"),
    ],
)
def test_policies_that_do_not_fit_are_refused(tmp_path, source, options, match):
    with pytest.raises(ConfigError, match=match):
        TableJob(new_table(tmp_path), options=options, **source).run()


def test_removed_rows_have_the_columns_that_they_had(tmp_path):
    written = new_table(tmp_path)
    first = written.add(table("p", "q", sizes=[1, 2]))
    written.commit(first)
    job = TableJob(written, on_change="as_changes")
    job.run()
    fewer = table("p", "q").drop(["size"])
    written.commit(written.remove(first), written.add(fewer), written.metadata(COLUMNS[:3], {}))
    assert job.took() == ["-Dp", "-Dq", "p", "q"]
    assert [row.size for row in job.seen()] == [1, 2, 1, 2, None, None]


# ------------------------------------------------------------------------------------------- change feeds with vectors


def feed_table(folder):
    return new_table(folder, configuration={"delta.enableChangeDataFeed": "true"})


def test_vectors_differ_by_the_rows_of_a_feed(tmp_path):
    written = feed_table(tmp_path)
    first = written.add(table(*"pqrst"))
    written.commit(first)
    second = written.again("part-001.parquet", written.vector([1, 3]))
    written.commit(written.remove(first), second, operation="DELETE")
    third = written.again("part-001.parquet", written.vector([0, 1, 3]))
    written.commit(written.remove(second), third, operation="DELETE")
    written.commit(written.remove(third), second, operation="RESTORE")
    written.commit(written.remove(second), first, operation="RESTORE")
    written.commit(written.remove(first), operation="DELETE")
    job = TableJob(written, change_feed=True)
    assert job.took() == [*"pqrst", "-Dq", "-Ds", "-Dp", "p", "q", "s", *(f"-D{name}" for name in "pqrst")]


def test_change_files_win_over_vectors(tmp_path):
    written = feed_table(tmp_path)
    first = written.add(table(*"pqr"))
    written.commit(first)
    (written.path / "_change_data").mkdir()
    kinds = pa.array(["update_preimage", "update_postimage"])
    change = written.add(table("q", "x").append_column("_change_type", kinds), path="_change_data/c.parquet")
    again = written.again("part-001.parquet", written.vector([1]))
    cdc = {"cdc": {**change["add"], "dataChange": False}}
    written.commit(written.remove(first), again, written.add(table("x")), cdc, operation="UPDATE")
    assert TableJob(written, change_feed=True).took() == ["p", "q", "r", "-Uq", "+Ux"]


def test_feed_of_a_merge_without_change_files(tmp_path):
    written = feed_table(tmp_path)
    first = written.add(table(*"pqr"), written.vector([0]))
    written.commit(first)
    merge(written, first)
    # The merge masks row 1 alone, so row 0 is there again.
    assert TableJob(written, change_feed=True).took() == ["q", "r", "-Dq", "p", "x", "y"]


def test_missing_vector_stops_a_feed(tmp_path):
    written = feed_table(tmp_path)
    first = written.add(table(*"pqr"))
    written.commit(first)
    job = TableJob(written, change_feed=True)
    job.run()
    vector_delete(written, first)
    next(written.path.glob("*.bin")).unlink()
    with pytest.raises(SourceError, match=r"\.bin is gone: it says which rows of .*part-001.parquet are deleted"):
        job.run()
    with pytest.raises(SourceError, match=r"\.bin is gone: it says which rows"):
        TableJob(written, on_change="as_changes").run()


@pytest.mark.parametrize("batches", [1, 100])
def test_table_replaced_in_its_log_is_a_rewrite(tmp_path, batches):
    written = new_table(tmp_path)
    first = written.add(table(*"pq"))
    written.commit(first)
    jobs = {policy: TableJob(written, on_change=policy) for policy in ("fail", "skip", "as_changes")}
    for job in jobs.values():
        job.run(max_batches=1)
    described = written.metadata(COLUMNS, {})["metaData"]
    actions = [written.remove(first), written.add(table(*"qx")), {"metaData": {**described, "id": "another"}}]
    written.commit(*actions, operation="CREATE OR REPLACE TABLE")
    written.commit(written.add(table("y")))
    with pytest.raises(SourceError, match=r"version 2 of .* \(CREATE OR REPLACE TABLE\) removes or rewrites rows"):
        jobs["fail"].run()
    expected = {"skip": [*"pqy"], "as_changes": ["p", "q", "-Dp", "x", "y"]}
    for policy, names in expected.items():
        job = jobs[policy]
        for _ in range(4):
            job.run(max_batches=batches)
        assert (job.arrived(), job.table.table_id) == (names, "another")
        assert TableJob(written, on_change=policy).took() == names


# ------------------------------------------------------------------------------------------- rewritten, and yet the same


KIND = {"type": "struct", "fields": [column("a", "long"), column("b", "string")]}
PAIRS = {"type": "map", "keyType": "string", "valueType": KIND, "valueContainsNull": True}


def other_form(rows, folder):
    """Return the file of another writer with the same rows: times of INT96, other orders and cases of fields, narrower types."""
    names = {"A": pa.int32(), "b": pa.large_string()}
    swapped = pa.struct([("b", names["b"]), ("A", names["A"])])
    values = rows.to_pylist()
    for row in values:
        row["s"] = {"b": row["s"]["b"], "A": row["s"]["a"]}
        row["pairs"] = [(key, {"b": own["b"], "A": own["a"]}) for key, own in reversed(row["pairs"])]
    schema = pa.schema(
        {
            "pairs": pa.map_(pa.string(), swapped),
            "s": swapped,
            "size": pa.int16(),
            "name": pa.dictionary(pa.int32(), pa.string()),
            "AT": pa.timestamp("us"),
            "shop": pa.large_string(),
        }.items()
    )
    for row in values:
        row["AT"] = row.pop("at").replace(tzinfo=None)
    table = pa.Table.from_pylist(values, schema)
    pq.write_table(table, folder / "other.parquet", use_deprecated_int96_timestamps=True)


def test_rewrite_by_another_writer_changes_nothing(tmp_path):
    written = HandTable(tmp_path / "table", [*COLUMNS, column("s", KIND), column("pairs", PAIRS)])
    rows = timed(*"pqr")
    structs = [{"a": number, "b": name} for number, name in enumerate("xyz")]
    rows = rows.append_column("s", pa.array(structs, pa.struct([("a", pa.int64()), ("b", pa.string())])))
    maps = [[("k", own), ("j", structs[0])] for own in structs]
    rows = rows.append_column(
        "pairs", pa.array(maps, pa.map_(pa.string(), pa.struct([("a", pa.int64()), ("b", pa.string())])))
    )
    first = written.add(rows)
    written.commit(first)
    other_form(rows, written.path)
    stored = pq.ParquetFile(written.path / "other.parquet").schema
    assert "INT96" in {stored.column(place).physical_type for place in range(len(stored))}
    written.commit(written.remove(first), written.again("other.parquet"), operation="OPTIMIZE")
    assert TableJob(written, on_change="as_changes").took() == [*"pqr"]


def test_other_value_in_another_form_is_a_change(tmp_path):
    written = HandTable(tmp_path / "table", [*COLUMNS, column("s", KIND)])
    kind = pa.struct([("a", pa.int64()), ("b", pa.string())])
    rows = timed(*"pqr").append_column("s", pa.array([{"a": 1, "b": "x"}, {"a": None, "b": "x"}, None], kind))
    first = written.add(rows)
    written.commit(first)
    other = pa.struct([("b", pa.string()), ("a", pa.int32())])
    again = rows.drop(["s"]).append_column("s", pa.array([{"a": 2, "b": "x"}, None, None], other))
    written.commit(written.remove(first), written.add(again), operation="UPDATE")
    assert TableJob(written, on_change="as_changes").took() == [*"pqr", "-Dp", "-Dq", "p", "q"]


# -------------------------------------------------------------------------------------------- columns that rows had before


MAPPED = {"delta.columnMapping.mode": "name", "delta.enableChangeDataFeed": "true"}


def mapped(name, kind, stored):
    return column(name, kind, **{"delta.columnMapping.physicalName": stored, "delta.columnMapping.id": 1})


def renamed_in_a_rewrite(folder):
    """A table whose version 2 gives the column `size` another stored one, and removes the rows of version 1."""
    columns = [mapped(own["name"], own["type"], own["name"]) for own in COLUMNS]
    written = HandTable(folder / "table", columns, features=["columnMapping"], configuration=MAPPED)
    first = written.add(table("p", "q", sizes=[1, 2]))
    written.commit(first)
    after = [*columns[:3], mapped("size", "long", "other")]
    rows = table("p", "q", sizes=[1, 2]).rename_columns(["shop", "at", "name", "other"])
    written.commit(written.remove(first), written.add(rows), written.metadata(after, MAPPED), operation="WRITE")
    return written


@pytest.mark.parametrize("source", [{"on_change": "as_changes"}, {"change_feed": True}])
def test_rows_removed_behind_the_log_are_refused(tmp_path, source):
    written = renamed_in_a_rewrite(tmp_path)
    written.log_checkpoint()
    written.forget(2)
    with pytest.raises(
        SourceError,
        match=r"version 2 of .* changes the table's columns, .* does not give version 1 .*skip_versions: 2$",
    ):
        TableJob(written, start="version 2", **source).run()


@pytest.mark.parametrize("form", ["one", "sidecars"])
def test_columns_before_are_those_of_a_log_checkpoint(tmp_path, form):
    written = renamed_in_a_rewrite(tmp_path)
    text = (written.path / "_delta_log" / f"{2:020d}.json").read_text()
    (written.path / "_delta_log" / f"{2:020d}.json").unlink()
    written.version = 1
    written.log_checkpoint(form)
    (written.path / "_delta_log" / f"{2:020d}.json").write_text(text)
    written.forget(2)
    job = TableJob(written, start="version 2", change_feed=True)
    assert job.took() == ["-Dp", "-Dq", "p", "q"]
    assert [row.size for row in job.seen()] == [1, 2, 1, 2]
    assert TableJob(written, start="version 2", on_change="as_changes").took() == []
