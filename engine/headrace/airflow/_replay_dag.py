"""Replay DAG of a job, and its task that asks a person for approval.

The DAG computes requested past intervals again on a branch, until the result is promoted or dropped. The approval task
waits on Airflow's page of required actions.

The approval task works like the standard provider's `HITLBranchOperator`, with the same parts of Airflow's SDK.
Importing that operator would add 20 ms to each parsing of the DAG file, and 130 ms if nothing else has imported
triggers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import DAG, BaseOperator, Param
from airflow.sdk.bases.branch import BranchMixIn
from airflow.sdk.exceptions import TaskAwaitingInput
from airflow.sdk.execution_time.hitl import HITLUser

from headrace.airflow._command import CommandTask
from headrace.airflow._replay_plan import BEYOND, PlanTask, has_limits
from headrace.airflow._replay_requests import replay_asset, replay_id, tell_requesters
from headrace.airflow._replay_task import BRANCH, ReplayTask
from headrace.airflow._results import sink_assets
from headrace.airflow._settings import task_settings
from headrace.config import JobConfig, Promote

if TYPE_CHECKING:
    from airflow.sdk import Context


APPROVE: Final = "Approve"
REJECT: Final = "Reject"
_ASKS: Final = "needs_approval"
"""Outcome of a backfill that a person decides about."""


class ApprovalTask(BaseOperator, BranchMixIn):
    """Wait for an answer without occupying a worker; then run one task and skip the other.

    The person reads `subject` and `body` (Markdown); both may be templates. Returns the answer and the person who gave it.
    """

    template_fields: Sequence[str] = ("subject", "body", "outcome")
    inherits_from_skipmixin = True

    def __init__(
        self,
        *,
        subject: str,
        body: str,
        approved: str,
        rejected: str | None,
        unasked: str | None = None,
        outcome: str = _ASKS,
        asks: str = _ASKS,
        approvers: Sequence[str] = (),
        **kwargs: Any,
    ) -> None:
        """Store the texts. `approved` and `rejected` are the ids of the next tasks; None skips all.

        Only `approvers` may answer, ids of Airflow's users; without any, everybody who may see to required actions.

        `outcome` is a template too, of the outcome of the task before: nobody is asked unless it is `asks`. Then the next task is
        `unasked`: none by default, since the backfill has promoted a branch that changes nothing.
        """
        super().__init__(**kwargs)
        self.outcome = outcome
        self.subject = subject
        self.body = body
        self._approvers = [HITLUser(id=user, name=user) for user in approvers]
        self._asks = asks
        self._next = {APPROVE: approved, REJECT: rejected}
        self._unasked = unasked

    def execute(self, context: Context) -> dict[str, Any] | None:
        """Ask the question, and wait; ask nobody if the backfill needs no approval.

        Raises `TaskAwaitingInput`, by which Airflow lets a task wait for a person.
        """
        if self.outcome != self._asks:
            return self._continue(context, {"answer": None, "by": f"nobody: {self.outcome} already"})
        from airflow.sdk.execution_time.hitl import upsert_hitl_detail

        upsert_hitl_detail(
            ti_id=context["ti"].id,
            options=[*self._next],
            subject=self.subject,
            body=self.body,
            params={},
            assigned_users=self._approvers,
        )
        raise TaskAwaitingInput(method_name="answered")

    def answered(self, context: Context, event: Mapping[str, Any]) -> dict[str, Any]:
        """Continue with the task of the answer. Airflow calls it when a person has answered."""
        (answer,) = event["chosen_options"]
        person = (event.get("responded_by_user") or {}).get("name")
        self.log.info("%s by %s", answer, person)
        follows = "nothing" if (task := self._next[answer]) is None else f"task {task}"
        tell_requesters(context, lambda *_: f"the replay: {answer} by {person}, {follows} follows", self.log)
        return self._continue(context, {"answer": answer, "by": person})

    def _continue(self, context: Context, result: dict[str, Any]) -> dict[str, Any]:
        """Run the task of an answer, if there is one, skip others, and return the answer."""
        # Skipping tasks ends this task with an exception.
        context["ti"].xcom_push(key="return_value", value=result)
        self.do_branch(context, self._next.get(result["answer"], self._unasked))
        return result


_EXPLANATION: Final = """
Computes past intervals of the job `{name}` again, on its branch `{branch}`; the live tables stay as they are, and the DAG `{name}` goes on.

