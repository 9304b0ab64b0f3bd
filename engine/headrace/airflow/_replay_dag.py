"""Replay DAG of a job: computes requested past intervals again on a branch, until the result is promoted or dropped."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from airflow.sdk import DAG, Param

from headrace.airflow._approval_task import ApprovalTask
from headrace.airflow._callbacks import task_settings
from headrace.airflow._command_task import CommandTask
from headrace.airflow._replay_requests import replay_asset, replay_id
from headrace.airflow._replay_task import BRANCH, ReplayTask
from headrace.config import JobConfig, Promote

_EXPLANATION: Final = """
Computes past intervals of the job `{name}` again, on its branch `{branch}`; the live tables stay as they are, and the DAG `{name}` goes on.

It starts when the task `run` of `{name}` is cleared, or backfilled, for an interval that was taken in already. All requests that wait are
joined: the earliest start to the latest end. By hand, give `from` and `to`.

- **backfill**: takes in the intervals and all later ones, and says in its note how the result differs.
{steps}
"""
_STEPS: Final = {
    Promote.APPROVAL: "- **approve**: waits for a person (*Required Actions*). **promote** makes the result live, **drop** removes it.",
    Promote.AUTOMATIC: "- **promote**: makes the result live.",
    Promote.REFUSE: "The job's file says `replay.promote: refuse`: the branch stays for you to look at.",
}
_NOT_PAUSED: Final = False
"""The DAG starts unpaused: Airflow keeps no event of an asset for a paused DAG, so a request would be lost."""


def replay_dag(job: JobConfig, *, auto_register: bool = False) -> DAG:
    """Return the replay DAG of a job, whose profile was loaded with `keep_references`."""
    policy = job.replay.promote
    with DAG(
        dag_id=replay_id(job.job),
        description=f"Compute past intervals of {job.job} again, on a branch",
        doc_md=_EXPLANATION.format(name=job.job, branch=BRANCH, steps=_STEPS[policy]),
        schedule=[replay_asset(job.job)],
        start_date=datetime(2020, 1, 1, tzinfo=UTC),
        catchup=False,
        max_active_runs=1,
        is_paused_upon_creation=_NOT_PAUSED,
        default_args=task_settings(job),
        tags=["headrace", *job.tags],
        params={name: _moment(name) for name in ("from", "to")},
        auto_register=auto_register,
    ) as dag:
        backfill = _backfill(job)
        if policy is Promote.APPROVAL:
            backfill >> _approve(job) >> [_promote(job), _drop(job)]
        elif policy is Promote.AUTOMATIC:
            backfill >> _promote(job)
    return dag


def _backfill(job: JobConfig) -> ReplayTask:
    policy = Promote.REFUSE if job.replay.promote is Promote.REFUSE else Promote.APPROVAL
    return ReplayTask(task_id="backfill", job=job, promote=policy, pool_slots=job.airflow.pool_slots)


def _promote(job: JobConfig) -> ReplayTask:
    return ReplayTask(
        task_id="promote", job=job, promote=Promote.AUTOMATIC, only_open=True, pool_slots=job.airflow.pool_slots
    )


def _approve(job: JobConfig) -> ApprovalTask:
    return ApprovalTask(
        task_id="approve",
        subject=f"Promote the replay of {job.job}?",
        body="{{ ti.xcom_pull(task_ids='backfill')['summary'] }}",
        differs="{{ ti.xcom_pull(task_ids='backfill')['differs'] }}",
        approved="promote",
        rejected="drop",
    )


def _drop(job: JobConfig) -> CommandTask:
    rejection = "{{ ti.xcom_pull(task_ids='approve')['by'] }} rejected it (Airflow run {{ run_id }})"
    return CommandTask(
        task_id="drop",
        words=["branch", "drop", job.job, BRANCH, f"--why={rejection}"],
        home=job.home,
        python=job.profile.python,
        execution_timeout=job.run.budget + job.run.grace,
    )


def _moment(name: str) -> Param:
    return Param(None, type=["null", "string"], description=f"{name}: a day or a moment (UTC), such as 2013-01-10.")
