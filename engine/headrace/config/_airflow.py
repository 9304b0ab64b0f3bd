"""Settings for Airflow in a job's file, besides its schedule."""

from __future__ import annotations

from headrace.config._types import Count, FunctionRef, Section, Span


class AirflowConfig(Section, frozen=True, kw_only=True):
    """Where Airflow runs the tasks of the job's DAG, and the functions that it calls. Without Airflow it has no effect."""

    pool: str | None = None
    """The pool of the tasks; null: Airflow's default. Make it before the DAG runs."""

    pool_slots: Count = 1
    """The slots of the pool that the task `run` takes."""

    queue: str | None = None
    """The queue of the tasks, for executors that have several; null: Airflow's default."""

    priority: Count = 1
    """The priority weight of the tasks: tasks with more of it leave a full pool first."""

    on_failure: FunctionRef | None = None
    """A function, as package.module:function, that Airflow calls with its context when a task has failed for good."""

    on_retry: FunctionRef | None = None
    """Likewise, when a task is tried again."""

    on_success: FunctionRef | None = None
    """Likewise, when the task `run` has ended well."""

    deadline: Span | None = None
    """How long a DAG run may take from when it is queued; null: no limit. It goes on after that: somebody is told."""

    on_deadline: FunctionRef | None = None
    """A function, as package.module:function, that Airflow calls when the deadline has passed; null: a line in the log. `async def` runs in the triggerer, `def` by the executor."""
