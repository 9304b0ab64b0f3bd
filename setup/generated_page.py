"""Command of the scripts that make a page of docs/ from the code."""

import argparse
from collections.abc import Callable
from pathlib import Path


def run(file: Path, page: Callable[[], str], description: str) -> int:
    """Write the page to its file, or with `--check` compare it with the file; return the exit code."""
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the page is out of date")
    if parser.parse_args().check:
        return int(not file.exists() or file.read_text() != page())
    file.write_text(page())
    return 0
