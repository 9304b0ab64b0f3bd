"""The cells of `make matrix`, the files of constraints, and the table of results: what was not run is never shown as passed."""

from __future__ import annotations

import itertools
import re
import sys
import tomllib
from importlib import import_module

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from headrace.config import project_around
from headrace.provision.pyspark import FITTING_SPARK, TESTED_PYSPARK
from tests.jobs.home import PROJECT

with pytest.MonkeyPatch.context() as patch:
    patch.setattr(sys, "path", [str(PROJECT / "setup"), *sys.path])
    cells, matrix = import_module("matrix_cells"), import_module("matrix")

CELLS, Cell, Mishap, Passed, Result = cells.CELLS, cells.Cell, cells.Mishap, cells.Passed, cells.Result
DECLARED = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
MOST_CELLS = 8
PASSED = Passed("2026-01-02", "digest", 61, {"python": "3.11.7", "pyspark": "4.0.1", "pandas": "2.3.3"})
MISHAPS = st.builds(
    Mishap, date=st.just("2026-01-03"), outcome=st.sampled_from(["failed", "not run"]), reason=st.just("why")
)
OUTCOMES = st.one_of(MISHAPS, st.builds(Passed, st.just("2026-01-04"), st.sampled_from("ab"), st.just(9), st.just({})))


def admitted(package: str) -> SpecifierSet:
    """Return the versions of a package that the wheel and its extras admit."""
    lists = [DECLARED["dependencies"], *DECLARED["optional-dependencies"].values()]
    wanted = [Requirement(text) for text in itertools.chain(*lists)]
    return next(requirement.specifier for requirement in wanted if requirement.name == package)


def test_every_pair_is_tried_but_the_named():
    factors = ("python", "spark", "airflow", "engine")
    values = {factor: {getattr(cell, factor) for cell in CELLS} - {"3.4"} for factor in factors}
    untried = {
        pair
        for left, right in itertools.combinations(factors, 2)
        for pair in itertools.product(values[left], values[right])
        if pair not in {(getattr(cell, left), getattr(cell, right)) for cell in CELLS}
    }
    assert untried == cells.LEFT_OUT | cells.IN_FULL


def test_cells_are_few_and_differ():
    assert len({cell.name for cell in CELLS}) == len(CELLS) <= MOST_CELLS
    assert {cell.spark for cell in CELLS} == set(FITTING_SPARK)
    assert [cell.name for cell in CELLS if cell.informative] == ["python3.11-spark4.2-airflow3.4-pandas3-c"]


def test_cells_have_versions_that_pip_admits():
    pythons = SpecifierSet(DECLARED["requires-python"])
    for cell in CELLS:
        assert f"{cell.python}.0" in pythons
        assert cell.airflow == cells.NO_AIRFLOW or f"{cell.airflow}.1" in admitted("apache-airflow")
        assert cell.informative or f"{cell.pandas}.9" in admitted("pandas")


@pytest.mark.parametrize("spark", FITTING_SPARK)
def test_constraints_pin_both_packages_to_one_version(spark):
    pins = cells.pinned(PROJECT / "constraints" / f"spark-{spark}.txt")
    assert pins.keys() == {"pyspark", "pyspark-client"}
    (version,) = set(pins.values())
    assert version.startswith(f"{spark}.")
    assert all(version in admitted(package) for package in pins)


def test_constraints_exist_for_each_spark_alone():
    assert {file.name for file in (PROJECT / "constraints").iterdir()} == {f"spark-{v}.txt" for v in FITTING_SPARK}
    assert cells.pinned(PROJECT / "constraints" / f"spark-{FITTING_SPARK[-1]}.txt")["pyspark"] == TESTED_PYSPARK


@given(outcomes=st.lists(OUTCOMES, max_size=6), wheel=st.sampled_from("ab"))
def test_only_a_last_pass_spares_another_try(outcomes, wheel):
    result = Result(CELLS[0])
    for outcome in outcomes:
        result = result.after(outcome)
    last = outcomes[-1] if outcomes else None
    passes = [outcome for outcome in outcomes if isinstance(outcome, Passed)]
    assert result.holds_for(wheel) == (isinstance(last, Passed) and last.wheel == wheel)
    assert result.passed == (passes[-1] if passes else None)
    assert result.mishap == (last if isinstance(last, Mishap) else None)
    assert result.fails_the_matrix == (isinstance(last, Mishap) and last.outcome == "failed")


@given(mishap=MISHAPS)
def test_mishap_is_shown_and_never_passes(mishap):
    never, later = (
        cells.table([result.after(mishap)]).splitlines()[2] for result in (Result(CELLS[0]), Result(CELLS[0], PASSED))
    )
    assert never == f"| 3.11 | 4.0 | none | 2 | C | never | {mishap.outcome} on 2026-01-03: why |"
    assert later == f"| 3.11.7 | 4.0.1 | none | 2.3.3 | C | 2026-01-02, 61 s | {mishap.outcome} on 2026-01-03: why |"


