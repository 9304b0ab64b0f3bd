"""Input that changes after it was taken in: a run, `check`, `status` and the report name it, or the tables have it."""

from __future__ import annotations

import gzip
import os

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace import Pipeline, Struct, Timestamp
from headrace.commit.input_report import InputKind, input_remarks, input_warnings
from headrace.edits.acknowledge import acknowledge
from headrace.edits.restore import restore
from headrace.errors import ConfigError, HeadraceError, SourceError
from headrace.log.checkpoint import Kind
from headrace.log.log import CheckpointLog
from headrace.tables.folder import JobFolder
from headrace.testing import PipelineHarness
from tests.unit.support.fuzzing import examples


class Row(Struct, frozen=True):
    """Row of the input."""

    id: str
    at: Timestamp


def lines(*ids):
    return b"".join(b'{"id": "%s", "at": "2019-12-01T10:00:00Z"}\n' % text.encode() for text in ids)


class Folder:
    """A job that copies a folder of JSON lines, and the folder."""

    def __init__(self, **source):
        pipeline = Pipeline("copy").source("rows", Row, event_time="at").sink("out")
        job = {"sources": {"rows": {"format": "json", **source}}}
        self.harness = PipelineHarness(pipeline, parallelism=1, bucket=1, job=job)
        self.path = self.harness.folder / "input" / "rows"
        self._time = 1_700_000_000

    def write(self, name, content):
        self._time += 1
        data = gzip.compress(content, mtime=0) if name.endswith(".gz") else content
        (self.path / name).parent.mkdir(exist_ok=True)
        (self.path / name).write_bytes(data)
        os.utime(self.path / name, (self._time,) * 2)

    def touch(self, name):
        self._time += 1
        os.utime(self.path / name, (self._time,) * 2)

    def run(self, **options):
        return self.harness.run(**options)

    @property
    def rows(self):
        table = self.harness.sink_table("out")
        return sorted(table["id"].to_pylist()) if table.num_rows else []

    @property
    def line(self):
        return CheckpointLog(JobFolder(self.harness.config.job_folder)).lineage.checkpoints

    @property
    def named(self):
        """Return what `status` and `check` name, as kinds and files."""
        return {(remark.kind, remark.file) for remark in input_remarks(self.harness.config, self.line)}

    def acknowledge(self, *names):
        return acknowledge(self.harness.config, names, "as agreed", "by hand")


def kinds(report):
    return [warning.kind for warning in report.warnings]


def test_changed_file_is_named_until_acknowledged():
    folder = Folder()
    folder.write("latest.json", lines("a"))
    assert folder.run().warnings == ()
    folder.write("latest.json", lines("a", "b"))
    for _ in range(2):
        (warning,) = folder.run().warnings
        assert (warning.kind, warning.fields) == ("changed_file", {"source": "rows", "files": ["latest.json"]})
        assert "latest.json" in warning.message
    assert folder.named == {(InputKind.CHANGED, "latest.json")}
    assert folder.acknowledge("latest.json").kind is Kind.ACKNOWLEDGEMENT
    assert (folder.run().warnings, folder.rows) == ((), ["a"])
    folder.write("latest.json", lines("c"))
    assert kinds(folder.run()) == ["changed_file"]


def test_restore_takes_back_an_acknowledgement():
    folder = Folder()
    folder.write("a.json", lines("a"))
    folder.run()
    folder.write("a.json", lines("b"))
    folder.acknowledge("all")
    restore(folder.harness.config, 1, "it was a mistake", "by hand")
    assert kinds(folder.run()) == ["changed_file"]


@pytest.mark.parametrize("same_size", [True, False])
def test_same_content_is_no_change(same_size):
    folder = Folder()
    folder.write("a.json", lines("a"))
    folder.run()
    folder.touch("a.json")
    assert folder.run().warnings == ()
    folder.write("a.json", lines("b" if same_size else "bb"))
    assert kinds(folder.run()) == ["changed_file"]


def test_touched_file_is_read_once(monkeypatch):
    folder = Folder()
    for name in ("a", "b"):
        folder.write(f"{name}.json", lines(name))
        folder.run()
        folder.touch("a.json")
    folder.write("c.json", lines("c"))
    folder.run()
    monkeypatch.setattr("headrace.commit.input_changes.content_digest", None)
    assert (folder.run().warnings, folder.rows) == ((), ["a", "b", "c"])


def test_changed_file_may_end_the_run():
    folder = Folder(on_changed_file="fail")
    folder.write("a.json", lines("a"))
    folder.run()
    folder.write("a.json", lines("b"))
    folder.write("c.json", lines("c"))
    with pytest.raises(SourceError, match=r"a\.json.*Nothing was taken in \(on_changed_file: fail\)") as caught:
        folder.run()
    assert (caught.value.exit_code, folder.rows) == (7, ["a"])
    folder.acknowledge("a.json")
    folder.run()
    assert folder.rows == ["a", "c"]


