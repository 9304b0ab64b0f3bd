"""What spark-submit starts: the `headrace` command, in the driver's process."""

from __future__ import annotations

import sys

from engine.cli import main

if __name__ == "__main__":
    sys.argv[0] = "headrace"
    main()
