"""Async I/O: 100,000 records against a service with 5 ms latency, by mode, with and without failures.

A bare asyncio loop with a semaphore runs in turns with it; figures of Flink's AsyncWaitOperator are quoted (another
machine's JVM). Then a real service over loopback, and a service that is down: the time until that is detected, and
the number of calls.
"""

import argparse
import asyncio
import time
from datetime import timedelta

from benchmarks._asking import CAPACITY, Bare, Lookup, Operator, Question, loopback
from benchmarks._report import figure, report
from benchmarks._turns import turns
from headrace import AsyncWait, CircuitBreaker, ExponentialBackoff, OutputMode
from headrace.async_io.async_wait import AsyncWaitOperator
from headrace.execution.element import Emitted
from headrace.records.order import record_order

TURNS = 5
FULL, QUICK = 100_000, 5_000
HTTP_FULL, HTTP_QUICK = 10_000, 500
HTTP_CAPACITY = 100
FLINK = {
    "flink, unordered": 186e3,
    "flink, ordered": 182e3,
    "flink, unordered, 1 % fail": 173e3,
    "flink, ordered, 1 % fail": 53e3,
}


def over(ours, theirs):
    return [a.rate / b.rate for a, b in zip(ours, theirs, strict=True)]


def spent(ours, theirs):
    """Return what theirs spends of CPU over what ours does, turn by turn."""
    return [b.cpu[0] / a.cpu[0] for a, b in zip(ours, theirs, strict=True)]


def in_process(records):
    """The operator's own cost."""
    for failures in (False, True):
        output = turns(
            TURNS,
            {
                "bare asyncio": Bare(records, failures),
                **{mode.value: Operator(records, failures, mode) for mode in OutputMode},
            },
        )
        of = ", 1 % fail" if failures else ""
        for mode in OutputMode:
            ratio = over(output[mode.value], output["bare asyncio"])
            yield figure(
                f"{mode.value}{of} / bare asyncio", ratio, "ratio", goal=">= 0.9", met=lambda value: value >= 0.9
            )
        for name, turns_ in output.items():
            yield figure(f"{name}{of}", [turn.rate for turn in turns_], "records/s")
            yield figure(f"{name}{of}, CPU", [turn.cpu[0] for turn in turns_], "us a record")
    for name, rate in FLINK.items():
        yield figure(f"{name} (quoted)", [rate], "records/s")


def over_loopback(records):
    """A real client against a real service: the operator's cost disappears in the cost of HTTP.

    The service is busy beside the client, so the client's own CPU is the fair ratio. The bare loop runs again behind each mode, so that
    a ratio is one of two neighbours. Beside other work the ratio says little: it came out from 0.68 to 0.99 then.
    """
    with loopback() as url:
        variants = {}
        for mode in OutputMode:
            variants[mode.value] = Operator(records, False, mode, url, HTTP_CAPACITY)
            variants[f"bare asyncio behind {mode.value}"] = Bare(records, False, url, HTTP_CAPACITY)
        output = turns(TURNS, variants)
    for mode in OutputMode:
        ours, bare = output[mode.value], output[f"bare asyncio behind {mode.value}"]
        name = f"loopback: {mode.value} / bare asyncio"
        yield figure(
            f"{name}, records a second of CPU", spent(ours, bare), "ratio", goal=">= 0.9", met=lambda v: v >= 0.9
        )
        yield figure(f"{name}, records a second", over(ours, bare), "ratio")
    for name, turns_ in output.items():
        yield figure(f"loopback: {name}", [turn.rate for turn in turns_], "records/s")
        yield figure(f"loopback: {name}, CPU", [turn.cpu[0] for turn in turns_], "us a record")


class Down(Lookup):
    async def invoke(self, question, /):
        self.calls += 1
        await asyncio.sleep(0.005)
        raise OSError(question.number)


def while_down(records):
    """A service that is down: with a breaker, and without."""
    retry = ExponentialBackoff(
        max_retries=10, initial_delay=timedelta(milliseconds=10), max_delay=timedelta(hours=1), exceptions=(OSError,)
    )
    elements = [Emitted(record_order(number), number, 0, Question(number)) for number in range(records)]
    for name, breaker in (("with breaker", CircuitBreaker(failures=20)), ("without", None)):
        seconds, calls = [], []
        for _ in range(TURNS):
            function = Down(failures=False)
            wait = AsyncWait(
                "ask",
                function,
                OutputMode.ORDERED,
                CAPACITY,
                timedelta(minutes=5),
                retry,
                park_after=timedelta(milliseconds=50),
                breaker=breaker,
            )
            operator = AsyncWaitOperator(wait, {})
            began = time.perf_counter()
            assert operator.run(elements) == []
            seconds.append(time.perf_counter() - began)
            calls.append(function.calls)
            assert len(operator.pending) == records
        yield figure(f"down, {name}: calls for {records:,} records", calls, "calls")
        yield figure(f"down, {name}: until all are parked", seconds, "s")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="little data: for trying it, not for figures")
    parser.add_argument("--loopback", action="store_true", help="only the calls over HTTP")
    options = parser.parse_args()
    records, http = (QUICK, HTTP_QUICK) if options.quick else (FULL, HTTP_FULL)
    others = [] if options.loopback else [*in_process(records), *while_down(records)]
    figures = [*others, *over_loopback(http)]
    figures.sort(key=lambda item: item["unit"] != "ratio")
    report("async_io", figures)


if __name__ == "__main__":
    main()
