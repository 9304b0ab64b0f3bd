"""Files of the state tables: the same rows, however their values became a column."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.state.backend import EntryChange
from headrace.tables import changelog as state_files
from headrace.tables.changelog import Changelog
from headrace.tables.folder import JobFolder
from headrace.tables.schemas import KEYED_STATE
from tests.unit.support.fuzzing import examples


class Forever:
    """State whose entries never expire."""

    name = "sum"

    def expires_at(self, stamp: int, own_ttl: int = 0) -> int | None:
        del stamp, own_ttl
        return None


JSON = st.one_of(st.text(), st.integers(-9, 9), st.lists(st.text(max_size=2), max_size=2)).map(msgspec.json.encode)
CHANGES = st.builds(
    EntryChange,
    JSON,
    st.none() | JSON,
    st.integers(0, 10**12),
    st.sampled_from([0, 1000]),
    st.sampled_from(["", "day"]),
    st.none() | JSON,
)


@pytest.fixture(autouse=True)
def _small_groups(monkeypatch):
    monkeypatch.setattr(state_files, "ROWS_PER_GROUP", 3)


@examples(50)
@given(changes=st.lists(CHANGES, min_size=1, max_size=10, unique_by=lambda change: change.entry("sum")))
def test_late_values_make_the_same_file(changes):
    log = Changelog("op", 7, 128)
    with TemporaryDirectory() as folder:
        (Path(folder) / KEYED_STATE).mkdir()
        at_once = state_files.stage_state(JobFolder(folder), KEYED_STATE, "1.parquet", log.values(Forever(), changes))
        late = state_files.stage_state(
            JobFolder(folder),
            KEYED_STATE,
            "2.parquet",
            log.values(Forever(), changes, without_values=True),
            values=[change.raw for change in changes],
        )
        first, second = (pq.ParquetFile(f"{folder}/{KEYED_STATE}/{number}.parquet") for number in "12")
        assert first.read().equals(second.read())
        assert first.num_row_groups == second.num_row_groups == -(-len(changes) // 3)
    assert msgspec.structs.replace(late, path=at_once.path, size=at_once.size) == at_once
