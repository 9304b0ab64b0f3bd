"""Variants of one workload, each in a separate process, run in turns."""

import gc
import multiprocessing
import time
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

_SPAWN = multiprocessing.get_context("spawn")


class Turn(NamedTuple):
    """The times of the steps of a turn, in microseconds per record."""

    wall: list[float]
    cpu: list[float]

    @property
    def rate(self):
        """Return the records per second of all steps together."""
        return 1e6 / sum(self.wall)


def turns(count, variants):
    """Run `count` turns of each of `variants`, one at a time; return a list of turns by name.

    A variant is anything that can be pickled and called. Called, in its process, it prepares itself and returns a
    function that prepares one turn. That function returns the number of records, the steps to be timed (functions),
    and a function that checks their results.
    """
    with ExitStack() as stack:
        processes = {name: stack.enter_context(_process(variant)) for name, variant in variants.items()}
        for connection in processes.values():
            connection.recv()  # prepared
        output = {name: [] for name in processes}
        for _ in range(count):
            for name, connection in processes.items():
                connection.send("turn")
                output[name].append(connection.recv())
        return output


@contextmanager
def _process(variant):
    mine, theirs = _SPAWN.Pipe()
    process = _SPAWN.Process(target=_serve, args=(variant, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        with mine:
            yield mine
    finally:
        process.join()


def _serve(variant, connection):
    prepare = variant()
    gc.disable()  # as tasks do: headrace.run.tasks
    connection.send("prepared")
    while True:
        try:
            connection.recv()
        except EOFError:
            return
        connection.send(_timed(prepare))


def _timed(prepare):
    records, steps, check = prepare()
    gc.collect()
    walls, cpus = [], []
    for step in steps:
        wall, cpu = time.perf_counter(), time.process_time()
        step()
        walls.append((time.perf_counter() - wall) / records * 1e6)
        cpus.append((time.process_time() - cpu) / records * 1e6)
    check()
    return Turn(walls, cpus)
