"""100,000 calls of 5 ms with 1,000 in flight, in a whole micro-batch through Spark, beside a bare asyncio loop (workload W3).

The job has two tasks with 500 calls in flight each; the loop has 1,000. Both read the same two Parquet files and write their
answers as Parquet, in turns; the job also commits to Delta. The first turn, in which workers start, is not reported. Every answer
of every turn is checked.
"""

import argparse
import asyncio
import gc
import multiprocessing
import os
import shutil
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from benchmarks._costs import measured
from benchmarks._enrichment_job import CAPACITY, TASKS, Lookup, Question, score_of
from benchmarks._home import new_home
from benchmarks._report import figure, report
from headrace.config import load_job
from headrace.log.log import CheckpointLog
from headrace.run.options import RunOptions
from headrace.spark.runner import run_in
from headrace.spark.session import session
from headrace.tables.folder import JobFolder

MODES = ("unordered", "ordered")
GOAL = 0.9
ROOT = Path("var/bench/enrichment")
JOB = """
job: enriching
pipeline: benchmarks._enrichment_job:%(mode)s
state: {root: state, local: local}
sources: {questions: {path: questions, max_files_per_batch: %(tasks)d}}
sinks: {answers: {path: lake/answers, mode: append}}
"""


class Turn(NamedTuple):
    """Seconds of a turn: as a whole, and of the stage that makes the calls; and CPU seconds."""

    wall: float
    stage: float
    cpu: float


class Job:
    """The job in one mode, in a folder of its own."""

    def __init__(self, spark, mode):
        self.spark, self.root, self.records = spark, ROOT / mode, 0
        self.config = new_home(self.root, "enriching", JOB % {"mode": mode, "tasks": TASKS})
        (self.root / "questions").mkdir()

    def turn(self, files):
        for file in files:
            (self.root / "questions" / file.name).hardlink_to(file)
        options = RunOptions(run_id=f"turn-{files[0].stem}", parallelism=TASKS)
        with measured() as cost:
            run_in(self.spark, self.config, options, lambda _: None)
        stage = CheckpointLog(JobFolder(self.config.job_folder)).last.seconds["sources"]
        self.records += sum(pq.read_metadata(file).num_rows for file in files)
        return Turn(cost.wall, stage, cost.cpu)

    def check(self):
        check(pa.table(DeltaTable(self.config.sinks["answers"].path).scan()), self.records)


class Bare:
    """A loop with a semaphore, in a process of its own."""

    def __init__(self):
        (ROOT / "bare").mkdir(parents=True)
        self.process = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=gc.disable)
        self.records = 0

    def turn(self, files):
        turn = self.process.submit(asked, files, ROOT / "bare" / files[0].name).result()
        self.records += sum(pq.read_metadata(file).num_rows for file in files)
        return turn

    def check(self):
        check(pa.concat_tables(map(pq.read_table, sorted((ROOT / "bare").iterdir()))), self.records)
        self.process.shutdown()


def asked(files, output):
    """Read questions, ask them, write the answers; return what it took."""
    begun, cpu = time.perf_counter(), time.process_time()
    tables = [pq.ParquetFile(file).read() for file in files]
    columns = [pa.concat_tables(tables)[name].to_pylist() for name in ("number", "name")]
    questions = [Question(number, name, 0) for number, name in zip(*columns, strict=True)]
    asking = time.perf_counter()
    answers = asyncio.run(all_answers(questions))
    stage = time.perf_counter() - asking
    names = ("number", "name", "score")
    pq.write_table(pa.table({name: [getattr(answer, name) for answer in answers] for name in names}), output)
    return Turn(time.perf_counter() - begun, stage, time.process_time() - cpu)


async def all_answers(questions):
    room, function, answers = asyncio.Semaphore(CAPACITY), Lookup(), []

    async def one(question):
        async with room:
            answers.extend(await function.invoke(question))

    await asyncio.gather(*map(one, questions))
    return answers


def check(answers, records):
    """Compare all answers with what the service says."""
    numbers = answers["number"].to_numpy()
    assert np.array_equal(np.sort(numbers), np.arange(records)), f"{len(numbers):,} answers, not one for each question"
    assert np.array_equal(answers["score"].to_numpy(), score_of(numbers)), "a wrong score"
    assert answers["name"].to_pylist() == [f"question {number}" for number in numbers], "the answer to another question"


def write_questions(first, count):
    """Write a file of questions for each task; return the files."""
    (ROOT / "input").mkdir(parents=True, exist_ok=True)
    files = []
    for start in range(first, first + count, count // TASKS):
        numbers = pa.array(range(start, start + count // TASKS), pa.int64())
        names = [f"question {number}" for number in numbers.to_pylist()]
        files.append(ROOT / f"input/{start:010d}.parquet")
        table = pa.table({"number": numbers, "name": names, "ts": numbers.cast(pa.timestamp("ms", "UTC"))})
        pq.write_table(table, files[-1])
    return files


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    shutil.rmtree(ROOT, ignore_errors=True)
    spark = session(load_job("flights"))
    variants = {mode: Job(spark, mode) for mode in MODES} | {"bare asyncio": Bare()}
    turns = {name: [] for name in variants}
    for number in range(1 + options.turns):
        files = write_questions(number * options.records, options.records)
        for name, variant in variants.items():
            turns[name].append(variant.turn(files))
    for variant in variants.values():
        variant.check()
    report("enrichment", [*figures({name: own[1:] for name, own in turns.items()}, options.records)])
    spark.stop()


def figures(turns, records):
    """Ratios of rates, turn by turn; then rates, and CPU."""
    bare = turns["bare asyncio"]
    for mode in MODES:
        ratios = [theirs.wall / ours.wall for ours, theirs in zip(turns[mode], bare, strict=True)]
        name = f"{mode}: whole micro-batch / bare asyncio with its files, rate"
        yield figure(name, ratios, "ratio", goal=f">= {GOAL}", met=lambda ratio: ratio >= GOAL)
        ratios = [theirs.stage / ours.stage for ours, theirs in zip(turns[mode], bare, strict=True)]
        yield figure(f"{mode}: stage of sources and calls / asyncio alone, rate", ratios, "ratio")
    for name, own in turns.items():
        yield figure(f"{name}, rate", [records / turn.wall for turn in own], "records/s")
        yield figure(f"{name}, wall", [turn.wall for turn in own], "s")
        yield figure(f"{name}, stage", [turn.stage for turn in own], "s")
        yield figure(f"{name}, CPU", [turn.cpu / records * 1e6 for turn in own], "us a record")


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", str(Path.cwd()))
    main()