@pytest.mark.parametrize(("first", "second"), [("e.json", "e.json.gz"), ("e.ndjson.gz", "e.jsonl")])
@pytest.mark.parametrize("is_replaced", [True, False])
def test_twin_is_refused(first, second, is_replaced):
    folder = Folder()
    folder.write(first, lines("a"))
    folder.run()
    if is_replaced:
        (folder.path / first).unlink()
    folder.write(second, lines("a"))
    with pytest.raises(SourceError, match="with another ending"):
        folder.run()
    assert (InputKind.TWIN, second) in folder.named
    folder.acknowledge(second)
    folder.run()
    assert folder.rows == ["a"]


def test_twins_are_refused_at_the_first_run():
    folder = Folder()
    folder.write("e.json", lines("a"))
    folder.write("e.json.gz", lines("a"))
    with pytest.raises(SourceError, match="is in the folder too"):
        folder.run()


PASSED_OVER = ["2026-01-01.json/part-0.txt", "day=2026-01-02/part-0", "ORDERS.JSON2", "x.json.rar"]


@pytest.mark.parametrize("path", PASSED_OVER)
def test_passed_over_entries_are_named(path):
    folder = Folder()
    (folder.path / path).parent.mkdir(exist_ok=True)
    (folder.path / path).write_bytes(lines("a"))
    (warning,) = folder.run().warnings
    assert (warning.kind, warning.fields["files"]) == ("passed_over", [path])


def test_many_passed_over_entries_are_counted():
    folder = Folder()
    for number in range(103):
        folder.write(f"{number:03d}.txt", lines("a"))
    (warning,) = folder.run().warnings
    assert "103 entries" in warning.message
    assert "(000.txt, 001.txt, 002.txt, 003.txt, 004.txt and 98 more)" in warning.message
    assert len(warning.fields["files"]) == 101


def test_ignored_and_hidden_names_are_not_reported():
    folder = Folder(ignore=["*.md", "archive", "skip*"])
    (folder.path / "archive").mkdir()
    for name in ("notes.md", "_SUCCESS", ".hidden.json", "a.json.tmp", "skipped.json"):
        (folder.path / name).write_bytes(lines("a"))
    assert (folder.run().warnings, folder.rows) == ((), [])


def test_link_to_nothing_is_named():
    folder = Folder(ignore=["old*"])
    folder.write("a.json", lines("a"))
    for name in ("b.json", "old.json", "_c.json"):
        (folder.path / name).symlink_to("missing")
    assert kinds(folder.run()) == ["passed_over"]
    assert folder.named == {(InputKind.PASSED_OVER, "b.json")}


def test_late_file_may_be_left_out():
    folder = Folder()
    folder.write("b.json", lines("b"))
    folder.run()
    folder.write("a.json", lines("a"))
    with pytest.raises(SourceError, match=r"a\.json"):
        folder.run()
    assert folder.named == {(InputKind.LATE, "a.json")}
    code, report = commands(folder, "check", "copy")
    assert (code, [finding["outcome"] for finding in report["findings"] if "came late" in finding["detail"]]) == (
        1,
        ["fail"],
    )
    with pytest.raises(ConfigError, match=r"'c\.json' is none of them\. Nothing was changed"):
        folder.acknowledge("c.json")
    folder.acknowledge("a.json")
    assert (folder.run().warnings, folder.rows) == ((), ["b"])


def test_branch_takes_over_acknowledged_files():
    folder = Folder()
    folder.write("b.json", lines("1"))
    folder.run()
    branch = folder.harness.branch("other")
    folder.write("c.json", lines("2"))
    folder.run()
    folder.write("b.json", lines("changed"))
    folder.write("c.json", lines("corrected"))
    folder.acknowledge("all")
    branch.run()
    branch.promote()
    assert (folder.named, folder.rows) == (set(), ["1", "corrected"])


def test_file_gone_from_the_middle_is_named():
    folder = Folder()
    for name in ("a", "b", "c"):
        folder.write(f"{name}.json", lines(name))
        folder.run()
    (folder.path / "a.json").unlink()
    assert folder.run().warnings == ()  # users clean up old input
    (folder.path / "c.json").unlink()
    assert kinds(folder.run()) == ["gone_file"]
    folder.acknowledge("gone")
    assert folder.run().warnings == ()
    folder.write("c.json", lines("d"))
    assert kinds(folder.run()) == ["changed_file"]


@pytest.mark.parametrize("lost", ["a", "abc"])
def test_clean_up_is_a_remark_alone(lost):
    folder = Folder(on_changed_file="fail")
    for name in ("a", "b", "c"):
        folder.write(f"{name}.json", lines(name))
        folder.run()
    for name in lost:
        (folder.path / f"{name}.json").unlink()
    folder.harness.events.clear()
    assert folder.run().warnings == ()
    (remark,) = [event.message for event in folder.harness.events if event.kind == "input"]
    files = "1 file that checkpoint 1 took in" if lost == "a" else "3 files that checkpoints 1 to 3 took in"
    assert folder.named == {(InputKind.CLEANED_UP, files)}
    (warning,) = input_warnings(folder.harness.config, folder.line)
    assert remark == warning.message
    assert f"gone since ({files}), no older file is left: this counts as a clean-up" in warning.message
    assert folder.acknowledge("gone").metrics["acknowledged"] == len(lost)
    assert folder.named == set()