@pytest.mark.parametrize("cell", CELLS, ids=[cell.name for cell in CELLS])
def test_failed_informative_cell_is_no_error(cell):
    failed = Result(cell).after(Mishap("2026-01-03", "failed", "why"))
    assert failed.fails_the_matrix != cell.informative
    assert not Result(cell).after(Mishap("2026-01-03", "not run", "why")).fails_the_matrix


def test_table_of_the_page_equals_the_results():
    results = cells.load()
    assert [*results] == [*CELLS]
    text = cells.PAGE.read_text()
    assert cells.page(text, results.values()) == text
    assert text.count("| never |") == sum(result.passed is None for result in results.values())


def test_results_have_versions_that_their_cells_name():
    for cell, result in cells.load().items():
        if result.passed is not None:
            versions = result.passed.versions
            pins = cells.pinned(cell.constraints)
            assert versions["pyspark"] == pins["pyspark"] == versions.get("pyspark-client", pins["pyspark"])
            assert versions["python"].startswith(f"{cell.python}.")
            assert versions["pandas"].startswith(f"{cell.pandas}.")
            assert ("apache-airflow" in versions) == (cell.airflow != cells.NO_AIRFLOW)
            assert re.fullmatch(r"[0-9a-f]{64}", result.passed.wheel)


def test_results_of_dropped_cells_are_left_out(tmp_path):
    file = tmp_path / "matrix.json"
    file.write_text(
        '[{"cell": {"python": "3.9", "spark": "3.5", "airflow": "none", "pandas": "2", "engine": "C"},'
        ' "passed": {"date": "2026-01-02", "wheel": "a", "seconds": 1, "versions": {}}}]'
    )
    assert all(result.passed is None for result in cells.load(file).values())


def test_page_without_a_place_is_refused():
    with pytest.raises(ValueError, match="has no place for the table"):
        cells.page("# Versions\n", [])


class FakeTrial:
    """A cell whose second step raises an exception."""

    def __init__(self, folder, error):
        self.cell, self.folder, self.error = CELLS[0], folder, error
        folder.mkdir()

    def steps(self):
        return {"install": lambda: None, "runs on Spark": self.fail}

    def fail(self):
        raise self.error


def test_failed_step_is_named_and_its_output_kept(tmp_path):
    outcome = matrix.tried(FakeTrial(tmp_path / CELLS[0].name, matrix.CellFailed("Java says no")))
    assert (outcome.outcome, outcome.reason) == ("failed", "at the step runs on Spark")
    assert (tmp_path / f"{CELLS[0].name}.log").read_text() == "runs on Spark: CellFailed: Java says no\n"


def test_cells_lie_in_no_project():
    assert project_around(matrix.FOLDER) is None


def test_missing_python_is_not_run(tmp_path):
    trial = matrix.Trial(Cell("3.99", "4.2", "none", "2", "C"), tmp_path / "cell", None)
    outcome = matrix.tried(trial)
    assert (outcome.outcome, outcome.reason) == ("not run", "no Python 3.99 with header files on this machine")
    assert not (tmp_path / "cell").exists()


def test_java_newer_than_the_spark_is_not_run(monkeypatch, tmp_path):
    monkeypatch.setattr(matrix, "java_version", lambda _: 25)
    monkeypatch.setattr(matrix, "find_java", lambda _: tmp_path)
    assert matrix.Trial(Cell("3.11", "4.2", "none", "2", "C"), tmp_path, None).java == tmp_path
    with pytest.raises(matrix.NotRun, match="no Java from 17 to 21"):
        assert matrix.Trial(Cell("3.11", "4.0", "none", "2", "C"), tmp_path, None).java


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"pyspark": "4.1.4"}, r"pyspark 4\.1\.4 is installed, not 4\.1\.3"),
        ({"pyspark-client": "4.2.0"}, r"pyspark-client 4\.2\.0 is installed, not 4\.1\.3"),
        ({"pandas": "3.0.1"}, r"pandas 3\.0\.1 is installed, not 2"),
        ({"python": "3.12.1"}, r"python 3\.12\.1 is installed, not 3\.11"),
        ({"apache-airflow": "none"}, r"apache-airflow none is installed, not 3\.3"),
    ],
)
def test_other_versions_than_the_cells_are_refused(tmp_path, changed, text):
    versions = {
        "python": "3.11.7",
        "pyspark": "4.1.3",
        "pyspark-client": "4.1.3",
        "pandas": "2.3.3",
        "apache-airflow": "3.3.2",
    }
    cell = Cell("3.11", "4.1", "3.3", "2", "Python")
    matrix.Trial(cell, tmp_path, None, versions).hold_versions()
    with pytest.raises(matrix.CellFailed, match=text):
        matrix.Trial(cell, tmp_path, None, versions | changed).hold_versions()
