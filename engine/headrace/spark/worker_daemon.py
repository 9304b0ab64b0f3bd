"""Daemon that forks Spark's Python workers: that of pyspark, from compiled modules.

    spark.python.daemon.module: headrace.spark.worker_daemon

A session with a local master has this setting. On a cluster it needs Headrace in the Python of the executors: files that Spark ships
come only after the daemon's start. Workers are forked with pyspark in memory, which starts no threads.
"""

from __future__ import annotations

from typing import Any

from headrace.provision.pyspark import prefer_installed_pyspark


def end_quietly(daemon: Any) -> None:
    """Let the workers of pyspark's `daemon` end without a traceback when Spark has ended before them: it would stand in the log of a good run."""
    worker = daemon.worker

    def worker_until_end(*connection: Any) -> Any:
        try:
            return worker(*connection)
        except BrokenPipeError:
            return 1

    daemon.worker = worker_until_end


if __name__ == "__main__":
    prefer_installed_pyspark()
    import pyspark.worker  # noqa: F401  workers have it then
    from pyspark import daemon

    end_quietly(daemon)
    daemon.manager()
