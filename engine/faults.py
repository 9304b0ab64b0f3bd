"""Named places at which a test may kill the process (`kill -9`), to prove that nothing is lost.

Set `HEADRACE_KILL_AT` to the name of a place. In production it is not set and this costs a look-up.
"""

from __future__ import annotations

import os
import signal

_VARIABLE = "HEADRACE_KILL_AT"


def reached(place: str) -> None:
    """Die here if the environment asks for it."""
    if os.environ.get(_VARIABLE) == place:
        os.kill(os.getpid(), signal.SIGKILL)
