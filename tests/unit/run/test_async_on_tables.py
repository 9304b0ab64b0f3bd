"""The async waits of one task, on state tables, without Spark: chains, shared limits, changed record types."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import contextmanager
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import AsyncFunction, AsyncWait, FixedDelay, NoRetry, OnFailure, OutputMode, Struct, clock
from headrace.async_io.async_wait import AsyncWaitOperator
from headrace.async_io.limits import ServiceLimit
from headrace.commit.job_tables import JobTables
from headrace.config._types import PipelineCode
from headrace.errors import StateSchemaError, UserFunctionError
from headrace.execution.element import Emitted
from headrace.records.order import record_order
from headrace.run.async_stage import AsyncStage
from headrace.run.messages import AsyncSettings, BatchSettings
from headrace.run.output import TaskOutput
from headrace.run.watch import TaskNotes
from headrace.state.key_groups import KeyGroupRange
from headrace.tables.folder import JobFolder
from headrace.tables.schemas import QUARANTINE
from headrace.testing._virtual_loop import LoopClock, VirtualLoop
from tests.unit.support.asking import in_virtual_time

HOUR = timedelta(hours=1)
PARKING = {"retry": FixedDelay(max_retries=9, delay=HOUR), "park_after": timedelta(0)}


class Order(Struct, frozen=True):
    number: int


class OrderWithPlace(Struct, frozen=True):
    number: int
    place: str


class PricedInEuro(Struct, frozen=True):
    number: int
    euro: int


class Service:
    """Fails for the numbers in `down`, and logs its calls."""

    def __init__(self, *down):
        self.down, self.asked = set(down), []

    def asks(self, takes=Order, gives=Order, answer=None):
        """Return a function that calls the service, with the given record types."""
        service = self

        class Asks(AsyncFunction[takes, gives]):
            async def invoke(self, order, /):
                service.asked.append(order)
                if order.number in service.down:
                    raise OSError(f"no response for {order.number}")
                return [answer(order) if answer else gives(order.number)]

        return Asks()


def wait_of(function, name="ask", **options):
    options = {"retry": NoRetry(), "on_failure": OnFailure.QUARANTINE, **options}
    return AsyncWait(name, function, OutputMode.ORDERED, 10, HOUR, **options)


class Task:
    """One task's first stage from micro-batch to micro-batch, each committed to state tables in a folder."""

    def __init__(self, folder):
        self.folder = str(folder)
        self.tables = JobTables(JobFolder(str(self.folder)), "run", "attempt")
        self.versions = self.tables.create()
        self.checkpoint = 0

    def run(self, waits, orders=(), **settings):
        """Run the stage; return the numbers of emitted and of abandoned elements."""
        self.checkpoint += 1
        batch = BatchSettings(
            code=PipelineCode("", ""), folder=JobFolder(str(self.folder)), checkpoint_id=self.checkpoint, attempt_id="attempt", max_parallelism=8,
            parallelism=1, local_folder="", backend="hashmap", cache_bytes=0, inline_reads_below=0, versions=self.versions, sinks={},
        )  # fmt: skip
        output = TaskOutput(batch, "source", "t0")
        settings = AsyncSettings(services={}, resumes=True, **settings)
        emitted = [Emitted(record_order(order.number), 0, 0, order) for order in orders]
        with AsyncStage(
            batch, settings, KeyGroupRange(0, 7), output, lambda: False, TaskNotes(batch, "sources", "0")
        ) as stage:
            for wait in waits:
                emitted = stage.run(wait, emitted)
        files = output.report.state_files
        self.versions = {**self.versions, **self.tables.prepare(files, self.versions)}
        self.waiting = output.report.pending
        given_up = sum(file.rows for file in files.get(QUARANTINE, ()))
        return [emitted_record.record for emitted_record in emitted], given_up


@pytest.fixture
def task(tmp_path):
    return Task(tmp_path)


