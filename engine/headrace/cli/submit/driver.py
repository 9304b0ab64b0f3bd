"""Run the `headrace` command as the driver that spark-submit starts.

Python puts the folder of a script first on `sys.path`: this script has its own folder, so that it hides no other module.
"""

from __future__ import annotations

import os
import sys
import threading

from headrace import clock
from headrace.cli import main
from headrace.provision.pyspark import prefer_installed_pyspark, submit_options

_LOOK_EVERY = 1.0


def end_with_parent() -> None:
    """End this process when its parent process is gone.

    Killing a task in Airflow kills spark-submit's JVM. A driver that waits for Spark notices it; a driver that is
    busy in Python, for example committing, would continue without a parent. It is safe to end it at any time,
    because the commit protocol tolerates it.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            clock.sleep(_LOOK_EVERY)
        os._exit(137)

    threading.Thread(target=watch, daemon=True, name="headrace-parent").start()


if __name__ == "__main__":
    end_with_parent()
    prefer_installed_pyspark()
    submit_options()
    sys.argv[0] = "headrace"
    main()
