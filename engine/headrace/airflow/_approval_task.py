"""The task that waits until a person approves or rejects a replay, on Airflow's page of required actions.

It does what the standard provider's `HITLBranchOperator` does, with the same parts of Airflow's SDK: importing that operator would make
each parsing of the DAG file 20 ms longer, and 130 ms where nothing else has imported triggers.
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
    """Wait for an answer, without a worker's place; then go on with one task and skip the other.

    `subject` and `body` (Markdown) are what the person reads; both may be templates. Returns the answer and who gave it.
    """

    template_fields: Sequence[str] = ("subject", "body")
    inherits_from_skipmixin = True

    def __init__(self, *, subject: str, body: str, approved: str, rejected: str, **kwargs: Any) -> None:
        """`approved` and `rejected` are the ids of the tasks that come next."""
        super().__init__(**kwargs)
        self.subject = subject
        self.body = body
        self._next = {APPROVE: approved, REJECT: rejected}

    def execute(self, context: Context) -> None:
        """Put the question, and wait. Raises `TaskAwaitingInput`, which is how Airflow lets a task wait for a person."""
        from airflow.sdk.execution_time.hitl import upsert_hitl_detail

        upsert_hitl_detail(
            ti_id=context["ti"].id, options=[*self._next], subject=self.subject, body=self.body, params={}
        )
        raise TaskAwaitingInput(method_name="answered")

    def answered(self, context: Context, event: Mapping[str, Any]) -> dict[str, Any]:
        """Go on with the task of the answer. Airflow calls it when a person has answered."""
        (answer,) = event["chosen_options"]
        person = (event.get("responded_by_user") or {}).get("name")
        self.log.info("%s by %s", answer, person)
        result = {"answer": answer, "by": person}
        context["ti"].xcom_push(key="return_value", value=result)  # skipping a task ends this one with an exception
        self.do_branch(context, self._next[answer])
        return result
