"""The end of the input, and complete intervals: all timers fire, and the split into micro-batches does not change the result."""

from __future__ import annotations

import pytest

from headrace.errors import SourceError
from tests.jobs.outcome import assert_well_formed, outcome
from tests.jobs.purchase_files import day_name, purchases_of, write_days, write_rows


def test_end_of_input_fires_all_timers(home, run):
    outcomes = []
    write_days(home.input, range(3))
    for files, root in ((3, "at once"), (1, "day by day")):
        source = {"max_files_per_batch": files, "complete_intervals": True}
        home.configure(
            {
                "sources": {"purchases": source},
                "state": {"root": f"{root}/state"},
                "sinks": {"lines_by_item": {"path": f"{root}/lines"}, "reminders": {"path": f"{root}/reminders"}},
            }
        )
        assert run(home, end_of_input=True).stopped_because == "ended"
        assert_well_formed(home.config())
        outcomes.append(outcome(home.config()))
    assert outcomes[0] == outcomes[1]
    assert outcomes[0].state["timers"] == []
    write_rows(home.input, day_name(3), purchases_of(3))
    with pytest.raises(SourceError, match="end of input"):
        run(home)
