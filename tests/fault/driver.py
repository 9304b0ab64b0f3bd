"""A driver that can be killed without taking a JVM along: it joins the one of the tests' own session.

    python -m tests.fault.driver HOME OPTIONS

OPTIONS are those of `RunOptions`, as JSON. A start costs a second instead of ten, and dying is worse for the
job than with a JVM of its own: what Spark was doing for the dead driver goes on for a while, beside its successor.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from headrace.config import load_job
from headrace.errors import HeadraceError
from headrace.spark.options import RunOptions
from headrace.spark.runner import run_in


def joined_session() -> SparkSession:
    """The session of the JVM that PYSPARK_GATEWAY_PORT and PYSPARK_GATEWAY_SECRET lead to."""
    gateway = launch_gateway()
    jvm = gateway.jvm
    running = jvm.org.apache.spark.SparkContext.getOrCreate()
    context = jvm.org.apache.spark.api.java.JavaSparkContext.fromSparkContext(running)
    joined = SparkContext(gateway=gateway, jsc=context, conf=SparkConf(_jconf=context.getConf()))
    return SparkSession(joined)


def main(home: str, options: str) -> int:
    config = load_job("purchases", Path(home))
    try:
        run_in(joined_session(), config, msgspec.json.decode(options, type=RunOptions), lambda _: None)
    except HeadraceError as error:
        print(error, file=sys.stderr, flush=True)
        return error.exit_code
    return 0


if __name__ == "__main__":
    # The JVM is somebody else's: no farewell to it.
    os._exit(main(*sys.argv[1:]))
