"""Harnesses refuse the arguments that a pipeline refuses, with the same message, and leave no clock installed."""

from __future__ import annotations

from datetime import timedelta

import pytest

from headrace import (
    AsyncFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    OutputMode,
    Pipeline,
    RowKind,
    StateTtl,
    Struct,
    Timestamp,
    TtlTime,
    UpdateType,
)
from headrace.testing import AsyncWaitHarness, KeyedHarness, MaterializerHarness

SECOND = timedelta(seconds=1)


class Row(Struct, frozen=True):
    k: str
    n: int = 0
    at: Timestamp = 0
    tags: tuple[str, ...] = ()


class Ask(AsyncFunction[Row, Row]):
    async def invoke(self, row, /):
        return [row]


class Plain(KeyedProcessFunction[Row, Row]):
    def process(self, row, ctx, /):
        ctx.collect(row)


class Mixed(Plain):
    async def on_timer(self, timestamp, ctx, /):
        pass


class Generating(Plain):
    def process(self, row, ctx, /):
        yield row


def rows():
    return Pipeline("p").source("rows", Row, event_time="at")


async def coroutine(row):
    return row.k


def text_key(row) -> str:
    return row.k


def number_key(row) -> int:
    return row.n


def same_refusal(piped, harness):
    with pytest.raises((TypeError, ValueError)) as wanted:
        piped()
    with pytest.raises(wanted.type) as refused:
        harness()
    return str(wanted.value), str(refused.value)


@pytest.mark.parametrize(
    "arguments",
    [
        {"capacity": 0},
        {"timeout": timedelta(0)},
        {"timeout": -SECOND},
        {"park_after": -SECOND},
        {"timeout": 30},
        {"park_after": "1h"},
    ],
)
def test_async_wait_refuses_invalid_limits(arguments):
    given = {"timeout": SECOND, **arguments}
    wanted, actual = same_refusal(
        lambda: rows().async_wait("function", Ask(), **given), lambda: AsyncWaitHarness(Ask(), **given)
    )
    assert wanted == actual


@pytest.mark.parametrize("key", [coroutine, 7])
def test_key_by_refuses_invalid_keys(key):
    for harness in (
        lambda: KeyedHarness(Plain(), key=key),
        lambda: AsyncWaitHarness(Ask(), key=key, mode=OutputMode.KEYED_ORDERED),
    ):
        wanted, actual = same_refusal(lambda: rows().key_by(key), harness)
        assert wanted == actual or not callable(key)


@pytest.mark.parametrize("function", [Plain, Mixed(), Generating(), Ask(), "text", None])
def test_process_refuses_invalid_functions(function):
    same_refusal(lambda: rows().key_by("k").process("function", function), lambda: KeyedHarness(function, key=text_key))


@pytest.mark.parametrize("function", [Ask, Plain(), "text"])
def test_async_wait_refuses_invalid_functions(function):
    same_refusal(lambda: rows().async_wait("function", function, timeout=SECOND), lambda: AsyncWaitHarness(function))


def test_keys_of_two_types_are_refused():
    class Both(KeyedCoProcessFunction[Row, Row, Row]):
        def process1(self, row, ctx, /):
            pass

        def process2(self, row, ctx, /):
            pass

    def piped():
        p = Pipeline("p")
        one, other = p.source("one", Row, event_time="at"), p.source("other", Row, event_time="at")
        one.key_by(text_key).connect(other.key_by(number_key)).process("function", Both())

    wanted, actual = same_refusal(piped, lambda: KeyedHarness(Both(), key=(text_key, number_key)))
    assert "text_key" in actual
    assert wanted.partition(": ")[0] == actual.partition(": ")[0]


@pytest.mark.parametrize("sides", [{"Not A Name": Row}, {"side": int}])
def test_side_refuses_invalid_side_outputs(sides):
    ((name, record),) = sides.items()
    wanted, actual = same_refusal(
        lambda: rows().key_by("k").process("function", Plain()).side(name, record),
        lambda: KeyedHarness(Plain(), key=text_key, side_outputs=sides),
    )
    assert wanted == actual


@pytest.mark.parametrize(
    "arguments",
    [
        {"primary_key": ()},
        {"primary_key": ("gone",)},
        {"upsert_key": ("gone",)},
        {"ttl": StateTtl(SECOND, update=UpdateType.ON_READ_AND_WRITE)},
        {"ttl": StateTtl(SECOND, time=TtlTime.EVENT, update=UpdateType.DISABLED)},
    ],
)
def test_pipeline_refuses_invalid_materializers(arguments):
    given = {"primary_key": ("k",), **arguments}
    wanted, actual = same_refusal(
        lambda: rows().upsert_materialize("materializer", **given), lambda: MaterializerHarness(Row, **given)
    )
    assert wanted == actual


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: KeyedHarness(Plain(), key=text_key, max_parallelism=0), "max_parallelism must be at least 1, not 0"),
        (lambda: KeyedHarness(Plain(), key=text_key, backend="rocks"), "did you mean 'rocksdb'?"),
        (lambda: MaterializerHarness(Row, ("k",), backend="heap"), "there is no backend 'heap'"),
    ],
)
def test_job_file_refuses_invalid_settings(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_harness_refuses_keys_impossible_in_jobs():
    with KeyedHarness(Plain(), key=lambda row: None if row.n else row.tags or [row.k]) as h:
        with pytest.raises(ValueError, match="the key is null .* goes to quarantine"):
            h.process(Row("a", n=1))
        with pytest.raises(TypeError, match="a key is text, a number"):
            h.process(Row("a"))
        h.process(Row("a", tags=("x", "y")))
        assert h.kinds() == [(RowKind.INSERT, Row("a", tags=("x", "y")))]


def test_harness_key_equals_key_in_jobs():
    with KeyedHarness(Plain(), key=lambda row: -0.0 if row.n else 0.0) as h:
        h.process(Row("a", n=1))
        assert h._process.emitted[0].record == Row("a", n=1)
        assert h._key_of(Row("a", n=1), 0) == h._key_of(Row("a"), 0) == b"0.0"
