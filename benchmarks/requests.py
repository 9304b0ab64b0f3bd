"""Requests of a run to an object store that answers after 20 ms, and seconds: after a few runs and after many.

    make bench-requests
    python -m benchmarks.requests --show    what the last run asked for

State and sink are on the store, and each run takes in one file of 1,000 rows (`headrace run --runner local`). The
figures must not grow with the number of runs. The sums in the sink are checked at the end.
"""

import argparse
import os
import re
import time
from collections import Counter
from pathlib import Path

import yaml

from benchmarks._counted_store import BUCKET, counted_store
from benchmarks._counting_job import JOB, Workload
from benchmarks._report import figure, report
from headrace import local
from headrace.config import load_job
from headrace.run.options import RunOptions

ROWS, KEYS = 1_000, 10_000
CLUSTER = "local"


class RemoteWorkload(Workload):
    """A job whose state and sink are on an object store, run without Spark."""

    def __init__(self, root, backend, store):
        super().__init__(None, root, backend, KEYS)
        job = yaml.safe_load(JOB % {"backend": backend, "pipeline": "pipeline"})
        job["state"]["root"] = f"s3://{BUCKET}/state"
        job["sinks"]["counts"]["path"] = f"s3://{BUCKET}/counts"
        (root / "conf/jobs/counting.yaml").write_text(yaml.safe_dump(job))
        secrets = {name: value for name, value in store.options.items() if name.endswith(("KEY", "KEY_ID"))}
        os.environ.update(secrets)
        storage = store.options | {name: f"${{{name}}}" for name in secrets}
        cluster = {"master": "none", "parallelism": 2, "storage": storage}
        (root / f"conf/clusters/{CLUSTER}.yaml").write_text(yaml.safe_dump(cluster))
        self.config = load_job("counting", home=root)
        self.store = store

    def run(self):
        return local.run(self.config, RunOptions(run_id=f"bench-{self.files}"), self._keep)

    def turn(self):
        """Take in random rows; return the seconds, and the requests."""
        self.feed([self.random.randrange(KEYS) for _ in range(ROWS)])
        self.store.taken()
        begun = time.perf_counter()
        self.run()
        return time.perf_counter() - begun, self.store.taken()


def kind_of(request):
    """Return what a request is about: its method, and the path without what differs from run to run."""
    method, path = request
    path = re.sub(r"[0-9a-f]{8,}|\d+", "*", path.partition("&X-")[0])
    return f"{method} {path[:110]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=24)
    parser.add_argument("--delay", type=float, default=0.02, help="seconds before each answer")
    parser.add_argument("--backend", default="rocksdb")
    parser.add_argument("--show", action="store_true", help="print the requests of the last run")
    options = parser.parse_args()
    with counted_store(options.delay) as store:
        load = RemoteWorkload(Path("var/bench/requests"), options.backend, store)
        load.load()
        turns = [load.turn() for _ in range(options.runs)]
        load.check()
    figures = []
    for name, part in (("first runs", turns[2:10]), ("last runs", turns[-8:])):
        figures.append(figure(f"{name}: requests", [requests.total() for _, requests in part], ""))
        figures.append(figure(f"{name}: time", [seconds for seconds, _ in part], "s"))
    report("requests", figures)
    if options.show:
        kinds = Counter()
        for request, count in turns[-1][1].items():
            kinds[kind_of(request)] += count
        for kind, count in kinds.most_common():
            print(f"{count:5} {kind}")


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", str(Path.cwd()))
    main()
