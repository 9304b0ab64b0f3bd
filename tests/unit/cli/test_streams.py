"""Commands whose output nobody reads: a closed pipe, closed streams, a full disk."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from headrace.errors import CheckFailed, StorageError

_CODE = "import sys; from headrace.cli.application import main; sys.argv = ['headrace', *sys.argv[1:]]; main()"


def ended(home, command: str, redirection: str) -> subprocess.CompletedProcess[str]:
    """Run a command as a shell does, with its output redirected."""
    line = f'"{sys.executable}" -c "{_CODE}" {command} {redirection}'
    environment = {**os.environ, "HEADRACE_HOME": str(home), "PYTHONPATH": os.pathsep.join([str(home), *sys.path])}
    return subprocess.run(["bash", "-c", line], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_closed_pipe_keeps_the_exit_code(state, home):
    (state.folder / "timers" / "_delta_log" / "00000000000000000001.json").unlink()
    assert ended(home, "verify demo", "2>&1 | true; exit ${PIPESTATUS[0]}").returncode == CheckFailed.exit_code


@pytest.mark.slow
def test_closed_streams_are_no_bug(state, home):
    assert ended(home, "state list demo", ">&- 2>&-").returncode == 0


@pytest.mark.slow
def test_full_disk_is_named_after_the_command(state, home):
    result = ended(home, "state list demo", "> /dev/full")
    assert (result.returncode, result.stdout) == (StorageError.exit_code, "")
    assert result.stderr.startswith(
        "the output could not be written: No space left on device. The command itself is done"
    )
