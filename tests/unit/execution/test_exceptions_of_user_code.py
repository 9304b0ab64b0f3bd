"""User code that raises exceptions which end a process, a loop or a task: errors of user code like others, with operator, record and line."""

from __future__ import annotations

import asyncio
import signal
from datetime import timedelta

import msgspec
import pyarrow as pa
import pytest

from headrace import (
    AggregateFunction,
    KeyedBroadcastFunction,
    KeyedProcessFunction,
    Pipeline,
    Struct,
    Timestamp,
    ValueState,
    interrupts,
)
from headrace.api.graph import SourceNode
from headrace.config._types import PipelineCode
from headrace.errors import ConfigError, UserFunctionError
from headrace.operators import running_aggregate
from headrace.plan.loader import load_pipeline
from headrace.sources.kafka.messages import MessageReader, Messages
from headrace.sources.row_check import RowCheck
from headrace.testing import KeyedHarness, PipelineHarness


class OwnError(BaseException):
    pass


EXCEPTIONS = {
    "SystemExit(0)": lambda: SystemExit(0),
    "SystemExit": lambda: SystemExit("bye"),
    "KeyboardInterrupt": KeyboardInterrupt,
    "GeneratorExit": GeneratorExit,
    "CancelledError": asyncio.CancelledError,
    "OwnError": OwnError,
    "StopIteration": StopIteration,
    "StopAsyncIteration": StopAsyncIteration,
    "RecursionError": RecursionError,
    "MemoryError": MemoryError,
    "ExceptionGroup": lambda: ExceptionGroup("two", [ValueError(), KeyError()]),
    "BaseExceptionGroup": lambda: BaseExceptionGroup("two", [SystemExit(), ValueError()]),
}
raises: dict[str, str] = {}
"""The place that fails, and how."""


def here(place):
    if place in raises:
        error = EXCEPTIONS[raises[place]]()
        raise error  # the line that is named


class Order(Struct, frozen=True):
    id: str
    at: Timestamp
    n: int = 1


class Total(Struct, frozen=True):
    id: str
    n: int


class Pair(Struct, frozen=True):
    id: str

    @classmethod
    def of(cls, left: Order, right: Order) -> Pair:
        here("join")
        return cls(left.id + right.id)


def mapped(order: Order) -> Order:
    here("map")
    return order


def kept(order: Order) -> bool:
    here("filter")
    return True


def several(order: Order):
    yield order
    here("flat_map")


def time_of(order: Order) -> int:
    here("assign_event_time")
    return order.at


def key_of(order: Order) -> str:
    here("key_by")
    return order.id


class Waits(KeyedProcessFunction[Order, Total]):
    n = ValueState("n", int)

    async def process(self, order, ctx, /):
        here("process, at once")
        n = await self.n.value()
        here("process, after a wait")
        await self.n.update((n or 0) + 1)
        ctx.timers.register_event_time(order.at + 1)
        self.n.value().then_accept(lambda _: here("a callback"))

    async def on_timer(self, timestamp, ctx, /):
        here("on_timer")
        ctx.collect(Total(ctx.key, await self.n.value()))


class Plain(KeyedProcessFunction[Order, Total]):
    def process(self, order, ctx, /):
        here("a plain process")
        ctx.collect(Total(order.id, order.n))


class Rates(KeyedBroadcastFunction[Order, Order, Total]):
    def process(self, order, ctx, /):
        ctx.collect(Total(order.id, order.n))

    def process_broadcast(self, order, ctx, /):
        here("process_broadcast")


class Calls(KeyedProcessFunction[Order, Total]):
    def __init__(self, call):
        self.call = call

    def process(self, order, ctx, /):
        self.call(order)


class Sums(AggregateFunction[Order, Total, Total]):
    def create_accumulator(self):
        here("create")
        return Total("", 0)

    def add(self, value, accumulator, /):
        here("add")
        return Total(value.id, accumulator.n + value.n)

    def get_result(self, accumulator, /):
        here("result")
        return accumulator

    def merge(self, one, other, /):
        return Total(one.id, one.n + other.n)


@pytest.fixture(scope="module")
def job():
    p = Pipeline("all")
    orders = p.source("orders", Order, event_time="at")
    steps = orders.map(mapped).filter(kept).flat_map(several, record=Order).assign_event_time(time_of)
    keyed = steps.key_by(key_of)
    keyed.process("waits", Waits()).sink("waits")
    keyed.process("plain", Plain()).sink("plain")
    keyed.process("sums", running_aggregate(Sums(), takes=Order, gives=Total, ttl=None)).sink("sums")
    keyed.join("pairs", keyed, within=(timedelta(0), timedelta(0)), emit=Pair.of).sink("pairs")
    h = PipelineHarness(p, bucket=1, parallelism=1)
    h.feed("orders", [Order("a", 1), Order("b", 20)])
    return h


STEPS = {
    "map": "map", "filter": "filter", "flat_map": "flat_map", "assign_event_time": "assign_event_time", "key_by": "key_by",
    "join": "pairs", "process, at once": "waits",
}  # fmt: skip
SOME = [
    "SystemExit",
    "KeyboardInterrupt",
    "GeneratorExit",
    "CancelledError",
    "OwnError",
    "StopIteration",
    "BaseExceptionGroup",
]
"""For each step one, and SystemExit: a run of a whole job takes time."""
FUNCTIONS = {
    "process, at once": Waits, "process, after a wait": Waits, "a callback": Waits, "on_timer": Waits, "a plain process": Plain,
    "create": Sums, "add": Sums, "result": Sums, "process_broadcast": Rates,
}  # fmt: skip


