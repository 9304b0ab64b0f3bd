"""The comparison with SQL finds missing rows, additional rows, and wrong values in one column."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.nexmark.check import compare
from pipelines.nexmark.generator import Shape, write_events

COLUMNS = ["auction", "bidder", "price", "date_time", "extra"]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nexmark")
    write_events(folder, Shape(100), files=3)
    return folder


@pytest.fixture
def bids(inputs):
    return pa.concat_tables(pq.read_table(file) for file in (inputs / "bids").iterdir()).select(COLUMNS)


def test_same_rows_in_another_order_are_right(inputs, bids):
    assert not compare("q0", bids.sort_by("price"), inputs)


def test_lost_row_is_found(inputs, bids):
    differences = compare("q0", bids.slice(1), inputs)
    assert (len(differences.missing), differences.unexpected) == (1, [])


def test_doubled_row_is_found(inputs, bids):
    differences = compare("q0", pa.concat_tables([bids, bids.slice(0, 1)]), inputs)
    assert (differences.missing, len(differences.unexpected)) == ([], 1)


def test_one_wrong_value_is_found(inputs, bids):
    prices = pa.array([bids["price"][0].as_py() + 1, *bids["price"].to_pylist()[1:]])
    differences = compare("q0", bids.set_column(2, "price", prices), inputs)
    assert (len(differences.missing), len(differences.unexpected)) == (1, 1)
    assert "1 rows" not in str(differences)


def test_other_columns_are_refused(inputs, bids):
    with pytest.raises(ValueError, match="not .*'price'"):
        compare("q0", bids.drop_columns("price"), inputs)