def test_exit_in_child_task_names_the_operator(task):
    class ExitsInChild(AsyncFunction[Order, Order]):
        async def invoke(self, order, /):
            async def child():
                raise SystemExit(0)

            await asyncio.create_task(child())
            return [order]

    with pytest.raises(UserFunctionError, match="operator 'ask'.*a task that it has made(.|\n)*SystemExit: 0"):
        task.run([wait_of(ExitsInChild())], [Order(0)])


# ------------------------------------------------------------------------------------------------------- chains


def test_first_wait_reaches_second_in_same_micro_batch(task):
    first, second = Service(1), Service()
    waits = [wait_of(first.asks(), **PARKING), wait_of(second.asks(), "then", **PARKING)]
    assert task.run(waits, [Order(0), Order(1), Order(2)]) == ([Order(0)], 0)
    first.down = set()
    assert task.run(waits, finishes=True) == ([Order(1), Order(2)], 0)
    assert task.waiting == 0


def test_second_wait_calls_again_in_further_micro_batch(task):
    first, second = Service(0, 1), Service(1)
    waits = [wait_of(first.asks(), **PARKING), wait_of(second.asks(), "then", **PARKING)]
    task.run(waits, [Order(0), Order(1)])
    first.down = set()
    assert task.run(waits, finishes=True) == ([Order(0)], 0)
    assert task.waiting == 1
    assert task.run(waits, finishes=True) == ([], 1)
    assert (task.waiting, second.asked) == (0, [Order(0), Order(1), Order(1)])


# ------------------------------------------------------------------------------------- record types that change


@pytest.fixture
def waits_for(task):
    """Leave 0 waiting, and behind it 1 with its response."""
    service = Service(0)
    old = wait_of(service.asks(), **PARKING)
    assert task.run([old], [Order(0), Order(1)]) == ([], 0)
    assert task.waiting == 2
    service.down = set()
    return service, old


def test_field_with_default_may_join_waiting_elements(task, waits_for):
    class OrderWithNote(Struct, frozen=True):
        number: int
        note: str = "none"

    service, _ = waits_for
    new = wait_of(service.asks(OrderWithNote, OrderWithNote, lambda order: order), **PARKING)
    later = clock.now() + 2 * 3_600_000
    with at(later):
        assert task.run([new], [OrderWithNote(2, "new")]) == (
            [OrderWithNote(0, "none"), OrderWithNote(1, "none"), OrderWithNote(2, "new")],
            0,
        )
    assert task.waiting == 0


def test_type_with_equal_fields_may_replace_waiting_type(task, waits_for):
    class Priced(Struct, frozen=True):
        number: int

    service, _ = waits_for
    new = wait_of(service.asks(Order, Priced), **PARKING)
    assert task.run([new], finishes=True) == ([Priced(0), Priced(1)], 0)


@pytest.mark.parametrize(
    ("takes", "gives", "field", "fresh"),
    [(OrderWithPlace, Order, "place", OrderWithPlace(2, "here")), (Order, PricedInEuro, "euro", Order(2))],
)
def test_field_without_default_is_refused(task, waits_for, takes, gives, field, fresh):
    service, old = waits_for
    answer = PricedInEuro(2, 5) if gives is PricedInEuro else Order(2)
    new = wait_of(service.asks(takes, gives, lambda _: answer), **PARKING)
    asked = len(service.asked)
    with pytest.raises(StateSchemaError) as raised:
        task.run([new], [fresh])
    output = str(raised.value)
    assert all(part in output for part in ("operator 'ask'", f"`{field}`", "headrace run JOB --finish"))
    assert len(service.asked) == asked, "the service was called by a run that cannot be committed"
    # The solution: the code that took the elements in finishes them, and the new code begins without waiting
    # elements.
    assert task.run([old], finishes=True) == ([Order(0), Order(1)], 0)
    assert task.run([new], [fresh]) == ([answer], 0)
    assert task.waiting == 0


# ------------------------------------------------------------------------------------------------------- limits


