"""Links from a run's task instance: to its checkpoint, and to Spark's UI. A task pushes each as an XCom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import attrs
from airflow.sdk import BaseOperatorLink, conf

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey


@attrs.define()
class CheckpointLink(BaseOperatorLink):
    """Link to the last checkpoint of a run."""

    name = "Headrace checkpoint"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002  Airflow calls it so
        """Return the address once the task has ended; an empty text if it has made no checkpoint."""
        return str(getattr(operator, "checkpoint_link", ""))


@attrs.define()
class SparkUiLink(BaseOperatorLink):
    """Link to the UI of the run's Spark. It exists during the run, unless the profile turns it off."""

    name = "Spark UI"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002  Airflow calls it so
        """Return the address once the task has ended; an empty text if Spark had no UI."""
        return str(getattr(operator, "spark_ui_link", ""))


def result_page(task_instance: Any) -> str:
    """Return the address of the page in Airflow's UI that shows a task's result."""
    base = conf.get("api", "base_url", fallback="/").rstrip("/")
    dag, run, task = (
        quote(str(part), safe="") for part in (task_instance.dag_id, task_instance.run_id, task_instance.task_id)
    )
    return f"{base}/dags/{dag}/runs/{run}/tasks/{task}/xcom"