It starts when the task `run` of `{name}` is cleared, or backfilled, for an interval that was taken in already. All requests that wait are
joined: the earliest start to the latest end. By hand, give `from` and `to`.

- **backfill**: takes in the intervals and all later ones, and says in its note how the result differs. If nothing differs, it ends the replay.
{steps}
"""
_STEPS: Final = {
    Promote.APPROVAL: "- **approve**: waits for a person (*Required Actions*). **promote** makes the result live, **drop** removes it.",
    Promote.AUTOMATIC: "- **promote**: makes the result live.",
    Promote.REFUSE: "The job's file says `replay.promote: refuse`: the branch stays for you to look at.",
}
_CHOICES: Final = f"*{APPROVE}* makes the result live in one commit, *{REJECT}* removes the branch. Until you answer, the live tables are as before."
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
        params={name: _timestamp(name) for name in ("from", "to")},
        auto_register=auto_register,
    ) as dag:
        backfill = _backfill(job)
        if has_limits(job):
            _plan(job) >> _begin(job) >> backfill
        if policy is Promote.APPROVAL:
            backfill >> _approve(job) >> [_promote(job), _drop(job)]
        elif policy is Promote.AUTOMATIC:
            backfill >> _promote(job)
    return dag


def _backfill(job: JobConfig) -> ReplayTask:
    policy = Promote.REFUSE if job.replay.promote is Promote.REFUSE else Promote.APPROVAL
    return ReplayTask(
        task_id="backfill",
        job=job,
        promote=policy,
        beyond_limits=has_limits(job),
        pool_slots=job.airflow.pool_slots,
    )


def _plan(job: JobConfig) -> PlanTask:
    return PlanTask(task_id="plan", job=job, pool_slots=job.airflow.pool_slots)


def _begin(job: JobConfig) -> ApprovalTask:
    return ApprovalTask(
        task_id="begin",
        subject=f"Begin the replay of {job.job} beyond its limits?",
        body="{{ ti.xcom_pull(task_ids='plan')['plan'] }}",
        outcome="{{ ti.xcom_pull(task_ids='plan')['outcome'] }}",
        asks=BEYOND,
        approved="backfill",
        rejected=None,
        unasked="backfill",
        approvers=job.airflow.approvers,
    )


def _promote(job: JobConfig) -> ReplayTask:
    return ReplayTask(
        task_id="promote",
        job=job,
        promote=Promote.AUTOMATIC,
        only_open=True,
        outlets=sink_assets(job),
        pool_slots=job.airflow.pool_slots,
    )


def _approve(job: JobConfig) -> ApprovalTask:
    compared = "ti.xcom_pull(task_ids='backfill')"
    texts = [f"{{{{ {compared}['summary'] }}}}", _CHOICES, f"{{{{ {compared}['plan'] }}}}"]
    if job.replay.show_rows:
        texts.insert(1, f"{{{{ {compared}['rows'] }}}}")
    return ApprovalTask(
        task_id="approve",
        subject=f"Promote the replay of {job.job}?",
        body="\n\n".join(texts),
        outcome=f"{{{{ {compared}['outcome'] }}}}",
        approved="promote",
        rejected="drop",
        approvers=job.airflow.approvers,
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


def _timestamp(name: str) -> Param:
    return Param(None, type=["null", "string"], description=f"{name}: a day or a timestamp (UTC), such as 2013-01-10.")
