"""The key of an operator is stored; another key is refused while state is stored by the first (in memory)."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Literal

import msgspec
import pytest

from headrace import Digits, KeyedProcessFunction, Pipeline, Struct, Timestamp, ValueState
from headrace.api.graph import KeyBy
from headrace.commit.protocol import open_job
from headrace.commit.run_check import stored_problems
from headrace.edits.restore import restore_in
from headrace.errors import StateSchemaError
from headrace.log.declared import OperatorKey, _declared
from headrace.plan.planner import plan_stages
from headrace.tables.schemas import ASYNC_REQUESTS, MATERIALIZER_HISTORY, TIMERS
from tests.unit.support.keyed_job import Event, KeyedJob, plan_by, value

TAIL = plan_by("tail")


def by_text(event) -> str:
    return event.tail


def by_number(event) -> int:
    return event.flight


@pytest.fixture
def job(tmp_path):
    return KeyedJob(tmp_path)


def test_keys_are_recorded_with_the_schemas(job):
    job.run(plan_by("tail", "flight"), value('["a",1]', 1))
    job.run(plan_by("tail", "flight"), value('["a",1]', 2))
    assert job.last.operator_keys == {"legs": (OperatorKey(("tail", "flight"), "", ("str", "int")),)}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (("flight",), r"by the key tail \(str\), and the code has the key flight \(int\)"),
        (("nickname",), r"the key nickname \(str\)"),
        (("tail", "flight"), r"the key tail, flight \(str, int\)"),
        ((by_number,), r"the key the function by_number \(int\)"),
    ],
)
def test_another_key_is_refused_with_ways_out(job, keys, message):
    job.run(TAIL, value('"a"', 1))
    before = job.kinds()
    with pytest.raises(StateSchemaError, match=message) as refusal:
        job.run(plan_by(*keys))
    assert "headrace state drop wake_ups --operator legs" in str(refusal.value)
    assert job.kinds() == before


class Priced(Struct, frozen=True):
    price: Annotated[Decimal, Digits(12, 2)]


class PricedFinely(Struct, frozen=True):
    price: Annotated[Decimal, Digits(12, 3)] | None = None


def price_of(event) -> Annotated[Decimal, Digits(12, 2)]:
    return event.price


def number_of(event) -> Decimal:
    return event.price


def test_another_scale_of_a_decimal_is_another_key():
    field, function = KeyBy(fields=("price",)), KeyBy(function=price_of)
    key = _declared(Priced, field)
    assert str(key) == "price (Decimal(2))"
    assert key.differs(_declared(PricedFinely, field))
    assert not key.differs(_declared(Priced, field))
    assert not key.differs(_declared(Priced, function))
    assert key.differs(
        _declared(Priced, KeyBy(function=number_of))
    )  # its texts are as short as can be: 1, and not 1.00


def test_order_of_key_fields_counts(job):
    job.run(plan_by("tail", "nickname"), value('["a","b"]', 1))
    with pytest.raises(StateSchemaError, match="key tail, nickname .* the key nickname, tail"):
        job.run(plan_by("nickname", "tail"))


def test_key_may_change_when_nothing_is_stored(job):
    job.run(TAIL, value('"a"', 1))
    job.run(TAIL, ("keyed_state", '"a"', {"state": "legs", "deleted": True}))
    job.run(plan_by("flight"), value("1", 1))
    with pytest.raises(StateSchemaError):
        job.run(TAIL)


def test_broadcast_state_alone_is_bound_to_no_key(job):
    job.run(TAIL, value("null", 1))
    job.run(plan_by("flight"))


@pytest.mark.parametrize(
    "row",
    [
        (TIMERS, '"a"', {"domain": "event_time", "timestamp": 1}),
        (MATERIALIZER_HISTORY, '"a"', {"sequence_number": 1, "row": "{}"}),
        (ASYNC_REQUESTS, '"a"', {"sequence": 1}),
    ],
    ids=lambda row: row[0],
)
def test_rows_of_every_table_hold_the_key(job, row):
    job.run(TAIL, row)
    with pytest.raises(StateSchemaError, match="operator 'legs': its state is stored by the key tail"):
        job.run(plan_by("flight"))


def test_key_functions_are_compared_by_return_type(job):
    job.run(plan_by(by_text), value('"a"', 1))
    job.run(TAIL, value('"a"', 2))
    job.run(plan_by(lambda event: event.nickname), value('"a"', 3))
    with pytest.raises(StateSchemaError, match=r"by the key the function <lambda> \(str\)"):
        job.run(plan_by(by_number))


def number_as_float(event) -> float:
    return event.flight


def unconverted(declared):
    """Return keys as releases recorded them that stored results of functions as they were."""
    return {
        name: tuple(msgspec.structs.replace(key, is_converted=False) for key in keys) for name, keys in declared.items()
    }


@pytest.mark.parametrize(("stored", "is_refused"), [("5", True), ("true", True), ("5.0", False), ("-2.5", False)])
def test_keys_no_longer_made_are_refused(job, monkeypatch, stored, is_refused):
    code = plan_by(number_as_float)
    with monkeypatch.context() as earlier:
        earlier.setattr("headrace.commit.protocol.remembered_keys", lambda _, declared: unconverted(declared))
        job.run(code, value("2.0", 1))
        job.run(code, value(stored, 2))
    if is_refused:
        with pytest.raises(
            StateSchemaError, match=f"operator 'legs': its state has the key {stored}, .* take the annotation away"
        ):
            job.run(code)
        job.run(plan_by(lambda event: event.flight), value(stored, 3))
    else:
        job.run(code, value(stored, 3))
        assert job.last.operator_keys["legs"][0].is_converted


def test_results_may_become_declared_later(job):
    undeclared = plan_by(lambda event: event.flight)
    job.run(undeclared, value("5", 1))
    with pytest.raises(StateSchemaError, match="its state has the key 5, which was stored as the function returned it"):
        job.run(plan_by(number_as_float))
    job.run(plan_by(by_number), value("6", 2))
    job.run(undeclared, value("true", 3))
    with pytest.raises(StateSchemaError, match="its state has the key true"):
        job.run(plan_by(by_number))


def test_function_can_replace_a_renamed_key_field(job):
    job.run(TAIL, value('"a"', 1))
    job.run(plan_by(lambda event: event.tail), value('"a"', 2))
    job.run(plan_by("nickname"), value('"a"', 3))


def test_unknown_key_is_accepted_and_recorded(job):
    with open_job(job.config, "older", create=True) as opened:
        job.commit(opened, "legs", (value('"a"', 1),))
    job.run(plan_by("flight"), value("1", 1))
    with pytest.raises(StateSchemaError):
        job.run(TAIL)


def test_restore_brings_the_old_key_back(job):
    job.run(TAIL, value('"a"', 1))
    job.run(TAIL, ("keyed_state", '"a"', {"state": "legs", "deleted": True}))
    job.run(plan_by("flight"), value("1", 1))
    with open_job(job.config, "restore") as opened:
        restore_in(opened, 1, "a mistake")
    job.run(TAIL)
    with pytest.raises(StateSchemaError):
        job.run(plan_by("flight"))


def test_check_reports_the_errors_of_a_run(job):
    job.run(TAIL, value('"a"', 1))
    code = plan_by("flight")
    ((what, problem),) = [
        stored_problem for stored_problem in stored_problems(job.config, job.log, code) if stored_problem[0] == "state"
    ]
    assert what == "state"
    with pytest.raises(StateSchemaError) as refusal:
        job.run(code)
    assert str(refusal.value) == f"{problem}\nNothing was taken in."


@pytest.mark.parametrize(
    ("stored", "declared", "differs"),
    [
        (("str",), ("str",), False),
        (("int",), ("int | str",), False),
        (("int | str",), ("int",), True),
        (("int",), ("float",), True),
        (("float",), ("float | int",), True),
        (("str", "str"), ("str",), True),
        (("?",), ("int",), False),
        (None, ("int",), False),
    ],
)
def test_key_types_with_equal_text_are_compatible(stored, declared, differs):
    assert OperatorKey(function="f", types=stored).differs(OperatorKey(("a",), types=declared)) is differs


def test_literals_and_optional_fields_count_as_their_texts():
    class Other(Struct, frozen=True):
        at: Timestamp
        key: Literal["a", "b"]
        number: float

    class Count(KeyedProcessFunction[Other, Other]):
        n = ValueState("n", int)

        async def process(self, record, ctx, /):
            return None

    events = Pipeline("p").source("events", Other, event_time="at")
    plan = plan_stages(events.key_by("key", "number").process("n", Count()).sink("out"))
    from headrace.log.declared import declared_keys

    assert declared_keys(plan)["n"][0].types == ("str", "float")
    assert declared_keys(plan_by("nickname"))["legs"][0].types == ("str",)
    assert Event.__struct_fields__[-1] == "nickname"
