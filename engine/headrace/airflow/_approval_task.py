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

    template_fields: Sequence[str] = ("subject", "body", "differs")
    inherits_from_skipmixin = True

    def __init__(
        self, *, subject: str, body: str, approved: str, rejected: str, differs: str = "True", **kwargs: Any
    ) -> None:
        """Store the texts. `approved` and `rejected` are the ids of the next tasks.

        `differs` is a template too: if it renders as `False`, nobody is asked, and the task `approved` runs.
        """
        super().__init__(**kwargs)
        self.differs = differs
        self.subject = subject
        self.body = body
        self._next = {APPROVE: approved, REJECT: rejected}

    def execute(self, context: Context) -> dict[str, Any] | None:
        """Ask the question, and wait; continue at once if nothing differs.

        Raises `TaskAwaitingInput`, by which Airflow lets a task wait for a person.
        """
        if self.differs == str(False):
            return self._continue(context, {"answer": APPROVE, "by": "nobody: nothing differs"})
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
        return self._continue(context, {"answer": answer, "by": person})

    def _continue(self, context: Context, result: dict[str, Any]) -> dict[str, Any]:
        """Run the task of an answer, skip the other one, and return the answer."""
        # Skipping the other task ends this task with an exception.
        context["ti"].xcom_push(key="return_value", value=result)
        self.do_branch(context, self._next[result["answer"]])
        return result
