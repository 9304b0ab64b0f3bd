"""Build the site of docs/ with Zensical, which `make site` installs: python setup/site/build.py [FOLDER], by default var/site.

Besides the pages of docs/ it has some files of the repository. A link to any other file of the repository becomes plain text.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

PROJECT: Final = Path(__file__).resolve().parents[2]
SITE: Final = PROJECT / "var" / "site"
TOOLS: Final = PROJECT / "var" / "site-tools"

# Files of the repository, and their pages.
REPOSITORY: Final = {
    "CHANGELOG.md": "repository/changelog.md",
    "SECURITY.md": "repository/security.md",
    "ARCHITECTURE.md": "repository/architecture.md",
    "CONTRIBUTING.md": "repository/contributing.md",
    "benchmarks/DIARY.md": "repository/diary.md",
    "tests/FINDINGS.md": "repository/findings.md",
}
_LINK: Final = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^()\s]*(?:\([^()\s]*\)[^()\s]*)*)\)")
_CODE: Final = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)
_INDENTED_FENCE: Final = re.compile(r"^ {2,3}```.*?^ {2,3}```$", re.MULTILINE | re.DOTALL)


def pages() -> Iterator[tuple[Path, str]]:
    """Yield each Markdown file that the site shows, and its place in the site."""
    docs = PROJECT / "docs"
    yield from ((file, file.relative_to(docs).as_posix()) for file in sorted(docs.rglob("*.md")))
    yield from ((PROJECT / name, place) for name, place in REPOSITORY.items())


def page(file: Path, place: str) -> str:
    """Return the text of a page as Zensical needs it."""
    places = {other.resolve(): shown for other, shown in pages()}

    def link(match: re.Match[str]) -> str:
        text, target = match[1], match[2]
        path, hash_mark, anchor = target.partition("#")
        if not path or ":" in path:
            return match[0]
        linked = (file.parent / path).resolve()
        if linked in places:
            return f"[{text}]({os.path.relpath(places[linked], Path(place).parent)}{hash_mark}{anchor})"
        return match[0] if linked.is_relative_to(PROJECT / "docs") and file.is_relative_to(PROJECT / "docs") else text

    parts = _CODE.split(file.read_text())
    parts[::2] = [_LINK.sub(link, part) for part in parts[::2]]
    # In an item of a list, Python's Markdown asks for four spaces.
    return _INDENTED_FENCE.sub(lambda match: re.sub(r"^ {2,3}", "    ", match[0], flags=re.MULTILINE), "".join(parts))


def build(site: Path, tools: Path = TOOLS) -> None:
    """Write the site into a folder, which is emptied before.

    Raises:
        subprocess.CalledProcessError: Zensical warns, for example of a link that leads nowhere, or fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        shutil.copytree(PROJECT / "docs", home / "docs")
        shutil.copytree(
            PROJECT / "setup" / "site", home / "docs" / "site", ignore=lambda *_: {"build.py", "tools.in", "tools.txt"}
        )
        shutil.copy(PROJECT / "zensical.toml", home)
        for file, place in pages():
            (home / "docs" / place).parent.mkdir(exist_ok=True)
            (home / "docs" / place).write_text(page(file, place))
        subprocess.run([tools / "bin" / "zensical", "build", "--clean", "--strict"], cwd=home, check=True)
        shutil.rmtree(site, ignore_errors=True)
        shutil.copytree(home / "site", site)


if __name__ == "__main__":
    build(Path(sys.argv[1]) if sys.argv[1:] else SITE)
