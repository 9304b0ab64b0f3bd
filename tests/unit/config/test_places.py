"""Places of sinks, sources and state: no two may be the same place, however they are spelt."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.config import load_job
from headrace.errors import ConfigError

PATHS = [
    "lake/board",
    "./lake/./board",
    "lake//board",
    "lake/board/",
    "lake/x/../board",
    "{home}/lake/board",
    "/{home}/lake/board",
    "../{name}/lake/board",
    "file://{home}/lake/board",
    "FILE://{home}/lake/board/",
    "file://localhost{home}/lake/board",
    "file:{home}/lake/board",
    "file://{home}/l%61ke/bo%61rd",
    "lake/bo%61rd",
    "link/board",
    "link/../lake/board",
    "file://{home}/link/board",
]
"""Spellings of one place. `link` is a symbolic link to `lake`."""

URIS = [
    "s3://lake/board",
    "S3://lake/board",
    "s3a://lake/board",
    "S3A://lake//board/",
    "s3://lake/x/../board",
    "s3://lake/bo%61rd",
]
pairs = st.sampled_from([*product(PATHS, PATHS), *product(URIS, URIS)])


@pytest.fixture
def job(home):
    """Write a job with these sinks, and load it."""
    (home / "lake").mkdir()
    (home / "link").symlink_to(home / "lake")
    base = (home / "conf/jobs/demo.yaml").read_text().partition("sinks:")[0]

    def load(*sinks, state="var/state", source="data/events", local="var/local"):
        lines = [f"  sink_{n}: {{path: '{spelt(path)}', mode: append}}" for n, path in enumerate(sinks)]
        text = base.replace("data/events", f"'{spelt(source)}'") + "\n".join(["sinks:", *lines, ""])
        (home / "conf/jobs/demo.yaml").write_text(f"{text}state: {{root: '{spelt(state)}', local: '{spelt(local)}'}}\n")
        return load_job("demo")

    def spelt(path):
        return path.format(home=home, name=home.name)

    return load


same_home = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
few = settings(same_home, max_examples=30)
"""For tests that load several jobs in each example."""


@same_home
@given(pair=pairs)
def test_two_sinks_may_not_share_a_place(job, pair):
    with pytest.raises(ConfigError, match="sinks.sink_1.path: sink 'sink_0' writes to the same table"):
        job(*pair)


@same_home
@given(pair=pairs)
def test_sink_may_not_be_a_source(job, pair):
    with pytest.raises(ConfigError, match="source 'events' reads this folder"):
        job(pair[0], source=pair[1])


@same_home
@given(pair=pairs, below=st.sampled_from(["", "/demo", "/demo/", "/demo/keyed_state", "/x/../demo/a//b"]))
def test_sink_may_not_meet_the_state(job, pair, below):
    sink, state = pair
    with pytest.raises(
        ConfigError, match=r"in the folder of the job's state|the job's state, .*, is in this folder: a VACUUM"
    ):
        job(sink.rstrip("/") + below, state=state)


@few
@given(pair=pairs, below=st.sampled_from(["/x", "/x/../y//z/", "/_headrace", "/_delta_log"]))
def test_sinks_and_sources_may_not_nest(job, pair, below):
    inner, outer = pair[0].rstrip("/") + below, pair[1]
    with pytest.raises(ConfigError, match="sinks.sink_1.path: this is in the folder of sink 'sink_0': a VACUUM"):
        job(outer, inner)
    with pytest.raises(ConfigError, match="sinks.sink_1.path: sink 'sink_0' is in this folder: a VACUUM"):
        job(inner, outer)
    with pytest.raises(ConfigError, match="sinks.sink_0.path: this is in the folder of source 'events'"):
        job(inner, source=outer)
    with pytest.raises(ConfigError, match="sinks.sink_0.path: source 'events' is in this folder: a VACUUM"):
        job(outer, source=inner)


@few
@given(pair=pairs, below=st.sampled_from(["/demo", "/demo/landed", "/demo/../demo/x"]))
def test_source_may_not_meet_the_state(job, pair, below):
    with pytest.raises(ConfigError, match="sources.events.path: this is in the folder of the job's state"):
        job("lake/other", state=pair[0], source=pair[1].rstrip("/") + below)
    with pytest.raises(ConfigError, match="sources.events.path: the job's state, .*, is in this folder"):
        job("lake/other", state=pair[0].rstrip("/") + below, source=pair[1])


@few
@given(pair=pairs, below=st.sampled_from(["/demo", "/demo/x", "/../board/demo/"]))
def test_local_copies_may_not_meet_other_places(job, pair, below):
    local = pair[1].rstrip("/")
    if "://" in local and not local.lower().startswith("file:"):
        return
    for places in ({"state": local + below}, {"source": local + below}, {"sinks": (local + below,)}):
        with pytest.raises(ConfigError, match="the job's local copies of state|state.local: "):
            job(*places.pop("sinks", ("lake/other",)), local=pair[0], **places)


def test_two_jobs_may_not_share_a_stored_name(job, home):
    job("lake/board")
    text = (home / "conf/jobs/demo.yaml").read_text().replace("job: demo", "job: again")
    (home / "conf/jobs/again.yaml").write_text(text.replace("state: {", "state: {name: demo, "))
    with pytest.raises(ConfigError, match=r"state.name: job 'demo' has its state in .*/var/state/demo"):
        load_job("again")
    (home / "conf/jobs/again.yaml").write_text(text.replace("root: 'var/state'", "root: var/other, name: demo"))
    assert load_job("again").stored_name == "demo"
    (home / "conf/jobs/again.yaml").write_text(text.replace("state: {", "state: {name: demo, "))
    (home / "conf/jobs/demo.yaml").unlink()
    assert load_job("again").stored_name == "demo"


def test_tables_of_other_jobs_may_be_read(job):
    job("lake/board", source="var/state/other/quarantine")
    with pytest.raises(ConfigError, match="this is in the folder of state.root, which has the folders of all jobs"):
        job("var/state/other")


def test_dimension_table_may_not_nest_with_a_sink(job, home):
    def with_table(path):
        file = home / "conf/jobs/demo.yaml"
        job("lake/board")
        file.write_text(file.read_text().replace("'data/events'", f"'data/events'\n    tables: {{rates: '{path}'}}"))
        return load_job("demo")

    assert with_table("link/board").sources["events"].tables["rates"].endswith("board")
    with pytest.raises(ConfigError, match="sinks.sink_0.path: table 'rates' is in this folder: a VACUUM"):
        with_table("link/board/rates")
    with pytest.raises(ConfigError, match="sinks.sink_0.path: this is in the folder of table 'rates': a VACUUM"):
        with_table("lake")


@same_home
@given(path=st.sampled_from(PATHS))
def test_distinct_places_are_accepted(job, path):
    stem = path.rstrip("/")
    job(path, f"{stem}s", f"{stem}_2", "s3://lake/board", state=f"{stem}_state")


@pytest.mark.parametrize("spelling", PATHS)
def test_path_is_loaded_absolute(job, home, spelling):
    path = job(spelling).sinks["sink_0"].path
    assert path.startswith("/")
    assert "/../" not in path
    assert "file:" not in path.lower()


def test_file_uri_is_decoded(job, home):
    assert job("file://{home}/my%20lake").sinks["sink_0"].path == f"{home}/my lake"
    assert job("{home}/100%").sinks["sink_0"].path == f"{home}/100%"


def test_file_of_another_host_is_refused(job):
    with pytest.raises(ConfigError, match=r"sinks.sink_0.path: 'file://nas/lake' names a folder of the host 'nas'"):
        job("file://nas/lake")


KEYS = ("sources.events.path", "sinks.sink_0.path", "state.root", "state.local")
UNSUPPORTED = ["abfss", "gs", "wasbs", "hdfs", "az", "s3n", "oss", "viewfs", "memory", "ABFSS"]
UNSUPPORTED = [f"{scheme}://box/x" for scheme in UNSUPPORTED] + [
    *("http://user:SECRET@host/x", "dbfs:/x", "s3:/box/x", "hdfs:///x", "C:\\data", "C:/data", "\\\\server\\share"),
]


@pytest.mark.parametrize("place", UNSUPPORTED)
def test_other_schemes_are_refused(job, monkeypatch, place):
    monkeypatch.setattr(
        "headrace.config._scalars._allowed", {"s3", "s3a"}
    )  # a harness of another test allows memory://
    with pytest.raises(ConfigError, match="has 4 problems") as refused:
        job(place, source=place, state=place, local=place)
    assert refused.value.exit_code == 2
    lines = str(refused.value).splitlines()[1:]
    assert sorted(line.split(": ")[1] for line in lines) == sorted(KEYS)
    assert all(
        "expected a path of this machine, such as /data/lake or file:///data/lake, or s3://" in line for line in lines
    )
    assert "SECRET" not in str(refused.value)


def test_local_copies_are_on_a_disk(job):
    with pytest.raises(
        ConfigError, match="state.local: copies of state are on the disk of each worker: expected a path"
    ):
        job("lake/board", local="s3://box/x")


def test_names_may_have_colons(job):
    assert job("lake/a:b", source="data:1", state="file:///c:d").sources["events"].path.endswith("/data:1")
