"""Async waits of a task over real tables, without Spark: stored answers are readable, and belong to their elements."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

from headrace import AsyncFunction, AsyncWait, FixedDelay, OnFailure, OutputMode, clock
from headrace.api.graph import KeyBy
from headrace.async_io.metrics import ServiceMetrics
from headrace.commit.protocol import open_job
from headrace.edits.requeue import requeue
from headrace.errors import StateSchemaError, UserFunctionError
from headrace.execution.element import Element, Emitted
from headrace.log.checkpoint import Checkpoint, Kind, open_breakers
from headrace.log.facts import JobWork
from headrace.plan.loader import plan_of
from headrace.plan.stages import ToStage
from headrace.records.keys import stage_key
from headrace.records.order import record_order
from headrace.run.async_stage import AsyncStage
from headrace.run.messages import AsyncSettings, BatchSettings
from headrace.run.output import TaskOutput, Transit
from headrace.run.watch import TaskNotes
from headrace.state.codec import encode
from headrace.state.key_groups import KeyGroupRange
from headrace.tables.folder import JobFolder
from headrace.tables.requests import load_waiting_elements
from headrace.tables.schemas import ASYNC_REQUESTS
from tests.jobs.asking import Unavailable
from tests.jobs.home import Home
from tests.jobs.purchases import Purchase
from tests.unit.support.records import record_of

HOUR = timedelta(hours=1)
ALL = KeyGroupRange(0, 127)


class Ask(AsyncFunction[Purchase, Purchase]):
    """Answers with the purchase, or with the result of `instead`; calls in `down` fail."""

    def __init__(self, down=(), instead=None):
        self.down, self.instead = set(down), instead
        self.asked = []

    async def invoke(self, purchase, /):
        self.asked.append(purchase.seq)
        if purchase.seq in self.down:
            raise Unavailable(purchase.seq)
        return [self.instead(purchase) if self.instead else purchase]


def purchase(number, customer="a"):
    return Purchase(number, number * 1000, customer, "eggs", 100)


def emitted(purchase):
    return Emitted(record_order(purchase.seq), purchase.at, 0, purchase)


def element(purchase, key):
    return Element(record_order(purchase.seq), purchase.at, 0, encode(stage_key(purchase, (key,))), purchase)


class Job:
    """Micro-batches of one wait, committed one by one."""

    def __init__(self, folder, pipeline="ordered"):
        self.home = Home(folder)
        services = {"oracle": {"url": "http://localhost/x", "health": None}}
        self.home.configure({"pipeline": f"tests.jobs.asking:{pipeline}", "services": services})
        self.config = self.home.config()

    def wait(self, mode, function, *, key=None, **options):
        retries = 0 if "on_failure" in options else 3
        retry = FixedDelay(max_retries=retries, delay=HOUR, exceptions=(Unavailable,))
        return AsyncWait(
            "ask",
            function,
            mode,
            4,
            HOUR,
            retry,
            key=None if key is None else KeyBy((key,)),
            park_after=timedelta(0),
            **options,
        )

    def micro_batch(self, wait, purchases):
        """Run the micro-batch in one task, and commit; return the records that it sent on."""
        with open_job(self.config, "test", create=True) as job:
            batch = BatchSettings(
                code=self.config.code, folder=JobFolder.of(self.config), checkpoint_id=job.next_id,
                attempt_id=job.attempt_id, max_parallelism=128, parallelism=1, local_folder="", backend="hashmap",
                cache_bytes=0, inline_reads_below=0, versions=job.versions, sinks={},
            )  # fmt: skip
            output = TaskOutput(batch, "ask" if wait.key else "purchases", "t")
            stage = AsyncStage(
                batch,
                AsyncSettings(services={}, resumes=True),
                ALL,
                output,
                lambda: False,
                TaskNotes(batch, "sources", "0"),
            )
            if wait.key:
                sent = stage.run_keyed(wait, [[element(purchase, *wait.key.fields) for purchase in purchases]])
                first = plan_of(self.config.code).keyed[0]
                Transit(output, ToStage(first.name, 0, KeyBy(("customer",))), Purchase, "ask").take(sent)
            else:
                with stage:
                    sent = stage.run(wait, [emitted(purchase) for purchase in purchases])
            self.report = output.report
            work = JobWork(pending=output.report.pending, due=output.report.due)
            job.commit(Kind.BATCH, files=output.report.state_files, work=work)
        return [record_of(emission).seq for emission in sent]

    def rows(self):
        with open_job(self.config, "looking") as job:
            return load_waiting_elements(JobFolder.of(self.config), job.versions[ASYNC_REQUESTS], "ask", ALL)


@pytest.fixture
def job(tmp_path):
    return Job(tmp_path)


# ---------------------------------------------------------------------------------------- what is stored can be read


#   1 waits for an hour, 2 has its response and waits behind it


def test_unreadable_answer_is_not_committed(job):
    def wrong(purchase):
        """The answer of a faulty service: a struct is not validated when it is created."""
        return Purchase(purchase.seq, purchase.at, purchase.customer, purchase.item, "a dollar")

    job.micro_batch(job.wait(OutputMode.ORDERED, Ask()), [])
    wait = job.wait(OutputMode.ORDERED, Ask(down=[1], instead=wrong))
    with pytest.raises(
        UserFunctionError, match=r"has to wait in async_requests.*Expected `int`, got `str` - at `\$\[0\].cents`"
    ):
        job.micro_batch(wait, [purchase(1), purchase(2)])
    assert job.rows() == []


# ---------------------------------------------------------------------------------------- mode and key are others now


@pytest.mark.parametrize("before", [(OutputMode.ORDERED, None), (OutputMode.KEYED_ORDERED, "item")])
def test_changed_keys_of_waiting_elements_are_refused(job, before):
    mode, key = before
    down = Ask(down=[1])
    job.micro_batch(job.wait(mode, down, key=key), [purchase(1)])
    with pytest.raises(
        StateSchemaError, match=r"waits for operator 'ask'.*by key_by\('customer'\) it is \"a\".*Go back"
    ):
        job.micro_batch(job.wait(OutputMode.KEYED_ORDERED, Ask(), key="customer"), [purchase(2)])
    assert [row.status for row in job.rows()] == ["waiting for retry"]


@pytest.mark.parametrize("mode", [OutputMode.ORDERED, OutputMode.UNORDERED, OutputMode.UNORDERED_PROCESSING_TIME])
def test_leaving_keyed_mode_loses_nothing(job, mode):
    job.micro_batch(job.wait(OutputMode.KEYED_ORDERED, Ask(down=[1]), key="customer"), [purchase(1), purchase(2)])
    with later(HOUR):
        assert job.micro_batch(job.wait(mode, Ask()), [purchase(3)]) == [1, 2, 3]
    assert job.rows() == []


class later:  # noqa: N801 - it reads as what it is
    """A clock that is ahead by the given time."""

    def __init__(self, span):
        self.span = round(span.total_seconds() * 1000)

    def __enter__(self):
        span = self.span

        class Ahead(clock.SystemClock):
            def now(self):
                return super().now() + span

        self.before = clock.use(Ahead())

    def __exit__(self, *_):
        clock.use(self.before)


# --------------------------------------------------------------------------------------------------------- when it is due


#   a: 1 is parked for an hour, 2 waits behind it; b: 3 is parked for two


def test_elements_behind_parked_one_share_its_due_time(job):
    began = clock.now()
    job.micro_batch(job.wait(OutputMode.KEYED_ORDERED, Ask(down=[1]), key="customer"), [purchase(1), purchase(2)])
    assert job.report.pending == 2
    assert job.report.due >= began + HOUR.total_seconds() * 1000


# ------------------------------------------------------------------------------------------------------- back from quarantine


def keyed_job(folder, down, instead=None):
    job = Job(folder, "keyed")
    function = Ask(down, instead)
    wait = job.wait(OutputMode.KEYED_ORDERED, function, key="customer", on_failure=OnFailure.QUARANTINE)
    return job, wait


def test_quarantined_answer_without_key_blocks_no_requeue(tmp_path):
    def foreign_element(purchase):
        return Purchase(purchase.seq, purchase.at, None, purchase.item, purchase.cents)

    job, wait = keyed_job(tmp_path, down=[2], instead=foreign_element)
    job.micro_batch(wait, [purchase(1), purchase(2)])
    result = requeue(job.config, "by-hand", operator="ask")
    assert result.metrics["requeued"] == 1
    wait.function.down = set()
    assert job.micro_batch(wait, []) == [2]
    assert requeue(job.config, "by-hand") is None


def test_failed_element_of_other_mode_returns_with_key(tmp_path):
    job, keyed = keyed_job(tmp_path, down=[])
    before = job.wait(OutputMode.ORDERED, Ask(down=[1]), on_failure=OnFailure.QUARANTINE)
    job.micro_batch(before, [purchase(1)])
    requeue(job.config, "by-hand")
    assert [row.key for row in job.rows()] == ['"a"']
    assert job.micro_batch(keyed, [purchase(2)]) == [1, 2]


def test_requeued_elements_are_spread_over_tasks(job):
    wait = job.wait(OutputMode.ORDERED, Ask(down=[1, 2]), on_failure=OnFailure.QUARANTINE)
    job.micro_batch(wait, [purchase(1), purchase(2)])
    requeue(job.config, "by-hand")
    assert sorted(row.key for row in job.rows()) == ["1", "2"]


# ------------------------------------------------------------------------------------------------------------ breakers


def test_open_breaker_survives_checkpoints_without_its_metrics():
    def checkpoint(number, kind, **services):
        return Checkpoint(
            incarnation=1,
            checkpoint_id=number,
            kind=kind,
            run_id="r",
            attempt_id="a",
            max_parallelism=128,
            versions={},
            committed_at=0,
            metrics={"rows_in": 1},
            services=msgspec.convert(services, dict[str, ServiceMetrics]),
        )

    line = [
        checkpoint(
            1,
            Kind.BATCH,
            ask={"calls": 3, "breaker": "open", "open_until": 500},
            other={"breaker": "open", "open_until": 7},
        ),
        checkpoint(2, Kind.BATCH, other={"calls": 1, "breaker": "closed"}),
        checkpoint(3, Kind.COMPACTION),
        checkpoint(4, Kind.REQUEUE),
        checkpoint(5, Kind.BATCH),
    ]
    assert open_breakers(line) == {"ask": 500}
