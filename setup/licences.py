"""List each locked package with its licence, and refuse a licence of a runtime dependency that is not allowed.

    .venv/bin/python setup/licences.py [FILE]      (`make release` calls it)

Runtime dependencies are those of the wheel and of its extras, and theirs. The licence is what the installed package says of itself.
Uses only the standard library, and packaging.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

LOCK = Path(__file__).resolve().parent.parent / "requirements.txt"
OURS = "headrace"
ALLOWED = {
    "0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0", "ISC", "MIT", "MIT-0", "MIT-CMU", "MPL-2.0",
    "PSF-2.0", "Python-2.0", "Unlicense", "Zlib",
}  # fmt: skip
"""Licences that ask for no more than to be passed on; and MPL-2.0, which asks for the source of its own files alone."""

NAMES = {
    "3-clause bsd license": "BSD-3-Clause",
    "apache 2.0": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "bsd": "BSD-3-Clause",
    "bsd license": "BSD-3-Clause",
    "isc license (iscl)": "ISC",
    "mit license": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "python software foundation license": "PSF-2.0",
    "the unlicense (unlicense)": "Unlicense",
}
"""What older packages write, in small letters, by the identifier of SPDX that it means."""

KNOWN = {
    # Perl's pair, of which a user may choose one. Airflow needs it, by python-slugify; nothing of it is in the wheel.
    "text-unidecode": "Artistic-1.0-Perl OR GPL-1.0-or-later",
}
"""Licences of packages that were looked at by a person, and are allowed."""


@dataclass(frozen=True, order=True)
class Licensed:
    """A locked package, its version here, and its licence."""

    name: str
    version: str
    licence: str
    is_runtime: bool

    @property
    def is_allowed(self) -> bool:
        """Return whether all parts are allowed, or one of a plain choice."""
        if KNOWN.get(self.name) == self.licence:
            return True
        parts = re.split(r"\s+(?:AND|OR)\s+", self.licence.replace("(", "").replace(")", ""))
        is_choice = " OR " in self.licence and " AND " not in self.licence
        return any(part in ALLOWED for part in parts) if is_choice else set(parts) <= ALLOWED


def main() -> int:
    """Write the list, to FILE or to the terminal; return the exit code."""
    packages = locked_packages()
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(as_text(packages), encoding="utf-8")
    else:
        sys.stdout.write(as_text(packages))
    for sentence in refused(packages):
        print(sentence, file=sys.stderr)
    return 1 if refused(packages) else 0


def as_text(packages: Sequence[Licensed]) -> str:
    """Return a line for each package."""
    return "".join(f"{_line(package)}\n" for package in packages)


def refused(packages: Sequence[Licensed]) -> list[str]:
    """Return a sentence for each runtime dependency whose licence is not allowed."""
    return [
        f"{package.name} {package.version}: {package.licence or 'no licence'} is not in the list of allowed licences"
        for package in packages
        if package.is_runtime and not package.is_allowed
    ]


def locked_packages() -> list[Licensed]:
    """Return the packages of the lock that are installed here, runtime dependencies first."""
    runtime = runtime_names()
    packages = []
    for name in re.findall(r"^([A-Za-z0-9._-]+)==", LOCK.read_text(encoding="utf-8"), re.MULTILINE):
        try:
            installed = distribution(name)
        except PackageNotFoundError:
            continue  # for another platform
        packages.append(Licensed(name, installed.version, licence_of(installed), canonicalize_name(name) in runtime))
    return sorted(packages, key=lambda package: (not package.is_runtime, package.name.lower()))


def runtime_names() -> set[str]:
    """Return the names of all packages that the wheel or an extra of it brings with it here."""
    names: set[str] = set()
    extras = set(distribution(OURS).metadata.get_all("Provides-Extra") or ())
    waiting = [(OURS, frozenset(extras))]
    seen = set()
    while waiting:
        name, wanted = waiting.pop()
        if (name, wanted) in seen:
            continue
        seen.add((name, wanted))
        for requirement in _requirements(name, wanted):
            names.add(canonicalize_name(requirement.name))
            waiting.append((canonicalize_name(requirement.name), frozenset(requirement.extras)))
    return names


def _requirements(name: str, extras: frozenset[str]) -> Iterator[Requirement]:
    for line in distribution(name).requires or ():
        requirement = Requirement(line)
        if requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in extras or {""}):
            yield requirement


def licence_of(package: Distribution) -> str:
    """Return the licence as SPDX writes it, where the package says enough; else what it says."""
    metadata = package.metadata
    if package.name in KNOWN:
        return KNOWN[package.name]
    if "License-Expression" in metadata:
        return metadata["License-Expression"]
    classifiers = [
        text.rpartition(" :: ")[2] for text in metadata.get_all("Classifier") or () if text.startswith("License :: ")
    ]
    texts = [text for text in classifiers if text != "OSI Approved"] or [
        " ".join(metadata.get_all("License") or ()).partition("\n")[0].strip()
    ]
    return " AND ".join(NAMES.get(text.lower(), text) for text in texts)


def _line(package: Licensed) -> str:
    use = "runtime" if package.is_runtime else "development"
    return f"{package.name:<44} {package.version:<16} {use:<12} {package.licence or '?'}"


if __name__ == "__main__":
    sys.exit(main())
