from __future__ import annotations

import sys
import zipfile

import pytest

from headrace.config._types import PipelineCode
from headrace.errors import ConfigError
from headrace.plan.loader import load_pipeline, plan_of
from tests.jobs.home import PROJECT

PIPELINE = """
from headrace import KeyedProcessFunction, Pipeline, Struct, Timestamp

class Sale(Struct, frozen=True):
    at: Timestamp
    shop: str

class Echo(KeyedProcessFunction[Sale, Sale]):
    async def process(self, record, ctx, /):
        ctx.collect(record)

pipeline = Pipeline("{name}").source("sales", Sale, event_time="at").key_by("shop").process("echo", Echo()).sink("out")
"""


@pytest.fixture(autouse=True)
def forgotten(monkeypatch):
    """Forget the modules of a test, and its entries of `sys.path`."""
    monkeypatch.setattr(sys, "path", sys.path[:])
    yield
    load_pipeline.cache_clear()
    plan_of.cache_clear()
    for name in [name for name in sys.modules if name.startswith("made_here")]:
        del sys.modules[name]


@pytest.fixture
def code(tmp_path):
    """Make a home with a module, and return the place of a pipeline in it."""

    def make(reference, text="", **options):
        home = tmp_path / "home"
        home.mkdir(exist_ok=True)
        (home / "made_here.py").write_text(text)
        return PipelineCode(reference, str(home), **options)

    return make


def test_pipeline_is_planned_once():
    flights = PipelineCode("pipelines.flights:pipeline", str(PROJECT))
    assert plan_of(flights) is plan_of(PipelineCode("pipelines.flights:pipeline", str(PROJECT)))


def test_home_off_the_path_is_importable(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_pipeline(code("made_here:pipeline", PIPELINE.format(name="one"))).name == "one"


def test_prints_of_a_module_spoil_no_output(code, capsys):
    load_pipeline(code("made_here:pipeline", 'print("loading")\n' + PIPELINE.format(name="one")))
    assert capsys.readouterr() == ("", "loading\n")


def test_archive_in_py_files_is_importable(code, tmp_path):
    archive = tmp_path / "code.zip"
    with zipfile.ZipFile(archive, "w") as out:
        out.writestr("made_here_packed.py", PIPELINE.format(name="packed"))
    packed = code("made_here_packed:pipeline", py_files=(str(archive), "s3://bucket/other.zip"))
    assert load_pipeline(packed).name == "packed"


def test_module_in_py_files_is_importable(code, tmp_path):
    file = tmp_path / "elsewhere" / "made_here_single.py"
    file.parent.mkdir()
    file.write_text(PIPELINE.format(name="single"))
    assert load_pipeline(code("made_here_single:pipeline", py_files=(str(file),))).name == "single"


def test_home_comes_before_py_files(code, tmp_path):
    other = tmp_path / "elsewhere" / "made_here.py"
    other.parent.mkdir()
    other.write_text(PIPELINE.format(name="other"))
    assert load_pipeline(code("made_here:pipeline", PIPELINE.format(name="one"), py_files=(str(other),))).name == "one"


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("made_here_not:pipeline", "there is no module 'made_here_not' in the job's home folder .*home.* or the env"),
        ("made_here.deeper:pipeline", "module 'made_here.deeper' cannot be imported"),
        ("made_here:pipelin", "made_here has no variable 'pipelin'; did you mean 'pipeline_of'"),
        ("made_here:x", "'made_here:x' is of type int, not a Pipeline"),
    ],
)
def test_missing_pipeline_is_a_configuration_error(code, reference, message):
    with pytest.raises(ConfigError, match=message):
        load_pipeline(code(reference, "x = 7\npipeline_of = 8"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import no_such_package", "ModuleNotFoundError: No module named 'no_such_package'"),
        ("x = 1\nraise ValueError('ttl too short')", r"ValueError: ttl too short \(.*made_here\.py:2\)"),
    ],
)
def test_module_that_raises_shows_the_place(code, text, message):
    with pytest.raises(ConfigError, match=f"module 'made_here' cannot be imported: {message}"):
        load_pipeline(code("made_here:pipeline", text))


def test_stream_is_no_pipeline(code):
    text = PIPELINE.format(name="one").replace('.sink("out")', "")
    with pytest.raises(ConfigError, match=r"is of type ProcessedStream, not a Pipeline: end the stream with sink\(\)"):
        load_pipeline(code("made_here:pipeline", text))


def test_refused_step_is_shown_with_its_line(code, tmp_path):
    text = PIPELINE.format(name="one").replace('.key_by("shop")', "")
    with pytest.raises(ConfigError, match=r"process 'echo' needs a key: .* \(.*made_here\.py:12\)"):
        load_pipeline(code("made_here:pipeline", text))