def test_gone_files_are_counted_by_checkpoint():
    folder = Folder()
    folder.write("a.json", lines("a"))
    folder.run()
    for name in ("b", "c"):
        folder.write(f"{name}.json", lines(name))
    folder.run()
    for name in ("b", "c"):
        (folder.path / f"{name}.json").unlink()
    assert folder.named == {(InputKind.GONE, "2 files that checkpoint 2 took in")}
    (warning,) = folder.run().warnings
    assert "2 files taken in by the job, and gone since (2 files that checkpoint 2 took in)" in warning.message


NAMES = st.sampled_from(["a.json", "b.json", "b.json.gz", "c.jsonl", "C.JSON", "d.csv", "s/f.json"])
ACTS = st.one_of(
    st.tuples(st.just("write"), NAMES, st.integers(0, 2)),
    st.tuples(st.sampled_from(["touch", "delete", "run", "run", "acknowledge"]), NAMES, st.just(0)),
)


@pytest.mark.slow
@examples(12)
@given(acts=st.lists(ACTS, min_size=3, max_size=9))
@example(
    acts=[*(("write", name, 0) for name in ("a.json", "b.json", "b.json.gz")), ("run", "", 0), ("acknowledge", "", 0)]
)
def test_no_change_of_a_folder_is_silent(acts):
    """The model knows what the tables have: each file as it was when a run took it in. Whatever differs is named."""
    folder, taken, agreed = Folder(), {}, {}
    for verb, name, content in [*acts, ("run", "", 0)]:
        path = folder.path / name
        if verb == "write":
            folder.write(name, lines(f"{name[0]}{content}"))
        elif verb == "touch" and path.is_file():
            folder.touch(name)
        elif verb == "delete" and path.is_file():
            path.unlink()
        elif verb == "acknowledge":
            named = {file for _, file in folder.named}
            try:
                folder.acknowledge("all")
                agreed |= {file: content for file, content in read(folder).items() if file in named}
            except ConfigError:
                pass
        elif verb == "run":
            assert_nothing_is_silent(folder, taken, agreed, run_or_refused(folder))


def run_or_refused(folder):
    """Run once; return the report, or None if the run was refused, and has changed nothing."""
    before = folder.rows
    try:
        return folder.run()
    except HeadraceError:
        assert folder.rows == before
        return None


def read(folder):
    files = [path for path in folder.path.rglob("*") if path.is_file()]
    return {path.relative_to(folder.path).as_posix(): path.read_bytes() for path in files}


def assert_nothing_is_silent(folder, taken, agreed, report):
    """Compare the folder with the tables; `taken` is the model of what the job took in, and grows by what came in now."""
    present, rows = read(folder), folder.rows
    new = sorted(
        name for name in present if name.lower().endswith((".json", ".json.gz", ".jsonl")) and name not in taken
    )
    if report is not None:
        for name in new:
            if agreed.get(name) != present[name] and all(name != file for _, file in folder.named):
                taken[name] = present[name]
    assert rows == sorted(row_of(content) for content in taken.values())
    named = {file.rstrip("/") for _, file in folder.named}
    for name, content in present.items():
        is_in_tables = name in taken and taken[name] == content
        waits = report is None and name not in taken  # the run was refused, and has named why
        assert is_in_tables or waits or name in named or agreed.get(name) == content, name
    warned = {warning.kind for warning in input_warnings(folder.harness.config, folder.line)} - {"cleaned_up"}
    assert report is None or warned == {warning.kind for warning in report.warnings}


def row_of(content):
    text = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    return msgspec.json.decode(text)["id"]


def commands(folder, *words):
    """Run a command on the job of a folder; return its exit code and its JSON."""
    from typer.testing import CliRunner

    from headrace.cli import app

    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("HEADRACE_HOME", str(folder.harness.folder))
        result = CliRunner().invoke(app, [*words, "--json"])
    return result.exit_code, msgspec.json.decode(result.stdout)


def test_commands_name_the_same_input_as_a_run():
    folder = Folder()
    for name in ("b", "c"):
        folder.write(f"{name}.json", lines(name))
    folder.run()
    folder.write("c.json", lines("d"))
    folder.write("x.txt", lines("x"))
    report = folder.run()
    (job,) = commands(folder, "status", "copy")[1]["jobs"]
    assert [warning["message"] for warning in job["warnings"]] == [warning.message for warning in report.warnings]
    listed = commands(folder, "input", "copy")[1]["input"]
    assert {(entry["kind"], entry["file"]) for entry in listed} == {
        ("changed_file", "c.json"),
        ("passed_over", "x.txt"),
    }
    of_source = [
        finding for finding in commands(folder, "check", "copy")[1]["findings"] if finding["check"] == "source rows"
    ]
    assert [finding["outcome"] for finding in of_source] == ["ok", "warn", "warn"]
    code, checkpoint = commands(folder, "input", "copy", "--acknowledge", "c.json", "--why", "as agreed")
    assert (code, checkpoint["checkpoint"]["kind"]) == (0, "acknowledgement")
    assert folder.named == {(InputKind.PASSED_OVER, "x.txt")}
