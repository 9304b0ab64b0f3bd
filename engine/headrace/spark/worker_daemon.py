"""Daemon that forks Spark's Python workers: that of pyspark, from compiled modules.

    spark.python.daemon.module: headrace.spark.worker_daemon

A session with a local master has this setting. On a cluster it needs Headrace in the Python of the executors: files that Spark ships
come only after the daemon's start. Workers are forked with pyspark in memory, which starts no threads.
"""

from __future__ import annotations

from headrace.provision.pyspark import prefer_installed_pyspark

if __name__ == "__main__":
    prefer_installed_pyspark()
    import pyspark.worker  # noqa: F401  workers have it then
    from pyspark.daemon import manager

    manager()
