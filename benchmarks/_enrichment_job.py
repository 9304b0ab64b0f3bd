"""The job of the benchmark `enrichment`: each record calls a service that answers after 5 ms (workload W3)."""

import asyncio
from datetime import timedelta

from headrace import AsyncFunction, OutputMode, Pipeline, Struct, Timestamp

CAPACITY = 1_000
"""Calls in flight at once, of all tasks together."""

TASKS = 2
LATENCY = 0.005


class Question(Struct, frozen=True):
    number: int
    name: str
    ts: Timestamp


class Answer(Struct, frozen=True):
    number: int
    name: str
    score: int


def score_of(number):
    return number * 7 % 1_000


class Lookup(AsyncFunction[Question, Answer]):
    async def invoke(self, question, /):
        await asyncio.sleep(LATENCY)
        return [Answer(question.number, question.name, score_of(question.number))]


def enriching(mode):
    questions = Pipeline("enriching").source("questions", Question, event_time="ts", order_by=("number",))
    answers = questions.async_wait(
        "ask", Lookup(), mode=mode, capacity=CAPACITY // TASKS, timeout=timedelta(seconds=60)
    )
    return answers.sink("answers")


unordered = enriching(OutputMode.UNORDERED)
ordered = enriching(OutputMode.ORDERED)
