"""Ask a vulnerability service about the locked packages, and about the oldest ones that the wheel admits.

    .venv/bin/python setup/audit.py      (`make audit` calls it)

Ends with 0 if all were asked about and nothing is known, 1 if a vulnerability is known, 3 if the service did not answer for all.
PIP_AUDIT_VULNERABILITY_SERVICE chooses the service: pypi (the default), osv or esms.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import release  # type: ignore[import-not-found]  # a script's neighbour

CLEAN, VULNERABLE, NOT_ASKED = 0, 1, 3
LOCK = release.HOME / "requirements.txt"
Report = Mapping[str, Any]


def main() -> int:
    """Audit both lists; return the exit code."""
    try:
        release.install_tools()
        with tempfile.TemporaryDirectory() as folder:
            oldest = Path(folder, "oldest.txt")
            resolve = (sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--generate-hashes", "--all-extras")
            release.run(
                *resolve, "--resolution", "lowest-direct", release.HOME / "pyproject.toml", "--output-file", oldest
            )
            codes = [audited("locked packages", LOCK), audited("oldest packages that the wheel admits", oldest)]
    except release.ReleaseError as error:
        print(f"make audit: {error}", file=sys.stderr)
        return NOT_ASKED
    return VULNERABLE if VULNERABLE in codes else max(codes)


def audited(what: str, requirements: Path) -> int:
    """Print what the service says of a list of packages; return the exit code."""
    command = (release.PYTHON, "-m", "pip_audit", "--format", "json", "--progress-spinner", "off", "--disable-pip")
    done = subprocess.run([*command, "--requirement", requirements], capture_output=True, text=True, check=False)
    try:
        code, text = verdict(json.loads(done.stdout))
    except ValueError:
        code, text = NOT_ASKED, f"no answer: {(done.stderr.strip().splitlines() or ['nothing'])[-1]}"
    print(f"{what}: {text}", flush=True)
    return code


def verdict(report: Report) -> tuple[int, str]:
    """Return the exit code and the words for a report of pip-audit, which itself passes over packages that it could not ask about."""
    packages = report["dependencies"]
    unknown = [package["name"] for package in packages if "skip_reason" in package]
    known = [
        f"{package['name']} {package['version']}: {vulnerability['id']}"
        f" (mended in {', '.join(vulnerability['fix_versions']) or 'no version'})"
        for package in packages
        for vulnerability in package.get("vulns", ())
    ]
    silence = [f"not audited, the service does not know {len(unknown)} of {len(packages)} packages"] if unknown else []
    if known:
        return VULNERABLE, "; ".join([*known, *silence])
    if unknown or not packages:
        return NOT_ASKED, "".join(silence) or "not audited, the list is empty"
    return CLEAN, f"nothing is known against {len(packages)} packages"


if __name__ == "__main__":
    sys.exit(main())
