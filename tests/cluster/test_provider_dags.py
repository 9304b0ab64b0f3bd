"""DAGs of pages with operators of other providers: Airflow parses each, beside these providers in an environment of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.unit.support.doc_pages import blocks_of

pytestmark = pytest.mark.long

AIRFLOW = "apache-airflow==3.3.2"
PROVIDERS = {"amazon": "9.39.0", "cncf-kubernetes": "10.25.0", "databricks": "7.23.0", "google": "22.8.0"}
PARSE = """
import json, sys
from airflow.dag_processing.dagbag import DagBag
bag = DagBag(sys.argv[1])
print(json.dumps([bag.import_errors, {dag.dag_id: [task.operator_name for task in dag.tasks] for dag in bag.dags.values()}]))
"""
DAGS = {
    "shop_in_a_pod": ["KubernetesPodOperator"],
    "shop_on_databricks": ["DatabricksSubmitRunOperator"],
    "shop_on_dataproc": ["DataprocSubmitJobOperator"],
    "shop_on_emr": ["EmrAddStepsOperator"],
    "shop_on_emr_serverless": ["EmrServerlessStartJobOperator"],
}


def uv(*arguments: object) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "uv", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """Return the Python of an environment with the providers; skip the test where the package index cannot be reached."""
    folder = tmp_path_factory.mktemp("providers")
    assert uv("venv", "--python", sys.executable, folder / "venv").returncode == 0
    python = folder / "venv" / "bin" / "python"
    packages = [f"apache-airflow-providers-{name}=={version}" for name, version in PROVIDERS.items()]
    done = uv("pip", "install", "--python", python, AIRFLOW, *packages)
    if done.returncode:
        pytest.skip(f"the package index cannot be reached: {done.stderr.strip()}")
    return python


def test_airflow_parses_the_dags_of_pages(python, tmp_path):
    blocks = [block for page in ("kubernetes", "providers") for block in blocks_of(page) if "with DAG(" in block.text]
    (tmp_path / "dags").mkdir()
    for number, block in enumerate(blocks):
        (tmp_path / "dags" / f"dag_{number}.py").write_text(block.text)
    own = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "PYTHON"))}
    airflow = {
        "HOME": str(tmp_path / "airflow"),
        "_CORE__LOAD_EXAMPLES": "False",
        "_CORE__DAGBAG_IMPORT_TIMEOUT": "300",
    }
    environment = own | {f"AIRFLOW_{name}": value for name, value in airflow.items()}
    line = [python, "-c", PARSE, tmp_path / "dags"]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    errors, dags = json.loads(done.stdout.splitlines()[-1])
    assert errors == {}
    assert dags == DAGS