class Timed(AsyncFunction[Order, Order]):
    """Takes a fixed time (ms) per call; a shared log records the begin and the end of each call."""

    def __init__(self, milliseconds, log):
        self.seconds, self.log = milliseconds / 1000, log

    async def invoke(self, order, /):
        self.log.append((asyncio.get_running_loop().time(), 1))
        await asyncio.sleep(self.seconds)
        self.log.append((asyncio.get_running_loop().time(), -1))
        return [order]


def within(log, *, rate, concurrency):
    """Return whether the logged calls respected the rate and the concurrency."""
    begun = [time for time, change in log if change == 1]
    running, most = 0, 0
    for _, change in log:
        running += change
        most = max(most, running)
    gaps = [after - before for before, after in itertools.pairwise(begun)]
    assert min(gaps, default=1 / rate) >= 1 / rate - 1e-9
    assert most <= concurrency
    return begun, most


@given(
    rate=st.sampled_from([1, 7, 50, 1000]),
    concurrency=st.integers(1, 5),
    work=st.lists(st.tuples(st.integers(0, 300), st.integers(0, 12)), min_size=2, max_size=4),
)
def test_concurrent_operators_share_limits_of_service(rate, concurrency, work):
    limit, log = ServiceLimit(rate, concurrency), []

    async def all_at_once():
        operators = [AsyncWaitOperator(wait_of(Timed(ms, log)), {}, limit=limit) for ms, _ in work]
        asked = [[Emitted(record_order(n), 0, 0, Order(n)) for n in range(count)] for _, count in work]
        return await asyncio.gather(
            *(operator.run_async(orders) for operator, orders in zip(operators, asked, strict=True))
        )

    answered = in_virtual_time(all_at_once)
    assert [len(answers) for answers in answered] == [count for _, count in work]
    begun, most = within(log, rate=rate, concurrency=concurrency)
    total = sum(count for _, count in work)
    assert len(begun) == total
    slowest = max(ms for ms, _ in work) / 1000
    if slowest <= (concurrency - 1) / rate:  # a place is always free: only the rate delays calls, evenly
        assert begun == pytest.approx([number / rate for number in range(total)])
    if slowest == min(ms for ms, _ in work) / 1000 >= concurrency / rate:
        assert most == min(concurrency, total)


def test_waits_of_stage_share_only_own_limits(task, monkeypatch):
    logs = {"a": [], "b": []}
    waits = [
        wait_of(Timed(250, logs["a"]), "first", service="a"),
        wait_of(Timed(0, logs["b"]), "between", service="b"),
        wait_of(Timed(250, logs["a"]), "last", service="a"),
    ]
    orders = [Order(number) for number in range(4)]
    with virtual_runner(monkeypatch):
        sent, given_up = task.run(waits, orders, limits={"a": (10, 2)})
    assert (sent, given_up) == (orders, 0)
    begun, most = within(logs["a"], rate=10, concurrency=2)
    assert begun == pytest.approx([0.0, 0.1, 0.25, 0.35, 0.6, 0.7, 0.85, 0.95])
    assert (most, [time for time, change in logs["b"] if change == 1]) == (2, pytest.approx([0.6] * 4))


def test_rate_of_service_continues_across_waits(task, monkeypatch):
    log = []
    waits = [wait_of(Timed(0, log), name, service="a") for name in ("first", "last")]
    with virtual_runner(monkeypatch):
        task.run(waits, [Order(0), Order(1)], limits={"a": (2, None)})
    assert [time for time, change in log if change == 1] == pytest.approx([0.0, 0.5, 1.0, 1.5])


@contextmanager
def virtual_runner(monkeypatch):
    """Give `asyncio.Runner` a virtual loop whose time advances by itself."""
    loop = VirtualLoop()
    loop.let_time_run()
    virtual = LoopClock(loop, lambda: None)
    runner = asyncio.Runner
    with monkeypatch.context() as patched:
        patched.setattr(asyncio, "Runner", lambda: runner(loop_factory=lambda: loop))
        try:
            yield
        finally:
            loop.close()
            clock.use(virtual.replaced)


@contextmanager
def at(now):
    with clock.installed(clock.VirtualClock(now)):
        yield
