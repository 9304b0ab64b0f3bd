"""A driver that can be killed without its JVM: it joins the JVM of the tests' session.

    python -m tests.fault.driver HOME OPTIONS

OPTIONS are those of `RunOptions`, as JSON. A start takes one second instead of ten, and a kill is harder on the job
than with a separate JVM: Spark's work for the dead driver continues for a while beside the next driver.
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
from headrace.run.options import RunOptions
from headrace.spark.runner import run_in


def joined_session() -> SparkSession:
    """Join the session of the JVM that PYSPARK_GATEWAY_PORT and PYSPARK_GATEWAY_SECRET name."""
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
    # The JVM belongs to another process: exit without the hooks that would end it.
    os._exit(main(*sys.argv[1:]))