@pytest.fixture(autouse=True)
def calm():
    yield
    raises.clear()


def assert_names_line_and(error, exception, *words):
    text = str(error.value)
    assert error.value.exit_code == 5
    assert [
        word for word in (exception.partition("(")[0], "# the line that is named", *words) if word not in text
    ] == []


@pytest.mark.parametrize(
    ("step", "exception"), [*zip(STEPS, SOME, strict=True), *((step, "SystemExit(0)") for step in STEPS)]
)
def test_exception_in_a_job_commits_nothing(job, step, exception):
    raises[step] = exception
    with pytest.raises(UserFunctionError) as error:
        job.run()
    assert_names_line_and(error, exception, STEPS[step])
    assert [job.sink(name) for name in ("waits", "plain", "sums", "pairs")] == [[]] * 4


def fed(h, *, broadcast):
    if broadcast:
        h.process_broadcast(Order("b", 1), 1)
    h.process(Order("a", 1), 1)
    h.watermark(20)
    h.drain()


@pytest.mark.parametrize("exception", EXCEPTIONS)
@pytest.mark.parametrize("place", FUNCTIONS)
def test_exception_of_a_keyed_function_names_key(place, exception):
    raises[place] = exception
    function = FUNCTIONS[place]()
    if isinstance(function, Sums):
        function = running_aggregate(function, takes=Order, gives=Total, ttl=None)
    with KeyedHarness(function, key=lambda order: order.id) as h, pytest.raises(UserFunctionError) as error:
        fed(h, broadcast=place == "process_broadcast")
    assert_names_line_and(error, exception, *([] if place == "process_broadcast" else ['key "a"']))


def test_import_that_ends_the_process_is_refused(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "ends_at_import.py").write_text("import sys\n\nsys.exit()\n")
    with pytest.raises(ConfigError, match=r"SystemExit.*ends_at_import.py:3"):
        load_pipeline(PipelineCode("ends_at_import:pipeline", str(tmp_path)))


def test_sigint_stays_sigint():
    def interrupt(_):
        signal.raise_signal(signal.SIGINT)

    former, came = signal.getsignal(signal.SIGINT), interrupts._sigint.came
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        interrupts.watch()
        with KeyedHarness(Calls(interrupt), key=lambda order: order.id) as h, pytest.raises(KeyboardInterrupt):
            h.process(Order("a", 1), 1)
    finally:
        signal.signal(signal.SIGINT, former)
        interrupts._sigint.came = came


class Checked(Struct, frozen=True):
    id: str
    at: Timestamp

    def __post_init__(self):
        here("__post_init__")


class Part(Struct, frozen=True):
    n: int

    def __post_init__(self):
        here("__post_init__ of a part")


class Whole(Struct, frozen=True):
    id: str
    at: Timestamp
    part: Part


ROWS = {
    "__post_init__": (Checked, {"id": "a", "at": 1}),
    "__post_init__ of a part": (Whole, {"id": "a", "at": 1, "part": {"n": 7}}),
}


@pytest.mark.parametrize("is_topic", [False, True])
@pytest.mark.parametrize("place", ROWS)
@pytest.mark.parametrize(
    "exception", ["SystemExit(0)", "KeyboardInterrupt", "StopIteration", "MemoryError", "OwnError"]
)
def test_exception_of_a_source_record_names_the_row(place, exception, is_topic):
    raises[place] = exception
    record, row = ROWS[place]
    table = pa.Table.from_pylist([row])
    if is_topic:
        value = msgspec.json.encode(row)
        table = pa.table({"topic": ["t"], "partition": [0], "offset": [0], "value": [value]})
    node = SourceNode("rows", record, "at", (), None, timedelta(0))
    rows = RowCheck(node, MessageReader(node, Messages()) if is_topic else None)
    with pytest.raises(UserFunctionError) as error:
        rows.check(table)
    assert_names_line_and(error, exception, "'id': 'a'" if record is Checked else "part")


def test_exception_of_a_source_record_keeps_its_code():
    h = PipelineHarness(Pipeline("one").source("rows", Checked, event_time="at").sink("out"))
    h.feed("rows", [Checked("a", 1)])
    raises["__post_init__"] = "SystemExit(0)"
    with pytest.raises(UserFunctionError, match="SystemExit"):
        h.run()
    assert h.sink("out") == []


@pytest.mark.parametrize("exception", ["SystemExit(0)", "KeyboardInterrupt", "ExceptionGroup"])
def test_exception_of_a_default_names_the_field(exception):
    def number():
        here("a default_factory")
        return 1

    class Filled(Struct, frozen=True):
        id: str
        at: Timestamp
        n: int = msgspec.field(default_factory=number)

    one = Pipeline("one").source("rows", Filled, event_time="at").sink("out")
    h = PipelineHarness(one, job={"sources": {"rows": {"format": "json"}}})
    h.feed_bytes("rows", b'{"id": "a", "at": 1}', file="1.json")
    raises["a default_factory"] = exception
    with pytest.raises(UserFunctionError) as error:
        h.run()
    assert_names_line_and(error, exception, "'n': 'the default'")
