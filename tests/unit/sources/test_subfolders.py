"""Folders as Spark, exporters and rotating loggers write them: subfolders, links, patterns of paths, names of any kind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import Pipeline, Struct, Timestamp
from headrace.config import SourceConfig
from headrace.config._file_pattern import file_pattern
from headrace.errors import ConfigError, SourceError
from headrace.log.log import CheckpointLog
from headrace.plan.loader import plan_of
from headrace.sources.folder.listing import FolderListing
from headrace.sources.registry import source_of
from headrace.storage.storage import Storage
from headrace.tables.folder import JobFolder
from headrace.testing import PipelineHarness
from headrace.testing._memory_disk import forget_disk
from tests.unit.support.fuzzing import examples
from tests.unit.support.s3 import BUCKET


class Row(Struct, frozen=True):
    """Row of the input."""

    id: str
    at: Timestamp


def line(text, at="2019-12-01T10:00:00Z"):
    return f'{{"id": "{text}", "at": "{at}"}}\n'.encode()


def job(pipeline=None, **source):
    pipeline = pipeline or Pipeline("copy").source("rows", Row, event_time="at").sink("out")
    return PipelineHarness(pipeline, parallelism=1, bucket=1, job={"sources": {"rows": {"format": "json", **source}}})


def rows(harness):
    return sorted(row["id"] for row in harness.sink_table("out").to_pylist())


def write(folder, *names):
    for name in names:
        path = Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(line(name))


def listing(path, storage=None, **source):
    config = SourceConfig(path=str(path), **{"format": "json", **source})
    return FolderListing("rows", config, Storage("", storage))


def names(content):
    return [file.name for file in content.files]


def folder_of(harness):
    return harness.folder / "input" / "rows"


# -------------------------------------------------------------------------------------------------------- subfolders


def test_subfolders_are_read_in_order_of_paths():
    h = job()
    written = ["b.json", "a/b/c/d.json", "2026-01-01.json/part-0.json", "B.JSON", "c.Json.GZ/x.NDJSON"]
    for name in written:
        h.feed_bytes("rows", line(name), file=name)
    h.run()
    assert rows(h) == sorted(written)
    facts = CheckpointLog(JobFolder(h.config.job_folder)).last.sources["rows"]
    assert facts.last == "c.Json.GZ/x.NDJSON"


@pytest.mark.parametrize(
    "name",
    ["_delta_log/0.json", "a/_temporary/0/b.json", ".x/b.json", "a/_SUCCESS.json", "a/.b.json.crc", "x.tmp/b.json"],
)
def test_hidden_parts_are_passed_over_unnamed(tmp_path, name):
    write(tmp_path, name, "a.json")
    content = listing(tmp_path).content()
    assert (names(content), content.passed_over) == (["a.json"], ())


def test_partition_folder_may_begin_with_underscore(tmp_path):
    write(tmp_path, "_day=1/a.json")
    assert names(listing(tmp_path).content()) == ["_day=1/a.json"]


@pytest.mark.parametrize("pattern", ["old", "2025/old", "2025/*.json", "x.json", "*"])
def test_ignore_takes_names_and_paths(tmp_path, pattern):
    write(tmp_path, "2025/old/x.json")
    content = listing(tmp_path, ignore=(pattern,)).content()
    assert (content.files, content.passed_over) == ((), ())


HOSTILE = [
    "a b.json",
    "ü/日本.json",
    "a%20b.json",
    "a%2Fb/c.json",
    "a+b&c=d/'q\".json",
    "x#y?z.json",
    "a\nb.json",
    "~/$HOME.json",
    "a:b.json",
]


def test_hostile_names_survive():
    h = job(max_files_per_batch=1)
    for number, name in enumerate(HOSTILE):
        write(folder_of(h), name)
        Path(folder_of(h), name).write_bytes(line(str(number)) + b"no JSON\n")
    h.run()
    assert rows(h) == sorted(map(str, range(len(HOSTILE))))
    assert {row["file"] for row in h.table("quarantine").to_pylist()} == {*HOSTILE}
    assert h.run().rows_in == 0


def test_hostile_names_survive_on_object_store(storage, tmp_path):
    store, root = Storage(f"s3://{BUCKET}/{tmp_path.name}", storage).file_system()
    hostile = [name for name in HOSTILE if "\n" not in name]
    for name in (*hostile, "_delta_log/0.json", "a/_temporary/b.json", "notes.txt"):
        with store.open_output_stream(f"{root}/{name}") as stream:
            stream.write(line(name))
    content = listing(f"s3://{BUCKET}/{tmp_path.name}", storage).content()
    assert names(content) == sorted(hostile)
    assert content.passed_over == ("notes.txt",)
    for file in content.files:
        assert Storage(file.path, storage).read() == line(file.name)


def test_memory_store_lists_subfolders():
    for name in ("a/b.json", "a/_c/d.json", "e.txt"):
        Storage(f"memory://subfolders/input/{name}").write("", line(name))
    content = listing("memory://subfolders/input").content()
    assert (names(content), content.passed_over) == (["a/b.json"], ("e.txt",))
    forget_disk("subfolders")


def test_name_of_folder_must_be_utf8(tmp_path):
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    write(folder, "a.json")
    with pytest.raises(SourceError, match=r"/\\xff/a\.json is not UTF-8"):
        listing(tmp_path).content()


def test_unreadable_subfolder_fails_the_listing(tmp_path, monkeypatch):
    write(tmp_path, "a/b.json")

    def refuse(path):
        if path.endswith("/a"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(SourceError, match="cannot list .*Permission denied.*Nothing was taken in"):
        listing(tmp_path).content()


def test_nested_sources_are_refused():
    two = Pipeline("copy").source("rows", Row, event_time="at").sink("out")
    two.source("more", Row, event_time="at").sink("others")
    inner = {"format": "json", "path": "input/rows/more"}
    h = PipelineHarness(
        two, job={"sources": {"rows": {"format": "json", "path": "input/rows", "files": "*"}, "more": inner}}
    )
    assert h.config.sources["rows"].files == "*"
    for kept in ({"ignore": ["more"]}, {"format": "csv"}):
        h.change(job={"sources": {"rows": {"format": "json", "path": "input/rows", **kept}, "more": inner}})
        assert len(h.config.sources) == 2
    h.change(job={"sources": {"rows": {"format": "json", "path": "input/rows"}, "more": inner}})
    with pytest.raises(ConfigError, match="source 'more' reads a folder in this one, more"):
        assert h.config


@pytest.mark.parametrize("table", ["", "a", "a/b=1"])
def test_check_warns_of_delta_tables(table):
    h = job()
    write(folder_of(h) / table, "_delta_log/0.json", "c/x.json")
    write(folder_of(h), "other/_delta_log/0.json")
    (remark,) = source_of(plan_of(h.config.code).sources[0], h.config).remarks()
    assert remark.outcome == "warn"
    assert f"rows{table and '/'}{table} is a Delta table" in remark.text
    h.change(job={"sources": {"rows": {"format": "json", "ignore": ["a", "c"]}}})
    (remark,) = source_of(plan_of(h.config.code).sources[0], h.config).remarks()
    assert "is a Delta table" not in remark.text


# -------------------------------------------------------------------------------------------------------------- links


def test_links_are_read_once(tmp_path):
    root, other = tmp_path / "in", tmp_path / "other"
    write(root, "2026/a.json", "data.bin")
    write(other, "x.json", "sub/y.json")
    for name, target in {
        "latest": "2026",
        "loop": ".",
        "2026/up": "..",
        "above": tmp_path,
        "self": "self",
        "gone": "nowhere",
        "a.json": "2026/a.json",
        "b.json": "data.bin",
        "other": other,
        "second": other,
        "x.json": other / "x.json",
    }.items():
        (root / name).symlink_to(target)
    (other / "back").symlink_to(root)
    content = listing(root).content()
    assert names(content) == ["2026/a.json", "b.json", "other/sub/y.json", "other/x.json"]
    passed_over = {
        "2026/up",
        "a.json",
        "above",
        "data.bin",
        "gone",
        "latest",
        "loop",
        "other/back",
        "second",
        "self",
        "x.json",
    }
    assert {*content.passed_over} == passed_over


# ----------------------------------------------------------------------------------------------------------- patterns


@pytest.mark.parametrize(
    ("pattern", "fits", "others"),
    [
        ("*.csv", ["a.csv", "A.CSV"], ["a/b.csv", "a.csv.gz"]),
        (
            "2026/*/orders-?.csv",
            ["2026/01/orders-1.csv"],
            ["2026/orders-1.csv", "2026/1/2/orders-1.csv", "2026/1/orders-12.csv"],
        ),
        ("**/a.csv", ["a.csv", "x/a.csv", "x/y/a.csv"], ["xa.csv", "x/a.csv/b"]),
        ("x/**/a.csv", ["x/a.csv", "x/y/z/a.csv"], ["a.csv", "xx/a.csv"]),
        ("[a-c][!0-9].csv", ["ax.csv", "B_.csv"], ["dx.csv", "a1.csv", "a/.csv"]),
        ("a[]x.csv", ["a[]x.csv"], ["ax.csv"]),
        ("a.b+(c)|d$^.csv", ["a.b+(c)|d$^.csv"], ["aXb+(c)|d$^.csv"]),
        ("app.log.*", ["app.log.1", "app.log.2026-01-02"], ["app.log"]),
    ],
)
def test_pattern_names_files(pattern, fits, others):
    assert [name for name in (*fits, *others) if file_pattern(pattern).fullmatch(name)] == fits


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("/a.csv", "no path from the source's folder"),
        ("a//b", "no path"),
        ("../a", "no path"),
        ("", "no path"),
        ("a**/b", "only alone between two /"),
        ("a/**", r"write \*\*/\* for all files"),
        ("_x/*.csv", "passed over"),
        ("a/.b", "passed over"),
        ("[z-a].csv", "cannot be read"),
    ],
)
def test_pattern_of_no_file_is_refused(pattern, why):
    with pytest.raises(ConfigError, match=rf"files.*{why}"):
        assert job(files=pattern).config


@examples(100)
@given(parts=st.lists(st.sampled_from(["a", "B", ".", "[", "]", "*", "?", "!", "-", "{", "\\", "(", "1"]), min_size=1))
def test_pattern_equals_fnmatch_within_a_part(parts):
    import re
    from fnmatch import translate

    text = "".join(parts)
    try:
        pattern = file_pattern(text)
    except ValueError:
        return
    own = re.compile(translate(text), re.IGNORECASE)
    for name in ("a", "B1", "[", "ab", "a]b", "-", "", text, text.replace("*", "aa"), "\\", "!"):
        assert (pattern.fullmatch(name) is None) == (own.match(name) is None), name


def test_rotated_files_need_a_pattern():
    h = job(files="app.log.*")
    for name in ("app.log.1", "app.log.2026-01-02", "app.log.3.gz", "app.log", "other.json"):
        write(folder_of(h), name)
    import gzip

    Path(folder_of(h), "app.log.3.gz").write_bytes(gzip.compress(line("app.log.3.gz")))
    report = h.run()
    assert rows(h) == ["app.log.1", "app.log.2026-01-02", "app.log.3.gz"]
    assert report.warnings == ()
    (remark,) = source_of(plan_of(h.config.code).sources[0], h.config).remarks()
    assert remark.text.endswith(": 3 files, and 2 other files not named by 'files' (app.log, other.json)")


def test_packed_twin_of_rotated_file_is_refused():
    h = job(files="app.log.*")
    write(folder_of(h), "app.log.1")
    h.run()
    Path(folder_of(h), "app.log.1").rename(Path(folder_of(h), "app.log.1.gz"))
    with pytest.raises(SourceError, match=r"app\.log\.1\.gz has the name of app\.log\.1 with another ending"):
        h.run()


def test_twin_is_looked_for_in_its_own_folder():
    h = job()
    write(folder_of(h), "a/x.json", "b/x.jsonl")
    h.run()
    write(folder_of(h), "a/x.ndjson")
    with pytest.raises(SourceError, match=r"a/x\.ndjson has the name of a/x\.json with another ending"):
        h.run()


@pytest.mark.parametrize("files", [None, "2026/*.json"])
def test_check_names_files_that_are_not_read(files):
    h = job(files=files)
    write(folder_of(h), *(f"x/{number}.txt" for number in range(7)))
    (remark,) = source_of(plan_of(h.config.code).sources[0], h.config).remarks()
    assert remark.outcome == "warn"
    assert "(x/0.txt, x/1.txt, x/2.txt, x/3.txt, x/4.txt, ...)" in remark.text
    assert ("7 entries passed over" if files is None else "that fits '2026/*.json', and 7 other files") in remark.text


# ---------------------------------------------------------------------------------------------------------- intervals


@pytest.mark.parametrize(
    ("pattern", "name", "start"),
    [
        ("%Y-%m-%d", "2026/2026-03-02.json", "2026-03-02"),
        ("%Y/%m/%d/*", "2026/03/02/part-0.json", "2026-03-02"),
        ("%Y/%m/%d/*.json", "2026/03/02/part-0.JSON", "2026-03-02"),
        ("day=%Y-%m-%d/*", "day=2026-03-02/a.b.json", "2026-03-02"),
        ("day=%Y-%m-%d/hour=%H/**/*", "day=2026-03-02/hour=05/x/y/a.json", "2026-03-02T05:00"),
        ("**/orders-%Y-%m-*", "x/orders-2026-03-02.json", "2026-03-01"),
        ("region=[a-z]*/%Y-%m-%d", "region=eu/2026-03-02.json", "2026-03-02"),
    ],
)
def test_interval_pattern_reads_paths(tmp_path, pattern, name, start):
    from headrace.sources.interval import timestamp_text

    assert timestamp_text(listing(tmp_path, interval=pattern).interval_of(name).start).startswith(start)


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("%Y/%m/%d/*", "2026/03/02.json"),
        ("%Y/%m/%d/*", "2026/02/30/a.json"),
        ("%Y/%m/*", "2026/3/1/a.json"),
        ("day=%Y-%m-%d/*", "2026-03-02/a.json"),
    ],
)
def test_path_without_an_interval_is_refused(tmp_path, pattern, name):
    with pytest.raises(SourceError, match="does not fit the interval pattern"):
        listing(tmp_path, interval=pattern).interval_of(name)


def test_directive_given_twice_names_the_wildcard():
    with pytest.raises(ConfigError, match=r"%Y is there twice: write it once, and \* in the other place"):
        assert job(interval="%Y/%m/%Y-%m-%d").config


def day(number):
    return 1_577_836_800_000 + number * 86_400_000


def test_interval_takes_all_files_of_its_folder():
    h = job(interval="day=%Y-%m-%d/*", max_files_per_batch=1)
    for name in ("day=2020-01-01/a", "day=2020-01-01/b", "day=2020-01-02/a"):
        h.feed_bytes("rows", line(name, "2020-01-01"), file=f"{name}.json")
    for number in (0, 1):
        h.run(mode="interval", interval_start=day(number), interval_end=day(number + 1))
    assert rows(h) == ["day=2020-01-01/a", "day=2020-01-01/b", "day=2020-01-02/a"]
    h.feed_bytes("rows", line("late", "2020-01-01"), file="day=2020-01-01/c.json")
    with pytest.raises(SourceError, match=r"day=2020-01-01/c\.json.* backfill copy --from 2020-01-01 --to 2020-01-02"):
        h.run(mode="interval", interval_start=day(2), interval_end=day(3))


def test_interval_stays_open_while_files_are_ahead():
    h = job(interval="country=*/day=%Y-%m-%d/*", max_files_per_batch=1)
    for name in ("country=DE/day=2020-01-01/a", "country=DE/day=2020-01-02/a", "country=FR/day=2020-01-01/a"):
        h.feed_bytes("rows", line(name, "2020-01-01"), file=f"{name}.json")
    h.run()
    ends = [c.interval_end for c in CheckpointLog(JobFolder(h.config.job_folder)).lineage.checkpoints if c.sources]
    assert ends[-3:-1] == [None, day(1)] or None not in ends[-1:]
    assert max(end for end in ends if end is not None) <= day(2)


def test_complete_interval_has_one_file():
    h = job(interval="day=%Y-%m-%d/*", complete_intervals=True)
    for name in ("a", "b"):
        h.feed_bytes("rows", line(name, "2020-01-01"), file=f"day=2020-01-01/{name}.json")
    with pytest.raises(SourceError, match=r"a\.json and day=2020-01-01/b\.json have the same interval"):
        h.run()
