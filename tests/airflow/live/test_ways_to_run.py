"""Each way to run a job in Airflow gives the right result, or is refused with advice. Services and database are real."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from tests.airflow.live.ways import SCENARIOS


@pytest.mark.slow
@pytest.mark.parametrize("name", [scenario.__name__ for scenario in SCENARIOS])
def test_each_way_to_run_succeeds(scenarios: dict[str, Future[None]], name: str) -> None:
    scenarios[name].result()
