"""Approval task: waits until a person approves or rejects a replay, on Airflow's page of required actions.

It works like the standard provider's `HITLBranchOperator`, with the same parts of Airflow's SDK. Importing that operator would add
20 ms to each parsing of the DAG file, and 130 ms if nothing else has imported triggers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import BaseOperator
from airflow.sdk.bases.branch import BranchMixIn
from airflow.sdk.exceptions import TaskAwaitingInput

if TYPE_CHECKING:
    from airflow.sdk import Context

APPROVE: Final = "Approve"
REJECT: Final = "Reject"


class ApprovalTask(BaseOperator, BranchMixIn):
    """Wait for an answer without occupying a worker; then run one task and skip the other.

    The person reads `subject` and `body` (Markdown); both may be templates. Returns the answer and the person who gave it.
    """

    template_fields: Sequence[str] = ("subject", "body")
    inherits_from_skipmixin = True

    def __init__(self, *, subject: str, body: str, approved: str, rejected: str, **kwargs: Any) -> None:
        """Store the texts. `approved` and `rejected` are the ids of the next tasks."""
        super().__init__(**kwargs)
        self.subject = subject
        self.body = body
        self._next = {APPROVE: approved, REJECT: rejected}

    def execute(self, context: Context) -> None:
        """Ask the question, and wait. Raises `TaskAwaitingInput`, by which Airflow lets a task wait for a person."""
        from airflow.sdk.execution_time.hitl import upsert_hitl_detail

        upsert_hitl_detail(
            ti_id=context["ti"].id, options=[*self._next], subject=self.subject, body=self.body, params={}
        )
        raise TaskAwaitingInput(method_name="answered")

    def answered(self, context: Context, event: Mapping[str, Any]) -> dict[str, Any]:
        """Continue with the task of the answer. Airflow calls it when a person has answered."""
        (answer,) = event["chosen_options"]
        person = (event.get("responded_by_user") or {}).get("name")
        self.log.info("%s by %s", answer, person)
        result = {"answer": answer, "by": person}
        context["ti"].xcom_push(
            key="return_value", value=result
        )  # skipping the other task ends this task with an exception
        self.do_branch(context, self._next[answer])
        return result
