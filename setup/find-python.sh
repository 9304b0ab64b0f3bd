#!/bin/sh
# Print the first Python that Headrace can run on (3.11 to 3.14). A name is tried by running it: a
# version manager's shim can be on PATH for a version that isn't there. PYTHON, when set, is the only
# one tried.
set -eu

usable() {
    "$1" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' \
        >/dev/null 2>&1
}

# What the environment was made with stays, until another one is asked for.
if [ -z "${PYTHON:-}" ] && usable .venv/bin/python; then
    .venv/bin/python -c 'import sys; print(sys._base_executable)'
    exit 0
fi

for name in ${PYTHON:-python3 python3.12 python3.11 python3.13 python3.14 python}; do
    if usable "$name"; then
        command -v "$name"
        exit 0
    fi
    seen="${seen:-}  $name: $("$name" --version 2>&1 | head -n 1 || true)
"
done

cat >&2 <<END
Headrace needs Python 3.11, 3.12, 3.13 or 3.14 with the modules venv and ensurepip. Tried:
$seen
Install one (Debian, Ubuntu: apt install python3-venv; others: their package manager, pyenv or uv), then
    make setup PYTHON=/path/to/python3.12
END
exit 1
