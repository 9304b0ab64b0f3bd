"""The peak of memory of a piece of work: of the whole process tree, and of its largest Python worker."""

import threading
from contextlib import contextmanager
from dataclasses import dataclass

import psutil

_EVERY = 0.05
"""Seconds between two looks at the tree: a shorter peak may be missed."""


@dataclass
class Peak:
    """Most bytes of resident memory at any look. Memory that processes share counts for each of them."""

    tree: int = 0
    worker: int = 0
    """Of the largest descendant of this process, Java's apart."""

    def look(self):
        """Take the present sizes into account."""
        own = psutil.Process()
        workers = [size for process in own.children(recursive=True) if (size := _size(process)) is not None]
        self.tree = max(self.tree, own.memory_info().rss + sum(size for size, _ in workers))
        self.worker = max(self.worker, *(size for size, is_java in workers if not is_java), 0)


@contextmanager
def peak_memory():
    """Yield a `Peak` that grows until the block ends."""
    peak, ended = Peak(), threading.Event()

    def watch():
        while not ended.wait(_EVERY):
            peak.look()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield peak
    finally:
        ended.set()
        watcher.join()


def _size(process):
    """Return the bytes of a process, and whether it is a JVM; None if it has ended."""
    try:
        return process.memory_info().rss, process.name() == "java"
    except psutil.NoSuchProcess:
        return None
