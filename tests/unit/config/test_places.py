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

    def load(*sinks, state="var/state", source="data/events"):
        lines = [f"  sink_{n}: {{path: '{spelt(path)}', mode: append}}" for n, path in enumerate(sinks)]
        text = base.replace("data/events", f"'{spelt(source)}'") + "\n".join(["sinks:", *lines, ""])
        (home / "conf/jobs/demo.yaml").write_text(f"{text}state: {{root: '{spelt(state)}'}}\n")
        return load_job("demo")

    def spelt(path):
        return path.format(home=home, name=home.name)

    return load


same_home = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


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
    with pytest.raises(ConfigError, match=r"in the folder of the job's state|is in this folder: a VACUUM"):
        job(sink.rstrip("/") + below, state=state)


@same_home
@given(path=st.sampled_from(PATHS))
def test_distinct_places_are_accepted(job, path):
    stem = path.rstrip("/")
    job(path, f"{stem}s", f"{stem}_2", "s3://lake/board", state=f"{stem}_state")


@pytest.mark.parametrize("spelling", PATHS)
def test_path_is_loaded_absolute(job, home, spelling):
    path = job(spelling).sinks["sink_0"].path
    assert path.startswith("/")
    assert "file:" not in path.lower()


def test_file_uri_is_decoded(job, home):
    assert job("file://{home}/my%20lake").sinks["sink_0"].path == f"{home}/my lake"
    assert job("{home}/100%").sinks["sink_0"].path == f"{home}/100%"


def test_file_of_another_host_is_refused(job):
    with pytest.raises(ConfigError, match=r"sinks.sink_0.path: 'file://nas/lake' names a folder of the host 'nas'"):
        job("file://nas/lake")
