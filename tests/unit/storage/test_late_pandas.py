"""pyarrow works without pandas until pandas is imported, and then recognizes it."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
from headrace.storage.pandas import without_pandas
without_pandas()
import pyarrow as pa
pa.array([1, None]).to_pylist()
print("pandas" in sys.modules)
import pandas as pd
print(pa.array(pd.Series([1.0, float("nan")])).null_count)
print(pa.table({"a": [1.0]}).to_pandas()["a"].tolist())
"""


def test_pyarrow_knows_pandas_once_it_is_imported():
    ran = subprocess.run([sys.executable, "-W", "error", "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert (ran.stdout.split(), ran.stderr) == (["False", "1", "[1.0]"], "")
